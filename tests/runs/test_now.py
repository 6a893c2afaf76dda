"""now.json says who works while a run is under way, and is gone when it has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedreel.runs.now as now
from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.client import Client
from fedreel.core.update import Update
from fedreel.machine.alive import alive, interrupt, process, this_process
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.run import run
from support.toy import Toy


@dataclass(frozen=True)
class Looking(FedAvg):
    """Every client reads the run's now.json before it trains; c1 then fails, in the first round."""

    out: str = ""

    def local_training(self, client: Client) -> Update:
        said = json.loads((Path(self.out) / now.NOW).read_text())
        SEEN.append(said)
        if client.name == "c1" and said["round"] == 1:
            raise ValueError("out of films")
        return super().local_training(client)


SEEN: list[dict[str, Any]] = []


def test_a_run_says_who_waits_works_is_done_and_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "OFTEN", 0.0)
    monkeypatch.setattr(now, "SHARE", 0.0)
    SEEN.clear()
    out = tmp_path / "run"
    recipe = Recipe(
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedavg"},
        train=TrainConfig(batch_size=8),
        round=RoundConfig(rounds=2, min_answers=0.5),
    )
    run(recipe, out, quiet=True, task=Toy(), method=Looking(out=str(out)))
    first = [said["clients"] for said in SEEN[:4]]
    assert first == [
        {"c0": "working", "c1": "waiting", "c2": "waiting", "c3": "waiting"},
        {"c0": "done", "c1": "working", "c2": "waiting", "c3": "waiting"},
        {"c0": "done", "c1": "failed", "c2": "working", "c3": "waiting"},
        {"c0": "done", "c1": "failed", "c2": "done", "c3": "working"},
    ]
    assert [(said["round"], said["rounds"], said["kind"]) for said in SEEN] == [(1, 2, "train")] * 4 + [
        (2, 2, "train")
    ] * 4
    assert all(alive(said) for said in SEEN)
    assert not (out / now.NOW).exists()


def test_writing_costs_at_most_a_hundredth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that this test moves: a writing of 2 s is followed by none for 200 s."""
    time, written = [0.0], []
    monkeypatch.setattr(now.time, "monotonic", lambda: time[0])

    def slow(*_: object, **__: object) -> None:
        written.append(time[0])
        time[0] += 2.0

    monkeypatch.setattr(now, "write_atomic", slow)
    watcher = now.Now(tmp_path, 1)
    watcher.work_begins(1, "train", ["a"])
    for _ in range(500):
        watcher.client_is("a", "working")
        time[0] += 1.0
    assert written == [0.0, 202.0, 404.0]


def test_a_process_is_known_by_its_birth_and_not_by_its_number() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    known = process(child.pid)
    try:
        assert alive(known)
        assert alive(this_process())
        assert not alive({**known, "born": "1"})
        assert not alive({**known, "host": "elsewhere"})
        assert not alive({})
        assert interrupt(known)
        child.wait(60)
    finally:
        child.kill()
        child.wait()
    assert not alive(known)
    assert not interrupt(known)


def test_what_is_written_between_two_clients_never_says_that_nobody_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(now, "OFTEN", 0.0)
    monkeypatch.setattr(now, "SHARE", 0.0)
    watcher = now.Now(tmp_path, 1)
    watcher.work_begins(1, "train", ["a", "b", "c"])
    written = []
    for client, state in (("a", "working"), ("a", "done"), ("b", "working"), ("c", "working"), ("b", "failed")):
        watcher.client_is(client, state)
        written.append([*json.loads((tmp_path / now.NOW).read_text())["clients"].values()])
    assert written == [
        ["working", "waiting", "waiting"],
        ["working", "waiting", "waiting"],  # not yet written that a is done
        ["done", "working", "waiting"],
        ["done", "working", "working"],
        ["done", "failed", "working"],
    ]
