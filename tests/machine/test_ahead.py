"""What threads make ahead: the same as without them, in the same order, and not much more than is wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fedreel.machine.ahead import AHEAD, ahead


def numbers(first: int, count: int) -> Iterator[int]:
    yield from range(first, first + count)


def failing(first: int) -> Iterator[int]:
    yield first
    raise ValueError(f"after {first}")


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_items_and_errors_come_as_without_threads(threads: int) -> None:
    made: list[Callable[[], Iterator[int]]] = [
        partial(numbers, 0, 5),
        partial(failing, 10),
        partial(numbers, 20, 0),
        partial(numbers, 30, 2),
    ]
    found: list[object] = []
    for items in ahead(made, threads):
        try:
            found.append([*items])
        except ValueError as error:
            found.append(str(error))
    assert found == [[0, 1, 2, 3, 4], "after 10", [], [30, 31]]


def test_as_many_sequences_as_threads_are_under_way_and_none_is_far_ahead() -> None:
    begun, made, before = [], [], {*threading.enumerate()}
    all_begun = threading.Barrier(4)

    def sequence(number: int) -> Iterator[int]:
        begun.append(number)
        if number < 3:
            all_begun.wait(120)  # would not end if they were gone through one after another
        for item in range(100):
            made.append((number, item))
            yield item

    found = ahead([partial(sequence, number) for number in range(5)], 3)
    first = next(found)
    all_begun.wait(120)
    assert next(first) == 0
    assert sorted(begun) == [0, 1, 2]
    found.close()
    assert {*threading.enumerate()} <= before
    assert sorted(begun) == [0, 1, 2]
    assert max(item for number, item in made if number) <= AHEAD + 1
    assert max(item for number, item in made if number == 0) <= AHEAD + 2
