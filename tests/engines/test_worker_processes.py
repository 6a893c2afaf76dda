"""Clients at once in several processes end as one after another, to the bit, whoever works for them and who dies."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import fedreel.core.state
from fedreel.config import RoundConfig, TrainConfig
from fedreel.core.chain import verify
from fedreel.core.client import Client
from fedreel.core.exchange import Policy
from fedreel.core.federation import Federation
from fedreel.core.job import Job
from fedreel.core.method import Method
from fedreel.core.task import EVERYONE
from fedreel.core.update import ASK, Failure, Order, Update
from fedreel.engines.local import LocalEngine
from fedreel.engines.processes import engine as engines
from fedreel.engines.processes.crew import ForkedCrew, SpawnedCrew
from fedreel.engines.processes.engine import ProcessesEngine
from fedreel.errors import RecipeError, RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from support.descendants import descendants, running
from support.flower_site import toy_recipe
from support.gated import OPEN, started, work
from support.open_files import open_files
from support.toy import HeadStays, Notes, Random, Toy, make_worker, orders, results
from support.warm import warm_process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


@dataclass(frozen=True)
class Scripted(FedAvg):
    """Clients do what a script says before they train, and note in a file that they did."""

    folder: str = ""
    script: Callable[[Client, Path], None] | None = None

    def local_training(self, client: Client) -> None:
        with open(Path(self.folder) / "worked", "a") as file:
            file.write(f"{client.name} {os.getpid()}\n")
        if self.script is not None:
            self.script(client, Path(self.folder))
        super().local_training(client)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes(folder: Path, workers: int, method: Method, alone: float = 0.0, **own: Any) -> ProcessesEngine:
    worker = make_worker(folder, method, **own)
    return ProcessesEngine(worker, ForkedCrew(worker, workers), workers, alone)


def scripted(folder: Path, workers: int, script: Callable[[Client, Path], None] | None = None) -> ProcessesEngine:
    return processes(folder, workers, Scripted(folder=str(folder), script=script))


def wanted(engine: LocalEngine, *clients: str, **settings: Any) -> list[Order]:
    return [replace(order, **settings) for order in orders(engine.blueprint.start.clone(), list(clients))]


def federate(engine: LocalEngine, method: Method, config: RoundConfig) -> tuple[Federation, Notes]:
    notes = Notes()
    with closing(engine):
        fed = Federation(engine, method, config, 0, watchers=[notes])
        method.run(fed)
    return fed, notes


def departures(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("time", "times", "prev")} for row in rows]


def states(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in (folder / "clients").rglob("*") if f.is_file()}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("method", "train"),
    [
        (FedAvg(), {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}),
        (MOON(), {}),
        (SCAFFOLD(), {}),
        (HeadStays(), {"epochs": 2, "momentum": 0.9}),
    ],
    ids=["keeps its optimizer", "remembers", "tensors beside the model", "a head stays"],
)
def test_the_same_bits_the_same_ledger_and_the_same_files(
    tmp_path: Path, method: Method, train: dict[str, Any], workers: int
) -> None:
    own: dict[str, Any] = {"task": Random(clients=5), "train": TrainConfig(**{"batch_size": 4, "lr": 0.1, **train})}
    config = RoundConfig(rounds=3)
    one, seen = federate(LocalEngine(make_worker(tmp_path / "local", method, **own)), method, config)
    many, seen_too = federate(processes(tmp_path / "many", workers, method, **own), method, config)
    assert one.weights.equal(many.weights)
    for phase, key in (("train", "loss"), ("test", "metrics")):
        assert [row[key] for row in seen.of(phase)] == [row[key] for row in seen_too.of(phase)]
    assert departures(tmp_path / "local") == departures(tmp_path / "many")
    assert not verify(tmp_path / "many" / "ledger.jsonl").problems
    assert states(tmp_path / "local") == states(tmp_path / "many")


def test_a_worker_that_is_started_afresh_makes_the_same(tmp_path: Path) -> None:
    method = HeadStays()
    job = Job(toy_recipe(rounds=2, transfer=None), Toy(clients=3), method, torch.device("cpu"), tmp_path / "spawned")
    spawned = ProcessesEngine(job.worker(), SpawnedCrew(job, False, 1), 1)
    one, _ = federate(LocalEngine(replace(job, out=tmp_path / "local").worker()), method, RoundConfig(rounds=2))
    other, _ = federate(spawned, method, RoundConfig(rounds=2))
    assert one.weights.equal(other.weights)
    assert states(tmp_path / "local") == states(tmp_path / "spawned")


def test_a_job_that_cannot_be_handed_over_says_so(tmp_path: Path) -> None:
    method = Scripted(folder=str(tmp_path), script=lambda client, folder: None)
    job = Job(toy_recipe(rounds=2), Toy(), method, torch.device("cpu"), tmp_path)
    with closing(SpawnedCrew(job, False, 1)) as crew, pytest.raises(RunError, match="cannot be handed to another"):
        crew.start()


def wait_for_gate(client: Client, folder: Path) -> None:
    if client.name == "c0":
        until((folder / OPEN).exists)


def open_gate_after_c1(client: Client, folder: Path) -> None:
    """The first client ends after the second."""
    if client.name == "c2":
        (folder / OPEN).touch()
    wait_for_gate(client, folder)


def test_whoever_ends_first_results_come_as_the_local_engine_has_them(tmp_path: Path) -> None:
    with closing(scripted(tmp_path, 2, open_gate_after_c1)) as engine:
        found = results(engine, wanted(engine, "c0", "c1", "c2"))
    assert [r.client for r in found] == ["c0", "c1", "c2"]
    assert [row["client"] for row in departures(tmp_path) if row["kind"] == "departure"] == ["c0", "c1", "c2"]


def test_what_another_order_waits_for_is_handed_out_at_once(tmp_path: Path) -> None:
    """c0 ends only after c1's result has come: were they kept in sequence, for ever."""
    with closing(scripted(tmp_path, 2, wait_for_gate)) as engine:
        for order in wanted(engine, "c0", "c1", awaited=True):
            engine.submit(order)
        assert engine.next().client == "c1"
        (tmp_path / OPEN).touch()
        assert engine.next().client == "c0"
        assert engine.next() is None


