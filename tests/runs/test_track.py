"""Trackers get every number of every record, each under the round it belongs to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.server import ServerState
from fedreel.errors import RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.run import run
from fedreel.runs.track import Tracker, find_trackers
from support.toy import Toy

Sent = list[tuple[str, float, int]]


def recipe(*track: str) -> Recipe:
    return Recipe(
        device="cpu",
        track=track,
        task={"name": "toy"},
        method={"name": "fedavg"},
        train=TrainConfig(batch_size=4),
        round=RoundConfig(rounds=3),
    )


def numbers(out: Path) -> Sent:
    """What the run wrote to its own metrics: every number on the first level or among the `metrics`."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        (f"{row['phase']}/{name}", value, row["round"])
        for row in rows
        for name, value in {**row, **row.get("metrics", {})}.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round"
    ]


def test_a_sender_gets_numbers_and_nothing_else() -> None:
    sent: Sent = []
    flushed: list[int] = []
    tracker = Tracker(lambda *row: sent.append(row), lambda: flushed.append(1))
    tracker.record(4, "test", {"metrics": {"top1": 0.5, "loss": 2}, "seconds": 1.5, "clients": {"a": {"top1": 1.0}}})
    tracker.record(4, "note", {"text": "hello", "ok": True})
    tracker.round_done(ServerState(), lambda: None)
    assert sorted(sent) == [("test/loss", 2.0, 4), ("test/seconds", 1.5, 4), ("test/top1", 0.5, 4)]
    assert flushed == [1]


def test_wandb_and_mlflow_get_what_the_metrics_file_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins with the few names we use; both are told the same."""
    by_wandb: Sent = []
    by_mlflow: Sent = []
    wandb: Any = ModuleType("wandb")
    mlflow: Any = ModuleType("mlflow")

    def log(row: dict[str, Any]) -> None:
        (name,) = set(row) - {"round"}
        by_wandb.append((name, row[name], row["round"]))

    wandb.init = lambda **_: SimpleNamespace(log=log)
    mlflow.set_experiment = mlflow.start_run = lambda *_, **__: None
    mlflow.log_metric = lambda name, value, step: by_mlflow.append((name, value, step))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run(recipe("wandb", "mlflow"), tmp_path / "run", quiet=True, task=Toy(), method=FedAvg())
    expected = numbers(tmp_path / "run")
    assert {name for name, _, _ in expected} >= {"test/top1", "test/top1_clients", "train/loss", "train/bytes_up"}
    assert {step for _, _, step in expected} == {1, 2, 3}
    assert sorted(by_wandb) == sorted(by_mlflow) == sorted(expected)


def test_tensorboard_files_hold_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(recipe("tensorboard"), tmp_path / "run", quiet=True, task=Toy(), method=FedAvg())
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    assert found == {(name, step): pytest.approx(value) for name, value, step in numbers(tmp_path / "run")}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(RecipeError, match=f"the tracker '{name}' is not installed") as caught:
        run(recipe(name), tmp_path / "run", quiet=True, task=Toy(), method=FedAvg())
    assert "pip install 'fedreel[track]'" in str(caught.value)
    run(recipe(), tmp_path / "run", quiet=True, task=Toy(), method=FedAvg())  # nothing of the failed job is in the way


def test_an_unknown_tracker_is_answered_by_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'tensorboard'"):
        find_trackers(["tensorbord"])
    assert find_trackers([]) == []
