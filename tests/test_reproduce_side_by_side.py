"""Cells side by side on a device whose memory does not suffice for so many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.chains import too_few
from fedreel.core.update import Failure, Order
from fedreel.engines import lock_step, vector
from fedreel.engines.local import attempt
from fedreel.engines.lock_step import Outcome
from fedreel.errors import NoMemory, RunError
from fedreel.reproduce import reproduce, side_by_side
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.recognition import TABLES
from fedreel.reproduce.spec import Row, Scale, Table
from fedreel.tasks.skeleton import stgcn
from support.lock_step import Counted, assert_same_end
from support.tiny import SETTINGS


@dataclass(frozen=True)
class Hungry:
    """A cell for which there is memory if no more than so many are run at once."""

    most: int
    at_once: list[int]

    def check_needs(self) -> None:
        """No package is missing."""

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


def test_seeds_of_a_row_together_give_the_cells_that_each_gives_by_itself(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Row("FedAvg", {"method.name": "fedavg"}), Row("FedProx", {"method.name": "fedprox", "method.mu": 0.5})
    scales = {"smoke": Scale("recognition", (0, 1, 2), SETTINGS)}
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(TABLES, "tiny", Table(rows=rows, metrics=("top1", "loss"), scales=scales))
    monkeypatch.setattr(vector, "LONG", float("inf"))
    counted = Counted(monkeypatch)
    how: dict[str, Any] = {"data": data, "device": "cpu", "set": {"engine.name": "vector"}}
    apart = reproduce("recognition", "tiny", out=tmp_path / "apart", **how)["tiny"]
    assert {*counted} == {(2,)}
    counted.groups.clear()
    together = reproduce("recognition", "tiny", out=tmp_path / "together", together=True, **how)["tiny"]
    assert [*counted] == [(2, 2, 2)] * 4
    assert together["command"] == apart["command"]
    for one, other in zip(apart["rows"], together["rows"], strict=True):
        for name in ("top1", "loss"):
            assert one["metrics"][name]["values"] == pytest.approx(other["metrics"][name]["values"], abs=1e-3)
    names = [sorted(p.name for p in (tmp_path / way / "cells").iterdir()) for way in ("apart", "together")]
    assert names[0] == names[1]
    assert len(names[0]) == 6


def test_fsar_on_the_playground_ends_in_lock_step_as_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its network as on a GPU: as CPUs make it, its steps are not stacked."""
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vector, "LONG", float("inf"))
    monkeypatch.setattr(stgcn, "pays", lambda conv, x: False)
    counted = Counted(monkeypatch)
    small = {"engine.name": "vector", "task.length": 8, "round.trust": False}
    how: dict[str, Any] = {"rows": "=FSAR & =network ST-GCN", "seeds": 2, "set": small}
    for way, together in (("apart", False), ("together", True)):
        reproduce("fsar", "table1", out=tmp_path / way, device="cpu", together=together, **how)
    assert [*counted] == [(5,)] * 4 + [(5, 5)] * 2
    for one in (tmp_path / "apart" / "cells").iterdir():
        assert_same_end(one, tmp_path / "together" / "cells" / one.name, 1e-3)


def cell(name: str, seed: int, folder: Path, **settings: Any) -> Cell:
    return Cell(name, seed, "recognition", settings, folder / f"{name}-{seed}", f"{name}-{seed}", None, ())


def test_only_cells_that_differ_in_seed_or_rate_alone_are_put_together(tmp_path: Path) -> None:
    how = {"engine.name": "vector"}
    first = [cell(f"a, {seed}", seed, tmp_path, **how, **{"data.seed": seed, "train.lr": seed}) for seed in range(3)]
    other = [cell("a", seed, tmp_path, **how, **{"data.seed": 7}) for seed in range(2)]
    local = [cell("b", seed, tmp_path, **{"engine.name": "local"}) for seed in range(2)]
    limited = [cell("c", seed, tmp_path, **how, **{"round.time_limit": 60.0}) for seed in range(2)]
    auto = [cell("d", seed, tmp_path) for seed in range(2)]
    groups = side_by_side.alike_together([*first, *other, *local, *limited, *auto], "cpu")
    assert groups == [tuple(first), tuple(other), *((c,) for c in (*local, *limited, *auto))]
    assert side_by_side.alike_together(auto, "cuda") == [tuple(auto)]
    (first[1].folder).mkdir()
    (first[1].folder / "summary.json").write_text('{"complete": true}')
    assert side_by_side.alike_together(first, "cpu") == [(first[0], first[2]), (first[1],)]


def test_what_is_not_begun_or_finds_no_memory_together_goes_on_apart(
    tmp_path: Path, at_once: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    outcomes = {"a": [Outcome(True), Outcome(), Outcome()], "b": [Outcome(True, NoMemory("full")), Outcome(True)]}
    monkeypatch.setattr(Cell, "run", lambda self, *_: ran.append((self.name, self.seed)))
    monkeypatch.setattr(lock_step, "in_lock_step", lambda works, _: outcomes["a" if len(works) == 3 else "b"])
    how = {"engine.name": "vector"}
    cells = [cell("a", seed, tmp_path, **how) for seed in range(3)]
    cells += [cell("b", seed, tmp_path, **how, **{"train.epochs": 2}) for seed in range(2)]
    done = [(c.name, c.seed) for c in side_by_side.each_done(cells, "cpu", 2, None, together=True)]
    assert done[:2] == [("a", 0), ("b", 1)]
    assert sorted(done) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert ran == [("a", 1), ("a", 2), ("b", 0)]
    assert at_once == [2, 1]


def test_a_failure_of_one_is_raised_when_the_others_have_ended(
    tmp_path: Path, at_once: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def run(self: Cell, *_: Any) -> None:
        if self.seed == 0:
            raise RunError("broken")
        ended.append(self.seed)

    monkeypatch.setattr(Cell, "run", run)
    cells = [cell("a", seed, tmp_path, **{"engine.name": "vector"}) for seed in range(3)]

    def outcomes(works: Sequence[Callable[[Any], None]], _: Any) -> list[Outcome]:
        found = []
        for work in works:
            try:
                work(lambda: 0.0)
                found.append(Outcome(True))
            except RunError as error:
                found.append(Outcome(True, error))
        return found

    monkeypatch.setattr(lock_step, "in_lock_step", outcomes)
    with pytest.raises(RunError, match="broken"):
        [*side_by_side.each_done(cells, "cpu", 1, None, together=True)]
    assert ended == [1, 2]
