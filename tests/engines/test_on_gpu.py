"""How a GPU is shared by the clients of a round goes by counts of operations, and those are right."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import TrainConfig
from fedreel.core.task import Outputs
from fedreel.engines import on_gpu, step_size
from fedreel.engines.on_gpu import AT_ONCE, choose, lanes
from fedreel.engines.step_size import StepSize, measured_step
from fedreel.methods.fedavg import FedAvg
from support.stacked import EqualPoints, Masks
from support.toy import Toy, make_worker


@dataclass(frozen=True)
class Deep(Toy):
    """A layer, and so many times the hyperbolic tangent."""

    layers: int = 1

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        logits = model.head(model.backbone(batch[0]))
        for _ in range(self.layers):
            logits = logits.tanh()
        return Outputs(logits, logits)


@dataclass(frozen=True)
class Attending(Deep):
    """What comes out of the layers attends to itself."""

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        logits = super().forward(model, batch).logits
        tokens = logits[None, None]
        seen = F.scaled_dot_product_attention(tokens, tokens, tokens)[0, 0]
        return Outputs(seen, seen)


def test_operations_of_a_step_are_those_counted_by_hand(tmp_path: Path) -> None:
    """A product of 1 x 50 and 50 x 1 is 50 multiplications and 50 additions, and its gradient is as much again."""
    assert measured_step(make_worker(tmp_path, FedAvg(), Masks(), TrainConfig(batch_size=8))).operations == 200


def test_a_layer_more_is_a_kernel_more_and_one_for_its_gradient(tmp_path: Path) -> None:
    counts = [measured_step(make_worker(tmp_path / f"{n}", FedAvg(), Deep(layers=n))).kernels for n in (1, 2, 5)]
    assert [n - counts[0] for n in counts] == [0, 2, 8]


def test_to_count_them_leaves_no_trace(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), Toy())  # with batch norm, whose statistics a step changes
    before, random = worker.weights.clone(), torch.default_generator.get_state()
    assert measured_step(worker).operations > 0
    assert worker.weights.equal(before)
    assert torch.equal(torch.default_generator.get_state(), random)


def test_a_step_that_cannot_be_made_counts_as_none(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), EqualPoints(bad="c0"))  # whose labels cannot be
    assert measured_step(worker) == StepSize()
    assert choose(worker, 40).chosen == "local"


@pytest.mark.parametrize(
    ("small", "cohort", "chosen", "why"),
    [
        (201, 40, "vector", "clients are stacked (engine vector)"),
        (200, 40, "streams", "4 clients are trained side by side (engine streams)"),
        (200, 3, "streams", "3 clients are trained side by side (engine streams)"),
        (200, 5, "streams", "5 clients are trained side by side (engine streams)"),
        (201, 1, "local", ""),
        (200, 1, "local", ""),
    ],
)
def test_small_steps_are_stacked_and_large_ones_made_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: float, cohort: int, chosen: str, why: str
) -> None:
    monkeypatch.setattr(step_size, "SMALL", small)
    with closing(choose(make_worker(tmp_path, FedAvg(), Masks(), TrainConfig(batch_size=8)), cohort)) as engine:
        assert engine.chosen == chosen
        assert engine.why.endswith(why)
        assert engine.why.startswith("a step is 2e-07 billion operations in ") or not why


@pytest.mark.parametrize(
    ("task", "chosen"),
    [(Deep(layers=60), "vector"), (Attending(layers=60), "streams"), (Attending(layers=1), "vector")],
)
def test_small_steps_that_cannot_be_stacked_are_made_side_by_side_unless_they_are_brief(
    tmp_path: Path, task: Deep, chosen: str
) -> None:
    worker = make_worker(tmp_path, FedAvg(), task)
    before, random = worker.weights.clone(), torch.default_generator.get_state()
    with closing(choose(worker, 3)) as engine:
        assert engine.chosen == chosen
    assert worker.weights.equal(before)
    assert torch.equal(torch.default_generator.get_state(), random)


def test_no_more_side_by_side_than_there_is_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "measured_step", lambda worker: StepSize(1e12, 500, 1000))
    worker = make_worker(tmp_path, FedAvg(), Masks(), TrainConfig(batch_size=8))
    for free, slots in ((8000, 4), (7999, 3), (3999, 1)):
        monkeypatch.setattr(on_gpu, "_free_memory", lambda device, free=free: float(free))
        with closing(choose(worker, 40)) as engine:
            assert engine.slots == slots


def test_the_last_clients_of_a_round_are_not_left_alone() -> None:
    """By brute force: no other number of lanes takes fewer turns and has fewer of them empty in the last one."""
    for cohort in range(1, 200):
        for most in (1, 2, 3, 4, 8, 1000):
            found = lanes(cohort, most)
            turns = -(-cohort // found)
            assert 1 <= found <= min(most, cohort, AT_ONCE + 2)
            assert not any(-(-cohort // fewer) <= turns for fewer in range(1, found))
            assert turns * found - cohort < turns  # nobody waits for more than one place
    assert [lanes(cohort, 1000) for cohort in (4, 5, 6, 8, 9, 10, 40)] == [4, 5, 3, 4, 5, 5, 4]
