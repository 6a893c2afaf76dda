"""Replayed training steps: when a step is recorded, which batches are replayed, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.capture import MOST, WORTH, Recorder, Recording, Replayed
from fedreel.runs.run import load
from support.moves import make_sets, train


class FakeGraph:
    """A recording that makes the step again, on the inputs that were recorded."""

    def __init__(self, step: Any, inputs: Any) -> None:
        self.step, self.inputs, self.result, self.replays = step, inputs, torch.zeros(()), 0

    def replay(self) -> None:
        self.replays += 1
        self.result.copy_(self.step(self.inputs))


class FakeRecorder(Recorder):
    def __init__(self, works: bool = True) -> None:
        super().__init__()
        self.works = works
        self.made: list[FakeGraph] = []

    def record(self, step: Any, batch: Any) -> Recording | None:
        if not self.works:
            return None
        graph = FakeGraph(step, tuple(t.clone() for t in batch))
        self.made.append(graph)
        return Recording(graph, graph.inputs, graph.result, step)  # type: ignore[arg-type]


def sums(
    batches: list[torch.Tensor], recorder: FakeRecorder, of: tuple[object, ...] | None = None
) -> tuple[list[float], int]:
    """What a step that adds its batch up gives, and how often it was called directly."""
    before = sum(g.replays for g in recorder.made)

    def step(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return batch[0].sum()

    replayed = Replayed(step, len(batches), recorder, of)
    found = [float(replayed((b,))) for b in batches]
    replays = sum(g.replays for g in recorder.made) - before
    return found, len(batches) - replays


@pytest.mark.parametrize("works", [True, False])
def test_every_batch_gets_its_own_result(works: bool) -> None:
    batches = [torch.full((4,), float(i)) for i in range(WORTH + 3)]
    recorder = FakeRecorder(works)
    found, direct = sums(batches, recorder)
    assert found == [4.0 * i for i in range(len(batches))]
    assert direct == (1 if works else len(batches))


def test_a_batch_of_another_form_is_not_replayed() -> None:
    batches = [torch.ones(4)] * (WORTH + 1) + [torch.ones(3)] + [torch.full((4,), 2.0)]
    recorder = FakeRecorder()
    found, direct = sums(batches, recorder)
    assert found == [4.0] * (WORTH + 1) + [3.0, 8.0]
    assert direct == 2
    assert recorder.made[0].replays == WORTH + 1


def test_few_batches_are_not_worth_a_recording() -> None:
    recorder = FakeRecorder()
    sums([torch.ones(4)] * WORTH, recorder)
    assert recorder.made == []


def test_a_step_that_stays_the_same_is_recorded_once_for_all_jobs() -> None:
    recorder, of = FakeRecorder(), (object(),)
    jobs = [sums([torch.full((4,), float(i))] * (WORTH + 2), recorder, of) for i in range(3)]
    assert [found for found, _ in jobs] == [[4.0 * i] * (WORTH + 2) for i in range(3)]
    assert [direct for _, direct in jobs] == [1, 0, 0]
    assert len(recorder.made) == 1


def test_a_form_that_is_rare_in_a_job_but_comes_in_many_is_recorded_too() -> None:
    recorder, of = FakeRecorder(), (object(),)
    jobs = [sums([torch.full((4,), float(i))], recorder, of) for i in range(WORTH + 2)]
    assert [found for found, _ in jobs] == [[4.0 * i] for i in range(WORTH + 2)]
    assert [direct for _, direct in jobs] == [1] * WORTH + [0, 0]


def test_steps_on_other_objects_and_batches_of_other_types_have_recordings_of_their_own() -> None:
    recorder, objects = FakeRecorder(), [object(), object()]
    for one in objects:
        for dtype in (torch.float32, torch.int64):
            found, direct = sums([torch.ones(4, dtype=dtype)] * (WORTH + 1), recorder, (one,))
            assert (found, direct) == ([4.0] * (WORTH + 1), 1)
    assert len(recorder.made) == 4


def test_no_more_recordings_are_kept_than_fit() -> None:
    recorder, of = FakeRecorder(), (object(),)
    for size in range(1, MOST + 3):
        sums([torch.ones(size)] * (WORTH + 1), recorder, of)
    assert len(recorder.kept) == MOST


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("fedavg", {"momentum": 0.9, "lr": 0.05, "schedule": "cosine"}),
        ("fedavg", {"momentum": 0.9, "lr": 0.05, "keep_optimizer": True}),
        ("fedavg", {"optimizer": "adam", "lr": 0.01, "schedule": "cosine"}),
        ("fedavg", {"optimizer": "adamw", "lr": 0.01, "keep_optimizer": True}),
        ("fedprox", {"momentum": 0.9, "lr": 0.05}),
        ("fsar", {"momentum": 0.9, "lr": 0.05}),
    ],
)
def test_on_a_gpu_a_replayed_run_ends_with_the_same_weights(tmp_path: Path, method: str, how: dict[str, Any]) -> None:
    sets = make_sets(tmp_path)
    ends = []
    for graph in (True, False):
        settings: dict[str, Any] = {"device": "cuda", "train": {"batch_size": 1, "epochs": 3, **how}}
        settings["train"]["cuda_graph"] = graph
        out = train(tmp_path / f"{graph}", sets, method, settings=settings, augmentation="shear-crop")
        ends.append(load(out).model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_recordings_one_after_the_other_take_the_memory_of_one() -> None:
    recorder, x = Recorder(), torch.ones(1 << 22, device="cuda")
    reserved = []
    for _ in range(40):
        assert recorder.record(lambda batch: (batch[0] * 2 + 1).sum(), (x,)) is not None
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_step_that_cannot_be_recorded_leaves_random_numbers_as_they_were() -> None:
    def waits(batch: Any) -> torch.Tensor:
        return batch[0] * float(torch.rand((), device="cuda"))

    x = torch.ones(4, device="cuda")
    torch.manual_seed(3)
    expected = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    recorder = Recorder()
    assert recorder.record(waits, (x,)) is None
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    assert recorder.record(lambda batch: batch[0].sum(), (x,)) is None, "it records no more"
