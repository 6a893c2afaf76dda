"""The simulation as a person starts it: it ends as the local engine does, and leaves nothing behind, even by Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.run import run
from fedreel.methods.fedbn import FedBN
from flower_site import Running, fedreel
from toy import Toy

pytest.importorskip("ray", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

RECIPE = """
system = "toy"
device = "cpu"
[task]
name = "toy"
[method]
name = "{method}"
[train]
batch_size = 4
lr = 0.1
[round]
rounds = 3
[engine]
name = "flower-sim"
"""


def helpers() -> set[tuple[int, str]]:
    """Processes of Ray and Flower that run on this machine."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        ours = any(word in words for word in ("raylet", "gcs_server", "ray::", "flower-super", "flwr-"))
        if ours and state != "Z":
            found.add((int(folder.name), words))
    return found


def test_a_simulated_run_writes_what_a_local_run_writes(tmp_path: Path) -> None:
    before = helpers()
    (tmp_path / "job.toml").write_text(RECIPE.format(method="fedbn"))
    said = fedreel("run", tmp_path / "job.toml", "--out", tmp_path / "run", timeout=300)
    assert "fedbn on toy: 3 rounds" in said.stdout
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedbn"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=3),
    )
    run(recipe, tmp_path / "local", quiet=True, task=Toy(), method=FedBN())
    for name in ("model/global.safetensors",):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    ledgers = [(tmp_path / side / "ledger.jsonl").read_text().count('"departure"') for side in ("run", "local")]
    assert ledgers[0] == ledgers[1]
    assert helpers() <= before


def test_ctrl_c_leaves_nothing_running_and_says_how_to_go_on(tmp_path: Path) -> None:
    before = helpers()
    (tmp_path / "job.toml").write_text(RECIPE.format(method="slow"))
    running = Running("run", tmp_path / "job.toml", "--out", tmp_path / "run", log=tmp_path / "said")
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "clients").exists():  # the first client has worked: in the midst of a round
        assert running.process.poll() is None, running.said()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(60) == 130
    assert "go on with: fedreel run" in running.said()
    assert helpers() <= before
