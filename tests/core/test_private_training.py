"""Examples as units: gradients by example against brute force, noise, batches, what a client has spent, lies."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import Tensor, nn

from fedreel.config import PrivacyConfig, RoundConfig, TrainConfig
from fedreel.core.client import Worker
from fedreel.core.discretion import ExampleDiscretion, Spending
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.fused import Fuser
from fedreel.core.ledger import read_ledger
from fedreel.core.method import Method
from fedreel.core.private_training import ByExample, Noise, Singles, steps_of
from fedreel.core.state import PrivateStore
from fedreel.core.task import Outputs, Tensors
from fedreel.core.update import EVALUATE, TRAIN, Order, content_of
from fedreel.core.weights import Weights
from fedreel.errors import PolicyError, RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.privacy.accounting import Release, epsilon
from fedreel.privacy.noise import Secret
from support.toy import PlainToy, Toy

pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")
CONFIG = PrivacyConfig(unit="example", epsilon=6.0, seeded=True)


def worker(
    folder: Path, method: Method | None = None, task: Toy | None = None, config: PrivacyConfig = CONFIG
) -> Worker:
    task = task or PlainToy()
    rounds = RoundConfig(rounds=3)
    return Worker(
        task,
        method or FedAvg(),
        TrainConfig(batch_size=4, lr=0.1),
        task.population(None, 0),
        rounds=3,
        seed=0,
        device=torch.device("cpu"),
        store=PrivateStore(folder / "clients"),
        ledger=Ledger(folder / "ledger.jsonl"),
        policy=Policy(refuse=("weights", "count", "loss")),
        discretion=ExampleDiscretion(config, rounds, Secret.of_seed(2), Spending(folder / "spent")),
    )


def order(worker: Worker, round: int = 1, kind: str = TRAIN, move: float = 0.0, client: str = "c3") -> Order:
    return Order(round, 1, client, kind, {"global": worker.start.map(lambda x: x + move)})


# gradients


class OneByOne(Tensors):
    """Rows that are not known to be rows of tensors."""


@dataclass(frozen=True)
class Listed:
    """Examples that come as batches alone."""

    inner: Tensors

    def __len__(self) -> int:
        return len(self.inner)

    def to(self, device: torch.device) -> Listed:
        return self

    def batches(self, size: int, generator: Any = None) -> Any:
        return self.inner.batches(size, generator)


@pytest.mark.parametrize("clip", [1e9, 0.05])
@pytest.mark.parametrize("listed", [False, True])
def test_sums_of_clipped_gradients_are_those_of_brute_force(clip: float, listed: bool) -> None:
    torch.manual_seed(0)
    task = PlainToy()
    model, data = task.model(), task.population(None, 0).data("c3").train
    params = [*model.parameters()]
    expected, losses = [torch.zeros_like(p) for p in params], 0.0
    rows = [0, 3, 4, 11]
    for row in rows:
        batch = tuple(t[row : row + 1] for t in data.tensors)
        loss = task.loss(task.forward(model, batch), batch)
        grads = torch.autograd.grad(loss, params)
        length = sum(float(g.square().sum()) for g in grads) ** 0.5
        for total, g in zip(expected, grads):
            total += g * min(1.0, clip / length)
        losses += float(loss.detach())
    found, told = ByExample(model, task, params, clip).of(Singles(Listed(data) if listed else data), rows)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found))
    assert told == pytest.approx(losses, rel=1e-5)


def test_few_examples_at_once_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    task = PlainToy()
    model, data = task.model(), Singles(task.population(None, 0).data("c3").train)
    params, rows = [*model.parameters()], [0, 1, 2, 5, 6]
    whole, _ = ByExample(model, task, params, 0.1).of(data, rows)
    monkeypatch.setattr("fedreel.core.private_training._MOST_BYTES", 1)
    parts, _ = ByExample(model, task, params, 0.1).of(data, rows)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, parts))


def test_noise_and_batches_are_what_is_claimed() -> None:
    noise = Noise(Secret.of_seed(5), ("c", "label"), spread=3.0, clip=0.2, rate=0.25)
    zeros = [torch.zeros(100, 60), torch.zeros(4000)]
    made = torch.cat([t.flatten() for t in noise.on(zeros, 0)]).numpy()
    assert kstest(made / 0.6, norm.cdf).pvalue > 1e-3
    sizes = np.array([len(noise.rows(40, step)) for step in range(600)])
    assert abs(sizes.mean() - 10) < 4 * np.sqrt(7.5 / 600)
    assert sizes.var() == pytest.approx(7.5, rel=0.25)
    assert noise.rows(40, 1) != replace(noise, label=("c", "other")).rows(40, 1)


def test_rate_and_steps_of_a_client() -> None:
    config = TrainConfig(batch_size=8)
    assert steps_of(80, config, 2) == (0.1, 20)
    assert steps_of(3, config, 1) == (1.0, 1)


# at a client


def test_a_model_leaves_with_noise_and_nothing_beside_it(tmp_path: Path) -> None:
    made = worker(tmp_path)
    reply = made.execute(order(made))
    assert reply.numbers == {}
    assert not reply.tensors
    row = [r for r in read_ledger(tmp_path / "ledger.jsonl") if r["kind"] == "departure"][-1]
    assert row["kinds"] == ["noisy-weights"]
    rate, steps = steps_of(20, made.config, 1)
    spread = made.discretion._noise(3 * steps, rate)  # type: ignore[attr-defined]
    assert row["epsilon"] == pytest.approx(epsilon([Release(spread, steps, rate)], 1e-5))
    assert epsilon([Release(spread, 3 * steps, rate)], 1e-5) <= 6.0


def test_gradients_of_single_examples_are_not_fused_which_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = worker(tmp_path)
    made.fuser = Fuser()
    for round in (1, 2):
        made.execute(order(made, round))
    assert [r.getMessage() for r in caplog.records if "unfused" in r.getMessage()] == [
        "training goes on unfused: gradients are taken of single examples"
    ]


def test_an_order_that_comes_again_gives_the_same_and_is_charged_once(tmp_path: Path) -> None:
    made = worker(tmp_path)
    first = made.execute(order(made))
    spent = made.discretion._spending  # type: ignore[attr-defined]
    before = spent.of("c3", TRAIN)
    again = worker(tmp_path)
    assert again.execute(order(again)).weights.equal(first.weights)  # type: ignore[union-attr]
    assert spent.of("c3", TRAIN) == before > 0


def test_another_model_under_the_same_number_draws_other_noise_and_is_charged(tmp_path: Path) -> None:
    """A server that asks twice to take the noise away by subtraction."""
    made = worker(tmp_path, config=replace(CONFIG, clip=1e-3))
    rounds = [made.execute(order(made, move=move)) for move in (0.0, 0.1)]
    moves = [r.weights - o for r, o in zip(rounds, (made.start, made.start.map(lambda x: x + 0.1)))]  # type: ignore[union-attr]
    one, two = (torch.cat([t.flatten() for t in m.values()]) for m in moves)
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.6
    assert not torch.allclose(one, two)
    made.execute(order(made, move=0.2))
    with pytest.raises(PolicyError, match="spent"):
        made.execute(order(made, move=0.3))


def test_what_was_spent_is_not_given_back_when_state_is(tmp_path: Path) -> None:
    made = worker(tmp_path)
    for round in (1, 2, 3):
        made.execute(order(made, round, move=0.1 * round))
    for path in (tmp_path / "clients").rglob("*.safetensors"):
        path.unlink()
    fresh = worker(tmp_path)
    with pytest.raises(PolicyError, match="spent"):
        fresh.execute(order(fresh, 1, move=0.7))


def test_a_broken_file_of_what_was_spent_is_no_new_budget(tmp_path: Path) -> None:
    made = worker(tmp_path)
    made.execute(order(made))
    next((tmp_path / "spent").iterdir()).write_text("{")
    with pytest.raises(Exception, match="cannot be read"):
        made.execute(order(made, 2))


def test_test_results_leave_with_noise_without_their_number_and_so_often(tmp_path: Path) -> None:
    made = worker(tmp_path)
    replies = [made.execute(order(made, round, EVALUATE, client="c0")) for round in (1, 2, 3)]
    assert all({*r.numbers} == {"top1"} for r in replies)
    assert len({r.numbers["top1"] for r in replies}) == 3
    with pytest.raises(PolicyError, match="spent"):
        made.execute(order(made, 4, EVALUATE, client="c0"))


def test_contents_of_orders_that_differ_in_anything_differ() -> None:
    weights = Weights.of({"a": torch.zeros(3)})
    base = Order(1, 1, "c", TRAIN, {"global": weights}, {"x": 1.0})
    moved = Weights.of({"a": torch.tensor([0.0, 0.0, 1e-30])})
    others = [
        replace(base, round=2),
        replace(base, step=2),
        replace(base, args={"x": 2.0}),
        replace(base, args={"x": weights}),
        replace(base, models={"global": moved}),
        replace(base, models={"other": weights}),
    ]
    assert len({content_of(o) for o in (base, *others)}) == 7
    assert content_of(base) == content_of(Order(1, 1, "c", TRAIN, {"global": weights.clone()}, {"x": 1.0}))


# what cannot be private


def test_batch_norm_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="group"):
        worker(tmp_path, task=Toy())


def test_a_method_with_terms_of_its_own_is_refused(tmp_path: Path) -> None:
    made = worker(tmp_path, FedProx(mu=0.1))
    with pytest.raises(RecipeError, match="changes the loss"):
        made.execute(order(made))


@dataclass(frozen=True)
class Contrasts(PlainToy):
    """Each example is told apart from the others of its batch."""

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        likeness = outputs.features @ outputs.features.T
        return nn.functional.cross_entropy(likeness, torch.arange(len(likeness)))


def test_a_task_whose_examples_are_compared_is_refused(tmp_path: Path) -> None:
    made = worker(tmp_path, task=Contrasts())
    with pytest.raises(RecipeError, match="depends on the others"):
        made.execute(order(made))


# a whole run


def test_a_run_with_examples_as_units(tmp_path: Path) -> None:
    from fedreel.config import Recipe
    from fedreel.runs import run as core
    from fedreel.runs.reading import read_metrics

    recipe = Recipe(
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedavg"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=2),
        privacy=CONFIG,
    )
    for name in ("a", "b"):
        core.run(recipe, tmp_path / name, quiet=True, task=PlainToy(clients=2), method=FedAvg())
    models = [(tmp_path / n / "model" / "global.safetensors").read_bytes() for n in ("a", "b")]
    assert models[0] == models[1]
    told = [r for r in read_metrics(tmp_path / "a") if r["phase"] == "privacy"]
    assert [(r["unit"], r["epsilon"]) for r in told] == [("example", 6.0)] * 2
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["metrics"].keys() == {"top1"}
