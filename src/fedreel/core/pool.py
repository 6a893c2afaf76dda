"""Pools of clients that are too many to list: a name, and what is known of a client, is made when it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, overload

SHOWN = 1000  # clients of such a pool that a run tells about, evenly chosen


class Numbered(Sequence[str]):
    """So many clients that are called PREFIX0, PREFIX1, ...: a million of them take no more memory than ten."""

    def __init__(self, count: int, prefix: str = "client-") -> None:
        self.prefix, self._numbers = prefix, range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(f"{self.prefix}{number}" for number in self._numbers[at])
        return f"{self.prefix}{self._numbers[at]}"

    def __contains__(self, name: object) -> bool:
        return self._number(name) is not None

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        number = self._number(name)
        if number is None or number not in self._numbers[start:stop]:
            raise ValueError(f"there is no client '{name}'")
        return number

    def __repr__(self) -> str:
        return f"Numbered({len(self)}, {self.prefix!r})"

    def _number(self, name: object) -> int | None:
        """A client's number; None of what is nobody's name, such as one with a leading zero."""
        if not isinstance(name, str) or not name.startswith(self.prefix):
            return None
        digits = name[len(self.prefix) :]
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
            return None
        number = int(digits)
        return number if number in self._numbers and str(number) == digits else None


class ByClient(Mapping[str, Sequence[int]]):
    """A table with a row for each client of a pool, such as how many samples of each class it has; a row is made when
    it is asked for."""

    def __init__(self, clients: Sequence[str], row: Callable[[str], Sequence[int]]) -> None:
        self._clients, self._row = clients, row

    def __getitem__(self, client: str) -> Sequence[int]:
        if client not in self._clients:
            raise KeyError(client)
        return self._row(client)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def some(self, most: int = SHOWN) -> dict[str, list[int]]:
        """Evenly chosen rows, the first client's among them."""
        chosen = range(0, len(self), -(-len(self) // most) or 1)
        return {(client := self._clients[at]): [*self._row(client)] for at in chosen}


class Roll(Set[str]):
    """Names in the order in which they came, each once. It only grows: whoever has written its first so many names
    need not write them again."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._at = dict.fromkeys(names)
        self._names = [*self._at]

    def add(self, name: str) -> None:
        if name not in self._at:
            self._at[name] = None
            self._names.append(name)

    def __ior__(self, names: Set[str]) -> Roll:  # type: ignore[override,misc]
        for name in names:
            self.add(name)
        return self

    def part(self, begin: int, end: int) -> list[str]:
        return self._names[begin:end]

    def __contains__(self, name: object) -> bool:
        return name in self._at

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def told(described: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the clients' data as a run writes it down: of pools that are not listed a choice of clients, and
    of how many it is one."""
    lazy = [value for value in described.values() if isinstance(value, ByClient)]
    some = {name: value.some() if isinstance(value, ByClient) else value for name, value in described.items()}
    return {**some, **({"clients": max(map(len, lazy))} if lazy else {})}


def plainly(value: object) -> Any:
    """For json.dumps: what of a pool tells it from others, without a list of all."""
    if isinstance(value, Numbered):
        return [repr(value)]
    if isinstance(value, ByClient):
        return value.some()
    raise TypeError(f"{type(value).__name__} is no JSON")