def test_what_follows_in_a_chain_begins_before_it_is_asked_for(tmp_path: Path) -> None:
    with closing(scripted(tmp_path, 2)) as engine:
        first, second = wanted(engine, "c0", "c1")
        engine.submit(replace(first, awaited=True))
        engine.next()
        engine.submit(second)
        until(lambda: "c1" in (tmp_path / "worked").read_text())
        assert engine.next().client == "c1"


def test_the_longest_come_first(tmp_path: Path) -> None:
    """c0 has 8 points, each further client four more."""
    with closing(scripted(tmp_path, 1)) as engine:
        assert len(results(engine, wanted(engine, "c0", "c2", "c3", "c1"))) == 4
    assert [line.split()[0] for line in (tmp_path / "worked").read_text().splitlines()] == ["c3", "c2", "c1", "c0"]


def wait_for_all(client: Client, folder: Path) -> None:
    if client.name == "c4":
        until(lambda: len((folder / "worked").read_text().splitlines()) == 5)


def test_nobody_waits_behind_the_longest_while_another_worker_is_free(tmp_path: Path) -> None:
    """c4, the longest, ends only when all others have begun."""
    method = Scripted(folder=str(tmp_path), script=wait_for_all)
    with closing(processes(tmp_path, 2, method, task=Toy(clients=5))) as engine:
        found = results(engine, wanted(engine, "c0", "c1", "c2", "c3", "c4"))
    assert all(isinstance(r, Update) for r in found)


def test_a_client_s_second_order_begins_where_the_first_ended(tmp_path: Path) -> None:
    one = LocalEngine(make_worker(tmp_path / "local", HeadStays()))
    with closing(processes(tmp_path / "many", 3, HeadStays())) as engine:
        expected = {(r.round, r.step): r for r in results(one, wanted(one, "c0", "c0", "c1", "c0"))}
        found = {(r.round, r.step): r for r in results(engine, wanted(engine, "c0", "c0", "c1", "c0"))}
    assert found.keys() == expected.keys()
    for key, update in found.items():
        assert isinstance(update, Update)
        assert update.weights.equal(expected[key].weights)


