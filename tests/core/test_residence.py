"""What of the clients' data lies in memory: the least recently used leaves, and what can stream does so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedreel.core.residence import Residence
from fedreel.core.task import ClientData, Streamable, Tensors
from fedreel.errors import FedreelError

CPU = torch.device("cpu")


def ten(value: int = 0) -> Tensors:
    """Examples of ten bytes."""
    return Tensors((torch.full((10,), value, dtype=torch.uint8),))


@dataclass(frozen=True)
class Reel(Streamable):
    where: str = "disk"
    nbytes: int = 10  # type: ignore[assignment]

    def to(self, device: torch.device) -> Reel:
        return Reel("memory")

    def streamed(self, device: torch.device) -> Reel:
        return Reel("stream")


def test_the_least_recently_used_leaves() -> None:
    residence = Residence(CPU, 25)
    first = residence.take(("a", "train"), ten)
    residence.take(("b", "train"), ten)
    assert residence.take(("a", "train"), lambda: ten(1)) is first
    residence.take(("c", "train"), ten)
    assert residence.held == [("a", "train"), ("c", "train")]
    assert residence.used == 20


def test_what_is_larger_than_the_budget_is_there_alone() -> None:
    residence = Residence(CPU, 5)
    residence.take(("a", "train"), ten)
    residence.take(("a", "test"), ten)
    assert residence.held == [("a", "test")]


def test_what_can_stream_is_held_while_there_is_room_and_makes_none_for_itself() -> None:
    residence = Residence(CPU, 25)
    found = [residence.take((client, "train"), Reel) for client in "abcab"]
    assert [reel.where for reel in found] == ["memory", "memory", "stream", "memory", "memory"]
    residence.take(("d", "train"), ten)
    assert residence.held == [("b", "train"), ("d", "train")]


def test_examples_that_do_not_say_how_much_they_take_are_refused() -> None:
    class Silent:
        def to(self, device: torch.device) -> Any:
            return self

    with pytest.raises(FedreelError, match="do not say how much memory they take") as error:
        Residence(CPU, 25).take(("a", "train"), Silent)  # type: ignore[arg-type]
    assert "the class Silent" in str(error.value)


def test_a_part_of_the_data_is_made_when_it_is_first_wanted() -> None:
    made: list[str] = []

    def make(part: str) -> Tensors:
        made.append(part)
        return ten()

    data = ClientData(lambda: make("train"), lambda: make("test"), {"frames": 3.0})
    assert data.numbers == {"frames": 3.0}
    assert made == []
    assert data.test is data.test
    assert made == ["test"]
