"""Our SGD and Adam are torch's, to the bit; kept state goes on where it stopped; decay spares what asks for it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from fedreel.config import TrainConfig
from fedreel.core import optim
from fedreel.core.optim import Torch, make_optimizer
from fedreel.core.training import clip, learning_rate
from fedreel.core.work import gradients
from support.warm import run_python


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))


def train(net: nn.Module, step: Any, steps: range) -> None:
    for i in steps:
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i))
        for p in net.parameters():
            p.grad = None
        net(x).square().mean().backward()
        step([p.grad for p in net.parameters()])


@pytest.mark.parametrize(("momentum", "nesterov", "decay"), [(0.0, False, 0.0), (0.9, False, 0.01), (0.9, True, 0.1),
                                                             (0.0, False, 0.1), (0.5, True, 0.0)])  # fmt: skip
def test_sgd_is_torchs_to_the_bit(momentum: float, nesterov: bool, decay: float) -> None:
    a, b = model(), model()
    ours = make_optimizer(a.parameters(), TrainConfig(momentum=momentum, nesterov=nesterov, weight_decay=decay))
    ours.reset(0.1)
    theirs = torch.optim.SGD(b.parameters(), 0.1, momentum, nesterov=nesterov, weight_decay=decay)
    train(a, ours.step, range(6))
    train(b, lambda _: theirs.step(), range(6))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))


def test_on_a_gpu_sgd_is_torchs_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's fused kernel, here that for CPUs; a rate and a decay of its own for some, a gradient laid out in
    another way, and what is kept from one job to the next forgotten."""
    monkeypatch.setattr(optim, "_on_gpu", lambda params: True)
    for momentum, nesterov, decay in ((0.0, False, 0.0), (0.9, False, 0.01), (0.9, True, 0.1), (0.0, False, 0.1)):
        a, b = model(), model()
        a[0].weight.rate_scale, a[2].bias.no_decay = 0.25, True
        ours = make_optimizer(a.parameters(), TrainConfig(momentum=momentum, nesterov=nesterov, weight_decay=decay))
        ours.step([torch.zeros_like(p) if decay == 0 else torch.ones_like(p) for p in a.parameters()])
        a.load_state_dict(b.state_dict())
        ours.reset(0.1)
        own: list[Any] = [{"params": [b[0].weight], "lr": 0.025}, {"params": [b[2].bias], "weight_decay": 0.0}]
        rest = {"params": [b[0].bias, b[2].weight]}
        theirs = torch.optim.SGD([*own, rest], 0.1, momentum, nesterov=nesterov, weight_decay=decay)
        train(a, lambda g, ours=ours: ours.step([g[0].t().contiguous().t(), *g[1:]]), range(6))
        train(b, lambda _, theirs=theirs: theirs.step(), range(6))
        assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(a.parameters(), b.parameters()))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "torchs"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_is_torchs_to_the_bit(kind: Any, torchs: Any, decay: float) -> None:
    """With a parameter that is spared the decay, one that the loss does not always reach, and what they keep."""
    a, b = model(), model()
    a[2].bias.no_decay = True
    ours = make_optimizer(a.parameters(), TrainConfig(optimizer=kind, weight_decay=decay))
    ours.reset(0.1)
    groups = [{"params": [*b[0].parameters(), b[2].weight]}, {"params": [b[2].bias], "weight_decay": 0.0}]
    theirs = torchs(groups, 0.1, weight_decay=decay, fused=True)

    def without_first(net: nn.Module, i: int) -> None:
        if i % 2:
            net[0].bias.grad = None

    for i in range(6):
        train(a, lambda g, i=i: (without_first(a, i), ours.step([p.grad for p in a.parameters()])), range(i, i + 1))
        train(b, lambda _, i=i: (without_first(b, i), theirs.step()), range(i, i + 1))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    kept = {f"{i}/{k}": t for i, p in enumerate(b.parameters()) for k, t in theirs.state[p].items()}
    found = ours.state()
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_adam_does_without_the_compiler() -> None:
    """torch.optim imports torch.compile when it is first used, which takes as long as to import torch."""
    code = (
        "import sys, torch; from fedreel.config import TrainConfig; from fedreel.core.optim import make_optimizer;"
        "p = torch.nn.Parameter(torch.ones(2)); o = make_optimizer([p], TrainConfig(optimizer='adam'));"
        "o.step([torch.ones(2)]); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert run_python("-c", code).returncode == 0


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_reset_forgets_and_kept_state_goes_on(kind: Any) -> None:
    config = TrainConfig(optimizer=kind, momentum=0.9, weight_decay=0.01)
    whole, parts, anew = model(), model(), model()
    one = make_optimizer(whole.parameters(), config)
    one.reset(0.05)
    train(whole, one.step, range(6))
    for net, keep in ((parts, True), (anew, False)):
        optimizer = make_optimizer(net.parameters(), config)
        optimizer.reset(0.05)
        train(net, optimizer.step, range(3))
        kept = {n: t.clone() for n, t in optimizer.state().items()}
        optimizer.reset(0.05)
        if keep:
            optimizer.restore(kept)
        train(net, optimizer.step, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), parts.parameters()))
    assert not all(torch.equal(p, q) for p, q in zip(whole.parameters(), anew.parameters()))


