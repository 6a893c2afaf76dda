"""FedVMR, FedCMR-style and cyclic transfer: groups, weights, the divergence, and what leaves a client."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.exchange import Policy
from fedreel.core.federation import Federation
from fedreel.core.task import Outputs
from fedreel.core.terms import Step
from fedreel.core.update import TRAIN, Order
from fedreel.errors import FedreelError, RecipeError
from fedreel.methods.cyclic import Cyclic
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedcmr import FedCMR
from fedreel.methods.fedvmr import FedVMR, distribution_gap, divergence, smoothed
from support.toy import Toy, federate, make_worker

CLIENTS = ("c0", "c1", "c2", "c3")
PLAIN: dict[str, Any] = {"lambda_": 0.0}


def test_with_a_group_for_each_client_and_weights_by_samples_it_is_fedavg(tmp_path: Path) -> None:
    vmr = FedVMR(groups=4, weight_by="samples", **PLAIN)
    a = federate(tmp_path / "a", vmr, rounds=2)[0].weights
    b = federate(tmp_path / "b", FedAvg(), rounds=2)[0].weights
    assert all(torch.allclose(a[n].double(), b[n].double(), atol=1e-6) for n in a)


def test_equal_scores_are_the_plain_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Federation, "test", lambda *_: {"score": 0.37})
    a = federate(tmp_path / "a", FedVMR(groups=4, **PLAIN), rounds=2)[0].weights
    b = federate(tmp_path / "b", FedVMR(groups=4, weight_by="equal", **PLAIN), rounds=2)[0].weights
    assert all(torch.allclose(a[n].double(), b[n].double(), atol=1e-6) for n in a)


def test_one_chain_whose_last_model_counts_alone_is_training_in_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that rise by much along the chain make its last model the new one: cyclic transfer in the same order."""
    seen: list[float] = []

    def rising(*_: Any) -> dict[str, float]:
        seen.append(100.0 * len(seen))
        return {"score": seen[-1]}

    monkeypatch.setattr(Federation, "test", rising)
    fed, *_ = federate(tmp_path / "a", FedVMR(groups=1, **PLAIN), rounds=1)
    (chain,) = fed.memory["groups"]
    worker = make_worker(tmp_path / "b", Cyclic())
    weights = worker.start.clone()
    for step, client in enumerate(chain, 1):
        update = worker.execute(Order(1, step, client, TRAIN, {"global": weights}))
        weights = update.weights
    assert all(torch.allclose(fed.weights[n].double(), weights[n].double(), atol=1e-6) for n in weights)


def test_cyclic_transfer_keeps_what_the_last_client_made(tmp_path: Path) -> None:
    worker = make_worker(tmp_path / "a", Cyclic())
    weights = worker.start.clone()
    for step, client in enumerate(CLIENTS, 1):
        update = worker.execute(Order(1, step, client, TRAIN, {"global": weights}))
        weights = update.weights
    assert federate(tmp_path / "b", Cyclic(), rounds=1)[0].weights.equal(weights)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_weights_are_a_softmax_of_scores(tmp_path: Path, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = [0.0] * 4  # each client's examples are tried alone
    scores = iter([*usable, 0.2, 0.3, 0.1, 0.4, 0.5])  # of the clients' models, and of the new one
    taken = []
    true = FedVMR.score

    def spy(self: FedVMR, fed: Federation, update: Any, sample: Any) -> float:
        taken.append((update.weights.clone(), true(self, fed, update, sample)))
        return taken[-1][1]

    monkeypatch.setattr(Federation, "test", lambda *_: {"score": next(scores)})
    monkeypatch.setattr(FedVMR, "score", spy)
    fed, notes = federate(tmp_path, FedVMR(groups=2, temperature=temperature, **PLAIN), rounds=1)
    assert [note["score"] for note in notes.of("validation")] == [0.5]
    found = fed.weights
    a = torch.tensor([0.2, 0.3, 0.1, 0.4], dtype=torch.float64).div(temperature).softmax(0)
    assert float(a.sum()) == pytest.approx(1)
    for name in found:
        if found[name].is_floating_point():
            exact = sum(w * model[name].double() for w, (model, _) in zip(a, taken))
            assert torch.allclose(found[name].double(), exact, atol=1e-6), name


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 9])
def test_groups_hold_everyone_once_and_stay(tmp_path: Path, groups: int) -> None:
    fed, *_ = federate(tmp_path, FedVMR(groups=groups, **PLAIN), rounds=2)
    held = fed.memory["groups"]
    assert len(held) == min(groups, 4)
    assert sorted(c for group in held for c in group) == list(CLIENTS)
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_the_world_is_the_sum_of_the_clients_counts(tmp_path: Path) -> None:
    fed, *_ = federate(tmp_path, FedVMR(groups=4, lambda_=0.1), rounds=1)
    population = Toy().population(None, 0)
    labels = torch.cat([population.data(c).train.tensors[1] for c in CLIENTS])  # type: ignore[attr-defined]
    counts = torch.bincount(labels, minlength=16)
    assert fed.memory["classes"] == counts.tolist()


def test_shares_are_smoothed_by_one_more_in_each_class() -> None:
    found = smoothed(torch.tensor([3.0, 0.0, 1.0, 0.0]), 4.0)
    assert found.tolist() == pytest.approx([4 / 8, 1 / 8, 2 / 8, 1 / 8])


