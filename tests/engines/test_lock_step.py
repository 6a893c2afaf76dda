"""Runs in lock-step end as each does alone; what befalls one of them is its own."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedreel.core.federation import Federation
from fedreel.core.frozen import freeze
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.engines import vector
from fedreel.engines.lock_step import Clock, Outcome, in_lock_step
from fedreel.engines.stacked.training import Place, StackedTraining, Trained
from fedreel.errors import Diverged
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from support.flower_site import environment
from support.lock_step import Counted, Seeded, alone, assert_same_end, together
from support.stacked import EqualPoints, Points
from support.toy import HeadStays, Random, Toy

MOON_TASK = Random(clients=5)


@dataclass(frozen=True)
class Fixed(Toy):
    """A layer that is not trained."""

    def model(self) -> nn.Module:
        model = super().model()
        freeze(model.backbone[0])  # type: ignore[index]
        return model


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


ADAM = {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1, "keep_optimizer": True}  # makes much of gradients that
# are nothing but rounding, as those of a bias in front of a batch norm are


def check_three(jobs: Sequence[Seeded], folder: Path, counted: Counted) -> None:
    """Three runs of five clients and three rounds, all stacked, end as alone."""
    one = alone(jobs, folder)
    assert [*counted] == [(5,)] * 9
    counted.groups.clear()
    other, outcomes = together(jobs, folder)
    assert [o.error for o in outcomes] == [None] * 3
    assert [*counted] == [(5, 5, 5)] * 3
    for a, b in zip(one, other):
        assert_same_end(a, b)


@pytest.mark.parametrize(
    ("method", "task", "train"),
    [
        (FedAvg(), Points(), {}),
        (FedAvg(), EqualPoints(), ADAM),
        (FedAvg(), Random(clients=5), {"epochs": 2}),
        (HeadStays(), Toy(clients=5), {"clip_norm": 0.5, "keep_optimizer": True}),
        (FedProx(mu=0.1), Points(), ADAM),
        (MOON(mu=0.5), Random(clients=5), {}),
        (MOON(mu=0.5), Points(), ADAM),
        (SCAFFOLD(), Points(), {"shuffle": False}),
        (FSAR(blocks=1), Toy(clients=5), {}),
    ],
    ids=str,
)
def test_each_ends_as_it_does_alone(
    tmp_path: Path, counted: Counted, method: Method, task: Task, train: dict[str, Any]
) -> None:
    jobs = [Seeded(seed, task, method, train=train) for seed in range(3)]
    check_three(jobs, tmp_path, counted)


@pytest.mark.parametrize(
    ("method", "task", "train"),
    [
        (FedAvg(), Points(), {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (FedAvg(), EqualPoints(), ADAM),
        (SCAFFOLD(), Points(), {"momentum": 0.0, "keep_optimizer": True}),
        (FSAR(blocks=1), Toy(clients=5), {}),
    ],
    ids=str,
)
def test_each_has_its_own_rate(
    tmp_path: Path, counted: Counted, method: Method, task: Task, train: dict[str, Any]
) -> None:
    jobs = [Seeded(i, task, method, train={**train, "lr": lr}) for i, lr in enumerate((0.003, 0.01, 0.03))]
    check_three(jobs, tmp_path, counted)


def test_what_cannot_be_stacked_with_others_is_trained_as_alone_to_the_bit(tmp_path: Path, counted: Counted) -> None:
    """Networks of other widths, and layers that nobody trains but that each seed has its own of."""
    jobs = [Seeded(0, Random(width=4)), Seeded(0, Random(width=5)), Seeded(0, Fixed()), Seeded(1, Fixed())]
    one = alone(jobs, tmp_path)
    counted.groups.clear()
    other, _ = together(jobs, tmp_path)
    assert [*counted] == [(4,)] * 12
    for a, b in zip(one, other):
        assert_same_end(a, b, 0.0)


def test_runs_may_have_other_clients_and_other_numbers_of_rounds(tmp_path: Path, counted: Counted) -> None:
    folders = []
    for i, clients in enumerate(("c0 c1 c2 c3", "c1 c3", "c0 c2 c3")):
        folders.append(tmp_path / f"data-{i}")
        folders[-1].mkdir()
        (folders[-1] / "clients.txt").write_text(clients)
    jobs = [Seeded(i, Toy(), rounds=2 + i, source=folder) for i, folder in enumerate(folders)]
    one = alone(jobs, tmp_path)
    counted.groups.clear()
    other, _ = together(jobs, tmp_path)
    assert [*counted] == [(4, 2, 3), (4, 2, 3), (2, 3), (3,)]
    for a, b in zip(one, other):
        assert_same_end(a, b)


def test_each_samples_its_own_clients(tmp_path: Path, counted: Counted) -> None:
    jobs = [Seeded(seed, round={"fraction": 0.6}) for seed in range(3)]
    one = alone(jobs, tmp_path)
    other, _ = together(jobs, tmp_path)
    assert [*counted][-3:] == [(3, 3, 3)] * 3
    for a, b in zip(one, other):
        assert_same_end(a, b)


def test_no_more_are_stacked_than_fit(tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "MOST_CLIENTS", 11)
    together([Seeded(seed, rounds=1) for seed in range(5)], tmp_path)
    assert [*counted] == [(5, 5), (5, 5), (5,)]


def test_one_that_diverges_does_so_alone(tmp_path: Path, counted: Counted) -> None:
    """Its clients are stacked with the others' in the round in which it does."""

    def burst(fed: Federation, round: int) -> None:
        if round == 2:
            for flat in fed.weights.flat.values():
                flat.fill_(torch.nan)

    jobs = [Seeded(0), Seeded(1, event=burst), Seeded(2)]
    one = alone([jobs[0], jobs[2]], tmp_path)
    counted.groups.clear()
    other, outcomes = together(jobs, tmp_path)
    assert [*counted][:2] == [(5, 5, 5), (5, 5, 5)]
    assert {*[*counted][2:-1]} == {(5,)}  # the round is repeated
    assert [*counted][-1] == (5, 5)
    assert isinstance(outcomes[1].error, Diverged)
    assert_same_end(one[0], other[0])
    assert_same_end(one[1], other[2])


