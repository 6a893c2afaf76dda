"""FedVSSL against its equations: the mixture, the average with past models, and what stays at home."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.update import TRAIN, Order
from fedreel.core.weights import Weights
from fedreel.errors import RecipeError
from fedreel.methods.fedvssl import FedVSSL
from support.toy import federate, make_worker

CLIENTS = ["c0", "c1", "c2", "c3"]


def final(folder: Path, rounds: int, **options: Any) -> Weights:
    return federate(folder, FedVSSL(**options), rounds=rounds)[0].weights


def first_round(folder: Path) -> tuple[Weights, list[Any]]:
    """The start, and every client's answer to it."""
    worker = make_worker(folder, FedVSSL())
    start = worker.start.clone()
    return start, [worker.execute(Order(1, i + 1, c, TRAIN, {"global": start})) for i, c in enumerate(CLIENTS)]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_a_round_is_the_mixture_of_both_means(tmp_path: Path, alpha: float, server_lr: float) -> None:
    start, updates = first_round(tmp_path / "a")
    by_samples = [u.samples / sum(v.samples for v in updates) for u in updates]
    by_loss = [math.exp(-u.loss) / sum(math.exp(-v.loss) for v in updates) for u in updates]
    got = final(tmp_path / "b", 1, alpha=alpha, server_lr=server_lr)
    for info in got.layout.tensors:
        if not info.dtype.is_floating_point:
            continue
        w = start[info.name].double()
        change = sum(
            (alpha * p + (1 - alpha) * n) * (u.weights[info.name].double() - w)
            for u, n, p in zip(updates, by_samples, by_loss)
        )
        rate = server_lr if info.role != "statistics" else 1.0
        assert torch.allclose(got[info.name].double(), w + rate * change, atol=1e-6), info.name


def test_a_client_with_a_lower_loss_weighs_more(tmp_path: Path) -> None:
    _, updates = first_round(tmp_path / "a")
    best, worst = min(updates, key=lambda u: u.loss), max(updates, key=lambda u: u.loss)
    equal = sum(u.weights["backbone.0.weight"].double() for u in updates) / len(updates)
    got = final(tmp_path / "b", 1, alpha=1.0)["backbone.0.weight"].double()
    towards = best.weights["backbone.0.weight"].double() - worst.weights["backbone.0.weight"].double()
    assert float(((got - equal) * towards).sum()) > 0


def parameters(weights: Weights) -> dict[str, torch.Tensor]:
    return {t.name: weights[t.name] for t in weights.layout.tensors if t.role in ("parameter", "norm")}


def test_one_past_model_is_half_the_server_rate_after_the_first_round(tmp_path: Path) -> None:
    first = final(tmp_path / "a", 1, beta=0)
    assert final(tmp_path / "b", 1, beta=1).equal(first), "before the first round there is no global model"
    got = parameters(final(tmp_path / "d", 2, beta=1, alpha=0.0))
    first = final(tmp_path / "e", 1, beta=0, alpha=0.0)
    moved = parameters(final(tmp_path / "f", 2, beta=0, alpha=0.0))
    for name, tensor in parameters(first).items():
        assert torch.allclose(got[name], tensor + 0.5 * (moved[name] - tensor), atol=1e-6)


def test_two_past_models_are_averaged_once_there_are_two(tmp_path: Path) -> None:
    ends = [parameters(final(tmp_path / f"{r}", r, beta=2)) for r in (1, 2, 3)]
    with_two = federate(tmp_path / "x", FedVSSL(beta=2), rounds=3)[0]
    assert [w.equal(with_two.weights) for w in with_two.memory["past"]] == [True, False]
    assert all(torch.equal(with_two.memory["past"][1][n], t) for n, t in ends[1].items())


def test_heads_stay_and_are_the_ones_that_each_client_left(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedVSSL())
    start = worker.start.clone()
    assert all(name.startswith("backbone.") for name in start)
    update = worker.execute(Order(1, 1, "c0", TRAIN, {"global": start}))
    assert set(update.weights) == set(start)
    left = worker.weights["head.weight"].clone()
    worker.execute(Order(1, 2, "c1", TRAIN, {"global": start}))
    client = worker.open(Order(2, 3, "c0", TRAIN, {"global": start}))
    worker.enter(client, worker.weights)
    assert torch.equal(worker.weights["head.weight"], left)
    assert torch.equal(worker.weights["backbone.0.weight"], start["backbone.0.weight"])


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"beta": -1}])
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        FedVSSL(**options)
