"""Image files: which there are in a folder, and their pixels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedreel.machine.processes import cores

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")  # not EPS, for which Pillow starts another program
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"))
MAX_PIXELS = 2**30 // 12  # of one image: where Pillow begins to warn
CHUNK = 1024  # images that may wait in memory


def decoded(paths: Sequence[Path], side: int) -> Iterator[np.ndarray | str]:
    """What `decode` gives for each, in their order. By threads: Pillow lets the others run while it decodes."""
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(paths), CHUNK):
            yield from pool.map(partial(decode, side=side), paths[start : start + CHUNK])


def decode(path: Path, side: int) -> np.ndarray | str:
    """An image as uint8 RGB (side, side, 3), or why it cannot be read."""
    try:
        if not path.stat().st_size:
            return "the file is empty"
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return f"{image.width} x {image.height} pixels are more than are safe to decode"
            return scaled(image, side)
    except UnidentifiedImageError:
        return f"not an image ({', '.join(FORMATS)})"
    except Exception as error:  # decoders meet damage with errors of any kind
        return str(error) or type(error).__name__


def scaled(image: Image.Image, side: int) -> np.ndarray:
    """uint8 RGB (side, side, 3)."""
    if image.mode.startswith("I"):  # 16 bits of grey, of which Pillow would keep the lower 8
        image = Image.fromarray((np.asarray(image).clip(0, 2**16 - 1) >> 8).astype(np.uint8))
    image = image.convert("RGB")
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)  # Pillow's averages where it makes smaller
    return np.asarray(image)


def image_files(tree: Path) -> list[str]:
    """Every image below the folder, sorted; hidden files and folders and a Mac's notes about them left out."""
    found = []
    for place, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if is_visible(name)]
        here = Path(place).relative_to(tree)
        names = (n for n in files if is_visible(n) and Path(n).suffix.lower() in SUFFIXES)
        found += [(here / name).as_posix() for name in names]
    return sorted(found)


def is_visible(name: str) -> bool:
    """Not hidden, and not a Mac's notes about files."""
    return not name.startswith(".") and name != "__MACOSX"
