"""Training at the server: what is kept from round to round, by hand-worked moments and over a run that broke off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.abilities import ServerObjective
from fedreel.core.server_training import ServerTraining
from fedreel.core.task import Outputs, Tensors
from fedreel.core.update import Order
from fedreel.core.weights import bind
from fedreel.engines.local import LocalEngine
from fedreel.methods.fedlid import FedLID
from fedreel.runs import run as core
from support.toy import Toy, federate

ADAM = TrainConfig(batch_size=4, optimizer="adam", lr=0.1, shuffle=False)
KEPT = TrainConfig(batch_size=4, optimizer="adam", lr=0.1, shuffle=False, keep_optimizer=True)


class Line(nn.Module):
    """Two numbers whose gradients are always 3 and 4: the loss is 3 backbone + 4 head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)


class Slope:
    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return batch

    def forward(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Outputs:
        value = 3 * model.backbone.weight + 4 * model.head.weight  # type: ignore[union-attr, operator]
        return Outputs(value, value)

    def loss(self, outputs: Outputs, batch: tuple[Tensor, ...]) -> Tensor:
        return outputs.logits.sum()


def line(config: TrainConfig) -> ServerTraining:
    setup = ServerObjective(Line, Slope(), Tensors((torch.zeros(1, 1),)))  # type: ignore[arg-type]
    return ServerTraining(setup, config, 3, 0, torch.device("cpu"))


def moments(gradient: float, steps: int) -> tuple[float, float]:
    """Adam's after so many steps with the same gradient: m <- .9 m + .1 g, v <- .999 v + .001 g^2, from 0."""
    m = v = 0.0
    for _ in range(steps):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    return m, v


def found(state: dict[str, Tensor], which: int) -> tuple[float, float, float]:
    return tuple(float(state[f"{which}/{key}"].sum()) for key in ("step", "exp_avg", "exp_avg_sq"))  # type: ignore


@pytest.mark.parametrize("keep_head", [True, False])
def test_adams_moments_go_on_over_rounds_and_a_fresh_head_has_none(keep_head: bool) -> None:
    training = line(KEPT)
    given, kept = bind(Line()).clone(), None
    for round in (1, 2):
        given, kept, _ = training.train(given, kept, round, keep_head)
    assert kept
    assert found(kept.optimizer, 0) == pytest.approx((2, *moments(3.0, 2)))
    head_steps = 2 if keep_head else 1
    assert found(kept.optimizer, 1) == pytest.approx((head_steps, *moments(4.0, head_steps)))


def test_nothing_is_kept_of_the_optimizer_unless_asked_for() -> None:
    training = line(ADAM)
    given, kept, _ = training.train(bind(Line()).clone(), None, 1)
    _, kept, _ = training.train(given, kept, 2)
    assert kept.optimizer == {}
    assert found(training.optimizer.state(), 0) == pytest.approx((1, *moments(3.0, 1)))


def test_kept_moments_move_the_model_otherwise(tmp_path: Path) -> None:
    ends = [federate(tmp_path / str(c.keep_optimizer), FedLID(), train=c, rounds=2)[0] for c in (ADAM, KEPT)]
    assert "server-optimizer/views" not in ends[0].memory
    assert {key.partition("/")[2] for key in ends[1].memory["server-optimizer/views"]} == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }
    assert not ends[0].weights.equal(ends[1].weights)


def whole_run(out: Path, keep: bool, resume: bool = False) -> core.Result:
    recipe = Recipe(
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedlid"},
        train=TrainConfig(batch_size=4, lr=0.1),
        server=TrainConfig(batch_size=4, optimizer="adam", lr=0.01, keep_optimizer=keep),
        round=RoundConfig(rounds=4),
    )
    return core.run(recipe, out, resume=resume, quiet=True, task=Toy())


def test_what_the_server_keeps_survives_a_run_that_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = whole_run(tmp_path / "whole", keep=True), tmp_path / "broken"
    submit = LocalEngine.submit

    def breaks(engine: LocalEngine, order: Order) -> None:
        if order.round == 3:
            raise KeyboardInterrupt
        submit(engine, order)

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "submit", breaks)
        with pytest.raises(KeyboardInterrupt):
            whole_run(out, keep=True)
    whole_run(out, keep=True, resume=True)
    forgets = whole_run(tmp_path / "forgets", keep=False)
    a, b, c = (load_file(path / "model" / "global.safetensors") for path in (whole.path, out, forgets.path))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)
