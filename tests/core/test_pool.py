"""Pools that are never listed: the same clients as of a list, and runs over a billion of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from core.test_world import world
from fedreel.config import Recipe, RoundConfig, TrainConfig, WorldConfig
from fedreel.core.disclosure import Disclosure
from fedreel.core.disclosure import testers as drawn_testers
from fedreel.core.method import Method
from fedreel.core.pool import SHOWN, ByClient, Numbered, Roll, told
from fedreel.core.task import ClientData, Population
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbuff import FedBuff
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import run
from support.toy import Points, Toy

BILLION = 10**9


class Everybody(Population):
    """A billion clients with the same two points."""

    clients = Numbered(BILLION, "c")

    def data(self, client: str) -> ClientData:
        points = Points((torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1])))
        return ClientData(points, points, {"frames": 20.0})

    def describe(self) -> dict[str, Any]:
        rows = ByClient(self.clients, lambda client: [1, 1])
        return {"classes": ["no", "yes"], "train": rows, "test": rows}


@dataclass(frozen=True)
class Crowded(Toy):
    def population(self, data: Any, seed: int) -> Population:
        return Everybody()


def test_names_by_number_are_those_of_a_list() -> None:
    pool, names = Numbered(12, "c"), tuple(f"c{i}" for i in range(12))
    assert (tuple(pool), len(pool), pool[-1], pool[3:5]) == (names, 12, "c11", ("c3", "c4"))
    assert [pool.index(name) for name in names] == [*range(12)]
    assert all(name in pool for name in names)
    for nobody in ("c12", "c-1", "c01", "c", "d1", "c1 ", "c٣", "c" + 30 * "1", 3, None):
        assert nobody not in pool
    with pytest.raises(IndexError):
        pool[12]
    with pytest.raises(ValueError, match="no client 'c12'"):
        pool.index("c12")


def test_the_same_clients_are_drawn_as_from_a_list() -> None:
    pool, names = Numbered(30_000, "c"), tuple(f"c{i}" for i in range(30_000))
    for count in (3, 29_000, 30_000):  # numpy draws few of many in another way than many
        assert Disclosure(1).drawn(pool, count, 7) == Disclosure(1).drawn(names, count, 7)
    assert drawn_testers(pool, 5, 1, 7) == drawn_testers(names, 5, 1, 7)
    one = world({})
    for busy in (set(), {*names[:20_000]}, {*names[1:]}, {*names}):
        assert [one.reachable(pool, busy, n) for n in (1, 2)] == [one.reachable(names, busy, n) for n in (1, 2)]


def test_a_table_tells_of_some_evenly_chosen_clients_and_of_how_many() -> None:
    rows = ByClient(Numbered(2500, "c"), lambda client: [int(client[1:]), 7])
    assert (len(rows), rows["c9"], rows.get("c2500")) == (2500, [9, 7], None)
    found = told({"classes": ["a", "b"], "train": rows})
    assert found["clients"] == 2500
    assert [*found["train"].items()][:2] == [("c0", [0, 7]), ("c3", [3, 7])]
    assert len(found["train"]) == 834 <= SHOWN
    listed = {"classes": ["a"], "train": {"x": [1]}}
    assert told(listed) == listed


def test_a_roll_keeps_the_order_in_which_names_came() -> None:
    roll = Roll(["b", "a", "b"])
    roll |= {"c"}
    roll.add("a")
    assert [*roll] == ["b", "a", "c"]
    assert roll == {"a", "b", "c"}
    assert roll.part(1, 3) == ["a", "c"]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedBuff(buffer=2, in_flight=4), {"trust": False}),
        (FedAvg(), {"clients": 3, "test_clients": 2, "evaluate_every": 1}),
    ],
)
def test_a_billion_clients_are_run_resumed_and_never_listed(
    tmp_path: Path, method: Method, settings: dict[str, Any]
) -> None:
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": type(method).__name__.lower()},
        train=TrainConfig(batch_size=2, lr=0.1),
        round=RoundConfig(**{"rounds": 3, "evaluate_every": 0, **settings}),
        world=WorldConfig(drop=0.1),
    )
    found = run(recipe, tmp_path / "run", quiet=True, task=Crowded(), method=method)
    assert found.summary["clients"] == BILLION
    told_of = next(read_metrics(tmp_path / "run", "partition"))
    assert (told_of["clients"], len(told_of["train"])) == (BILLION, SHOWN)
    assert {len(row["clients"]) for row in read_metrics(tmp_path / "run", "train")} == {settings.get("clients", 2)}
    (tmp_path / "run" / "summary.json").unlink()
    again = run(recipe, tmp_path / "run", resume=True, quiet=True, task=Crowded(), method=method)
    assert again.metrics == found.metrics
    assert "something else" not in json.dumps([*read_metrics(tmp_path / "run", "note")])
