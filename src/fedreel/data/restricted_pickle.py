"""Programs of pickle files, read and never run: plain values, and the few calls that a reader of one format allows."""

from __future__ import annotations

import pickletools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

MOST = 400_000  # instructions of a small file; CIFAR-100's largest has a quarter of a million
DENSE = 16  # bytes of a larger file for each further one: most of a file is numbers and names
# Instructions that push their argument, that push something new, and that take so many from the stack (0: all since
# the last mark).
_GIVEN = {
    *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
}
_MADE: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_TAKEN = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": 0, "APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0}


class Refused(ValueError):
    """The program is damaged, or asks for what files of its format never ask for."""


@dataclass(frozen=True)
class Named:
    """A Python object that a program names, as `module.name`. It is never looked up."""

    name: str


class Stateful(ABC):
    """What a call gives that the program fills later."""

    @abstractmethod
    def fill(self, state: Any) -> None: ...


Call = Callable[..., Any]


def evaluate(
    file: BytesIO,
    calls: Mapping[str, Call],
    names: frozenset[str] = frozenset(),
    reference: Call | None = None,
    most: int = 0,
) -> Any:
    """What the program at the file's place leaves on its stack.

    `calls` are functions of ours that stand for Python's; `names` may be named but not called; `reference` gives what
    lies elsewhere in the file. Anything else is refused, and so are more instructions than `most`, or than the file's
    size lets expect: each takes microseconds. No value is larger than the file, save by what `calls` make.
    """
    try:
        expected = MOST + file.getbuffer().nbytes // DENSE
        return _evaluate(file, calls, names, reference, min(most or expected, expected))
    except Refused:
        raise
    except (ValueError, LookupError, TypeError) as error:
        raise Refused(str(error)[:200] or type(error).__name__) from None


def _evaluate(
    file: BytesIO, calls: Mapping[str, Call], names: frozenset[str], reference: Call | None, most: int
) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for count, (op, arg, _) in enumerate(pickletools.genops(file)):
        if op.name == "STOP":
            return stack.pop()
        if count > most:
            raise Refused(f"more than {most} instructions")
        if op.name in _GIVEN:
            stack.append(arg)
        elif op.name in ("BINSTRING", "SHORT_BINSTRING"):  # Python 2's str; `arg` is its text
            stack.append(str(arg).encode("latin-1"))
        elif op.name in _MADE:
            stack.append(_MADE[op.name]())
        elif op.name == "MARK":
            marks.append(len(stack))
        elif op.name in ("BINPUT", "LONG_BINPUT"):
            memo[arg] = stack[-1]  # type: ignore[index]
        elif op.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif op.name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[arg])  # type: ignore[index]
        elif op.name in _TAKEN:
            at = len(stack) - _TAKEN[op.name] if _TAKEN[op.name] else marks.pop()
            items, stack[at:] = stack[at:], []
            stack.append(tuple(items)) if op.name.startswith("TUPLE") else _put(stack[-1], items)
        elif op.name == "GLOBAL":
            stack.append(_named(str(arg).replace(" ", "."), calls, names))
        elif op.name == "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            if not isinstance(name, str) or not isinstance(module, str):
                raise Refused("a name that is no text")
            stack.append(_named(f"{module}.{name}", calls, names))
        elif op.name == "BINPERSID" and reference is not None:
            stack.append(reference(*stack.pop()))
        elif op.name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_call(function, arguments, calls))
        elif op.name == "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        elif op.name not in ("PROTO", "FRAME"):
            raise Refused(f"the instruction {op.name}, which such files do not need")
    raise Refused("it ends too early")


def _named(name: str, calls: Mapping[str, Call], names: frozenset[str]) -> Named:
    if name not in calls and name not in names:
        raise Refused(f"a call of '{name}'")
    return Named(name)


def _call(function: Any, arguments: Any, calls: Mapping[str, Call]) -> Any:
    if not isinstance(function, Named) or function.name not in calls or type(arguments) is not tuple:
        raise Refused("a call of what is no function")
    try:
        return calls[function.name](*arguments)
    except TypeError:
        raise Refused(f"a call of '{function.name}' with other arguments than expected") from None


def _build(built: Any, state: Any) -> None:
    if isinstance(built, Stateful):
        built.fill(state)
    elif type(built) is not dict:  # a dict's attributes say nothing that we need
        raise Refused(f"attributes for a {type(built).__name__}")


def _put(container: Any, items: list[Any]) -> None:
    if type(container) is list:
        container.extend(items)
    elif type(container) is dict and len(items) % 2 == 0:
        if not all(isinstance(key, str | bytes | int) for key in items[::2]):
            raise Refused("a dict whose keys are no names")
        container.update(zip(items[::2], items[1::2]))
    else:
        raise Refused(f"items for a {type(container).__name__}")
