"""Stacked steps that differ from a single client's by rounding alone, and the few kernels that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fedreel.config import TrainConfig
from fedreel.core.capture import Recording
from fedreel.core.task import Outputs
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked.norms import batch_norm
from fedreel.engines.stacked.training import StackedTraining
from fedreel.engines.vector import VectorEngine
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.tasks.skeleton.msg3d import unfolded
from support.recorder import FakeRecorder
from support.stacked import CLOSE, EqualPoints, Points, both, count_stacked, federate
from support.toy import make_worker, orders, results


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_stacked(monkeypatch)


@dataclass(frozen=True)
class Rounding(EqualPoints):
    """Stacked, something is added to logits and taken away again: the same step, but for rounding."""

    far: float = 1e5

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        outputs = super().forward(model, batch)
        stacked = torch._C._functorch.is_functorch_wrapped_tensor(outputs.logits)
        return Outputs(outputs.features, (outputs.logits + self.far) - self.far if stacked else outputs.logits)


def test_steps_that_only_rounding_sets_apart_are_stacked(tmp_path: Path, stacked: list[int], caplog: Any) -> None:
    """In float32, 1e5 leaves two digits of a logit; in double precision ten."""
    one, _, many, _ = both(tmp_path, FedProx(mu=0.1), task=Rounding())
    assert stacked == [5, 5, 5]
    assert not [r for r in caplog.records if "one by one" in r.message]
    assert CLOSE < one.weights.distance(many.weights) < 0.1


def test_in_double_precision_too_a_step_that_is_another_is_not_stacked(
    tmp_path: Path, stacked: list[int], caplog: Any
) -> None:
    federate(tmp_path, VectorEngine, FedAvg(), task=Rounding(far=1e13))
    assert stacked == []
    assert [r for r in caplog.records if "other gradients" in r.message]


@pytest.mark.parametrize("training", [True, False], ids=["training", "testing"])
@pytest.mark.parametrize("affine", [True, False], ids=["scaled", "plain"])
@pytest.mark.parametrize("rows", [0, 1], ids=["clients first", "clients second"])
def test_stacked_batch_norms_are_those_of_each_client(training: bool, affine: bool, rows: int) -> None:
    """Maps, derivatives and running statistics."""
    torch.manual_seed(0)
    maps, wanted = torch.randn(3, 5, 4, 2, 6), torch.randn(3, 5, 4, 2, 6)
    scale, shift = (torch.randn(3, 4), torch.randn(3, 4)) if affine else (None, None)
    mean, var = torch.randn(3, 4), torch.rand(3, 4) + 0.5
    ours, theirs = (mean.clone(), var.clone()), (mean.clone(), var.clone())

    def loss(norm: Any, x: Tensor, w: Tensor | None, b: Tensor | None, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
        return (norm(x, m, v, w, b, training, 0.1, 1e-3) * y).sum()

    count = 3 if affine else 1
    found = vmap(
        grad(lambda *given: loss(batch_norm, *given), argnums=tuple(range(count))),
        in_dims=(rows, *([0, 0] if affine else [None, None]), 0, 0, rows),
    )(maps.movedim(0, rows), scale, shift, *ours, wanted.movedim(0, rows))
    for i in range(3):
        own = [t[i].clone().requires_grad_() for t in (maps, scale, shift) if t is not None]
        given = own if affine else [own[0], None, None]
        exact = torch.autograd.grad(loss(F.batch_norm, *given, theirs[0][i], theirs[1][i], wanted[i]), own)
        torch.testing.assert_close([g[i] for g in found], [*exact], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours, theirs)


def test_statistics_that_lie_apart_are_changed_too() -> None:
    maps = torch.randn(2, 5, 4, 3)
    whole = torch.zeros(4, 2)  # clients are columns
    vmap(lambda x, m, v: batch_norm(x, m, v, training=True, momentum=1.0), in_dims=(0, 1, 0))(
        maps, whole, torch.ones(2, 4)
    )
    torch.testing.assert_close(whole, maps.mean(dim=(1, 3)).T)


def test_statistics_that_all_clients_share_cannot_be_changed_by_each() -> None:
    maps = torch.randn(2, 5, 4, 3)
    with pytest.raises(RuntimeError, match="same tensors for all clients"):
        vmap(lambda x: batch_norm(x, torch.zeros(4), torch.ones(4), training=True))(maps)


def test_a_stacked_batch_norm_is_one_kernel_each_way() -> None:
    """Beside the copies that lay channels side by side: vmap's own rule fills, multiplies and sums around it."""
    x, w, m, v = torch.randn(2, 5, 4, 3), torch.ones(2, 4), torch.zeros(2, 4), torch.ones(2, 4)
    seen: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    def loss(w: Tensor, x: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return batch_norm(x, m, v, w, torch.zeros_like(w), True).sum()

    with Noting():
        vmap(grad(loss))(w, x, m, v)
    arithmetic = [name for name in seen if name.rpartition(":")[2] in ("mul", "sub", "add", "ones", "div")]
    assert arithmetic == []
    assert seen.count("aten::native_batch_norm") == seen.count("aten::native_batch_norm_backward") == 1


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 1), (3, 2), (5, 2), (2, 3)])
def test_windows_of_stacked_frames_and_their_derivative_are_unfolds(size: int, stride: int) -> None:
    frames = torch.randn(2, 3, 11, 4, 2)
    many = (11 - size) // stride + 1
    wanted = torch.randn(2, 3, many, 4, 2, size)
    seen = vmap(lambda x: unfolded(x, size, stride))(frames)
    assert torch.equal(seen, frames.unfold(2, size, stride))
    functorch: Any = torch._C._functorch
    functorch._set_vmap_fallback_enabled(False)
    try:
        found = vmap(grad(lambda x, y: (unfolded(x, size, stride) * y).sum()))(frames, wanted)
    finally:
        functorch._set_vmap_fallback_enabled(True)
    leaf = frames.clone().requires_grad_()
    (exact,) = torch.autograd.grad((leaf.unfold(2, size, stride) * wanted).sum(), leaf)
    torch.testing.assert_close(found, exact)


