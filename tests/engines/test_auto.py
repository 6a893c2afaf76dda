"""Which engine a run takes that names none, and that it says so."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedreel.config import RoundConfig
from fedreel.core.job import Job
from fedreel.engines import auto
from fedreel.engines.auto import AutoEngine
from fedreel.engines.processes.crew import SpawnedCrew
from fedreel.engines.processes.engine import ProcessesEngine
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import run
from support.flower_site import toy_recipe
from support.toy import Toy


def job(folder: Path, **rounds: float) -> Job:
    recipe = replace(toy_recipe(rounds=2, transfer=None), round=RoundConfig(rounds=2, **rounds))  # type: ignore[arg-type]
    return Job(recipe, Toy(clients=4), FedAvg(), torch.device("cpu"), folder)


@pytest.mark.parametrize(
    ("cores", "rounds", "workers", "chosen"),
    [
        (1, {}, 0, "local"),  # nobody could work beside this process
        (2, {}, 0, "processes"),
        (8, {}, 0, "processes"),  # four clients keep half of the cores busy
        (9, {}, 0, "local"),  # and less than half of these
        (4, {"fraction": 0.5}, 0, "processes"),
        (4, {"fraction": 0.25}, 0, "local"),  # one client at a time
        (4, {"clients": 1}, 0, "local"),
        (1, {}, 3, "processes"),  # as is wished
        (8, {}, 1, "local"),
    ],
)
def test_it_depends_on_cores_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, rounds: dict[str, float], workers: int, chosen: str
) -> None:
    monkeypatch.setattr(auto, "_cores", lambda: cores)
    with closing(AutoEngine.begin(job(tmp_path, **rounds), workers=workers)) as engine:
        assert engine.chosen == chosen


def test_threads_that_are_not_to_be_taken_count_as_no_cores() -> None:
    torch.set_num_threads(1)
    assert auto._cores() == 1


def test_one_of_many_processes_starts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_cores", lambda: 2)
    monkeypatch.setattr(auto.multiprocessing, "parent_process", lambda: object())
    with closing(AutoEngine.begin(job(tmp_path))) as engine:
        assert engine.chosen == "local"


@pytest.mark.parametrize("able", [True, False])
def test_where_workers_could_not_train_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    """On a machine with a GPU a process that has trained cannot be forked any more."""

    def fail() -> None:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")

    monkeypatch.setattr(auto, "_cores", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if not able:
        monkeypatch.setattr("fedreel.engines.processes.work._try_out", fail)
    with closing(AutoEngine.begin(job(tmp_path))) as engine:
        assert engine.chosen == ("processes" if able else "local")


def test_a_run_says_what_it_took_and_may_go_on_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_cores", lambda: 2)
    recipe = toy_recipe(rounds=2, transfer=None, engine={"name": "auto"})
    result = run(recipe, tmp_path / "run", quiet=True, task=Toy(), method=FedAvg())
    assert result.summary["engine"] == "processes"
    (note,) = read_metrics(tmp_path / "run", "note")
    assert note["text"] == "2 clients at once on 2 cores, one thread each (engine processes)"
    local = replace(recipe, engine={"name": "local"})
    assert run(local, tmp_path / "run", resume=True, quiet=True, task=Toy(), method=FedAvg()).summary == result.summary


def test_a_notebook_is_not_forked_and_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_cores", lambda: 2)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)  # as IPython and Python's own prompt have it
    monkeypatch.setattr(os, "fork", None)
    recipe = toy_recipe(rounds=1, transfer=None, engine={"name": "auto"})
    result = run(recipe, tmp_path / "run", quiet=True, task=Toy(), method=FedAvg())
    assert result.summary["engine"] == "local"
    (note,) = read_metrics(tmp_path / "run", "note")
    assert "workers are not forked from a notebook or a prompt (engine local)" in note["text"]
    with closing(ProcessesEngine.begin(job(tmp_path), workers=2)) as engine:
        assert isinstance(engine._crew, SpawnedCrew)
