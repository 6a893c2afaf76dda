"""FSAR against its definition: what stays home, the momentum, the streams, and the cases in which it is FedAvg."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig, make_recipe
from fedreel.core.job import make_task
from fedreel.core.terms import Step
from fedreel.errors import RecipeError, RunError
from fedreel.methods.fedagm import FedAGM
from fedreel.methods.fsar import FSAR, multi_grain
from fedreel.runs.run import load, run
from fedreel.tasks.skeleton.task import SkeletonRecognition
from support.moves import BACKBONE, LEFT, RIGHT, TASK, make_sets
from support.toy import federate, make_worker

PLAIN = {"lambda_": 0.0, "tau": 1.0, "mu": 0.0, "blocks": 0}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sets(tmp_path_factory.mktemp("sets"))


def job(sets: Path, method: dict[str, Any], rounds: int = 2, **backbone: Any) -> Recipe:
    return Recipe(
        device="cpu",
        task={**TASK, "backbone": {**BACKBONE, **backbone}},
        method={"name": "fsar", **method},
        data=DataConfig(source=str(sets)),
        train=TrainConfig(batch_size=4, lr=0.05, momentum=0.9),
        round=RoundConfig(rounds=rounds),
    )


def task(**backbone: Any) -> SkeletonRecognition:
    recipe = Recipe(task={**TASK, "backbone": {**BACKBONE, **backbone}}, method={"name": "fsar"})
    made = make_task(recipe)
    assert isinstance(made, SkeletonRecognition)
    return made


def batch(n: int = 6) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, 12, 20, 1, generator=g), torch.arange(n) % 3, torch.full((n,), 3)


def departures(out: Path) -> tuple[set[str], set[str]]:
    """Names of all tensors and numbers that left a client, by the run's ledger."""
    records = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    tensors = {row[0] for r in records for row in r.get("tensors", [])}
    return tensors, {name for r in records for name in r.get("numbers", {})}


@pytest.mark.parametrize("topology", ["both", "learnable"])
@pytest.mark.parametrize("per_layer", [False, True])
def test_neither_topology_classifier_coefficients_nor_statistics_leave(
    sets: Path, tmp_path: Path, topology: str, per_layer: bool
) -> None:
    run(job(sets, {}, topology=topology, per_layer=per_layer), tmp_path / "run", quiet=True)
    tensors, numbers = departures(tmp_path / "run")
    assert any(name.endswith(".inflected") for name in tensors)
    assert any(name.endswith("temporal.weight") for name in tensors)
    for part in ("unique", "coefficients", "head.fc", "running_mean", "running_var", "num_batches"):
        assert not [name for name in tensors if part in name], part
    assert numbers <= {"samples", "loss", "frames", "top1", "n", "held_out", "learned"}
    kept = set(json.loads((tmp_path / "run" / "model" / "card.json").read_text())["private"])
    assert {n.rpartition(".")[2] for n in kept} >= {"unique", "running_mean", "running_var"}
    assert kept.isdisjoint(tensors)


def test_without_momentum_anchor_and_streams_it_is_fedavg(sets: Path, tmp_path: Path) -> None:
    run(job(sets, PLAIN, topology="graph"), tmp_path / "a", quiet=True)
    run(replace(job(sets, {}, topology="graph"), method={"name": "fedavg"}), tmp_path / "b", quiet=True)
    a, b = (load(tmp_path / side).model.state_dict() for side in "ab")
    assert all(torch.allclose(a[n], b[n], atol=1e-6) for n in a)


def test_clients_weigh_by_their_sequences(sets: Path, tmp_path: Path) -> None:
    """One round of FedAvg: the mean of what each client makes alone, weighted by its training sequences."""
    recipe = job(sets, PLAIN, rounds=1, topology="graph")
    run(recipe, tmp_path / "both", quiet=True)
    alone = {}
    for client in ("left", "right"):
        data = DataConfig(source=str(sets / f"{client}.npz"))
        run(replace(recipe, data=data), tmp_path / client, quiet=True)
        alone[client] = load(tmp_path / client).model.state_dict()
    n = {"left": len(LEFT) * 2, "right": len(RIGHT) * 2}  # subjects 1 and 3 of four
    both = load(tmp_path / "both")
    for name in both.card["travelling"]:
        exact = sum(n[c] * alone[c][name].double() for c in n) / sum(n.values())
        assert torch.allclose(both.model.state_dict()[name].double(), exact, atol=1e-5), name


