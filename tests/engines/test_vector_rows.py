"""Models of clients side by side: what is found for all at once is what each would find for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedreel.config import TrainConfig
from fedreel.core import optim
from fedreel.core.optim import make_optimizer
from fedreel.core.weights import Weights, bind
from fedreel.engines import vector
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked import optimizers
from fedreel.engines.stacked.rows import Rows
from fedreel.engines.vector import VectorEngine
from fedreel.methods.fedavg import FedAvg
from support.stacked import Points, assert_close
from support.toy import make_worker, orders, results


def models(count: int = 3) -> tuple[Rows, Weights]:
    """So many models with parameters in two precisions, statistics and a counter; and another one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2).to(torch.bfloat16))
    sent = bind(model).clone()
    rows = Rows.empty(sent.layout, count, torch.device("cpu"))
    rows.fill(sent)
    for dtype, flat in rows.flat.items():
        flat += (torch.randn(flat.shape) * 3).to(dtype)
    return rows, sent


def alone(rows: Rows, client: int) -> Weights:
    return Weights(rows.layout, {dtype: flat[client].clone() for dtype, flat in rows.flat.items()})


def test_distances_are_those_of_each_model_and_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, sent = models()
    taken: list[int] = []
    squares = Rows._squares
    monkeypatch.setattr(Rows, "_squares", lambda self, *run: (taken.append(1), squares(self, *run))[1])
    for client in range(3):
        assert rows[client].distance(sent) == pytest.approx(alone(rows, client).distance(sent), rel=1e-6)
    assert len(taken) == len(sent.layout.stretches), "once for all"
    trained = sent.trained
    for client in range(3):
        assert rows[client].apart(sent)[1] == pytest.approx(alone(rows, client).trained.distance(trained), rel=1e-6)
    assert len(taken) == len(sent.layout.stretches)


def test_distances_that_were_taken_ahead_are_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, sent = models()
    rows.measure(sent)
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "_squares", None)
        ahead = [rows[client].distance(sent) for client in range(3)]
    assert ahead == pytest.approx([alone(rows, client).distance(sent) for client in range(3)], rel=1e-6)
    rows[0]["0.weight"].add_(1.0)
    assert rows[0].distance(sent) == pytest.approx(alone(rows, 0).distance(sent), rel=1e-6) != ahead[0]


def test_whoever_writes_to_a_model_changes_its_distance() -> None:
    rows, sent = models()
    row, before = rows[1], rows[1].distance(sent)
    row["0.weight"].add_(1000.0)
    assert row.distance(sent) == pytest.approx(alone(rows, 1).distance(sent)) != before
    sent["0.bias"].sub_(5000.0)
    assert row.distance(sent) == pytest.approx(alone(rows, 1).distance(sent), rel=1e-6)
    row.flat[torch.float32] = torch.full_like(row.flat[torch.float32], 7.0)
    assert row.distance(sent) == pytest.approx(Weights(row.layout, dict(row.flat)).distance(sent))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_one_model_that_is_not_finite_is_so_alone(value: float) -> None:
    rows, sent = models()
    rows[1]["0.weight"][0, 0] = value
    assert [bool(torch.tensor(rows[i].distance(sent)).isfinite()) for i in range(3)] == [True, False, True]


def test_models_of_other_layouts_have_no_distance() -> None:
    rows, sent = models()
    with pytest.raises(ValueError, match="other tensors"):
        rows[0].distance(sent.trained)


def test_a_part_of_all_models_is_the_part_of_each() -> None:
    rows, sent = models()
    part = rows.take(sent.layout.trained)
    assert all(part[i].equal(alone(rows, i).trained) for i in range(3))
    assert rows.take(sent.layout) is rows


@pytest.mark.parametrize(
    ("parts", "short", "groups"),
    [(2, 100, [3, 3]), (3, 100, [2, 2, 2]), (2, 1, [4, 2])],
    ids=["two, short", "three, short", "two, long"],
)
def test_in_parts_clients_end_as_local_and_none_is_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int, short: int, groups: list[int]
) -> None:
    """Of long trainings all are stacked that can be: up to c0's second order, which waits for its first."""
    monkeypatch.setattr(vector, "MANY", 4)
    monkeypatch.setattr(vector, "PARTS", parts)
    monkeypatch.setattr(vector, "SHORT", short)
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), Points()))
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), Points()))
    engine._ahead, sizes = True, []
    fit = engine._training.fit
    monkeypatch.setattr(engine._training, "fit", lambda asks: (sizes.append(len(asks)), fit(asks))[1])
    wanted = orders(engine.blueprint.start.clone(), ["c0", "c1", "c2", "c3", "c0", "c4"])
    for one, other in zip(results(local, wanted), results(engine, wanted), strict=True):
        assert (one.client, one.step) == (other.client, other.step)
        assert_close(one.weights, other.weights)
    assert sizes == groups


@pytest.mark.parametrize("rates", [(0.02, 0.02, 0.02), (0.02, 0.05, 0.01)], ids=["one rate", "rates"])
@pytest.mark.parametrize("fused", [True, False], ids=["as on a GPU", "as on a CPU"])
@pytest.mark.parametrize(
    "how", [{"momentum": 0.9, "nesterov": True}, {"optimizer": "adam"}, {"optimizer": "adamw"}, {}], ids=str
)
def test_optimizers_of_rows_are_those_of_each_client(
    monkeypatch: pytest.MonkeyPatch, fused: bool, how: dict[str, Any], rates: tuple[float, ...]
) -> None:
    """Three clients, of whom one makes fewer steps than the others; another rate and a decay of its own for some
    parameters, and a gradient that is laid out in another way."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(*shape)) for shape in ((4, 3), (5,), (2, 2))]
    params[1].no_decay, params[2].rate_scale = True, 3.0  # type: ignore[attr-defined]
    config = TrainConfig(**{"lr": 0.05, "weight_decay": 0.1, **how})
    alone = [[nn.Parameter(p.detach().clone()) for p in params] for _ in range(3)]
    for client in alone:
        client[1].no_decay, client[2].rate_scale = True, 3.0  # type: ignore[attr-defined]
    each = [make_optimizer(client, config) for client in alone]
    monkeypatch.setattr(optim, "_on_gpu", lambda params: fused)
    monkeypatch.setattr(optimizers, "FUSED", ("cpu",) if fused else ())
    together = optimizers.make_row_optimizer(params, range(3), config, by_rate=len({*rates}) > 1)
    data = [p.detach().expand(3, *p.shape).clone() for p in params]
    slots = together.slots(data)
    together.begin(slots, rates)
    for one, rate in zip(each, rates):
        one.reset(rate)
    for clients in (3, 2, 3, 2):
        grads = [torch.randn(clients, *reversed(p.shape)).transpose(1, -1) for p in params]
        together.step_rows([t[:clients] for t in data], {n: t[:clients] for n, t in slots.items()}, grads)
        for row in range(clients):
            each[row].step([g[row] for g in grads])
    for row, client in enumerate(alone):
        assert all(torch.allclose(t[row], p, atol=1e-5) for t, p in zip(data, client))
