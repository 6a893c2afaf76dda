"""Runs on a simulation whose actors are in this process: where a client lands changes no bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch

from fedreel.config import Recipe, RoundConfig, TrainConfig, TransferConfig
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.job import Job, make_method, make_task
from fedreel.core.ledger import departures
from fedreel.core.update import TRAIN
from fedreel.core.weights import Weights
from fedreel.engines.flower.cluster import FlowerSimEngine, Simulation
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.simulation import Actor
from fedreel.engines.local import LocalEngine
from fedreel.methods.fedavg import FedAvg
from fedreel.registry import METHODS, TASKS

pytest.importorskip("flwr", reason="needs the extra `flower`")
from support.near_cluster import NearCluster

CLIENTS = 10


@dataclass(frozen=True)
class Killing(FedAvg):
    """The process that works for c3 in the first round is killed."""

    def local_training(self, client: Client) -> None:
        if client.name == "c3" and client.round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        client.fit()


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    names = {"killing": "engines.test_simulated_actors:Killing", "private-state": "support.synthetic:PrivateState"}
    torch.set_num_threads(1)
    with mock.patch.dict(TASKS, {"toy": "support.toy:Toy"}), mock.patch.dict(METHODS, names):
        yield


def job(out: Path, method: str = "fedavg", together: bool = False, up: Any = "full", **round: Any) -> Job:
    recipe = Recipe(
        device="cpu",
        task={"name": "toy", "clients": CLIENTS},
        method={"name": method},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=2, **round),
        transfer=TransferConfig(up=up, together=together),
    )
    return Job(recipe, make_task(recipe), make_method(recipe), torch.device("cpu"), out)


def on_actors(job: Job, actors: int, workers: int = 1) -> tuple[Weights, NearCluster]:
    there = {f"n{i}": Actor(job.out, workers, actors * workers) for i in range(actors)}

    def answer(node: str, content: Frame) -> Frame:
        return there[node].answer(content)

    cluster = NearCluster(answer, actors, workers)
    engine = FlowerSimEngine(job, job.population(), cast(Simulation, cluster))
    try:
        return trained(job, engine), cluster
    finally:
        for actor in there.values():
            actor.close()


def trained(job: Job, engine: Any) -> Weights:
    fed = Federation(engine, job.method, job.recipe.round, 0, transfer=job.recipe.transfer)
    job.method.run(fed)
    return fed.weights


def locally(job: Job) -> Weights:
    return trained(job, LocalEngine.begin(job))


@pytest.mark.parametrize(("actors", "workers"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("method", ["fedavg", "private-state"])
def test_single_updates_end_as_on_local(tmp_path: Path, method: str, actors: int, workers: int) -> None:
    made, cluster = on_actors(job(tmp_path / "sim", method), actors, workers)
    assert made.equal(locally(job(tmp_path / "local", method)))
    assert {told.node for told in cluster.messages} == set(cluster.nodes)
    for file in (tmp_path / "local" / "clients").rglob("*.safetensors"):
        other = tmp_path / "sim" / "clients" / file.relative_to(tmp_path / "local" / "clients")
        assert file.read_bytes() == other.read_bytes()
    noted = [len(departures(tmp_path / name / "ledger.jsonl")) for name in ("sim", "local")]
    assert noted[0] == noted[1] > 2 * CLIENTS


def test_means_do_not_depend_on_the_actors_and_are_those_of_local_up_to_rounding(tmp_path: Path) -> None:
    shapes = [(1, 1), (3, 1), (1, 2)]
    runs = [on_actors(job(tmp_path / f"{a}-{w}", together=True), a, w) for a, w in shapes]
    (first, cluster), *others = runs
    assert all(made.equal(first) for made, _ in others)
    expected = locally(job(tmp_path / "local", together=True))
    assert 0 < first.distance(expected) < 1e-5 * expected.norm()
    answers = [told for told in cluster.messages if told.content.head["orders"][0]["kind"] == TRAIN]
    assert [told.content.head["parts"] for told in answers] == [[4, 4, 2]] * 2


@pytest.mark.parametrize(("actors", "workers"), [(2, 1), (1, 2)])
def test_a_mean_of_a_part_travels_once_and_the_ledger_says_whose_it_is(
    tmp_path: Path, actors: int, workers: int
) -> None:
    on_actors(job(tmp_path, together=True, evaluate_every=0), actors, workers)
    rows = [row for row in departures(tmp_path / "ledger.jsonl") if row["round"] == 1 and row["purpose"] == TRAIN]
    assert sorted(row["client"] for row in rows) == [f"c{i}" for i in range(CLIENTS)]
    assert {tuple(row.get("together", ())) for row in rows} == {
        ("c0", "c1", "c2", "c3"),
        ("c4", "c5", "c6", "c7"),
        ("c8", "c9"),
    }
    model = locally(job(tmp_path / "local")).nbytes
    assert sum(row["bytes"] >= model for row in rows) == 3


def test_what_is_rounded_for_its_way_leaves_client_by_client(tmp_path: Path) -> None:
    """The remainder is a client's, and there is no site that could keep one."""
    made, _ = on_actors(job(tmp_path / "sim", together=True, up="int8"), 2)
    assert made.equal(locally(job(tmp_path / "local", up="int8")))


def test_a_process_that_dies_in_an_actor_costs_one_client_its_answer(tmp_path: Path) -> None:
    _, cluster = on_actors(job(tmp_path, "killing", min_answers=0.9, repeat=0), 1, workers=2)
    assert cluster.starts == 1
    rows = [row for row in departures(tmp_path / "ledger.jsonl") if row["purpose"] == TRAIN]
    assert {row["client"] for row in rows if row["round"] == 2} == {f"c{i}" for i in range(CLIENTS)}
    assert {f"c{i}" for i in range(CLIENTS)} - {row["client"] for row in rows if row["round"] == 1} == {"c3"}