@pytest.mark.parametrize(("kind", "momentum"), list(product(["sgd", "adam", "adamw"], [0.0, 0.9])))
def test_no_decay_is_respected(kind: Any, momentum: float) -> None:
    """Gradients of zero: what is decayed shrinks, what is spared stays."""
    net = model()
    net[0].weight.no_decay = True
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = make_optimizer(net.parameters(), TrainConfig(optimizer=kind, momentum=momentum, weight_decay=0.5))
    optimizer.reset(0.1)
    optimizer.step([torch.zeros_like(p) for p in net.parameters()])
    same = [torch.equal(p, q) for p, q in zip(net.parameters(), before)]
    assert same == [True, False, False, False]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_parameter_may_have_a_rate_of_its_own(kind: Any) -> None:
    a, b = model(), model()
    for parameter in a[0].parameters():
        parameter.rate_scale = 0.25
    config = TrainConfig(optimizer=kind, momentum=0.9, weight_decay=0.1)
    ours = make_optimizer(a.parameters(), config)
    ours.reset(0.1)
    groups: list[Any] = [{"params": [*b[0].parameters()], "lr": 0.025}, {"params": [*b[2].parameters()]}]
    of_torch: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(kind)
    own = {"momentum": 0.9} if of_torch is None else {"fused": True}
    theirs = (of_torch or torch.optim.SGD)(groups, 0.1, weight_decay=0.1, **own)
    train(a, ours.step, range(4))
    train(b, lambda _: theirs.step(), range(4))
    assert all(torch.allclose(p, q, atol=1e-7) for p, q in zip(a.parameters(), b.parameters()))


def test_on_a_gpu_parameters_are_grouped_by_rate_and_decay() -> None:
    net = model()
    net[0].weight.rate_scale, net[2].bias.no_decay = 0.25, True
    optimizer = Torch([*net.parameters()], TrainConfig(optimizer="adamw", weight_decay=0.1))
    optimizer.reset(0.2)
    rates = {id(p): (float(g["lr"]), g["weight_decay"]) for g in optimizer._inner.param_groups for p in g["params"]}
    found = [rates[id(p)] for p in net.parameters()]
    assert found == [pytest.approx(pair) for pair in [(0.05, 0.1), (0.2, 0.1), (0.2, 0.1), (0.2, 0.0)]]


def test_schedules() -> None:
    assert learning_rate(TrainConfig(lr=0.2), 7, 10) == 0.2
    step = TrainConfig(lr=1.0, schedule="step", milestones=(2, 4), decay=0.1)
    assert [round(learning_rate(step, r, 5), 6) for r in range(1, 6)] == [1.0, 1.0, 0.1, 0.1, 0.01]
    cosine = [learning_rate(TrainConfig(lr=1.0, schedule="cosine"), r, 4) for r in range(1, 5)]
    assert cosine == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_clipping_is_torchs() -> None:
    for most in (0.5, 3.0, 100.0):
        grads = [torch.randn(3, 4), torch.randn(5), torch.randn(())]
        copies = [nn.Parameter(torch.zeros_like(g)) for g in grads]
        for c, g in zip(copies, grads):
            c.grad = g.clone()
        nn.utils.clip_grad_norm_(copies, most)
        clip(grads, most)
        assert all(torch.allclose(g, c.grad, atol=1e-6) for g, c in zip(grads, copies))
        assert float(torch.cat([g.flatten() for g in grads]).norm()) <= most * 1.00001 or most == 100.0


def test_gradients_are_autograds_and_none_where_the_loss_does_not_reach() -> None:
    net, unused = model(), nn.Parameter(torch.ones(2))
    params = (*net.parameters(), unused)
    x = torch.randn(5, 4)
    expected = torch.autograd.grad(net(x).square().mean(), params, allow_unused=True)
    got = gradients(net(x).square().mean(), params, torch.ones(()))
    assert got[-1] is None
    assert all(torch.equal(g, e) for g, e in zip(got[:-1], expected[:-1]))
    assert all(p.grad is None for p in params)
    single = gradients(net(x).double().square().mean(), tuple(net.parameters()), torch.ones(()))
    assert all(g is not None and g.dtype == torch.float32 for g in single)