shifted: list[int] = []  # examples that were augmented at once


@dataclass(frozen=True)
class Shifted(EqualPoints):
    """Each example is shifted by a number of its own."""

    augments_each: ClassVar = True

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        shifted.append(len(batch[0]))
        return batch[0] + torch.rand(len(batch[0]), 1), batch[1]


def test_examples_of_all_clients_are_augmented_at_once_where_they_do_not_draw_their_own(tmp_path: Path) -> None:
    for own_draws, expected in ((True, [8] * 5), (False, [40])):
        engine = VectorEngine(make_worker(tmp_path / str(own_draws), FedAvg(), Shifted(), TrainConfig(batch_size=8)))
        engine._training = StackedTraining(engine.worker, None, own_draws)
        start = engine.blueprint.start.clone()
        results(engine, orders(start, [*engine.clients]))
        shifted.clear()
        found = results(engine, orders(start, [*engine.clients], 2))
        assert shifted == expected
        assert len({u.loss for u in found}) == 5


def test_batches_are_stacked_where_a_recorded_step_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So they are not copied once more; clients end as they do alone."""
    replay, there = Recording.replay, []

    def noting(self: Recording, batch: tuple[Tensor, ...]) -> Tensor:
        there.append(all(mine is given for mine, given in zip(self.inputs, batch)))
        return replay(self, batch)

    monkeypatch.setattr(Recording, "replay", noting)
    train = TrainConfig(batch_size=4, lr=0.02, epochs=8)
    worker = make_worker(tmp_path / "vector", FedAvg(), Points(), train)
    worker.recorder = FakeRecorder()
    engine = VectorEngine(worker)
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), Points(), train))
    wanted = orders(engine.blueprint.start.clone(), [*engine.clients])
    for one, other in zip(results(local, wanted), results(engine, wanted), strict=True):
        assert one.weights.distance(other.weights) < CLOSE
    assert there.count(True) > 5
