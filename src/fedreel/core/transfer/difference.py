"""What is new in a model against another one that both sides have: every bit of it, in fewer bytes.

Numbers that training has moved a little share sign, exponent and the first bits with what they were. Taken as whole
numbers, the differences are small: their high bytes are nearly all 0, and these are what is packed."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import torch
from torch import Tensor

from fedreel.core.weights import Weights

_LEVEL = 1  # of zlib: more takes long and gains nothing here
_TRIED = 1 << 16  # bytes of a plane by which to tell whether packing it gains anything
_GAIN = 0.95  # it does if so much is left
_RAW, _PACKED = b"\0", b"\1"


def digest(weights: Weights) -> str:
    """Of every bit of a model, and of what its tensors are."""
    found = hashlib.sha256(weights.layout.id.encode())
    for dtype, flat in weights.flat.items():
        found.update(str(dtype).encode())
        found.update(_array(flat).data)
    return found.hexdigest()[:32]


def difference(new: Weights, old: Weights) -> dict[torch.dtype, bytes]:
    """What makes the new model of the old one, by dtype. Both have the same layout."""
    return {dtype: _pack(_array(flat), _array(old.flat[dtype]), dtype.itemsize) for dtype, flat in new.flat.items()}


def apply(old: Weights, packed: dict[torch.dtype, bytes | memoryview]) -> Weights:
    """The new model; ValueError for what `difference` does not make."""
    new = Weights.zeros(old.layout)
    for dtype, flat in new.flat.items():
        _array(flat)[:] = _unpack(packed[dtype], _array(old.flat[dtype]), dtype.itemsize)
    return new


def _pack(new: np.ndarray, old: np.ndarray, width: int) -> bytes:
    whole = np.dtype(f"<i{width}")
    moved = new.view(whole) - old.view(whole)  # wraps around, and so does the sum at the other end
    small = ((moved << 1) ^ (moved >> (8 * width - 1))).view(np.uint8)  # 0, -1, 1, -2: 0, 1, 2, 3
    planes = small.reshape(-1, width).T
    return b"".join(_written(np.ascontiguousarray(plane)) for plane in planes)


def _written(plane: np.ndarray) -> bytes:
    data = plane.tobytes()
    step = max(1, len(data) // _TRIED)
    sample = plane[::step].tobytes()
    if len(zlib.compress(sample, _LEVEL)) < _GAIN * len(sample):
        data, kind = zlib.compress(data, _LEVEL), _PACKED
    else:
        kind = _RAW
    return kind + len(data).to_bytes(8, "little") + data


def _unpack(packed: bytes | memoryview, old: np.ndarray, width: int) -> np.ndarray:
    n, at = len(old) // width, 0
    planes = np.empty((width, n), np.uint8)
    for plane in planes:
        kind, length = bytes(packed[at : at + 1]), int.from_bytes(packed[at + 1 : at + 9], "little")
        data, at = packed[at + 9 : at + 9 + length], at + 9 + length
        plane[:] = np.frombuffer(_read(kind, data, n), np.uint8)
    if at != len(packed):
        raise ValueError(f"{len(packed) - at} bytes too many in a difference")
    whole = np.dtype(f"<i{width}")
    small = np.ascontiguousarray(planes.T).reshape(-1).view(f"<u{width}")
    moved = (small >> 1).view(whole) ^ -(small & 1).view(whole)
    return (old.view(whole) + moved).view(np.uint8)


def _read(kind: bytes, data: bytes | memoryview, n: int) -> bytes | memoryview:
    """A plane of n bytes, and never more than these in memory."""
    if kind == _RAW:
        found: bytes | memoryview = data
    elif kind == _PACKED:
        try:
            found = zlib.decompressobj().decompress(data, n + 1)
        except zlib.error as error:
            raise ValueError(f"a difference cannot be unpacked ({error})") from error
    else:
        raise ValueError("a difference is neither packed nor not")
    if len(found) != n:
        raise ValueError(f"{len(found)} bytes in a difference of {n}")
    return found


def _array(flat: Tensor) -> np.ndarray:
    return flat.detach().cpu().contiguous().view(torch.uint8).numpy()