def test_momentum_is_fedagms(tmp_path: Path) -> None:
    """W^t = tau avg(W_i) + (1 - tau) W^ and m^t = W^t - W^{t-1}, the form of the authors' code, on the toy."""
    given = {"mu": 0.0, "blocks": 0, "lambda_": 0.8, "tau": 0.8}
    found = federate(tmp_path / "a", FSAR(**given), rounds=3)[0].weights
    assert found.equal(federate(tmp_path / "b", FedAGM(mu=0.0), rounds=3)[0].weights)
    start = make_worker(tmp_path / "c", FSAR(**given)).start
    mean = federate(tmp_path / "d", FSAR(**{**given, "tau": 1.0}), rounds=1)[0].weights
    first = federate(tmp_path / "e", FSAR(**given), rounds=1)[0].weights
    for name in (t.name for t in start.layout.tensors if t.role in ("parameter", "norm")):
        assert torch.allclose(first[name], 0.8 * mean[name] + 0.2 * start[name], atol=1e-6)  # W^ = W in round 1


def test_streams_of_a_server_equal_to_the_client_add_no_divergence() -> None:
    t = task(topology="graph", dropout=0.0)
    torch.manual_seed(0)
    model = t.model().train()
    teacher = copy.deepcopy(model)
    x = batch()
    outputs = t.forward(model, x)
    for blocks in (1, 2, 3):
        streams = t.streams(teacher, model, x, blocks)
        assert len(streams) == blocks
        for stream in streams:
            assert torch.allclose(stream.logits, outputs.logits, atol=1e-5)
        term = multi_grain(t, teacher, blocks, 1.0, 1.0, detach=True)(Step(model, x, outputs))
        assert torch.allclose(term, blocks * t.loss(outputs, x), atol=1e-5)


def test_the_divergence_is_that_of_the_local_stream_from_the_mixed_ones() -> None:
    t = task(topology="graph")
    torch.manual_seed(0)
    model, teacher, x = t.model().train(), t.model().train(), batch()
    outputs = t.forward(model, x)
    streams = t.streams(teacher, model, x, 2)
    z = outputs.logits.double().softmax(1)
    exact = 0.0
    for stream in streams:
        p = stream.logits.double().softmax(1)
        exact = exact + F.cross_entropy(stream.logits, x[1]) + 0.7 * (p * (p.log() - z.log()))[:, :3].sum(1).mean()
    term = multi_grain(t, teacher, 2, 0.7, 1.0, detach=True)(Step(model, x, outputs))
    assert float(term) == pytest.approx(float(exact), rel=1e-4)


def test_the_authors_take_half_of_the_mean_over_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what `terms` gives the term: 1 for the sum of two streams, a quarter for half of their mean."""
    shares = []
    monkeypatch.setattr("fedreel.methods.fsar.multi_grain", lambda *given: shares.append(given[4]))
    monkeypatch.setattr("fedreel.methods.fsar._without_unique", lambda client: {})
    client: Any = SimpleNamespace(task=None, received={}, frozen=lambda weights: torch.nn.Identity())
    for grains in ("sum", "mean"):
        FSAR(blocks=2, mu=0, grains=grains).terms(client)  # type: ignore[arg-type]
    assert shares == [1.0, 0.25]


@pytest.mark.parametrize("detach", [True, False])
def test_the_server_gets_no_gradient_and_the_lower_blocks_only_the_divergence(detach: bool) -> None:
    t = task(topology="graph")
    torch.manual_seed(0)
    model, teacher, x = t.model().train(), t.model().train(), batch()
    with torch.no_grad():
        fixed = t.forward(model, x)
    multi_grain(t, teacher, 3, 1.0, 1.0, detach)(Step(model, x, fixed)).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(p.grad is None for p in model.backbone.layers[0].parameters())
    assert float(model.head["fc"].weight.grad.abs().sum()) > 0


def test_streams_leave_running_statistics_alone() -> None:
    t = task(topology="both")
    model, teacher, x = t.model().train(), t.model().train(), batch()
    before = [{n: v.clone() for n, v in m.named_buffers()} for m in (model, teacher)]
    t.streams(teacher, model, x, 3)
    for m, old in zip((model, teacher), before):
        assert all(torch.equal(v, old[n]) for n, v in m.named_buffers())


Seen = list[dict[str, torch.Tensor]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Of every batch of a run: U, the coefficients and the whole topology, of the teacher and of the client."""
    found: Seen = []
    true = SkeletonRecognition.streams

    def spy(self: Any, lower: Any, upper: Any, x: Any, blocks: int) -> Any:
        batch = {}
        for who, model in (("teacher", lower), ("client", upper)):
            topology = model.backbone.topologies[0]
            batch |= {f"{who} U": topology.unique, f"{who} coefficients": topology.coefficients, who: topology()}
        found.append({name: tensor.detach().clone() for name, tensor in batch.items()})
        return true(self, lower, upper, x, blocks)

    monkeypatch.setattr(SkeletonRecognition, "streams", spy)
    return found