def test_counts_and_samples_are_in_the_ledger_as_what_they_are(tmp_path: Path) -> None:
    federate(tmp_path, FedVMR(), rounds=1)
    records = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    kinds = {kind for r in records for kind in json.dumps(r).split('"') if kind in ("label-statistics", "raw-samples")}
    assert kinds == {"label-statistics", "raw-samples"}


@pytest.mark.parametrize("kind", ["label-statistics", "raw-samples"])
def test_a_site_that_does_not_give_them_stops_the_run_and_says_so(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FedreelError, match=kind):
        federate(tmp_path, FedVMR(), rounds=1, policy=Policy(refuse=(kind,)))


class Fixed(Toy):
    """Predicts what the logits say."""

    def temporal_distribution(self, outputs: Outputs, bins: int) -> torch.Tensor:
        return outputs.logits.softmax(1)


@pytest.mark.parametrize("direction", ["prediction", "world"])
def test_a_step_down_the_gap_brings_predictions_nearer_to_the_world(direction: Any) -> None:
    world = torch.tensor([50.0, 30.0, 10.0, 10.0])
    logits = torch.zeros(64, 4, requires_grad=True)

    def gap() -> torch.Tensor:
        term = distribution_gap(Fixed(), world, torch.full((4,), torch.nan), 2, 1.0, 0.0, direction)
        return term(Step(None, None, Outputs(logits, logits)))  # type: ignore[arg-type]

    before = gap()
    (gradient,) = torch.autograd.grad(before, [logits])
    with torch.no_grad():
        logits -= 50 * gradient
    assert float(gap()) < float(before)
    assert float(logits[0, 0]) > 0 > float(logits[0, 2])


def test_the_gap_by_hand_and_its_running_estimate() -> None:
    world = torch.tensor([7.0, 1.0, 1.0, 1.0])
    term = distribution_gap(Fixed(), world, torch.full((4,), torch.nan), 2, 2.0, 0.75, "prediction")
    sure = [torch.log(torch.tensor([[0.97, 0.01, 0.01, 0.01]])), torch.log(torch.tensor([[0.01, 0.97, 0.01, 0.01]]))]
    found = [float(term(Step(None, None, Outputs(x, x)))) for x in sure]  # type: ignore[arg-type]
    first = sure[0].exp()[0]
    second = 0.75 * first + 0.25 * sure[1].exp()[0]
    p = (world + 1) / 14
    for value, q in zip(found, (first, second)):
        q = (10 * q + 1) / 14
        assert value == pytest.approx(2 * float((q * (q / p).log()).sum()), rel=1e-5)


def test_predictions_distributed_as_the_world_have_no_gap() -> None:
    world = torch.tensor([6.0, 2.0, 1.0, 1.0])
    logits = (world / 10).log().expand(3, 4)
    term = distribution_gap(Fixed(), world, torch.full((4,), torch.nan), 2, 1.0, 0.9, "prediction")
    assert float(term(Step(None, None, Outputs(logits, logits)))) == pytest.approx(0, abs=1e-6)  # type: ignore[arg-type]


def test_the_gap_of_a_batch_pulls_with_all_its_force() -> None:
    """Its gradient is that of the divergence at the running estimate, not a tenth of it."""
    world, before = torch.tensor([6.0, 2.0, 1.0, 1.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    term = distribution_gap(Fixed(), world.double(), before.double(), 2, 1.0, 0.9, "prediction")
    (found,) = torch.autograd.grad(term(Step(None, None, Outputs(logits, logits))), [logits])  # type: ignore[arg-type]
    estimate = (0.9 * before + 0.1 * logits.softmax(1).mean(0)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(
        divergence(smoothed(10 * estimate, 10.0), smoothed(world.double(), 10.0)), [estimate]
    )
    (expected,) = torch.autograd.grad((logits.softmax(1).mean(0) * slope).sum(), [logits])
    torch.testing.assert_close(found, expected)


def test_without_lambda_nobody_is_asked_for_counts(tmp_path: Path) -> None:
    fed, *_ = federate(tmp_path, FedVMR(weight_by="equal", **PLAIN), rounds=1)
    assert "classes" not in fed.memory
    assert "validation" not in fed.memory


def test_fedcmr_weighs_by_samples_and_categories_and_keeps_encoders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = iter([1, 2, 3, 4])
    monkeypatch.setattr(Toy, "categories", lambda *_: next(count))
    fed, *_ = federate(tmp_path / "a", FedCMR(), rounds=1)
    monkeypatch.setattr(Toy, "categories", lambda *_: 1)
    worker = make_worker(tmp_path / "b", FedCMR())
    updates = [worker.execute(Order(1, i, c, TRAIN, {"global": worker.start})) for i, c in enumerate(CLIENTS, 1)]
    shares = [u.samples * (i + 1) for i, u in enumerate(updates)]
    for name in fed.weights:
        if fed.weights[name].is_floating_point():
            exact = sum(s * u.weights[name].double() for s, u in zip(shares, updates)) / sum(shares)  # type: ignore[index]
            assert torch.allclose(fed.weights[name].double(), exact, atol=1e-6)


@pytest.mark.parametrize("settings", [{"groups": 0}, {"temperature": 0.0}, {"bins": 1}, {"share": 2.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        FedVMR(**settings)


def test_the_logarithms_of_weights_are_recorded(tmp_path: Path) -> None:
    *_, notes = federate(tmp_path, FedVMR(weight_by="samples", **PLAIN), rounds=1)
    (record,) = notes.of("weights")
    assert record["log_weights"]["c0"] == pytest.approx(math.log(8))
