"""Rounds of long runs: of very many some are kept, and sums over all of them, so that neither memory nor pages grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedreel.report.markup import finite, lower_is_better

Record = dict[str, Any]
MOST = 1000  # rounds of one phase that are kept
CELLS = 50_000  # clients in them, all together: of rounds with very many clients fewer are kept
FEWEST = 100


class Rounds(dict[int, Record]):
    """Records by round. If they become too many, each that is left stands for `span` rounds, of which it is the last;
    the very first one and the very last one are always there."""

    def __init__(self) -> None:
        super().__init__()
        self.span = 1
        self.seen = 0  # how many have come
        self._widest = 1
        self._oldest: int | None = None
        self._newest: int | None = None

    def put(self, round: int, record: Record) -> list[tuple[int, Record]]:
        """Of a round that is there twice the later record counts. Returns what is not kept any longer."""
        gone: list[tuple[int, Record]] = []
        new, newest = round not in self, self._newest
        self._oldest = round if self._oldest is None else min(self._oldest, round)
        self[round] = record
        self.seen += new
        self._widest = max(self._widest, len(record.get("clients") or ()))
        if new and newest is not None and self._block(newest) == self._block(round) and newest != self._oldest:
            gone.append((newest, self.pop(newest)))
        self._newest = round if newest is None else max(newest, round)
        while len(self) > max(FEWEST, min(MOST, CELLS // self._widest)):
            self.span *= 2
            gone += self._thin()
        return gone

    def _thin(self) -> list[tuple[int, Record]]:
        first, *rest = sorted(self)
        last = {self._block(round): round for round in rest}
        kept = {first, *last.values()}
        return [(round, self.pop(round)) for round in rest if round not in kept]

    def _block(self, round: int) -> int:
        return (round - 1) // self.span


class First(list[Record]):
    """The first so many of a kind; `seen` counts all."""

    seen = 0

    def put(self, record: Record) -> None:
        self.seen += 1
        if len(self) < MOST:
            self.append(record)


class Costs:
    """What rounds cost, added up over blocks of `span` neighbouring rounds."""

    def __init__(self) -> None:
        self.span = 1
        self.sums: dict[int, dict[str, float]] = {}

    def put(self, round: int, values: Mapping[str, object]) -> None:
        """What is no finite number is left out. While a block is a single round, what comes later counts."""
        row = self.sums.setdefault((round - 1) // self.span, {})
        for name, value in values.items():
            if (number := finite(value)) is not None:
                row[name] = number if self.span == 1 else row.get(name, 0.0) + number
        while len(self.sums) > MOST:
            self.span *= 2
            rows, self.sums = self.sums, {}
            for block, sums in rows.items():
                half = self.sums.setdefault(block // 2, {})
                for name, number in sums.items():
                    half[name] = half.get(name, 0.0) + number

    def total(self, name: str) -> float | None:
        known = [row[name] for row in self.sums.values() if name in row]
        return sum(known) if known else None

    def blocks(self) -> list[tuple[int, int, dict[str, float]]]:
        """The first and the last round of each block, and its sums."""
        return [(max(0, b * self.span + 1), (b + 1) * self.span, self.sums[b]) for b in sorted(self.sums)]


@dataclass
class Past:
    """What must be known of rounds that are not kept."""

    trained: Counter[str] = field(default_factory=Counter)  # how often a client was among those that trained
    tested: dict[str, tuple[int, Record]] = field(default_factory=dict)  # a client's last test, and its round
    best: dict[str, tuple[float, int]] = field(default_factory=dict)  # of each metric, and in which round

    def add_training(self, record: Record) -> None:
        self.trained.update({*record["clients"]})

    def add_test(self, round: int, record: Record) -> None:
        for client, values in record["clients"].items():
            if round >= self.tested.get(client, (0, {}))[0]:
                self.tested[client] = (round, values)
        for name, value in record["metrics"].items():
            self.best[name] = better(name, self.best.get(name), (finite(value), round))


def better(name: str, one: tuple[float, int] | None, other: tuple[float | None, int]) -> Any:
    """The better of two values of a metric, each with its round; of equal ones the earlier."""
    value, round = other
    if value is None or one is None:
        return one if value is None else (value, round)
    sign = 1 if lower_is_better(name) else -1
    return min(one, (value, round), key=lambda pair: (sign * pair[0], pair[1]))
