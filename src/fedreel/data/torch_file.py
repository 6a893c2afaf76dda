"""Tensors out of PyTorch's files, without running what is in them: the program that would build them is only read."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedreel.data.restricted_pickle import Call, Named, Refused, Stateful, evaluate
from fedreel.errors import DataError

MOST_AXES = 64  # of a tensor
CHECKPOINT = ("state_dict", "model_state_dict", "model")  # where checkpoints of training loops keep the weights
_OLDER = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files of before 2020 begin
_DTYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
_NUMBERS = (
    *("numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
    "_codecs.encode",  # how their bytes are written
)
# What damaged or hostile files lead to; anything else is a fault of ours and should be seen.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError),
    *(ValueError, LookupError, TypeError, RuntimeError, OverflowError),
)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a state dict that torch.save wrote, in today's form (a zip) or in that of before 2020, by
    itself or in a checkpoint, as `state_dict`, `model_state_dict` or `model` beside plain values and other tensors. A
    file that asks for anything else than to put tensors together is refused."""
    content = path.read_bytes()
    try:
        return _read_zip(content) if content.startswith(b"PK") else _read_older(content)
    except _DAMAGE as error:
        raise DataError(
            "this file of weights cannot be read",
            where=str(path),
            expected="a state dict, or a checkpoint with one in it, written by torch.save",
            found=str(error)[:200] or type(error).__name__,
            hint="write a .safetensors file instead: safetensors.torch.save_file(model.state_dict(), path)",
        ) from None


@dataclass(frozen=True)
class _Storage:
    """Numbers that lie elsewhere in the file."""

    key: str
    dtype: torch.dtype
    length: int

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize


@dataclass(frozen=True)
class _View:
    """A tensor: which numbers of a storage, in which order."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _read_zip(content: bytes) -> dict[str, Tensor]:
    with zipfile.ZipFile(BytesIO(content)) as archive:

        def member(name: str) -> bytes:
            if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"'{name}' is compressed, which torch.save never does")
            return archive.read(name)

        programs = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(programs) != 1:
            raise ValueError(f"a zip with {len(programs)} members data.pkl")
        folder = programs[0].removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist() and member(f"{folder}byteorder") != b"little":
            raise ValueError("numbers of a big-endian machine")
        views = _views(_evaluate(BytesIO(member(programs[0])), {}), len(content))
        return _fill(views, lambda storage: member(f"{folder}data/{storage.key}"))


def _read_older(content: bytes) -> dict[str, Tensor]:
    if not content.startswith(_OLDER):
        raise ValueError("neither of the two forms in use since 2018")
    file = BytesIO(content[len(_OLDER) :])
    storages: dict[str, _Storage] = {}  # of every tensor that the program builds, an optimizer's too
    _version, machine = _evaluate(file, {}), _evaluate(file, {})
    if machine["little_endian"] is not True:
        raise ValueError("numbers of a big-endian machine")
    views = _views(_evaluate(file, storages), len(content))
    parts = {}
    for key in _evaluate(file, {}):
        (length,) = struct.unpack("<q", file.read(8))
        if not isinstance(key, str) or length != storages[key].length:
            raise ValueError("a storage has another length than its tensors say")
        parts[key] = file.read(storages[key].nbytes)
    return _fill(views, lambda storage: parts[storage.key])


def _evaluate(file: BytesIO, storages: dict[str, _Storage]) -> Any:
    """What a program builds; the storages that it names are put into `storages`."""

    def storage(*reference: Any) -> _Storage:
        found = _storage(*reference)
        storages[found.key] = found
        return found

    calls: dict[str, Call] = {
        "collections.OrderedDict": _ordered,
        "torch._utils._rebuild_tensor_v2": _view,
        "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
        **{name: lambda *_: _Unread() for name in _NUMBERS},
    }
    return evaluate(file, calls, frozenset(_DTYPES), storage)


class _Unread(Stateful):
    """A number of numpy's beside the weights, such as a score: nobody asks for it."""

    def fill(self, state: Any) -> None:
        pass


def _ordered() -> dict[Any, Any]:
    """An OrderedDict to begin with. With arguments, of whatever depth, it would have to hash them."""
    return {}


def _view(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage) or not all(isinstance(n, int) for n in (offset, *shape, *stride)):
        raise Refused("a tensor without numbers or shape")
    if len(shape) > MOST_AXES or len(shape) != len(stride):
        raise Refused(f"a tensor of {len(shape)} axes and {len(stride)} strides")
    return _View(storage, offset, shape, stride)


def _storage(kind: Any, storage_type: Any, key: Any, _: Any, length: Any, *view: Any) -> _Storage:
    name = storage_type.name if isinstance(storage_type, Named) else ""
    known = kind == "storage" and name in _DTYPES and all(part is None for part in view)  # no part of another one
    if not known or not isinstance(key, str) or not isinstance(length, int) or length < 0:
        raise ValueError(f"numbers of an unknown kind ({name})")
    return _Storage(key, _DTYPES[name], length)


def _views(state: Any, most: int) -> dict[str, _View]:
    """The program's result, if it is a state dict whose numbers a file of `most` bytes can hold."""
    if type(state) is dict:
        state = next((state[name] for name in CHECKPOINT if type(state.get(name)) is dict), state)
    if type(state) is not dict or not all(isinstance(k, str) and isinstance(v, _View) for k, v in state.items()):
        raise ValueError("something else than a dict of names and tensors")
    if sum(storage.nbytes for storage in {view.storage for view in state.values()}) > most:
        raise ValueError("its tensors are larger than the file")
    return state


def _fill(views: dict[str, _View], content: Callable[[_Storage], bytes]) -> dict[str, Tensor]:
    flat = {storage: _numbers(storage, content(storage)) for storage in {view.storage for view in views.values()}}
    return {name: _tensor(view, flat[view.storage]) for name, view in views.items()}


def _numbers(storage: _Storage, content: bytes) -> Tensor:
    if len(content) != storage.nbytes:
        raise ValueError(f"{len(content)} bytes of numbers instead of {storage.nbytes}")
    if not content:
        return torch.empty(0, dtype=storage.dtype)
    return torch.frombuffer(bytearray(content), dtype=storage.dtype)  # a copy that can be written


def _tensor(view: _View, flat: Tensor) -> Tensor:
    size = math.prod(view.shape)
    last = view.offset + sum((n - 1) * step for n, step in zip(view.shape, view.stride))
    if min((view.offset, *view.shape, *view.stride)) < 0 or size > len(flat) or (size and last >= len(flat)):
        raise ValueError(f"a tensor of shape {view.shape} among {len(flat)} numbers")
    return torch.as_strided(flat, view.shape, view.stride, view.offset)
