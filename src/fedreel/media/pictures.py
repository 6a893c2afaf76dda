"""Single frames as JPEG pictures in memory, by Pillow: no decoder of video is needed to read them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np


def encode_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """RGB (h, w, 3) as a JPEG file; the same pixels give the same bytes."""
    from PIL import Image

    out = BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality)
    return out.getvalue()


def decode_jpeg(content: Any, into: np.ndarray) -> None:
    """Write the pixels of such a file into RGB (h, w, 3); ValueError if they are not all there. The size is known, so
    the decoder is called without a look at the file's head: with small pictures that is half of the time, and the part
    in which other threads must wait."""
    from PIL import Image

    height, width = into.shape[:2]
    into[...] = np.asarray(Image.frombytes("RGB", (width, height), bytes(content), "jpeg", "RGB", ""))
