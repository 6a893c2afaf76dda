"""A site's clients in one mean: the server's sum is that of single models, numbers and failures stay each client's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import Recipe, RoundConfig, TrainConfig, TransferConfig, as_table, load_recipe
from fedreel.core.admission import Admission
from fedreel.core.aggregate import Average, Mean
from fedreel.core.client import Client, Worker
from fedreel.core.declared import declared
from fedreel.core.exchange import Policy
from fedreel.core.federation import Federation
from fedreel.core.job import Job, make_method
from fedreel.core.ledger import departures
from fedreel.core.method import Method
from fedreel.core.update import TRAIN, Failure, Order, Result, Update
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_orders, unpack_results
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.errors import RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedvssl import FedVSSL
from fedreel.methods.scaffold import SCAFFOLD
from support.toy import Notes, Toy, federate, make_worker

pytest.importorskip("flwr", reason="needs the extra `flower`")
from support.three_sites import engine_at

RECIPE = as_table(Recipe(task={"name": "recognition"}, method={"name": "fedavg"}))
HERE = {"north": ("c0", "c1", "c2"), "south": ("c3",)}
INT8 = TransferConfig(up="int8", together=True)


@dataclass(frozen=True)
class OneFails(FedAvg):
    """Where c1 has its data, the disk is broken."""

    def local_training(self, client: Client) -> None:
        if client.name == "c1":
            raise OSError("no such disk")
        client.fit()


def place(folder: Path, method: Method | None = None, **options: Any) -> Workplace:
    def make(recipe: Recipe, run: str) -> Worker:
        return make_worker(folder, method or FedAvg(), rounds=20, **options)

    return Workplace(make, "north", for_others, folder / "fences")


def frame(at: Workplace, orders: list[Order]) -> Frame:
    return at.answer(pack_orders(orders, type="orders", run="r", start=1, recipe=RECIPE))


def answer(at: Workplace, orders: list[Order]) -> list[Result]:
    return unpack_results(frame(at, orders), orders)


def orders(by: str, clients: int = 4, round: int = 1, **args: Any) -> list[Order]:
    model = make_worker(Path("nowhere"), FedAvg()).start
    return [
        Order(round, i, f"c{i}", TRAIN, {"global": model}, args, together=(by,) if by else ()) for i in range(clients)
    ]


def added_up(by: str, updates: list[Result]) -> Average:
    average = Average(by, Mean)
    for update in updates:
        assert isinstance(update, Update), update
        average.add(update)
    return average


@pytest.mark.parametrize("by", ["samples", "frames", "equal", "loss"])
def test_the_servers_mean_is_that_of_single_models(tmp_path: Path, by: str) -> None:
    together, single = (added_up(by, answer(place(tmp_path / way), orders(way and by))) for way in (by, ""))
    assert together.weights.distance(single.weights) < 1e-6 * single.weights.norm()
    assert together.weights.distance(orders(by)[0].models["global"]) > 0.01
    assert together.numbers == single.numbers
    assert together.number("loss") == single.number("loss")


def test_what_comes_beside_the_models_is_averaged_as_well(tmp_path: Path) -> None:
    control = 0.0 * orders("")[0].models["global"].trained
    found = [
        added_up("equal", answer(place(tmp_path / way, SCAFFOLD()), orders(way and "equal", control=control)))
        for way in ("mean", "")
    ]
    wanted = found[1].tensors("control")
    assert found[0].tensors("control").distance(wanted) < 1e-6 * wanted.norm()


@pytest.mark.parametrize("transfer", [None, INT8])
def test_one_model_travels_and_the_ledger_says_whose_it_is(tmp_path: Path, transfer: TransferConfig | None) -> None:
    reply = frame(at := place(tmp_path, transfer=transfer), wanted := orders("samples"))
    assert len(reply.head["weights"]) == 1
    updates = unpack_results(reply, wanted)
    assert all(isinstance(u, Update) and u.weights is updates[0].weights for u in updates)  # type: ignore[union-attr]
    bytes_of = [u.nbytes for u in updates if isinstance(u, Update)]
    rows = departures(tmp_path / "ledger.jsonl")
    assert [row["bytes"] for row in rows] == bytes_of
    assert bytes_of[1:] == [3 * 8] * 3
    assert bytes_of[0] == updates[0].weights.nbytes + 3 * 8  # type: ignore[union-attr]
    assert [row["together"] for row in rows] == [["c0", "c1", "c2", "c3"]] * 4
    assert all("weights" in row["kinds"] for row in rows)
    assert frame(at, wanted) is reply  # once more: the answer got lost


def test_a_client_that_fails_is_named_and_the_others_are_averaged(tmp_path: Path) -> None:
    results = answer(place(tmp_path / "a", OneFails()), orders("samples"))
    (failure,) = [r for r in results if isinstance(r, Failure)]
    assert (failure.client, failure.reason) == ("c1", "error")
    wanted = [o for o in orders("samples") if o.client != "c1"]
    others = added_up("samples", answer(place(tmp_path / "b"), wanted))
    found = added_up("samples", [r for r in results if isinstance(r, Update)])
    assert found.weights.equal(others.weights)


def test_a_mean_that_may_not_leave_is_each_clients_failure(tmp_path: Path) -> None:
    results = answer(place(tmp_path, policy=Policy(max_bytes=100)), orders("samples"))
    assert [(r.client, r.reason) for r in results if isinstance(r, Failure)] == [(f"c{i}", "policy") for i in range(4)]
    assert not (tmp_path / "ledger.jsonl").exists()


def test_where_nobody_makes_means_every_client_leaves_by_the_door_by_itself(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), transfer=INT8)
    updates = [worker.execute(order) for order in orders("samples")]
    assert [row["bytes"] for row in departures(tmp_path / "ledger.jsonl")] == [u.nbytes for u in updates]
    assert len({id(u.weights) for u in updates if isinstance(u, Update)}) == 4


def test_a_weighing_that_nobody_sends_is_refused_before_any_work(tmp_path: Path) -> None:
    results = answer(place(tmp_path), orders("age"))
    assert all(isinstance(r, Failure) and "do not send 'age'" in r.detail for r in results)


def test_remainders_are_the_sites_and_a_frame_that_comes_again_has_the_same_bytes(tmp_path: Path) -> None:
    def bits(at: Workplace, wanted: list[Order]) -> tuple[Any, dict[str, bytes]]:
        got = frame(at, wanted)
        for row in got.head["results"]:
            del row["times"]
        return got.head, {name: bytes(array) for name, array in got.arrays.items()}

    rounds = [orders("samples", round=n) for n in (1, 2, 3)]
    once = place(tmp_path / "once", transfer=INT8)
    expected = [bits(once, wanted) for wanted in rounds]
    for wanted, first in zip(rounds, expected):
        for _ in range(2):  # as after a kill
            assert bits(place(tmp_path / "twice", transfer=INT8), wanted) == first
    assert not (tmp_path / "once" / "clients").exists()
    place_of = "together/site/000002-000003.safetensors"
    frame(place(tmp_path / "fresh", transfer=INT8), rounds[1])
    kept = {way: (tmp_path / way / place_of).read_bytes() for way in ("once", "twice", "fresh")}
    assert kept["once"] == kept["twice"] != kept["fresh"]  # which had no remainder of round 1


# whole runs


def at_sites(folder: Path, method: Method, transfer: TransferConfig | None, **options: Any) -> tuple[Federation, Notes]:
    recipe = Recipe(
        task={"name": "recognition"},  # the sites have the toy
        method={"name": "fedavg"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(**{"rounds": 3, **options}),
        transfer=transfer,
    )
    job = Job(recipe, Toy(), method, torch.device("cpu"), folder / "run")
    engine, _ = engine_at(job, HERE, clients=4)
    notes = Notes()
    fed = Federation(engine, method, recipe.round, 0, watchers=[notes], transfer=transfer)
    method.run(fed)
    return fed, notes


def test_a_run_at_sites_ends_as_one_of_single_models_with_fewer_bytes(tmp_path: Path) -> None:
    local, told = federate(tmp_path / "local", FedAvg())
    fed, notes = at_sites(tmp_path, FedAvg(), TransferConfig(together=True))
    assert fed.weights.distance(local.weights) < 1e-5 * local.weights.norm()
    for mine, theirs in zip(notes.of("train"), told.of("train")):
        assert mine["clients"] == theirs["clients"] == ["c0", "c1", "c2", "c3"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        update = theirs["bytes_up"] // 4
        assert mine["bytes_up"] == 2 * update + 2 * 3 * 8


def test_with_int8_the_bytes_of_a_site_are_a_quarter_of_one_models(tmp_path: Path) -> None:
    fed, notes = at_sites(tmp_path, FedAvg(), INT8)
    assert not notes.of("refused")
    model = 37 + 4 + 10 * 4 + 8  # see test_round_and_ledger_count_the_bytes_that_travel
    assert [row["bytes_up"] for row in notes.of("train")] == [2 * model + 4 * 3 * 8] * 3
    local, _ = federate(tmp_path / "local", FedAvg())
    start = make_worker(tmp_path / "start", FedAvg()).start
    assert fed.weights.distance(local.weights) < 0.05 * start.distance(local.weights)


@pytest.mark.parametrize("up", ["full", "int8"])
def test_of_a_method_that_weighs_in_two_ways_a_site_sends_two_means(tmp_path: Path, up: Any) -> None:
    local, told = federate(tmp_path / "local", FedVSSL())
    fed, notes = at_sites(tmp_path, FedVSSL(), TransferConfig(up=up, together=True))
    assert not notes.of("refused")
    start = make_worker(tmp_path / "start", FedVSSL()).start
    off = fed.weights.distance(local.weights) / start.distance(local.weights)
    assert off < (1e-5 if up == "full" else 0.05)
    if up == "full":
        update = told.of("train")[0]["bytes_up"] // 4
        assert notes.of("train")[0]["bytes_up"] == 2 * (2 * update - 3 * 8) + 2 * 3 * 8  # two means from each site
    rows = [row for row in departures(tmp_path / "at-north" / "ledger.jsonl") if row["purpose"] == TRAIN]
    north = sum(row["bytes"] for row in rows if row["round"] == 1)
    assert north < notes.of("train")[0]["bytes_up"] == notes.of("train")[2]["bytes_up"]


def test_a_mean_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg())
    asked = Order(1, 1, "c0", TRAIN, {"global": worker.start}, together=("samples",))
    admission = Admission(worker.travelling, 100.0, lambda order: declared(FedAvg(), Toy(), order))
    numbers = {"samples": 8.0, "loss": 1.0, "frames": 80.0}
    for means, reason in (({}, None), ({"loss": worker.start}, "names")):
        admission.expect(asked)
        judged = admission.judge(Update(1, 1, "c0", worker.start, numbers, {}, dict(means)))
        assert (judged and judged.reason) == reason


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "ifca"}, "IFCA looks at each client's model"),
        ({"round.aggregation": "median"}, "median of sites' means is not that of their clients' models"),
    ],
)
def test_where_a_mean_of_means_is_not_what_is_wanted_the_recipe_is_refused(
    settings: Mapping[str, Any], said: str
) -> None:
    recipe = load_recipe("recognition", {**settings, "transfer.together": True})
    with pytest.raises(RecipeError, match=said):
        make_method(recipe)
    make_method(replace(recipe, transfer=None))


def test_models_of_one_message_that_differ_are_not_averaged(tmp_path: Path) -> None:
    wanted = orders("samples")
    other = Weights(wanted[0].models["global"].layout, {d: f + 1 for d, f in wanted[0].models["global"].flat.items()})
    wanted = [replace(o, models={"global": other}) if o.client in ("c1", "c3") else o for o in wanted]
    updates = answer(place(tmp_path), wanted)
    assert len({id(u.weights) for u in updates if isinstance(u, Update)}) == 2
