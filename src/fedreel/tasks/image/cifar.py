"""CIFAR-100 in its Python form, without running what is in it: the program that would build its arrays is only read."""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
    if not isinstance(pixels, _Array) or pixels.values is None or not isinstance(labels, list):
        raise _damaged(where, "no array `data` beside a list `fine_labels`")
    images = pixels.values
    if images.shape != (len(labels), 3 * SIDE * SIDE):
        raise _damaged(where, f"{len(labels)} labels for an array of shape {images.shape}")
    if not all(type(label) is int and 0 <= label < len(names) for label in labels):
        raise _damaged(where, f"labels that are not 0 to {len(names) - 1}")
    images = images.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.int64), names


class _Refused(Exception):
    """The program asks for what these files never do."""


@dataclass(frozen=True)
class _Global:
    """A Python object that the program names, as `module name`."""

    name: str


@dataclass
class _Array:
    """A numpy array: nothing until its state comes."""

    values: np.ndarray | None = None


@dataclass(frozen=True)
class _Byte:
    """numpy's uint8, the only type of these arrays."""


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
        found = _evaluate(content)
    except (ValueError, LookupError, TypeError, _Refused) as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
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


def _evaluate(content: bytes) -> Any:
    """What a program of the few instructions that these files are made of leaves on its stack."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    call = _caller(len(content))

    def since_mark() -> list[Any]:
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    for op, arg, _ in pickletools.genops(content):
        match op.name:
            case "STOP":
                return stack.pop()
            case "PROTO":
                pass
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(arg)
            case "BINSTRING" | "SHORT_BINSTRING":  # Python 2's str; `arg` is its text
                stack.append(str(arg).encode("latin-1"))
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}[op.name])
            case "EMPTY_DICT" | "EMPTY_LIST":
                stack.append({} if op.name == "EMPTY_DICT" else [])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple([stack.pop() for _ in range(int(op.name[-1]))][::-1]))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "APPEND" | "SETITEM":
                items = [stack.pop() for _ in range(1 if op.name == "APPEND" else 2)][::-1]
                _put(stack[-1], items, op.name)
            case "APPENDS" | "SETITEMS":
                items = since_mark()
                _put(stack[-1], items, op.name)
            case "GLOBAL":
                stack.append(_Global(_known(str(arg))))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(call(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], state)
            case other:
                raise _Refused(f"the instruction {other}, which these files do not need")
    raise _Refused("a program that does not stop")


def _put(container: Any, items: list[Any], how: str) -> None:
    if how.startswith("APPEND") and type(container) is list:
        container.extend(items)
    elif how.startswith("SETITEM") and type(container) is dict and len(items) % 2 == 0:
        if not all(isinstance(key, str | bytes) for key in items[::2]):
            raise _Refused("a dict whose keys are no names")
        container.update(zip(items[::2], items[1::2]))
    else:
        raise _Refused(f"the instruction {how} on a {type(container).__name__}")


_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_GLOBALS = (*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode", "__builtin__ bytes")


def _known(name: str) -> str:
    if name not in _GLOBALS:
        raise _Refused(f"a call of '{name.replace(' ', '.')}'")
    return name


def _caller(most: int) -> Callable[[Any, Any], Any]:
    """What the allowed calls give; bytes that are made of texts never sum up to more than `most`, the file's own."""
    left = most

    def call(function: Any, arguments: Any) -> Any:
        nonlocal left
        match (function.name if isinstance(function, _Global) else type(function).__name__), arguments:
            case name, (_Global("numpy ndarray"), (0,), b"b" | "b") if name in _RECONSTRUCT:
                return _Array()
            case "numpy dtype", (b"u1" | "u1", *_):
                return _Byte()
            case "_codecs encode", (str(text), "latin1"):  # how Python 3 writes bytes for Python 2
                left -= len(text)
                if left < 0:
                    raise _Refused("more bytes than the file has")
                return text.encode("latin-1")
            case "__builtin__ bytes", ():
                return b""
            case name, _:
                raise _Refused(f"a call of '{name.replace(' ', '.')}' with other arguments than expected")

    return call


def _build(built: Any, state: Any) -> None:
    """Fill an array with its numbers; the state of the one type that is allowed says nothing new."""
    if isinstance(built, _Byte):
        return
    match built, state:
        case _Array(), (_, tuple(shape), _Byte(), bool(fortran), bytes(content)) if _fits(shape, len(content)):
            built.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
        case _:
            raise _Refused("an array whose shape, type and content do not fit")


def _fits(shape: tuple[Any, ...], size: int) -> bool:
    return len(shape) <= 32 and all(type(n) is int and 0 <= n <= size for n in shape) and math.prod(shape) == size
