"""The benchmarks still run, and what they check beside time is right. How fast they were is asserted nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from support.flower_site import environment, job_file, toy_recipe
from support.warm import run_python

BENCH = Path(__file__).parent.parent / "bench"


def last_line(*command: str, warm: bool = False) -> Any:
    """Of what a benchmark prints. Those that start processes of their own are not forked from a `warm` one."""
    if warm:
        done = run_python(*command, cwd=BENCH)
    else:
        done = subprocess.run([sys.executable, *command], cwd=BENCH, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_stopped_build_of_shards_goes_on_with_the_parts_that_are_finished() -> None:
    found = last_line("shards.py", "--clips", "75", "--clips-per-part", "5")
    assert (found["broken"], found["cut"], found["listed_wrongly"]) == (6, 3, 0)
    assert found["same_bytes"]
    assert found["resume_finished"] > 0
    assert found["resume_again"] == 0


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (("kernels.py", "--skip-peers", "--repeat", "1"), "disagree"),
        (("roi_align.py", "--repeat", "1"), "disagree"),
        (("image_views.py", "--repeat", "1"), "wrong_shape"),
    ],
)
def test_contenders_agree(command: tuple[str, ...], wrong: str) -> None:
    assert last_line(*command, warm=True)[wrong] == []


def test_both_checks_find_the_clips_that_are_cut_short() -> None:
    found = last_line("check.py", "--clips", "8", "--seconds", "0.4")
    for mode in ("quick", "thorough"):
        assert (found[mode]["problems"], found[mode]["missed"], found[mode]["wrong"]) == (1, 0, 0)


def test_the_pages_list_all_runs_and_follow_one() -> None:
    pytest.importorskip("uvicorn", reason="the extra ui is not installed")
    found = last_line("ui.py", "--runs", "6", "--rounds", "5", "--seconds", "1")
    assert found["listed"] == 6


def test_what_a_client_costs_is_counted() -> None:
    assert last_line("host_cost.py", "--engine", "local", "--rounds", "1", warm=True) > 0


def test_a_round_is_taken_apart() -> None:
    assert last_line("round_cost.py", "--part", "stacked", "--rounds", "1", warm=True)["milliseconds"] > 0


def test_those_for_gpus_find_what_they_import() -> None:
    assert last_line("-c", "import step_kernels; print('{}')", warm=True) == {}  # it imports the others


TOLD = """
import json
import pretrain_gpu, streaming
pretrain_gpu.DEVICE = "cpu"
speed = pretrain_gpu.Random(clips=2, frames=2, size=16)
many = [streaming.Owners(range(10), streaming.Made()), pretrain_gpu.Owners(2, speed)]
print(json.dumps([[*owners.data("0").numbers] == [*speed.sends] for owners in many]))
"""


def test_clients_of_those_that_pretrain_tell_what_the_task_declares() -> None:
    """The server takes nothing less, and nobody starts these benches without a GPU."""
    assert last_line("-c", TOLD, warm=True) == [True, True]


MADE = """
import json, sys, argparse
from pathlib import Path
import fedvssl_ucf
from fedreel.data import clip_index
from fedreel.media import video
folder = Path(sys.argv[1])
fedvssl_ucf.make_clips(folder, argparse.Namespace(clips=3, distinct=2, seconds=0.2))
clips = clip_index.find(folder)
print(json.dumps([[clip.owner, clip.split, *video.read(folder / clip.path)[0].shape] for clip in clips]))
"""


def test_clients_like_those_of_ucf_have_as_many_clips_as_they_should_and_one_to_test_with(tmp_path: Path) -> None:
    found = last_line("-c", MADE, str(tmp_path / "videos"), warm=True)
    parts = [(f"client-{n}", part) for n in range(5) for part in ("test", "train", "train", "train")]
    assert sorted((owner, part) for owner, part, *_ in found) == sorted(parts)
    assert {tuple(shape) for _, _, *shape in found} == {(5, 240, 320, 3)}


def test_what_the_engines_are_timed_on_is_the_same_job(tmp_path: Path) -> None:
    data = np.random.default_rng(0)
    users, labels = data.integers(0, 256, (6, 10, 3, 32, 32), dtype=np.uint8), data.integers(0, 10, (6, 10))
    np.savez(tmp_path / "data.npz", images=users, labels=labels, cohorts=np.array([[0, 3, 5], [4, 1, 0]]))
    options = ("--model", "linear", "--rounds", "1", "--data", str(tmp_path / "data.npz"), "--threads", "1")
    weights = []
    for job, *engine in (("bare",), ("fedreel",), ("fedreel", "--engine", "processes", "--workers", "2")):
        out = tmp_path / "out.json"
        done = run_python(BENCH / "engine_jobs" / f"{job}_job.py", *options, "--out", out, *engine, cwd=BENCH)
        assert done.returncode == 0, done.stderr[-2000:]
        weights.append(np.load(out.with_suffix(".npy")))
    assert np.allclose(weights[0], weights[1], atol=1e-6)
    assert np.array_equal(weights[1], weights[2])
    alone = BENCH / "engine_jobs" / "alone_job.py"
    done = run_python(alone, *options, "--out", tmp_path / "alone.json", "--counts", "1,2", cwd=BENCH)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "alone.json").read_text()).keys() == {"1", "2"}


def test_recipes_are_timed_on_both_engines(tmp_path: Path) -> None:
    """What was timed before is not timed again: of `local` as kept, one hour."""
    job_file(tmp_path / "job.toml", toy_recipe(rounds=1))
    name, keep = str(tmp_path / "job.toml"), tmp_path / "kept.json"
    keep.write_text(json.dumps({f"{name} on local, quiet, rounds 1, number 0": 3600.0}))
    with mock.patch.dict("os.environ", {"PYTHONPATH": environment()["PYTHONPATH"]}):
        found = last_line("processes.py", "recipes", "--recipes", name, "--rounds", "1", "--keep", str(keep))
    assert found["seconds"].keys() == {"local", "processes"}
    assert found["seconds"]["local"][name] == 3600
    assert found["ratios"][name] == found["seconds"]["processes"][name] / 3600
    assert len(json.loads(keep.read_text())) == 2
