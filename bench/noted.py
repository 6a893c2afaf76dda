"""Decoding that writes down each clip it opens, for `shards.py`: a module, since decoding processes import it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedreel.data import shards
from fedreel.media import video

OPENED = "FEDREEL_BENCH_OPENED"  # names the file
_decode_part = shards._decode_part


class Reader(video.Reader):
    def __init__(self, path: Path, size: tuple[int, int] | None = None) -> None:
        super().__init__(path, size)
        with open(os.environ[OPENED], "a") as file:  # a short line in append mode is written in one piece
            file.write("/".join(self.path.parts[-3:]) + "\n")


def decode_part(part: Any) -> None:
    shards.Reader = Reader  # type: ignore[misc]
    _decode_part(part)
