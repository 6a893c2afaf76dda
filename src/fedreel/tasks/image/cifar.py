"""CIFAR-100 in its Python form, without running what is in it: the program that would build its arrays is only read."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.data.pickled_arrays import NAMES, PickledArray, array_calls
from fedreel.data.restricted_pickle import Refused, evaluate
from fedreel.errors import DataError

FILES = ("train", "test", "meta")
SIDE = 32
MAX_BYTES = 2**30  # of one file; CIFAR's largest has 155 MB


def is_cifar(folder: Path) -> bool:
    """Whether a folder looks like CIFAR-100 in its Python form."""
    return all((folder / name).is_file() for name in FILES)


def read_cifar(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images (N, 32, 32, 3) uint8 and fine labels of `train` or `test`, and the names of the classes."""
    names = _names(_table(folder / "meta"), folder / "meta")
    table, where = _table(folder / part), folder / part
    pixels, labels = table.get("data"), table.get("fine_labels")
    images = pixels.values if isinstance(pixels, PickledArray) else None
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or not isinstance(labels, list):
        raise _damaged(where, "no array `data` of bytes beside a list `fine_labels`")
    if images.shape != (len(labels), 3 * SIDE * SIDE):
        raise _damaged(where, f"{len(labels)} labels for an array of shape {images.shape}")
    if not all(type(label) is int and 0 <= label < len(names) for label in labels):
        raise _damaged(where, f"labels that are not 0 to {len(names) - 1}")
    images = images.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.int64), names


def _table(path: Path) -> dict[str, Any]:
    """The dict that a file holds; keys are bytes or texts, after who wrote it."""
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise DataError("a file of CIFAR cannot be read", where=str(path), found=str(error)) from error
    if size > MAX_BYTES:
        raise _damaged(path, f"{size} bytes")
    try:
        found = evaluate(BytesIO(content), array_calls(len(content)), NAMES)
    except Refused as error:
        raise _damaged(path, str(error)) from None
    if type(found) is not dict:
        raise _damaged(path, f"a {type(found).__name__}")
    return {_text(key): value for key, value in found.items()}


def _names(table: dict[str, Any], path: Path) -> list[str]:
    names = table.get("fine_label_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str | bytes) for name in names):
        raise _damaged(path, "no list `fine_label_names`")
    texts = [_text(name) for name in names]
    if len(set(texts)) < len(texts):
        raise _damaged(path, "two classes of one name")
    return texts


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode("latin-1")


def _damaged(path: Path, found: str) -> DataError:
    return DataError(
        "this file is not one of CIFAR-100's",
        where=str(path),
        expected="cifar-100-python as it is published: train, test and meta",
        found=found,
        hint="get it again, or give the images as CLASS/*.png",
    )