def test_the_teacher_has_no_unique_topology(sets: Path, tmp_path: Path, seen: Seen) -> None:
    run(job(sets, {}, topology="learnable"), tmp_path / "run", quiet=True)
    assert seen
    for batch in seen:
        assert not batch["teacher U"].any()
        assert torch.equal(batch["teacher coefficients"], torch.ones(3))
    assert float(seen[-1]["client U"].abs().max()) > 1e-5  # the client's has moved meanwhile


def test_a_teacher_can_have_the_clients_topology(sets: Path, tmp_path: Path, seen: Seen) -> None:
    """U and the coefficients that the client begins a round with, beside the I that it received."""
    run(job(sets, {"teacher_topology": "client"}, topology="learnable"), tmp_path / "run", quiet=True)
    begins = [now for before, now in zip([{}, *seen], seen) if not _same(before, now, "teacher U")]
    assert len(begins) == 1 + 2  # both clients begin with the same U, but not their second rounds
    for batch in begins:
        assert _same(batch, batch, "teacher U", "client U")
        assert _same(batch, batch, "teacher coefficients", "client coefficients")
        assert _same(batch, batch, "teacher", "client")  # I is the received one in both
    assert float(begins[-1]["teacher U"].abs().max()) > 1e-5
    assert not all(_same(batch, batch, "teacher U", "client U") for batch in seen)  # the client's moves on


def _same(one: Any, other: Any, name: str, second: str = "") -> bool:
    return bool(one) and torch.equal(one[name], other[second or name])


def test_classes_beyond_a_clients_list_have_no_chance_and_get_no_gradient() -> None:
    t = replace(task(), classes=7)
    model = t.model()
    x, labels, _ = batch(4)
    outputs = t.forward(model, (x, labels % 2, torch.full((4,), 2)))
    assert torch.equal(outputs.logits.softmax(1)[:, 2:], torch.zeros(4, 5))
    F.cross_entropy(outputs.logits, labels % 2).backward()
    assert float(model.head["fc"].weight.grad[2:].abs().max()) == 0
    assert float(model.head["fc"].weight.grad[:2].abs().min()) > 0


def test_each_client_is_tested_with_its_own_classifier(sets: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(job(sets, {}), out, quiet=True)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [r for r in records if r["phase"] == "test"][-1]
    for client in ("left", "right"):
        own = load(out, client=client)
        population = own.task.population(DataConfig(source=str(sets)), 0)
        with torch.no_grad():
            found = own.task.evaluate(own.model, population.data(client).test, 16)
        assert found["top1"] == pytest.approx(last["clients"][client]["top1"])
        assert found["loss"] == pytest.approx(last["clients"][client]["loss"], rel=1e-5)
    with pytest.raises(RunError, match="left"):
        load(out, client="lefft")


def test_a_task_without_blocks_is_told(tmp_path: Path) -> None:
    recipe = make_recipe({"task": {"name": "recognition"}, "method": {"name": "fsar"}, "data": {"source": "nowhere"}})
    with pytest.raises(RecipeError, match=r"FSAR needs a task that has a model made of blocks(.|\n)*the task skeleton"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("settings", [{"blocks": 4}, {"blocks": -1}, {"kd": -1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        FSAR(**settings)
