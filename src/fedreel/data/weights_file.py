"""Files of weights: names and tensors, or tensors in order where a file has no names. Nothing in them is run."""

from __future__ import annotations

import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedreel.data.bounded import array_of, read_header
from fedreel.data.pickled_arrays import NAMES, PickledArray, array_calls
from fedreel.data.restricted_pickle import evaluate
from fedreel.data.torch_file import read_tensors
from fedreel.errors import DataError

_DAMAGE = (ValueError, LookupError, TypeError, EOFError, NotImplementedError, OSError, RuntimeError, OverflowError)
SUFFIXES = (".safetensors", ".pth", ".pt", ".npz")
Weights = dict[str, Tensor] | list[Tensor]


def read_file(path: Path) -> Weights:
    """The tensors of a .safetensors, .pth, .pt or .npz file."""
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise DataError(
            "this is no file of weights" if path.exists() else "there is no such file of weights",
            where=str(path),
            expected=f"the path of a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file",
        )
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix != ".safetensors":
        return read_tensors(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError("this file of weights cannot be read", where=str(path), found=str(error)) from None


def read_npz(path: Path) -> Weights:
    """What numpy.savez wrote: of arrays with names of their own these and the tensors; of one array of objects, or of
    arrays that were given without names, the tensors in order."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
        if len(arrays) == 1 and isinstance(objects := next(iter(arrays.values())), list):
            return [_tensor(item.values if isinstance(item, PickledArray) else item) for item in objects]
        if all(name.removeprefix("arr_").isdecimal() for name in arrays):
            return [_tensor(arrays[name]) for name in sorted(arrays, key=lambda name: int(name.removeprefix("arr_")))]
        return {name: _tensor(array) for name, array in arrays.items()}
    except (zipfile.BadZipFile, zlib.error, *_DAMAGE) as error:
        raise DataError(
            "this file of weights cannot be read",
            where=str(path),
            expected="arrays, or a list of arrays, written by numpy.savez",
            found=str(error)[:200] or type(error).__name__,
            hint="write a .safetensors file instead: safetensors.torch.save_file(model.state_dict(), path)",
        ) from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray | list[Any]:
    """A member of the archive; a list where it is an array of objects, whose pickle is read and not run."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"'{info.filename}' is compressed: write it by numpy.savez")
    content = archive.read(info)
    file = BytesIO(content)
    if not read_header(file, info.filename).dtype.hasobject:
        return array_of(content, info.filename)
    found = evaluate(file, array_calls(len(content)), NAMES)
    if not isinstance(found, PickledArray) or not isinstance(found.values, list):
        raise ValueError("objects that are no list of arrays")
    return found.values


def _tensor(array: Any) -> Tensor:
    if isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
    if type(array) in (int, float):  # a counter that numpy made a number of
        return torch.tensor(array)
    raise ValueError(f"a {type(array).__name__} among the weights")
