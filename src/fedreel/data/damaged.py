"""What readers of damaged files raise: numpy's .npz and h5py meet damage with errors of many kinds."""

from __future__ import annotations

import struct
import zipfile
import zlib

NPZ_ERRORS = (
    *(OSError, EOFError, KeyError, ValueError, TypeError, SyntaxError, MemoryError, OverflowError, RuntimeError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)
H5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, MemoryError)
