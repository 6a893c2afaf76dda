"""What a process has open. Needs /proc."""

from __future__ import annotations

import gc
import os


def open_files() -> int:
    """How many files this process has open. What nobody holds any more is closed first: else it may be closed, by a
    collection of garbage, between two counts."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
