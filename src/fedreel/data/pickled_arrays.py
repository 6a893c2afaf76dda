"""numpy's arrays in pickles that are read and never run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedreel.data.restricted_pickle import Call, Named, Refused, Stateful

NAMES = frozenset({"numpy.ndarray"})  # what programs of arrays name without calling it
MOST_AXES = 32
_OBJECTS = "O8"
_CODES = {_OBJECTS, "b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


class PickledArray(Stateful):
    """A numpy array: nothing until its state comes. `values` is a list where it is one of Python objects."""

    values: np.ndarray | list[Any] | None = None

    def fill(self, state: Any) -> None:
        match state:
            case (_, tuple(shape), PickledType() as kind, bool(), list(items)) if kind.code == _OBJECTS:
                if shape != (len(items),):
                    raise Refused("an array of objects that is no plain list")
                self.values = items
            case (_, tuple(shape), PickledType() as kind, bool(fortran), bytes(content)) if kind.fits(shape, content):
                self.values = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if fortran else "C")
            case _:
                raise Refused("an array whose shape, type and content do not fit")


class PickledType(Stateful):
    """The type of an array's numbers."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = "|"

    def fill(self, state: Any) -> None:
        match state:
            case (int(), "<" | ">" | "|" | b"<" | b">" | b"|" as order, *_):
                self.order = order if isinstance(order, str) else order.decode()
            case _:
                raise Refused("a type of numbers in an unknown order of bytes")

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.order + self.code)

    def fits(self, shape: tuple[Any, ...], content: bytes) -> bool:
        """Whether an array of this type and shape has so many bytes."""
        size = len(content)
        if self.code == _OBJECTS or len(shape) > MOST_AXES or not all(type(n) is int and 0 <= n <= size for n in shape):
            return False
        return math.prod(shape) * self.dtype.itemsize == size


def array_calls(most: int) -> dict[str, Call]:
    """The calls that pickles of arrays make; bytes that are made of texts never sum up to more than `most`, the file's
    own size."""
    left = most

    def array(kind: Any, shape: Any, code: Any) -> PickledArray:
        if kind != Named("numpy.ndarray") or code not in ("b", b"b"):
            raise Refused("an array of another kind")
        return PickledArray()

    def dtype(code: Any, *_: Any) -> PickledType:
        known = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(known, str) or known not in _CODES:
            raise Refused("a call of 'numpy.dtype' with other arguments than expected")
        return PickledType(known)

    def encode(text: Any, encoding: Any) -> bytes:  # how Python 3 writes bytes for Python 2
        nonlocal left
        if not isinstance(text, str) or encoding != "latin1":
            raise Refused("a text in another encoding")
        left -= len(text)
        if left < 0:
            raise Refused("more bytes than the file has")
        return text.encode("latin-1")

    return {
        "numpy.core.multiarray._reconstruct": array,
        "numpy._core.multiarray._reconstruct": array,
        "numpy.dtype": dtype,
        "_codecs.encode": encode,
        "__builtin__.bytes": lambda: b"",
    }
