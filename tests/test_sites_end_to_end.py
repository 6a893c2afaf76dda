"""Three sites on loopback as a person runs them: certificates, keys, jobs of every task, refusals, everything killed
once. Flower does not look into what it carries, so of the methods there are the published ones, which talk in every way
and send every kind of thing, and of the tasks the parts of networks that may be trained; test_conformance has the
others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedreel.config import DataConfig, SecureConfig
from fedreel.engines.flower.link import APP
from fedreel.engines.flower.processes import program, quiet_environment
from fedreel.methods.fedbn import FedBN
from fedreel.runs.run import run
from support.conformance_engines import ROLES, Stage, assert_same_end, at_sites, local, summary
from support.conformance_jobs import CASES, CLIENTS, SITES, SMALL_TASKS, write_data
from support.flower_site import (
    FORGETFUL,
    Federation,
    Running,
    environment,
    fedreel,
    free_port,
    job_file,
    left_over,
    toy_recipe,
)
from support.killing import commands, kill, let_go, processes, summing, working
from support.started import started
from support.synthetic import Slow
from support.toy import Toy

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

PUBLISHED = {
    "image": ("fedca-image", "fedlid-image"),  # tensors in answers; a model trained on the server
    "moments": ("fedvmr-qd-detr",),  # chains, questions
    "pretrain": ("mae-lora",) if CASES["mae-lora"].able else ("task-pretrain",),  # LoRA
    "recognition": ("head", "private-examples"),  # features that are kept where the clips are
    "summary": ("cfedvs-summary",),  # several models
    "skeleton": ("fsar",),  # private state
}
JOBS = [name for task in SMALL_TASKS for name in PUBLISHED.get(task, (f"task-{task}",))]
JOBS += ["scaffold", "private", "secure-noise"]  # the jobs that are killed have int8, and state beside secure sums
# In a second round these would send nothing of another kind; what sites keep from round to round, the others have.
ONCE = {"fedca-image", "fedlid-image", "mae-lora", "head", "private-examples", "private", "secure-noise"}
TOY = DataConfig(role="toy")


@pytest.fixture(scope="module")
def data(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def federation(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("federation")
    with closing(Federation(root, {site: data / site for site in SITES}, ROLES)) as running:
        yield running
    assert not left_over(str(root))


@pytest.fixture(scope="module")
def here(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    torch.set_num_threads(1)
    return local(data, tmp_path_factory.mktemp("local"), ONCE)


@pytest.fixture(scope="module")
def there(data: Path, federation: Federation, here: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    rounds = {name: summary(here(name))["rounds"] for name in JOBS}
    with at_sites(data, tmp_path_factory.mktemp("there") / "out", rounds, federation) as stage:
        yield stage


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job on the local engine, with as many threads as the sites' processes have."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("undisturbed")
    run(toy_recipe(rounds=3, data=TOY), out / "run", quiet=True, task=Toy(), method=Slow(seconds=0))
    return out / "run"


def same_end(found: Path, federation: Federation, expected: Path) -> None:
    """Model, metrics and every client's private state as on the local engine, bit for bit."""
    models = [load_file(run / "model" / "global.safetensors") for run in (expected, found)]
    assert all((models[0][name] == models[1][name]).all() for name in models[0])
    metrics = [json.loads((run / "summary.json").read_text())["metrics"] for run in (expected, found)]
    assert metrics[0] == metrics[1]
    name = json.loads((found / "run.json").read_text())["id"]
    for site, clients in SITES.items():
        for client in clients:
            newest = sorted((expected / "clients" / client).glob("*.safetensors"))[-1]
            kept = federation.folder / site / "runs" / name / "clients" / client / newest.name
            assert kept.read_bytes() == newest.read_bytes()


def test_a_job_at_three_sites_gives_what_a_local_run_gives(federation: Federation, tmp_path: Path) -> None:
    job, out = job_file(tmp_path / "job.toml", toy_recipe(rounds=1, data=TOY)), tmp_path / "out"
    said = fedreel("submit", job, "--out", out, "--server", federation.server_folder)
    assert "slow on toy: 1 rounds" in said.stdout
    for name in ("recipe.toml", "metrics.jsonl", "summary.json", "model/global.safetensors", "report.html"):
        assert (out / name).exists(), name
    status = fedreel("status", "--server", federation.server_folder).stdout
    assert all(f"{site}: online" in status for site in SITES)
    assert f"{out}: finished, 1 rounds" in status
    ledger = fedreel("ledger", federation.folder / "ward").stdout
    assert "c0" in ledger
    assert "train" in ledger
    assert "head.weight" not in ledger  # the head never leaves
    assert "c1" not in ledger  # that is another site's


