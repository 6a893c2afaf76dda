"""Three hosts, each a network namespace of its own: one is cut off in mid-run and comes back."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedreel.runs.run import run
from support.flower_site import FEDREEL, Running, allow_all, environment, fedreel, free_port, job_file, toy_recipe
from support.hosts import Hosts
from support.killing import let_go, working
from support.synthetic import Slow
from support.toy import Toy

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

CLIENTS = {"north": ("c0", "c2"), "south": ("c1", "c3")}


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        made = Hosts(*CLIENTS)
    except OSError as error:
        pytest.skip(f"network namespaces are not permitted here ({error})")
    with closing(made):
        yield made


def test_a_host_that_is_cut_off_and_healed_takes_part_again(hosts: Hosts, tmp_path: Path) -> None:
    server, port = tmp_path / "server", free_port()
    names = [word for n in (1, 2) for word in ("--host", f"10.213.{n}.1")]
    fedreel("server", "init", server, *names, "--port", port)
    for name, clients in CLIENTS.items():
        (tmp_path / f"data-{name}").mkdir()
        (tmp_path / f"data-{name}" / "clients.txt").write_text(" ".join(clients))
        fedreel("site", "init", tmp_path / name, "--data", tmp_path / f"data-{name}")
        allow_all(tmp_path / name)
        fedreel("server", "enroll", tmp_path / name / "site.pub", "--server", server)
    gate = tmp_path / "gate"
    gate.mkdir()
    let_go(gate, 1)
    job_file(tmp_path / "job.toml", toy_recipe(rounds=3, method={"name": "slow", "gate": str(gate)}))
    with ExitStack() as stack:

        def begin(host: str, *words: object) -> Running:
            log = tmp_path / f"{host}-{words[0]}.out"
            return stack.enter_context(Running(*words, log=log, prefix=hosts.inside(host)))

        begin("hub", "server", "start", server).wait_for("Listening for sites")
        sites = []
        for number, name in enumerate(CLIENTS, 1):
            where = ("--site", tmp_path / name, "--server", f"10.213.{number}.1:{port}", "--ca", server / "ca.crt")
            sites.append(begin(name, "site", "start", *where))
        for site in sites:
            site.wait_for("waiting for work")
        job = begin("hub", "submit", tmp_path / "job.toml", "--out", tmp_path / "out", "--server", server)
        working(gate, job, "c1", 2)
        hosts.cable("south", "down")
        let_go(gate, 2, 3)
        _wait_until_lost([*hosts.inside("hub"), *FEDREEL, "status", "--server", str(server)])
        hosts.cable("south", "up")
        assert job.process.wait(300) == 0, job.said()
    run(toy_recipe(rounds=3), tmp_path / "local", quiet=True, task=Toy(), method=Slow(seconds=0))
    model = "model/global.safetensors"
    assert (tmp_path / "out" / model).read_bytes() == (tmp_path / "local" / model).read_bytes()


def _wait_until_lost(status: list[str]) -> None:
    """Until the server takes the site that was cut off for lost."""
    deadline = time.monotonic() + 240
    while True:
        seen = subprocess.run(status, env=environment(), capture_output=True, text=True)
        if "south: offline" in seen.stdout:
            return
        assert time.monotonic() < deadline, seen.stdout + seen.stderr
        time.sleep(3)
