"""Simulated attacks: what a hostile client sends follows from what it got and what an honest one would have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import AttackConfig, as_table, make_recipe
from fedreel.core.admission import Admission
from fedreel.core.attack import Attacked, FlippedLabels, attacked, forged, hostile_clients
from fedreel.core.declared import Declared
from fedreel.core.job import Job
from fedreel.core.server import GLOBAL
from fedreel.core.task import Tensors
from fedreel.core.update import TRAIN, Order, Update
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.engines.local import LocalEngine
from fedreel.engines.vector import VectorEngine
from fedreel.errors import RecipeError
from fedreel.methods.baselines import Centralised
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.run import engine_starter
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.skeleton.task import SkeletonRecognition
from fedreel.tasks.summary.split import Videos
from fedreel.tasks.summary.task import Summary
from support.toy import Toy, federate, make_worker, orders, results

CLIENTS = tuple(f"c{i}" for i in range(10))
TRAINED = {"task": {"name": "recognition"}, "method": {"name": "fedavg"}}


def attack(kind: str, clients: int = 2, scale: float = 10.0) -> AttackConfig:
    return AttackConfig(kind, clients, scale)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "scale", "w"),
    [("sign-flip", 10.0, [3.0, 1.0]), ("scaled", 10.0, [-8.0, 12.0]), ("scaled", 0.5, [1.5, 2.5]),
     ("free-rider", 10.0, [2.0, 2.0]), ("label-flip", 10.0, [1.0, 3.0])],
)  # fmt: skip
def test_what_is_sent_for_an_update_of_minus_one_and_one(kind: str, scale: float, w: list[float]) -> None:
    sent, trained = (Weights.of({"w": torch.tensor(v)}) for v in ([2.0, 2.0], [1.0, 3.0]))
    assert forged(attack(kind, scale=scale), sent, trained)["w"].tolist() == w
    assert sent["w"].tolist() == [2.0, 2.0]
    assert trained["w"].tolist() == [1.0, 3.0]


def test_no_variance_becomes_negative() -> None:
    layout = Layout([TensorInfo("w", (1,), torch.float32), TensorInfo("var", (1,), torch.float32, "statistics")])
    sent, trained = Weights.zeros(layout), Weights.zeros(layout)
    sent.fill({"w": torch.tensor([1.0]), "var": torch.tensor([1.0])})
    trained.fill({"w": torch.tensor([2.0]), "var": torch.tensor([4.0])})
    for kind, w in (("sign-flip", 0.0), ("scaled", 11.0)):
        lie = forged(attack(kind), sent, trained)
        assert (float(lie["w"]), float(lie["var"])) == (w, 4.0)


def test_a_norm_cap_refuses_what_is_long_and_lets_a_flipped_update_pass() -> None:
    """The honest update is sqrt(2) long; twice that is the cap."""
    sent, trained = (Weights.of({"w": torch.tensor(v)}) for v in ([2.0, 2.0], [1.0, 3.0]))
    cap = 2 * trained.distance(sent) / (1 + sent.norm())
    admission = Admission(sent.layout, cap, lambda order: Declared({}))
    reasons = {}
    for kind in ("label-flip", "sign-flip", "free-rider", "scaled"):
        admission.expect(Order(1, 1, "a", TRAIN, {GLOBAL: sent}))
        failure = admission.judge(Update(1, 1, "a", forged(attack(kind), sent, trained), {}))
        reasons[kind] = failure.reason if failure else "admitted"
    assert reasons == {**dict.fromkeys(("label-flip", "sign-flip", "free-rider"), "admitted"), "scaled": "norm"}


def test_who_is_hostile_follows_from_the_seed_and_fewer_are_among_more() -> None:
    drawn = {n: {*hostile_clients(CLIENTS, attack("scaled", n), 0)} for n in range(1, 5)}
    assert all(len(some) == n for n, some in drawn.items())
    assert drawn[1] < drawn[2] < drawn[3] < drawn[4]
    assert drawn[3] == {*hostile_clients(CLIENTS, attack("label-flip", 3), 0)}
    assert len({hostile_clients(CLIENTS, attack("scaled", 3), seed) for seed in range(8)}) > 1
    with pytest.raises(RecipeError, match="fewer clients than are to be hostile"):
        hostile_clients(CLIENTS[:2], attack("scaled", 3), 0)


@pytest.mark.parametrize("engine", [LocalEngine, VectorEngine])
def test_only_the_hostile_lie_and_only_about_their_models(tmp_path: Path, engine: type[LocalEngine]) -> None:
    """Four clients of two: whoever is honest sends the same as without an attack, bit for bit."""
    plain = engine(make_worker(tmp_path / "a", FedAvg()))
    lying = Attacked(engine(make_worker(tmp_path / "b", FedAvg())), attack("sign-flip"), 0)  # type: ignore[arg-type]
    start = plain.blueprint.start
    honest = {r.client: r for r in results(plain, orders(start, [*plain.clients]))}
    for client, got in ((r.client, r) for r in results(lying, orders(start, [*plain.clients]))):  # type: ignore[arg-type]
        own = honest[client]
        assert isinstance(got, Update)
        assert isinstance(own, Update)
        assert got.numbers == own.numbers
        expected = (2 * start - own.weights).with_state_of(own.weights) if client in lying.hostile else own.weights
        assert got.weights.distance(expected) < 1e-5
        assert got.weights.equal(own.weights) == (client not in lying.hostile)


def test_of_several_models_a_client_lies_about_the_one_that_it_trained(tmp_path: Path) -> None:
    lying = Attacked(LocalEngine(make_worker(tmp_path, FedAvg())), attack("free-rider", 4), 0)  # type: ignore[arg-type]
    near = lying.blueprint.start
    lying.submit(Order(1, 1, "c0", TRAIN, {GLOBAL: near, "far": 100 * near}))
    reply = lying.next()
    assert isinstance(reply, Update)
    assert reply.weights.equal(near)


def test_if_all_ride_free_the_model_stays_as_it_was(tmp_path: Path) -> None:
    def wrap(inner: Any) -> Any:
        return Attacked(inner, attack("free-rider", 4), 0)

    fed, _ = federate(tmp_path, FedAvg(), wrap=wrap)
    assert fed.weights.equal(fed._engine.blueprint.start)


def test_training_in_one_place_has_nobody_who_could_lie(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no clients that could lie"):
        federate(tmp_path, Centralised(), wrap=lambda inner: Attacked(inner, attack("label-flip"), 0))


def _labels(examples: Any) -> list[int]:
    assert isinstance(examples, Tensors)
    return examples.tensors[1].tolist()


def test_a_label_of_k_classes_becomes_k_minus_one_minus_it() -> None:
    task = Recognition(classes=4)
    examples = Tensors((torch.zeros(4, 1), torch.tensor([0, 1, 2, 3])))
    assert _labels(task.flipped(examples)) == [3, 2, 1, 0]
    assert _labels(task.flipped(task.flipped(examples))) == _labels(examples) == [0, 1, 2, 3]


def test_a_client_with_a_list_of_its_own_flips_within_its_list() -> None:
    examples = Tensors((torch.zeros(3, 1), torch.tensor([0, 1, 2]), torch.tensor([3, 3, 3])))
    assert _labels(SkeletonRecognition(classes=60).flipped(examples)) == [2, 1, 0]


def test_what_mattered_most_in_a_video_matters_least() -> None:
    videos = Videos([torch.zeros(3, 2)], [torch.tensor([0.0, 0.25, 1.0])], [None])  # type: ignore[list-item]
    assert Summary().flipped(videos).targets[0].tolist() == [1.0, 0.75, 0.0]


class _Flips(Toy):
    def flipped(self, examples: Any) -> Tensors:
        x, y = examples.tensors
        return Tensors((x, 1 - y))


def test_hostile_clients_learn_from_turned_labels_and_are_tested_with_true_ones() -> None:
    population = Toy().population(None, 0)
    flipped = FlippedLabels(population, _Flips(), ("c1",))  # type: ignore[arg-type]
    for client in population.clients:
        own, got = population.data(client), flipped.data(client)
        turned = [1 - y for y in _labels(own.train)] if client == "c1" else _labels(own.train)
        assert _labels(got.train) == turned
        assert _labels(got.test) == _labels(own.test)
        assert got.numbers == own.numbers
    assert flipped.describe() == population.describe()


def test_a_task_whose_labels_have_no_other_side_is_refused() -> None:
    recipe = make_recipe({**TRAINED, "attack": {"kind": "label-flip"}})
    with pytest.raises(RecipeError, match="labels that can be turned round"):
        FlippedLabels.among(Toy().population(None, 0), Toy(), recipe)


@pytest.mark.parametrize("engine", ["flower", "flower-sim"])
def test_no_attack_is_made_where_clients_are_elsewhere(engine: str) -> None:
    pytest.importorskip("flwr")
    recipe = make_recipe({**TRAINED, "engine": engine, "attack": {"kind": "scaled"}})
    with pytest.raises(RecipeError, match="nowhere else"):
        engine_starter(recipe)


def test_what_a_site_builds_of_a_recipe_with_an_attack_is_honest(tmp_path: Path) -> None:
    """Its data come from `Job.population`, its answers from a worker: only `Job.worker`, of the engines here, lies."""
    recipe = make_recipe({**TRAINED, "attack": {"kind": "label-flip"}})
    job = Job(recipe, Toy(), FedAvg(), torch.device("cpu"), tmp_path)
    assert not isinstance(job.population(), FlippedLabels)
    with pytest.raises(RecipeError, match="labels that can be turned round"):
        job.worker()


@pytest.mark.parametrize(
    ("section", "said"),
    [({"kind": "sign-flop"}, "did you mean 'sign-flip'"), ({}, "'kind' is missing"),
     ({"kind": "scaled", "clients": 0}, "clients is out of range"), ({"kind": "scaled", "sacle": 2.0}, "'scale'")],
)  # fmt: skip
def test_a_wrong_attack_is_told(section: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make_recipe({**TRAINED, "attack": section})


def test_a_recipe_without_an_attack_says_nothing_of_one() -> None:
    recipe = make_recipe(TRAINED)
    assert recipe.attack is None
    assert "attack" not in as_table(recipe)
    engine: Any = object()
    assert attacked(engine, recipe) is engine
    assert make_recipe(as_table(make_recipe({**TRAINED, "attack": {"kind": "scaled"}}))).attack == attack("scaled", 1)


@pytest.mark.parametrize("section", [{"secure": {"sums": True}}, {"transfer": {"up": "int8"}}])
def test_models_that_are_not_seen_on_their_way_cannot_be_attacked_there(section: dict[str, Any]) -> None:
    recipe = make_recipe({**TRAINED, **section, "attack": {"kind": "sign-flip"}})
    with pytest.raises(RecipeError, match="not seen there"):
        attacked(None, recipe)  # type: ignore[arg-type]
