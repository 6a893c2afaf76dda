"""How far a run has come, told by the end of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.server import ServerState
from fedreel.core.weights import Weights
from fedreel.runs.checkpoint import Checkpoints, Snapshot
from fedreel.runs.reading import Progress, read_progress


def write(run: Path, *rows: dict[str, Any]) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def save(run: Path, round: int) -> None:
    state = ServerState(
        round, {"global": Weights.of({"w": torch.ones(1)})}, totals={"bytes_up": round, "bytes_down": 7}
    )
    (run / "checkpoint").mkdir(exist_ok=True)
    Checkpoints(run / "checkpoint").save(Snapshot.of(state, {}))


def test_round_bytes_and_what_was_given_away(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == Progress()
    for r in (1, 2, 3):
        write(tmp_path, {"phase": "test", "round": r}, {"phase": "train", "round": r})
        write(tmp_path, {"phase": "privacy", "round": r, "epsilon": r / 2})
        save(tmp_path, r)
    assert read_progress(tmp_path) == Progress(3, 3, 7, 1.5)
    write(tmp_path, {"phase": "refused", "round": 4}, {"phase": "train", "round": 4})  # stopped in the middle
    assert read_progress(tmp_path) == Progress(4, 3, 7, 1.5)
    (tmp_path / "checkpoint" / "000003" / "state.json").write_text("{")
    assert read_progress(tmp_path) == Progress(4, 2, 7, 1.5)


def test_no_more_is_read_of_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *({"phase": "train", "round": r, "clients": ["a"] * 50} for r in range(1, 2000)))
    parsed: list[Any] = []
    real = json.loads
    monkeypatch.setattr("fedreel.machine.tail.json.loads", lambda text: parsed.append(text) or real(text))
    assert read_progress(tmp_path).round == 1999
    assert len(parsed) < 5
