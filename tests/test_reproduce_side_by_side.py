"""Cells side by side on a device whose memory does not suffice for so many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedreel.core.chains import too_few
from fedreel.core.update import Failure, Order
from fedreel.engines.local import attempt
from fedreel.errors import NoMemory, RunError
from fedreel.reproduce import side_by_side


@dataclass(frozen=True)
class Hungry:
    """A cell for which there is memory if no more than so many are run at once."""

    most: int
    at_once: list[int]

    def run(self, device: str, quiet: bool) -> None:
        if self.at_once[-1] > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were to be run at once, each time; here they are run in turn."""
    found: list[int] = []

    def in_turn(work: Callable[[Any], Any], cells: Sequence[Any], workers: int, _: Any) -> Iterator[tuple[int, Any]]:
        found.append(workers)
        return ((number, work(cell)) for number, cell in enumerate(cells))

    monkeypatch.setattr(side_by_side, "in_processes", in_turn)
    return found


def test_what_found_no_memory_goes_on_with_fewer_beside_it(
    at_once: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    cells = [Hungry(most, at_once) for most in (9, 1, 9, 3)]
    done = [cell.most for cell in side_by_side.each_done(cells, "cuda", 4, None)]  # type: ignore[arg-type]
    assert done == [9, 9, 3, 1]
    assert at_once == [4, 2, 1]
    assert "too little memory for 2 of them beside 3 others: they go on, 2 at once" in caplog.text


def test_what_finds_no_memory_alone_ends_the_sweep(at_once: list[int]) -> None:
    cells = [Hungry(most, at_once) for most in (9, 0)]
    with pytest.raises(torch.OutOfMemoryError):
        [*side_by_side.each_done(cells, "cuda", 2, None)]  # type: ignore[arg-type]
    assert at_once == [2, 1]


def test_a_round_without_memory_says_so() -> None:
    def train(order: Order) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    found = attempt(Order(3, 0, "ward-1", "train", {}), train)
    assert isinstance(found, Failure)
    assert found.reason == "memory"
    error = too_few(3, "at least 1 of 1", "0", [found])
    assert isinstance(error, NoMemory)
    assert "ward-1: OutOfMemoryError: CUDA out of memory" in str(error)
    other = too_few(3, "at least 1 of 2", "0", [found, Failure(3, 0, "ward-2", "timeout", "")])
    assert type(other) is RunError
