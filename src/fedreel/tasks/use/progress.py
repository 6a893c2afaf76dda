"""Progress of long work on stderr: one live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

OFTEN, SELDOM = 0.2, 10.0  # seconds between two lines on a terminal, and elsewhere


class Shown:
    """Call it with what is being done and which share of it is done. On a terminal nothing of it stays."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file or sys.stderr
        self.live = self.file.isatty()
        self.what = ""
        self.began = self.latest = time.monotonic()

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.file.write("\r\x1b[K")
            self.file.flush()

    def __call__(self, what: str, share: float) -> None:
        now = time.monotonic()
        if what != self.what:
            self.what, self.began = what, now
        if now - self.latest < (OFTEN if self.live else SELDOM):
            return
        self.latest = now
        left = (now - self.began) / share * (1 - share) if share > 0 else 0.0
        text = f"{what}: {share:.0%}, {left:.0f} s left"
        self.file.write(f"\r\x1b[K{text}" if self.live else f"{text}\n")
        self.file.flush()
