"""A picture as CLIP was shown pictures: the shorter side scaled by cubic curves, and the square in the middle of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.data.hugging_face import PREPROCESSORS, read_table
from fedreel.errors import DataError

CUBIC = 3  # Pillow's number of it
KERNELS = {0: "nearest", 1: "lanczos", 2: "bilinear", CUBIC: "bicubic", 4: "box", 5: "hamming"}


@dataclass(frozen=True)
class ClipPicture:
    """What `transformers` does to a picture, to the bit: RGB (H, W, 3) of bytes in, (side, side, 3) out."""

    side: int
    shorter: int  # of the scaled picture, before its middle is taken
    kernel: int = CUBIC

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        from PIL import Image

        tall, wide = self._scaled(*pixels.shape[:2])
        if (tall, wide) != pixels.shape[:2]:
            picture = Image.fromarray(pixels).resize((wide, tall), resample=Image.Resampling(self.kernel))
            pixels = np.asarray(picture)
        top, left = (tall - self.side) // 2, (wide - self.side) // 2
        return np.ascontiguousarray(pixels[top : top + self.side, left : left + self.side])

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        """The longer side is cut off to whole pixels, not rounded."""
        if height <= width:
            return self.shorter, int(self.shorter * width / height)
        return int(self.shorter * height / width), self.shorter


def read_picture(folder: Path, side: int) -> ClipPicture:
    """As the preprocessor of a model in the format of `transformers` says; where it says nothing, as for all published
    CLIPs. Raises if it says what cannot be done here, or gives pictures of another size than the model takes."""
    told: Mapping[str, Any] = {}
    for name in PREPROCESSORS[:1]:
        if (folder / name).is_file():
            told = read_table(folder / name)
    shorter = _length(told.get("size", side), "shortest_edge")
    cut = _length(told.get("crop_size", side), "height", "width")
    kernel = told.get("resample", CUBIC)
    does = all(told.get(key, True) is True for key in ("do_resize", "do_center_crop"))
    if not does or cut != side or shorter < side or kernel not in KERNELS:
        raise DataError(
            "pictures cannot be prepared as this model's preprocessor says",
            where=str(folder / PREPROCESSORS[0]),
            expected=f"the shorter side scaled to {side} or more pixels, and a middle of {side} x {side}",
            found=", ".join(f"{key} {told[key]}" for key in _KEYS if key in told),
        )
    return ClipPicture(side, shorter, kernel)


_KEYS = ("do_resize", "size", "resample", "do_center_crop", "crop_size")


def _length(told: Any, *keys: str) -> int:
    """One number of pixels, which older files write alone; 0 where it is none."""
    found = {told.get(key) for key in keys} if isinstance(told, dict) else {told}
    length = found.pop() if len(found) == 1 else None
    return length if isinstance(length, int) else 0
