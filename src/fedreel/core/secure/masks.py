"""Vectors of integers modulo 2^32 or 2^64, and the masks that are added to them: streams that look like chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedreel.core.secure.crypto import key_stream

_CHUNK = 1 << 22  # bytes of a mask that are made at once


@dataclass(frozen=True)
class Vector:
    """What is summed: a few numbers modulo 2^64, and very many modulo 2^32 or 2^64."""

    head: NDArray[Any]
    body: NDArray[Any]

    @staticmethod
    def zeros(head: int, body: int, bits: int) -> Vector:
        return Vector(np.zeros(head, np.uint64), np.zeros(body, np.uint32 if bits == 32 else np.uint64))

    def add(self, other: Vector) -> None:
        """In place, modulo."""
        np.add(self.head, other.head, out=self.head)
        np.add(self.body, other.body, out=self.body)

    def tobytes(self) -> bytes:
        """The lowest byte of each number first, on every machine."""
        return b"".join(
            part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes() for part in (self.head, self.body)
        )

    @staticmethod
    def frombytes(data: bytes, head: int, bits: int) -> Vector:
        kind = np.dtype(np.uint32 if bits == 32 else np.uint64)
        parts = np.frombuffer(data, "<u8", head), np.frombuffer(data, kind.newbyteorder("<"), offset=8 * head)
        return Vector(parts[0].astype(np.uint64), parts[1].astype(kind))


def mask(vector: Vector, key: bytes, sign: int) -> None:
    """Add the mask of this key in place, or, with the sign -1, take it away. The head gets the stream's first bytes."""
    operation = np.add if sign > 0 else np.subtract
    stream = key_stream(key)
    for part in _parts(vector):
        made = np.frombuffer(stream.update(bytes(part.nbytes)), part.dtype.newbyteorder("<"))
        operation(part, made, out=part)


def _parts(vector: Vector) -> Iterator[NDArray[Any]]:
    for whole in (vector.head, vector.body):
        step = _CHUNK // whole.itemsize
        for at in range(0, len(whole), step):
            yield whole[at : at + step]
