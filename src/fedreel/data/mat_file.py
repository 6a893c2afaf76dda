"""Matrices of numbers in MATLAB's files of before version 7.3. Nothing else in them is read, and what they claim is
compared with what is there first: scipy's reader, written in C, crashes on damaged files."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedreel.data.bounded import CHUNK, TooLarge, allowed

HEAD = 128  # bytes before the first element
MATRIX, COMPRESSED = 14, 15  # elements
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # how stored
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}  # what it is
COMPLEX = 0x0800  # a flag of an array


def read_matrices(path: Path) -> dict[str, np.ndarray]:
    """Arrays of real numbers by name; ValueError for what is no such file."""
    content, left = path.read_bytes(), allowed(path)
    if len(content) < HEAD or content[126:128] not in (b"IM", b"MI"):
        raise ValueError("it does not begin as MATLAB's files of version 5 to 7.2 do")
    reader = _Reader("little" if content[126:128] == b"IM" else "big")
    found = {}
    for element in reader.elements(content[HEAD:]):
        if element.kind == COMPRESSED:
            unpacked = _unpacked(element.data, left)
            left -= len(unpacked)
            element = next(reader.elements(unpacked), element)
        if element.kind == MATRIX and (matrix := reader.matrix(element.data)) is not None:
            found[matrix[0]] = matrix[1]
    return found


@dataclass(frozen=True)
class _Element:
    kind: int
    data: bytes


@dataclass(frozen=True)
class _Reader:
    order: Literal["little", "big"]

    def elements(self, content: bytes) -> Iterator[_Element]:
        """One after another. A short one has its size beside its kind, and its four bytes of data in its head."""
        at = 0
        while at + 8 <= len(content):
            kind, size = self._word(content, at), self._word(content, at + 4)
            start, step = at + 8, 8 + (size if kind == COMPRESSED else -(-size // 8) * 8)
            if kind >> 16:
                kind, size, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
                if size > 4:
                    raise ValueError("a short element that is too long")
            if start + size > len(content):
                raise ValueError(f"an element of {size} bytes where {len(content) - start} are left")
            yield _Element(kind, content[start : start + size])
            at += step

    def matrix(self, content: bytes) -> tuple[str, np.ndarray] | None:
        """Flags, shape, name, numbers. None for texts, cells, structs, complex and sparse matrices."""
        parts = [part for part, _ in zip(self.elements(content), range(4))]
        if len(parts) < 3 or len(parts[0].data) < 4:
            raise ValueError("a matrix without flags, shape and name")
        flags = self._word(parts[0].data, 0)
        kind = CLASSES.get(flags & 0xFF)
        if kind is None or flags & COMPLEX:
            return None
        shape = tuple(int(n) for n in self._numbers(parts[1]))
        if not shape or len(shape) > 32 or min(shape) < 0:
            raise ValueError(f"a matrix of the shape {shape[:40]}")
        values = self._numbers(parts[3]) if len(parts) > 3 else np.zeros(0)
        if math.prod(shape) != len(values):
            raise ValueError(f"{len(values)} numbers for a matrix of the shape {shape}")
        return parts[2].data.decode("latin-1"), values.astype(kind).reshape(shape, order="F")

    def _numbers(self, element: _Element) -> np.ndarray:
        stored = np.dtype(NUMBERS.get(element.kind, "V")).newbyteorder("<" if self.order == "little" else ">")
        if stored.kind == "V" or len(element.data) % stored.itemsize:
            raise ValueError(f"{len(element.data)} bytes of numbers of the kind {element.kind}")
        return np.frombuffer(element.data, stored)

    def _word(self, content: bytes, at: int) -> int:
        return int.from_bytes(content[at : at + 4], self.order)


def _unpacked(content: bytes, most: int) -> bytes:
    out, unpacker = bytearray(), zlib.decompressobj()
    try:
        while content and not unpacker.eof:
            out += unpacker.decompress(content, CHUNK)
            content = unpacker.unconsumed_tail
            if len(out) > most:
                raise TooLarge(f"it unpacks to more than the {most} bytes that its size allows")
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return bytes(out)
