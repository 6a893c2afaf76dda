"""A run from recipe to folder: what it leaves, whose folder it is, interruptions, a full disk."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedreel.config import Recipe, RoundConfig, TrainConfig, load_recipe
from fedreel.core.federation import Federation
from fedreel.core.weights import Weights
from fedreel.errors import RunError
from fedreel.methods.fedbn import FedBN
from fedreel.methods.fedlid import FedLID
from fedreel.runs import run as core
from fedreel.runs.reading import read_metrics
from fedreel.runs.rundir import RunDir, is_full
from support.tiny import SETTINGS, cli, sets
from support.toy import Toy, ToyPopulation


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, made by the command line. Tests that change it take a copy."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "run"
    said = cli("run", "recognition", *sets({**SETTINGS, "data.source": data}), "--out", out)
    assert said.code == 0, said.err
    assert "round 2/2" in said.err
    assert str(out / "report.html") in said.out
    return out


def toy_run(out: Path, *, resume: bool = False, method: Any = None, rounds: int = 4) -> core.Result:
    recipe = Recipe(
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedbn"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=rounds),
    )
    return core.run(recipe, out, resume=resume, quiet=True, task=Toy(), method=method or FedBN())


def model_bytes(out: Path) -> bytes:
    return (out / "model" / "global.safetensors").read_bytes()


# what a run leaves


def test_the_folder_holds_all_that_was_promised(finished: Path, data: Path) -> None:
    names = {p.name for p in finished.iterdir() if not p.name.startswith(".")}
    assert names >= {
        "recipe.toml",
        "metrics.jsonl",
        "summary.json",
        "ledger.jsonl",
        "checkpoint",
        "model",
        "report.html",
    }
    summary = json.loads((finished / "summary.json").read_text())
    expected = {"system": "recognition", "method": "fedavg", "task": "recognition", "engine": "local", "seed": 0}
    assert expected.items() <= summary.items()
    assert summary["rounds"] == 2
    assert {*summary} >= {"wall_seconds", "bytes_up", "bytes_down", "metrics"}
    assert 0 <= summary["metrics"]["top1"] <= 1
    assert "<html" in (finished / "report.html").read_text()[:500]


def test_every_record_has_its_round_and_phase(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(r["round"], r["phase"]) for r in rows] == [
        (0, "partition"),
        *((r, phase) for r in (1, 2) for phase in ("test", "train")),
        (2, "trust"),
    ]
    assert [r["phase"] for r in read_metrics(finished, "test")] == ["test", "test"]


def test_the_summary_has_the_share_of_waiting_for_data(finished: Path) -> None:
    rows = [*read_metrics(finished, "train")]
    training, waiting = (sum(row[key] for row in rows) for key in ("training_seconds", "waiting_seconds"))
    assert 0 <= waiting <= training
    assert json.loads((finished / "summary.json").read_text())["waiting_for_data"] == round(waiting / training, 4)


def test_bytes_are_those_of_the_model_times_the_answers(finished: Path) -> None:
    """2 rounds x 2 clients, each way one model; upward three numbers (samples, loss, frames) of 8 bytes go along."""
    model = sum(t.numel() * t.element_size() for t in load_file(finished / "model" / "global.safetensors").values())
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["bytes_down"] == 4 * model
    rows = [json.loads(line) for line in (finished / "ledger.jsonl").read_text().splitlines()]
    trained = [r for r in rows if r["kind"] == "departure" and r["purpose"] == "train"]
    assert len(trained) == 4
    assert {tuple(sorted(r["numbers"])) for r in trained} == {("frames", "loss", "samples")}
    assert summary["bytes_up"] == sum(r["bytes"] for r in trained) >= 4 * model


def test_the_recipe_is_written_out_in_full_and_starts_the_same_run(finished: Path, tmp_path: Path) -> None:
    written = load_recipe(finished / "recipe.toml")
    assert written.task["projection"] == 0  # a default of the task,
    assert written.task["backbone"]["bn_eps"] == 1e-5  # of its backbone
    assert written.method["weight_by"] == "samples"  # and of the method
    assert cli("run", finished / "recipe.toml", "--out", tmp_path / "again", "--quiet").code == 0
    assert model_bytes(tmp_path / "again") == model_bytes(finished)


def test_seed_and_engine_of_the_command_line_reach_the_run(data: Path, tmp_path: Path, finished: Path) -> None:
    args = ["run", "recognition", *sets({**SETTINGS, "data.source": data}), "--out", tmp_path / "r", "--quiet"]
    said = cli(*args, "--seed", 5, "--engine", "local", "--device", "cpu")
    assert said.code == 0
    assert said.err == ""
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["seed"], summary["engine"], summary["device"]) == (5, "local", "cpu")
    assert model_bytes(tmp_path / "r") != model_bytes(finished)


# whose folder it is


def test_a_used_folder_is_refused_and_a_finished_run_returned(finished: Path, data: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*") if p.is_file() and p.name != ".lock"}
    args = ["run", "recognition", *sets({**SETTINGS, "data.source": data}), "--out", finished, "--quiet"]
    said = cli(*args)
    assert said.code == 2
    assert "already holds a run" in said.err
    assert "--resume" in said.err
    again = cli(*args, "--resume")
    assert again.code == 0
    assert "fedavg on recognition: 2 rounds" in again.out
    default = "task.backbone.bn_eps=1e-5"
    assert cli(*args, "--resume", "--set", default).code == 0  # the default, said aloud, is no difference
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_another_recipe_is_refused_with_the_keys_that_differ(finished: Path, data: Path) -> None:
    args = ["run", "recognition", *sets({**SETTINGS, "data.source": data}), "--out", finished, "--resume"]
    said = cli(*args, "--set", "train.lr=0.25", "--set", "method.name=fedprox")
    assert said.code == 2
    assert "train.lr: 0.1 -> 0.25" in said.err
    assert "method.name: 'fedavg' -> 'fedprox'" in said.err
    assert "method.mu: None -> " in said.err
    assert cli(*args).code == 0  # the refusal did not keep the lock


def test_a_run_from_before_a_setting_existed_goes_on_with_its_default(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.toml"
    lines = [line for line in recipe.read_text().splitlines() if not line.startswith(("weight_by", "temperature"))]
    assert len(lines) == len(recipe.read_text().splitlines()) - 2  # one of the method, one of the task
    recipe.write_text("\n".join(lines))
    assert cli("run", finished / "recipe.toml", "--out", tmp_path / "run", "--resume").code == 0
    said = cli("run", finished / "recipe.toml", "--out", tmp_path / "run", "--resume", "--set", "task.temperature=0.7")
    assert "task.temperature: 0.1 -> 0.7" in said.err


def test_the_report_is_made_up_for_if_a_crash_took_it(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    assert cli("run", finished / "recipe.toml", "--out", tmp_path / "run", "--resume").code == 0
    assert (tmp_path / "run" / "report.html").exists()


def test_a_folder_of_something_else_is_left_alone(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for flag in ([], ["--resume"]):
        said = cli("run", finished / "recipe.toml", "--out", tmp_path, *flag)
        assert said.code == 2
        assert "something other than a run" in said.err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    said = cli("run", finished / "recipe.toml", "--out", tmp_path / "thesis.txt")
    assert said.code == 2
    assert "cannot be created" in said.err


def test_a_job_that_never_began_leaves_the_folder_free(data: Path, tmp_path: Path) -> None:
    args = ["run", "recognition", *sets(SETTINGS), "--out", tmp_path / "run", "--quiet"]
    for wrong in ("data.source=/no/such/folder", "method.muu=1", "track=['tensorbord']", "policy=/no/file.toml"):
        said = cli(*args, "--set", f"data.source={data}", "--set", wrong)
        assert said.code == 2
        assert "Traceback" not in said.err
    assert cli(*args, "--set", f"data.source={data}").code == 0


def test_a_run_that_came_in_between_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs find the folder free; the other one has ended by the time this one holds the lock."""
    really = RunDir._hold_lock

    def late(folder: RunDir) -> Any:
        monkeypatch.setattr(RunDir, "_hold_lock", really)
        toy_run(tmp_path / "run")
        return really(folder)

    monkeypatch.setattr(RunDir, "_hold_lock", late)
    with pytest.raises(RunError, match="already holds a run") as caught:
        toy_run(tmp_path / "run")
    assert toy_run(tmp_path / "run", resume=True).summary["complete"]  # while the error, and all it holds, lives
    assert caught