def test_a_site_whose_data_do_not_fit_is_named_before_the_first_round(federation: Federation, tmp_path: Path) -> None:
    recipe = toy_recipe(rounds=1, task={"name": "recognition", "classes": 2}, data=DataConfig(role="clips"))
    job = job_file(tmp_path / "job.toml", recipe)
    said = fedreel("submit", job, "--out", tmp_path / "out", "--server", federation.server_folder, check=False)
    assert said.returncode == 2
    assert "3 of 3 sites cannot take part" in said.stderr
    for site in SITES:
        assert f"{site}: " in said.stderr
    assert not (tmp_path / "out").exists()


def refused(*arguments: object) -> str:
    said = fedreel(*arguments, check=False, timeout=120)
    assert said.returncode == 2, said.stdout + said.stderr
    return said.stderr


def test_a_site_with_an_unknown_key_is_refused(federation: Federation, data: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    fedreel("site", "init", site, "--name", "stranger", "--data", data / "lab")
    where = ("--server", federation.address, "--ca", federation.ca)
    assert "the server does not know this site's key" in refused("site", "start", "--site", site, *where)
    node = supernode(federation.address, "--root-certificates", str(federation.ca), key=site / "site.key")
    assert "terminated" in node
    assert "SuperNode ID" not in node  # nor does the gate let it in


def test_a_site_that_is_running_is_not_started_twice(federation: Federation) -> None:
    where = ("--server", federation.address, "--ca", federation.ca)
    assert "this site is already running" in refused("site", "start", "--site", federation.folder / "lab", *where)


def test_a_server_under_another_ca_is_refused(federation: Federation, tmp_path: Path) -> None:
    fedreel("server", "init", tmp_path / "other", "--host", "127.0.0.1")
    site, ca = federation.folder / "lab", tmp_path / "other" / "ca.crt"
    said = refused("site", "start", "--site", site, "--server", federation.address, "--ca", ca)
    assert "the server's certificate is not signed by your CA" in said


def test_an_expired_certificate_is_refused_on_both_sides(federation: Federation, tmp_path: Path) -> None:
    from fedreel.sites.keys import make_server_certificate

    port = free_port()
    fedreel("server", "init", tmp_path / "old", "--host", "127.0.0.1", "--port", port, "--listen", "127.0.0.1")
    make_server_certificate(tmp_path / "old", ["127.0.0.1"], days=-0.01)
    assert "the server's certificate has expired" in refused("server", "start", tmp_path / "old")
    with started([sys.executable, "-m", "fedreel.sites.gate", tmp_path / "old"], env=environment()):
        site, ca = federation.folder / "lab", tmp_path / "old" / "ca.crt"
        deadline, said = time.monotonic() + 120, "cannot be reached"
        while "cannot be reached" in said and time.monotonic() < deadline:
            said = refused("site", "start", "--site", site, "--server", f"127.0.0.1:{port}", "--ca", ca)
        assert "the server's certificate has expired" in said


def test_plain_http_is_refused(federation: Federation) -> None:
    site = ("--site", federation.folder / "lab", "--ca", federation.ca)
    said = refused("site", "start", *site, "--server", f"http://{federation.address}")
    assert "plain HTTP is refused" in said
    port = free_port()
    with started([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port]):
        deadline, said = time.monotonic() + 120, "cannot be reached"
        while "cannot be reached" in said and time.monotonic() < deadline:
            said = refused("site", "start", *site, "--server", f"127.0.0.1:{port}")
        assert "the server does not speak TLS" in said
    node = supernode(federation.address, "--insecure", "--max-retries", "1")
    assert "SuperNode ID" not in node


def supernode(address: str, *arguments: str, key: Path | None = None) -> str:
    """Flower's own SuperNode against the server; what it says."""
    command = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", address, *arguments]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--auth-supernode-private-key", str(key)] if key else []
    env = {**environment(), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    with tempfile.TemporaryFile() as said:
        with started(command, env=env, stdout=said, stderr=said) as process, suppress(subprocess.TimeoutExpired):
            process.wait(120)
        said.seek(0)
        return said.read().decode()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_ends_at_sites_as_it_does_here(name: str, here: Stage, there: Stage) -> None:
    assert_same_end(here(name), there(name))


def test_everything_is_killed_once_and_the_run_ends_right(
    federation: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    """kill -9 of an executor, of a worker, of a whole site, which then forgets a reply, of the server, and of the job
    itself, in mid-round."""
    gate, out, server = tmp_path / "gate", tmp_path / "out", federation.server_folder
    gate.mkdir()
    settings: dict[str, Any] = {
        "method": {"name": "slow", "gate": str(gate)},
        "engine": {"name": "flower", "silence": 5.0},
    }
    job = job_file(tmp_path / "job.toml", toy_recipe(rounds=3, data=TOY, **settings))
    submit = ("submit", job, "--out", out, "--server", server)
    with Running(*submit, log=tmp_path / "submit.out") as running:
        for client in CLIENTS[:3]:  # one of each site
            working(gate, running, client, 1)
        kill(processes("fedreel.sites.executor", address_of_node(federation.folder / "ward")))
        kill(processes("fedreel.sites.worker", str(federation.folder / "lab")))
        kill(processes(str(federation.folder / "home")))  # as if the plug was pulled
        let_go(gate, 1)
        federation.start_site("home", FORGETFUL)
        working(gate, running, "c0", 2)
        kill(processes(str(server), without=("site start", "submit")))
        let_go(gate, 2)
        federation.server.start()
        federation.server.wait_for("Listening for sites")
        working(gate, running, "c0", 3)
        assert "forgotten for a test" in (federation.folder / "home" / "node.log").read_text()
        kill([running.process.pid])
        let_go(gate, 3)
    with Running(*submit, "--resume", log=tmp_path / "resumed.out") as resumed:
        resumed.wait_for("slow on toy: 3 rounds")
        assert resumed.process.wait(60) == 0
    same_end(out, federation, undisturbed)
    said = [site.log.read_text() for site in federation.sites.values()]
    assert sum(text.count("connected again") for text in said) >= 2  # when the server was killed
    assert not any("does not accept the connection" in text for text in said)  # whoever was killed gave its place back


def test_a_site_and_the_job_are_killed_in_a_secure_sum_and_the_run_ends_right(
    federation: Federation, tmp_path: Path
) -> None:
    """kill -9 of a whole site while shares are asked for, and of the job itself while clients sign who is left."""
    recipe = toy_recipe(rounds=2, data=TOY, method={"name": "fedbn"}, secure=SecureConfig(sums=True))
    torch.set_num_threads(1)
    expected = run(recipe, tmp_path / "here", quiet=True, task=Toy(), method=FedBN()).path
    job, out = job_file(tmp_path / "job.toml", recipe), tmp_path / "out"
    submit = ("submit", job, "--out", out, "--server", federation.server_folder)
    with Running(*submit, log=tmp_path / "submit.out") as running:
        summing(out, running, 1, "keys")
        kill(processes(str(federation.folder / "ward")))
        federation.start_site("ward")
        summing(out, running, 2, "masked")
        kill([running.process.pid])
    with Running(*submit, "--resume", log=tmp_path / "resumed.out") as resumed:
        resumed.wait_for("fedbn on toy: 2 rounds")
        assert resumed.process.wait(60) == 0
    same_end(out, federation, expected)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["lost"] for row in rows if row["phase"] == "secure"] == [[], []]


def address_of_node(site: Path) -> str:
    """Where a site's SuperNode talks with its executor."""
    (node,) = [text for text in commands().values() if "sites.supernode" in text and str(site) in text]
    found = re.search(r"--port (\d+)", node)
    assert found
    return f"127.0.0.1:{found[1]}"


SHIPPED = """
import json
from pathlib import Path
from flwr.app import Message
from flwr.serverapp import ServerApp
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.relay import PING, wrap

server_app = ServerApp()


@server_app.main()
def main(grid, context):
    wanted = [(node, kind) for node in grid.get_node_ids() for kind in KINDS]
    asked = [Message(wrap(Frame({"type": PING})), dst_node_id=node, message_type=kind) for node, kind in wanted]
    replies = grid.send_and_receive(asked, timeout=200)
    Path(OUT).write_text(json.dumps([reply.has_error() for reply in replies]))
"""


def test_a_program_that_the_server_ships_does_not_run_at_a_site(federation: Federation, tmp_path: Path) -> None:
    app, told = tmp_path / "app", tmp_path / "told.json"
    (app / "evil").mkdir(parents=True)
    (app / "evil" / "__init__.py").touch()
    (app / "evil" / "client.py").write_text(f"client_app = open({str(tmp_path / 'ran')!r}, 'a').write('x')\n")
    kinds, out = ("query", "train", "evaluate"), str(told)
    (app / "evil" / "server.py").write_text(SHIPPED.replace("KINDS", repr(kinds)).replace("OUT", repr(out)))
    shipped = APP.replace("fedreel.engines.flower.relay:server_app", "evil.server:server_app")
    shipped = shipped.replace("fedreel.engines.flower.relay:client_app", "evil.client:client_app")
    (app / "pyproject.toml").write_text(shipped)
    home = quiet_environment(federation.server_folder / "flower")
    done = subprocess.run([program("flwr"), "run", str(app), "fedreel"], env=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    deadline = time.monotonic() + 240
    while not told.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert json.loads(told.read_text()) == [False] * 3 * len(kinds)  # every site has answered: by our executor
    assert not (tmp_path / "ran").exists()


def test_a_local_user_gets_no_order_from_a_site(federation: Federation) -> None:
    """SuperNodes listen on loopback, where every user of the machine can reach them."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    commands = [path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")]
    ports = [
        int(words[words.index(b"--port") + 1])
        for words in commands
        if any(b"sites.supernode" in word for word in words) and str(federation.folder).encode() in b" ".join(words)
    ]
    assert len(ports) == len(SITES)
    asked = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]).SerializeToString()
    head = {"content-type": "application/protobuf"}
    for port in ports:
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/runtime/acquire-task", content=asked, headers=head)
        assert answer.status_code == 401, answer.text
