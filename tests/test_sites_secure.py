"""Secure sums of ten clients at four sites on loopback: answers lost, and kill -9 of a site, the server and the job in
each phase. Ten minutes, so only where somebody asks for it: FEDREEL_LONG=1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedreel.config import DataConfig, Recipe, SecureConfig
from fedreel.core.method import Method
from fedreel.methods.fedbn import FedBN
from fedreel.runs.run import run
from support.flower_site import Federation, Running, fedreel, job_file, left_over, toy_recipe
from support.killing import kill, processes, summing
from support.synthetic import PHASES, Lossy
from support.toy import Toy

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytest.importorskip("cryptography", reason="needs the extra `secure`")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("FEDREEL_LONG" not in os.environ, reason="takes ten minutes: FEDREEL_LONG=1"),
]

SITES = {"ward": "c0 c4 c8", "lab": "c1 c5 c9", "home": "c2 c6", "clinic": "c3 c7"}
CLIENTS = sorted(client for some in SITES.values() for client in some.split())


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("secure")
    for site, clients in SITES.items():
        (root / "data" / site / "toy").mkdir(parents=True)
        (root / "data" / site / "toy" / "clients.txt").write_text(clients)
    with closing(Federation(root, {site: root / "data" / site for site in SITES}, ("toy",))) as running:
        yield running
    assert not left_over(str(root))


def recipe_of(rounds: int, **method: object) -> Recipe:
    data, task = DataConfig(role="toy"), {"name": "toy", "clients": len(CLIENTS)}
    return toy_recipe(rounds=rounds, data=data, task=task, method=method, secure=SecureConfig(sums=True))


def here(recipe: Recipe, method: Method, out: Path) -> Path:
    torch.set_num_threads(1)
    return run(recipe, out, quiet=True, task=Toy(clients=len(CLIENTS)), method=method).path


def assert_same_end(expected: Path, found: Path) -> None:
    models = [load_file(run / "model" / "global.safetensors") for run in (expected, found)]
    assert all((models[0][name] == models[1][name]).all() for name in models[0])
    metrics = [json.loads((run / "summary.json").read_text())["metrics"] for run in (expected, found)]
    assert metrics[0] == metrics[1]


def lost(run: Path) -> list[list[str]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["lost"] for row in rows if row["phase"] == "secure"]


def test_the_sum_is_that_of_the_others_whoever_gets_lost(federation: Federation, tmp_path: Path) -> None:
    """None, one and three of ten in each phase."""
    recipe = recipe_of(11, name="lossy", most=3)
    expected = here(recipe, Lossy(most=3), tmp_path / "here")
    job, out = job_file(tmp_path / "job.toml", recipe), tmp_path / "out"
    fedreel("submit", job, "--out", out, "--server", federation.server_folder, timeout=1200)
    assert_same_end(expected, out)
    assert lost(out) == lost(expected)
    assert (
        sorted(len(clients) for clients in lost(out)) == [0] * 5 + [1] * 3 + [3] * 3
    )  # later their part is in the sum


@pytest.mark.parametrize("what", ["site", "server", "job"])
def test_whatever_is_killed_in_whatever_phase_the_run_ends_right(
    what: str, federation: Federation, tmp_path: Path
) -> None:
    """In the first round while keys are asked for, in the second while shares are, and so on."""
    recipe = recipe_of(len(PHASES), name="fedbn")
    expected = here(recipe, FedBN(), tmp_path / "here")
    job, out = job_file(tmp_path / "job.toml", recipe), tmp_path / "out"
    submit = ("submit", job, "--out", out, "--server", federation.server_folder)
    with ExitStack() as jobs:
        running = jobs.enter_context(Running(*submit, log=tmp_path / "submit.out"))
        for round, before in enumerate(("", *PHASES[:-1]), 1):
            summing(out, running, round, before)
            if what == "site":
                kill(processes(str(federation.folder / "ward")))
                federation.start_site("ward")
            elif what == "server":
                kill(processes(str(federation.server_folder), without=("site start", "sites.supernode", "submit")))
                federation.server.start()
                federation.server.wait_for("Listening for sites")
            else:
                kill([running.process.pid])
                running = jobs.enter_context(Running(*submit, "--resume", log=tmp_path / "submit.out"))
        running.wait_for("fedbn on toy: 5 rounds")
        assert running.process.wait(60) == 0
    assert_same_end(expected, out)
    assert lost(out) == [[]] * len(PHASES)