def die(client: Client, folder: Path) -> None:
    if client.name == "c1":
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_costs_one_client_its_answer(tmp_path: Path) -> None:
    with closing(scripted(tmp_path, 2, die)) as engine:
        found = {r.client: r for r in results(engine, wanted(engine, "c0", "c1", "c2", "c3"))}
        again = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c2"], first=5))
    failed = [r for r in found.values() if isinstance(r, Failure)]
    assert [(f.client, f.reason) for f in failed] == [("c1", "error")]
    assert "SIGKILL (was it out of memory?); another takes its place" in failed[0].detail
    assert all(isinstance(found[c], Update) for c in ("c0", "c2", "c3"))
    assert all(isinstance(r, Update) for r in again)


def leave(client: Client, folder: Path) -> None:
    raise SystemExit(3)


def test_a_client_that_ends_its_process_says_how(tmp_path: Path) -> None:
    with closing(scripted(tmp_path, 1, leave)) as engine:
        (found,) = results(engine, wanted(engine, "c0"))
    assert "ended with status 3" in found.detail


def sleep(client: Client, folder: Path) -> None:
    if client.name == "c1":
        time.sleep(60)


def sleep_deaf(client: Client, folder: Path) -> None:
    """As code does that hangs outside Python."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    sleep(client, folder)


@pytest.mark.parametrize("script", [sleep, sleep_deaf])
def test_a_client_that_hangs_is_given_up_after_its_time(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_GRACE", 0.2)
    with closing(scripted(tmp_path, 2, script)) as engine:
        found = {r.client: r for r in results(engine, wanted(engine, "c0", "c1", "c2", limit=3.0))}
    assert [(c, r.reason, r.detail) for c, r in found.items() if isinstance(r, Failure)] == [
        ("c1", "timeout", "no answer within 3 s")
    ]


def break_down(client: Client, folder: Path) -> None:
    if client.name == "c2":
        raise ValueError("what an owner's data may do")
    if client.name == "c1":
        client.load({"head.bias": torch.full((2,), torch.nan)})


def test_failures_refusals_and_divergence_are_those_of_the_local_engine(tmp_path: Path) -> None:
    method, policy = Scripted(folder=str(tmp_path), script=break_down), Policy(min_samples=9)
    one = LocalEngine(make_worker(tmp_path / "local", method, policy=policy))
    expected = results(one, wanted(one, "c0", "c1", "c2", "c3"))
    expected += results(one, [Order(1, 9, "c2", ASK, {}, question="nothing of the kind")])
    with closing(processes(tmp_path / "many", 2, method, policy=policy)) as engine:
        found = results(engine, wanted(engine, "c0", "c1", "c2", "c3"))
        found += results(engine, [Order(1, 9, "c2", ASK, {}, question="nothing of the kind")])
    failures = [r for r in expected if isinstance(r, Failure)]
    assert [r for r in found if isinstance(r, Failure)] == failures
    assert [f.reason for f in failures] == ["policy", "diverged", "error", "error"]


def test_a_ledger_that_cannot_be_written_lets_nothing_out(tmp_path: Path) -> None:
    with closing(processes(tmp_path, 1, FedAvg())) as engine:
        full = RunError("the ledger cannot be written, so nothing leaves")
        with mock.patch.object(engine.worker.door.ledger, "write", side_effect=full):
            (found,) = results(engine, wanted(engine, "c0"))
    assert isinstance(found, Failure)
    assert "the ledger cannot be written" in found.detail


def test_what_workers_have_saved_is_forced_to_disk_here(tmp_path: Path) -> None:
    with closing(processes(tmp_path, 2, HeadStays())) as engine:
        assert len(results(engine, wanted(engine, "c0", "c1"))) == 2
        with mock.patch.object(fedreel.core.state, "sync_path") as sync:
            engine.sync()
    assert {call.args[0] for call in sync.mock_calls} == {*(tmp_path / "clients").rglob("*.safetensors")}


def test_a_short_run_starts_no_worker_and_a_long_one_does(tmp_path: Path) -> None:
    for folder, alone, here in ((tmp_path / "short", 1e6, {os.getpid()}), (tmp_path / "long", 1e-6, None)):
        folder.mkdir()
        with closing(processes(folder, 2, Scripted(folder=str(folder)), alone)) as engine:
            assert [r.client for r in results(engine, wanted(engine, "c0", "c1", "c2"))] == ["c0", "c1", "c2"]
        pids = [int(line.split()[1]) for line in (folder / "worked").read_text().splitlines()]
        assert pids[0] == os.getpid()
        assert {*pids} == here if here else os.getpid() not in pids[1:]
        rows = [row["client"] for row in departures(folder) if row["kind"] == "departure"]
        assert rows == ["c0", "c1", "c2"]


def wait_for_gate_last(client: Client, folder: Path) -> None:
    if client.name == "c2":
        until((folder / OPEN).exists)


def test_threads_are_given_back_and_nothing_stays_open(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    files, children = open_files(), descendants(os.getpid())
    with closing(scripted(tmp_path, 2, wait_for_gate_last)) as engine:
        for order in wanted(engine, "c0", "c1", "c2"):
            engine.submit(order)
        for client, threads in (("c0", 1), ("c1", 1), ("c2", 2)):  # one while a client is worked for
            assert engine.next().client == client
            assert torch.get_num_threads() == threads
            if client == "c1":
                (tmp_path / OPEN).touch()
        assert len(descendants(os.getpid()) - children) == 3
        engine.submit(wanted(engine, "c0")[0])
    assert torch.get_num_threads() == 2
    assert descendants(os.getpid()) <= children
    assert open_files() <= files


def test_when_all_have_ended_what_is_left_to_hand_out_has_all_cores(tmp_path: Path) -> None:
    """One worker begins with c2, the longest, and c0 is handed out first."""
    torch.set_num_threads(2)
    with closing(scripted(tmp_path, 1)) as engine:
        for order in wanted(engine, "c0", "c1", "c2"):
            engine.submit(order)
        assert [(engine.next().client, torch.get_num_threads()) for _ in range(3)] == [("c0", 2), ("c1", 2), ("c2", 2)]


def note_threads(client: Client, folder: Path) -> None:
    (folder / client.name).write_text(f"{os.getpid()} {torch.get_num_threads()}")


def test_training_in_one_place_has_all_cores(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    with closing(scripted(tmp_path, 2, note_threads)) as engine:
        assert len(results(engine, wanted(engine, EVERYONE))) == 1
        assert len(results(engine, wanted(engine, "c0"))) == 1
    assert (tmp_path / EVERYONE).read_text() == f"{os.getpid()} 2"
    assert (tmp_path / "c0").read_text().split()[1] == "1"
    assert (tmp_path / "c0").read_text().split()[0] != str(os.getpid())


@pytest.mark.parametrize("wrong", [-1, 257, "4", 2.0, True])
def test_how_many_workers_is_checked(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="1 to 256, or 0 for one a core"):
        ProcessesEngine.begin(None, workers=wrong)  # type: ignore[arg-type]


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Any]:
    """A run in the midst of its second round, with two workers that wait."""
    (tmp_path / "gate").mkdir()
    process = warm_process(started, tmp_path / "run", {"name": "processes", "workers": 2}, str(tmp_path / "gate"))
    process.start()
    try:
        until(lambda: len([*(tmp_path / "gate").iterdir()]) == 2)
        yield process
    finally:
        (tmp_path / "gate" / OPEN).touch()
        process.kill()
        process.join()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_however_a_run_ends_its_workers_end_and_it_goes_on_to_the_same_bits(
    tmp_path: Path, gated: Any, how: signal.Signals
) -> None:
    workers = descendants(gated.pid)
    assert len(workers) == 3
    os.kill(gated.pid, how)
    gated.join(60)
    until(lambda: not running(workers))
    assert not [*(tmp_path / "run" / "clients").rglob("*.tmp")]
    (tmp_path / "gate" / OPEN).touch()
    work(tmp_path / "run", {"name": "processes", "workers": 3}, str(tmp_path / "gate"), resume=True)
    work(tmp_path / "other", {"name": "local"})
    assert states(tmp_path / "run") == states(tmp_path / "other")
    one, other = (tmp_path / name / "model" / "global.safetensors" for name in ("run", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert not verify(tmp_path / "run" / "ledger.jsonl").problems
