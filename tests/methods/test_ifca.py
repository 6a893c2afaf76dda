"""IFCA against its definition: each client's choice, what becomes of models, who is asked for a test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedreel.core.federation import Federation
from fedreel.core.update import ASK, EVALUATE, TRAIN, Order
from fedreel.core.weights import Weights, bind
from fedreel.methods.ifca import IFCA
from support.planted import Planted, close, mean, part, trained, watched
from support.toy import Toy, federate, make_worker

CLIENTS = ["c0", "c1", "c2", "c3"]


def loss(weights: Weights, client: str, task: Toy) -> float:
    """The mean loss on all training points of a client, as one batch."""
    model = task.model()
    bind(model).put(weights)
    x, y = task.population(None, 0).data(client).train.tensors
    with torch.no_grad():
        return float(F.cross_entropy(model.eval().head(model.backbone(x)), y))


def flipped(weights: Weights) -> Weights:
    """The model that says yes where this one says no."""
    other = weights.clone()
    for name in ("head.weight", "head.bias"):
        other[name].copy_(other[name].flip(0))
    return other


@dataclass(frozen=True)
class Starting(IFCA):
    """From given models instead of random ones."""

    start: Any = None

    def run(self, fed: Federation) -> None:
        fed.models.update({f"community-{g}": self.start(fed, g) for g in range(self.groups)})
        super().run(fed)


def test_a_client_trains_the_model_with_the_least_training_loss(tmp_path: Path) -> None:
    """Whatever place it has among the models; and that model is then trained as if it had come alone."""
    worker = make_worker(tmp_path / "a", IFCA())
    models = {f"community-{i}": worker.blueprint.fresh(i) for i in range(4)}
    best = {c: min(models, key=lambda name, c=c: loss(models[name], c, Toy())) for c in CLIENTS}
    assert len({*best.values()}) > 1  # it makes a difference who is asked
    plain = trained(tmp_path / "b", Toy(), {c: models[best[c]] for c in CLIENTS})
    for names in (list(models), list(models)[::-1]):
        for step, client in enumerate(CLIENTS):
            order = Order(1, step + 1, client, TRAIN, {name: models[name] for name in names})
            update = worker.execute(order)
            assert names[int(update["choice"])] == best[client]
            assert update.weights.equal(plain[client].weights)
            assert update.loss == plain[client].loss


def test_models_start_different_and_each_is_the_mean_of_those_who_chose_it(tmp_path: Path) -> None:
    task = Planted(flipped=("c1", "c3"))
    fed, orders, _ = watched(tmp_path / "a", IFCA(groups=2), task=task, rounds=1)
    sent = orders[0].models
    assert [*sent] == ["community-0", "community-1"]
    assert sent["community-0"].distance(sent["community-1"]) > 0.5
    choice = {c: min(sent, key=lambda name, c=c: loss(sent[name], c, task)) for c in CLIENTS}
    updates = trained(tmp_path / "b", task, {c: sent[choice[c]] for c in CLIENTS})
    assert {c: f"community-{g}" for c, g in fed.memory["members"].items()} == choice
    for name in sent:
        own = [updates[c] for c in CLIENTS if choice[c] == name]
        assert own
        assert close(fed.models[name], mean(own, lambda u: u.samples))
    assert close(fed.weights, mean(list(updates.values()), lambda u: u.samples))


def test_clients_with_opposite_labels_part(tmp_path: Path) -> None:
    task = Planted(flipped=("c1", "c3"))
    good, _ = federate(tmp_path / "a", IFCA(groups=1), rounds=15)  # trained on the labels as they are

    def start(fed: Federation, group: int) -> Weights:
        return flipped(good.weights) if group == 0 else good.weights

    fed, _ = federate(tmp_path / "b", Starting(groups=2, start=start), task=task, rounds=4)
    assert [fed.memory["members"][c] for c in CLIENTS] == [1, 0, 1, 0]


@pytest.mark.parametrize("share", ["none", "all_but_head"])
def test_a_model_that_nobody_chose_stays_as_it_is(tmp_path: Path, share: Any) -> None:
    starts = {}

    def start(fed: Federation, group: int) -> Weights:
        starts[group] = fed.weights if group == 0 else 30.0 * fed.fresh(group)
        return starts[group].clone()

    fed, _ = federate(tmp_path, Starting(groups=3, share=share, start=start), rounds=2)
    assert {*fed.memory["members"].values()} == {0}
    for group in (1, 2):
        model = fed.models[f"community-{group}"]
        if share == "none":
            assert model.equal(starts[group])
        else:  # its body is everybody's
            assert part(model, "head.").equal(part(starts[group], "head."))
            assert part(model, "backbone.").equal(part(fed.weights, "backbone."))
    assert fed.models["community-0"].equal(fed.weights)
    assert fed.weights.distance(starts[0]) > 0.01


def test_one_model_is_fedavg_from_another_start(tmp_path: Path) -> None:
    fed, orders, _ = watched(tmp_path / "a", IFCA(groups=1), rounds=1)
    updates = trained(tmp_path / "b", Toy(), dict.fromkeys(CLIENTS, orders[0].models["community-0"]))
    assert close(fed.models["community-0"], mean(list(updates.values()), lambda u: u.samples))


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_as_many_models_go_down_to_a_client_as_there_are_communities(tmp_path: Path, groups: int) -> None:
    fed, notes = federate(tmp_path, IFCA(groups=groups), rounds=2)
    assert [r["bytes_down"] for r in notes.of("train")] == 2 * [4 * groups * fed.weights.nbytes]
    up = 4 * (fed.weights.nbytes + 8 * len(("samples", "loss", "frames", "choice")))
    assert [r["bytes_up"] for r in notes.of("train")] == [up, up]


def test_a_test_uses_each_clients_choice_and_asks_those_who_never_chose(tmp_path: Path) -> None:
    fed, orders, engine = watched(tmp_path, IFCA(groups=3), rounds=4, fraction=0.5, seed=1)
    chose: set[str] = set()
    for round in range(1, 5):
        trained_now = {o.client for o in orders if o.round == round}
        asked = engine.of(ASK, round)
        assert len(trained_now) == 2
        assert {o.client for o in asked} == set(CLIENTS) - chose - trained_now
        assert {o.client for o in engine.of(EVALUATE, round)} == {*CLIENTS}
        chose |= trained_now | {o.client for o in asked}
    for order in engine.of(EVALUATE, 4):
        assert order.models["global"].equal(fed.models[f"community-{fed.memory['members'][order.client]}"])
    first = engine.of(ASK, 1)
    assert len(first) == 2
    tested = {o.client: o.models["global"] for o in engine.of(EVALUATE, 1)}
    for order in first:
        best = min(order.models.values(), key=lambda w, c=order.client: loss(w, c, Toy()))
        assert tested[order.client].equal(best)


def test_the_choice_is_made_anew_in_every_round(tmp_path: Path) -> None:
    """The models change places after the first round; so do the clients."""
    task = Planted(flipped=("c1", "c3"))
    good, _ = federate(tmp_path / "a", IFCA(groups=1), rounds=15)
    choices: list[dict[str, int]] = []

    @dataclass(frozen=True)
    class Swapping(Starting):
        def evaluate(self, fed: Federation) -> None:
            choices.append(dict(fed.memory["members"]))
            a, b = fed.models["community-0"], fed.models["community-1"]
            fed.models.update({"community-0": b, "community-1": a})

    def start(fed: Federation, group: int) -> Weights:
        return flipped(good.weights) if group == 0 else good.weights

    federate(tmp_path / "b", Swapping(groups=2, start=start), task=task, rounds=2)
    assert [[c[name] for name in CLIENTS] for c in choices] == [[1, 0, 1, 0], [0, 1, 0, 1]]