# interruption


def test_interrupted_then_resumed_ends_the_same_to_the_bit(data: Path, tmp_path: Path) -> None:
    """A real process: while it runs nobody else gets the folder; SIGINT ends it with the command to go on with. It
    stands still while somebody else tries."""
    rounds = 12
    args = ["recognition", *sets({**SETTINGS, "data.source": data, "round.rounds": rounds})]
    assert cli("run", *args, "--out", tmp_path / "whole", "--quiet").code == 0
    out = tmp_path / "has a space"
    process = subprocess.Popen(
        [sys.executable, "-c", "from fedreel.cli import main; main()", "run", *args, "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while not (out / "checkpoint" / "000002").exists():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        second = cli("run", *args, "--out", out, "--resume")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert second.code == 2
    assert "another process is running in this folder" in second.err
    assert process.returncode == 130
    assert "Traceback" not in err
    command = shlex.split(err.rpartition("go on with: ")[2])
    assert command == ["fedreel", "run", str(out / "recipe.toml"), "--out", str(out), "--resume"]
    assert not (out / "summary.json").exists()
    done = max(int(p.name) for p in (out / "checkpoint").glob("0*"))
    assert 2 <= done < rounds
    assert cli(*command[1:], "--quiet").code == 0
    assert model_bytes(out) == model_bytes(tmp_path / "whole")
    tested = [[r["metrics"] for r in read_metrics(run, "test")] for run in (out, tmp_path / "whole")]
    assert len(tested[0]) == rounds
    assert tested[0] == tested[1]


def test_interrupted_before_the_first_round_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedreel.tasks.recognition.task.open_clips", stop)
    said = cli("run", "recognition", "--out", tmp_path / "run", "--quiet")
    assert said.code == 130
    assert "Nothing has been run yet" in said.err


@dataclass(frozen=True)
class Breaks(FedBN):
    def run(self, fed: Federation) -> None:
        for r in fed.rounds():
            if r == 2:
                raise KeyboardInterrupt
            fed.weights = fed.weights.clone()


@pytest.mark.parametrize("other", ["", "fedreel", "clients"])
def test_a_run_that_goes_on_under_other_conditions_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        toy_run(tmp_path, method=Breaks())
    if other == "fedreel":
        monkeypatch.setattr("fedreel.runs.run.__version__", "9.9")
    elif other == "clients":
        monkeypatch.setattr(ToyPopulation, "describe", lambda self: {"classes": ["no", "yes"], "train": {"c0": [1, 1]}})
    toy_run(tmp_path, resume=True)
    said = [row["text"].partition("than before: ")[2] for row in read_metrics(tmp_path, "note")]
    assert [text.split()[0].rstrip(":") for text in said if text] == [other] * bool(other)
    assert len([*read_metrics(tmp_path, "partition")]) == 1


def test_a_checkpoint_under_way_is_finished_when_the_run_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.05)
        really(handle)

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(KeyboardInterrupt):
        toy_run(tmp_path, method=Breaks())
    assert [p.name for p in (tmp_path / "checkpoint").glob("0*")] == ["000001"]


# a full disk

FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_TENSORS = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def fails_at(call: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    count = [0]

    def instead(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] >= call:
            raise error
        return function(*args, **kwargs)

    return instead


def fill_the_disk(patch: pytest.MonkeyPatch, where: str) -> None:
    """From the third write of that kind on there is no room."""
    if where == "checkpoint":
        patch.setattr("fedreel.runs.checkpoint.save_file", fails_at(3, save_file, FULL_TENSORS))
    elif where == "fsync":
        patch.setattr(os, "fsync", fails_at(30, os.fsync, FULL))
    elif where == "metrics":
        patch.setattr(RunDir, "record", fails_at(6, RunDir.record, FULL))
    else:
        patch.setattr("fedreel.runs.run.save_file", fails_at(1, save_file, FULL_TENSORS))


@dataclass(frozen=True)
class Dying(FedLID):
    """Is broken off in the third round, before the server trains."""

    def at_server(self, fed: Federation, weights: Weights) -> Weights:
        if fed.round == 3:
            raise RuntimeError("broken off")
        return super().at_server(fed, weights)


def test_the_servers_head_survives_a_resume_to_the_bit(tmp_path: Path) -> None:
    toy_run(tmp_path / "whole", method=FedLID())
    with pytest.raises(RuntimeError, match="broken off"):
        toy_run(tmp_path / "run", method=Dying())
    toy_run(tmp_path / "run", method=FedLID(), resume=True)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize("where", ["checkpoint", "fsync", "metrics", "model"])
def test_a_full_disk_is_told_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole, out = toy_run(tmp_path / "whole"), tmp_path / "run"
    with monkeypatch.context() as patch:
        fill_the_disk(patch, where)
        with pytest.raises(RunError, match="the disk is full") as caught:
            toy_run(out)
    assert "--resume" in str(caught.value)
    assert not (out / "summary.json").exists()
    assert not (out / "model").exists()
    assert not list(out.rglob("*.tmp"))
    rounds = sorted(p.name for p in (out / "checkpoint").glob("0*"))
    assert rounds
    for name in rounds:  # each whole
        load_file(out / "checkpoint" / name / "tensors.safetensors")
        json.loads((out / "checkpoint" / name / "state.json").read_text())
    resumed = toy_run(out, resume=True)
    assert model_bytes(out) == model_bytes(tmp_path / "whole")
    assert resumed.metrics == whole.metrics


def test_other_errors_of_the_disk_are_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_full(FULL)
    assert is_full(FULL_TENSORS)
    assert not is_full(OSError(errno.EIO, "I/O error"))
    broken = SafetensorError("I/O error: Input/output error (os error 5)")
    monkeypatch.setattr("fedreel.runs.checkpoint.save_file", fails_at(2, save_file, broken))
    with pytest.raises(RunError, match="the checkpoint cannot be written"):
        toy_run(tmp_path)