def test_one_that_fails_does_so_alone_and_all_go_on_from_where_they_were(tmp_path: Path, counted: Counted) -> None:
    """Those that are behind catch up first: the rates of the rounds differ, and clients with other rates are not
    stacked."""

    def stop(at: int) -> Any:
        def event(fed: Federation, round: int) -> None:
            if round == at:
                raise RuntimeError("stopped")

        return event

    jobs = [Seeded(seed, MOON_TASK, MOON(mu=0.5), rounds=6) for seed in range(4)]
    one = alone(jobs, tmp_path)
    stopped = [replace(job, event=stop(at)) for job, at in zip(jobs, (2, 4, 4, 7))]
    counted.groups.clear()
    folders, outcomes = together(stopped, tmp_path)
    assert [str(o.error) for o in outcomes] == ["stopped", "stopped", "stopped", "None"]
    assert [*counted] == [(5,) * 4, (5,) * 3, (5,) * 3, (5,), (5,), (5,)]
    counted.groups.clear()
    again, outcomes = together(jobs, tmp_path, resume=True)
    assert [o.error for o in outcomes] == [None] * 4
    assert again == folders
    for a, b in zip(one, again):
        assert_same_end(a, b)


def test_random_numbers_of_the_process_are_to_each_run_what_they_are_to_one_alone(tmp_path: Path) -> None:
    """Torch's, numpy's and Python's, drawn between trainings and by different numbers of them."""
    drawn: dict[str, list[tuple[float, ...]]] = {}

    def draw(name: str, times: int) -> Any:
        def event(fed: Federation, round: int) -> None:
            for _ in range(times):
                found = float(torch.rand(())), float(np.random.rand()), random.random()
                drawn.setdefault(name, []).append(found)

        return event

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    for seed in (0, 1):
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        Seeded(seed, Random(), event=draw(f"alone {seed}", seed + 1)).run(tmp_path / f"alone-{seed}")
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    together([Seeded(seed, Random(), event=draw(f"together {seed}", seed + 1)) for seed in (0, 1)], tmp_path)
    for seed in (0, 1):
        assert drawn[f"together {seed}"] == drawn[f"alone {seed}"]
        assert len({*drawn[f"together {seed}"]}) == 3 * (seed + 1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[2]


def test_without_memory_for_all_they_are_trained_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a batch of each was drawn, and its order with it. That is tried once."""
    tried = []
    make = Place.make

    def full(self: Place, replayed: Any, members: Any, batch: Any) -> None:
        make(self, replayed, members, batch)
        if self.taken > 5:
            tried.append(self.taken)
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Place, "make", full)
    jobs = [Seeded(seed, Random(clients=5)) for seed in range(2)]
    one = alone(jobs, tmp_path)
    other, outcomes = together(jobs, tmp_path)
    assert [o.error for o in outcomes] == [None] * 2
    assert tried == [10]
    assert "clients of 2 runs are trained apart, not stacked: CUDA out of memory" in caplog.text
    for a, b in zip(one, other):
        assert_same_end(a, b, 0.0)


@pytest.mark.parametrize("where", ["a run's own work", "the training of all"])
def test_ctrl_c_ends_all_and_they_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def press(fed: Federation, round: int) -> None:
        if round == 2 and where == "a run's own work":
            signal.raise_signal(signal.SIGINT)  # in another thread than the one whom it is for
            while True:
                time.sleep(0.01)

    jobs = [Seeded(0), Seeded(1, event=press), Seeded(2)]
    one = alone([replace(job, event=None) for job in jobs], tmp_path)
    fit, before = StackedTraining.fit_runs, {*threading.enumerate()}

    def pressed(self: StackedTraining, runs: Any) -> list[Trained]:
        if runs[0][0].client.round == 2 and where == "the training of all":
            raise KeyboardInterrupt
        return fit(self, runs)

    with monkeypatch.context() as patch:
        patch.setattr(StackedTraining, "fit_runs", pressed)
        with pytest.raises(KeyboardInterrupt):
            together(jobs, tmp_path)
    assert not any(t.is_alive() for t in {*threading.enumerate()} - before)
    other, outcomes = together([replace(job, event=None) for job in jobs], tmp_path, resume=True)
    assert [o.error for o in outcomes] == [None] * 3
    for a, b in zip(one, other):
        assert_same_end(a, b)


KILLED = """
import os, signal, sys
from pathlib import Path
from support.lock_step import Seeded, together

def kill(fed, round):
    if round == 3:
        os.kill(os.getpid(), signal.SIGKILL)

together([Seeded(0), Seeded(1, event=kill), Seeded(2)], Path(sys.argv[1]))
"""


def test_killed_all_go_on_from_where_they_were(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment(), check=False)
    assert ended.returncode == -signal.SIGKILL
    jobs = [Seeded(seed) for seed in range(3)]
    one = alone(jobs, tmp_path)
    assert not any((tmp_path / f"together-{i}" / "summary.json").exists() for i in range(3))
    other, outcomes = together(jobs, tmp_path, resume=True)
    assert [o.error for o in outcomes] == [None] * 3
    for a, b in zip(one, other):
        assert_same_end(a, b, repeated=True)


def test_if_the_first_stacks_nothing_the_others_are_not_begun(tmp_path: Path) -> None:
    folders, outcomes = together([Seeded(seed, engine="local") for seed in range(2)], tmp_path)
    assert outcomes == [Outcome(True), Outcome()]
    assert not folders[1].exists()


def test_the_seconds_of_all_are_no_more_than_passed(tmp_path: Path) -> None:
    spent: list[float] = []

    def work(job: Seeded, folder: Path, clock: Clock) -> None:
        job.run(folder)
        spent.append(clock())

    begin = time.monotonic()
    in_lock_step([partial(work, Seeded(i), tmp_path / str(i)) for i in range(3)], torch.device("cpu"))
    assert 0 < sum(spent) <= time.monotonic() - begin
    assert all(spent)
