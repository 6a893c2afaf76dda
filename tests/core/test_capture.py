"""Replayed training steps: when a step is recorded, which batches are replayed, and that nothing else changes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import TrainConfig
from fedreel.core.capture import MOST, WORTH, Recorder, Replayed
from fedreel.methods.ditto import Ditto
from fedreel.methods.fedca import FedCA
from fedreel.methods.feddyn import FedDyn
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fedvmr import FedVMR
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from fedreel.runs.run import load
from support.moves import make_sets, train
from support.recorder import FakeCUDA, FakeRecorder
from support.toy import federate, make_worker, orders


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


def in_a_circle(recorder: Recorder) -> list[Any]:
    """A recording that nobody but itself refers to, once this list is forgotten."""
    circle: list[Any] = [recorder.record(lambda batch: batch[0].sum(), (torch.ones(4),))]
    circle.append(circle)
    return circle


def litter(batch: Any) -> torch.Tensor:
    """A step that makes so much that garbage would be looked for."""
    made = [[] for _ in range(2000)]  # type: ignore[var-annotated]
    return batch[0].sum() + len(made)


@pytest.mark.parametrize("how", ["a collection would be due", "the step throws them away", "garbage is collected"])
def test_no_recording_is_destroyed_while_another_is_made(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    cuda, old, recorder = FakeCUDA(monkeypatch), Recorder(), Recorder()
    kept = [in_a_circle(old), in_a_circle(old)]
    assert recorder.record(litter, (torch.ones(4),)) is not None
    before = gc.get_threshold()
    gc.set_threshold(1)

    def step(batch: Any) -> torch.Tensor:
        if how != "a collection would be due":
            kept[0].clear()
        if how == "garbage is collected":
            kept.clear()
            gc.collect()
        return litter(batch)

    if how == "a collection would be due":
        kept.clear()
    cuda.events.clear()
    try:
        assert recorder.record(step, (torch.ones(4),)) is not None
    finally:
        gc.set_threshold(*before)
    assert cuda.events[:2] == ["begin", "end"]
    gc.collect()
    assert "destroyed" in cuda.events
    assert gc.isenabled()


def test_a_recorder_s_first_recording_comes_when_those_of_former_ones_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, old = FakeCUDA(monkeypatch), Recorder()
    in_a_circle(old)
    in_a_circle(old)
    del old
    cuda.events.clear()
    assert Recorder().record(litter, (torch.ones(4),)) is not None
    assert cuda.events[:4] == ["destroyed", "destroyed", "begin", "end"]


def test_after_a_recording_that_broke_another_one_ends_and_no_more_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, recorder = FakeCUDA(monkeypatch), Recorder()

    def breaks(batch: Any) -> torch.Tensor:
        cuda._broken = True
        return batch[0]

    assert recorder.record(breaks, (torch.ones(4),)) is None
    assert cuda.events[:5] == ["begin", "broken", "memory given back", "begin", "end"]
    assert recorder.record(litter, (torch.ones(4),)) is None
    assert gc.isenabled()


METHODS = {
    "fedprox": FedProx(mu=0.3),
    "moon": MOON(mu=2.0),
    "fsar": FSAR(mu=0.1, blocks=2),
    "fedca": FedCA(public=4, dictionary=8, beta=0.5),
    "fedvmr": FedVMR(lambda_=0.5),
    "scaffold": SCAFFOLD(),
    "feddyn": FedDyn(alpha=0.1),
    "ditto": Ditto(lambda_=0.5),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_what_a_method_adds_to_a_step_is_recorded_once_for_all_jobs(tmp_path: Path, method: Any) -> None:
    """The tensors that belong to one job are brought to where the recording reads them: runs end as without it."""
    recorder = FakeRecorder()

    def recorded(engine: Any) -> Any:
        engine.worker.recorder = recorder
        return engine

    how = {"train": TrainConfig(batch_size=4, epochs=4, lr=0.05, momentum=0.9), "rounds": 3}
    plain, _ = federate(tmp_path / "plain", method, **how)
    fed, _ = federate(tmp_path / "recorded", method, wrap=recorded, **how)
    assert fed.weights.equal(plain.weights)
    # a first round without what is added (MOON's previous model, FedCA's dictionary), or a training without (Ditto's)
    assert len(recorder.made) == (2 if isinstance(method, MOON | FedCA | Ditto) else 1)
    steps = sum(graph.replays + 1 for graph in recorder.made)
    assert steps == (2 if isinstance(method, Ditto) else 1) * 3 * 4 * (2 + 3 + 4 + 5)  # rounds, epochs, batches


def test_a_plain_function_is_recorded_anew_for_every_job(tmp_path: Path) -> None:
    class Plain(FedProx):
        def local_training(self, client: Any) -> None:
            client.fit([lambda step: step.outputs.logits.square().mean()])

    recorder = FakeRecorder()
    worker = make_worker(tmp_path, Plain(), train=TrainConfig(batch_size=4, epochs=8, lr=0.1))
    worker.recorder = recorder
    for order in orders(worker.start, ["c0", "c1", "c0"]):
        worker.execute(order)
    assert len(recorder.made) == 3
    assert not recorder.kept


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
        ("moon", {"momentum": 0.9, "lr": 0.05}),
        ("scaffold", {"lr": 0.05}),
        ("feddyn", {"lr": 0.05}),
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
def test_on_a_gpu_no_recording_is_destroyed_while_another_is_made() -> None:
    x, old, recorder = torch.ones(4, device="cuda"), Recorder(), Recorder()
    for _ in range(5):
        circle: list[Any] = [old.record(lambda batch: batch[0].sum(), (x,))]
        circle.append(circle)
    assert recorder.record(lambda batch: batch[0].sum(), (x,)) is not None
    kept: list[Any] = [old.record(lambda batch: batch[0].sum(), (x,)), old]
    del circle, old

    def step(batch: Any) -> torch.Tensor:
        kept.clear()
        gc.collect()
        return litter(batch)

    assert recorder.record(step, (x,)) is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_recordings_made_before_go_on_when_another_one_breaks() -> None:
    x, recorder, other = torch.ones(1 << 12, device="cuda"), Recorder(), Recorder()

    def noisy(batch: Any) -> torch.Tensor:
        return batch[0] * torch.rand_like(batch[0])

    recordings = [r.record(noisy, (x,)) for r in (recorder, other)]

    def drawn() -> list[torch.Tensor]:
        torch.cuda.manual_seed(5)
        return [
            torch.rand(8, device="cuda"),
            *(r.replay((x,)).clone() for r in recordings),
            torch.rand(8, device="cuda"),
        ]

    before = drawn()
    assert recorder.record(lambda batch: batch[0] * float(torch.rand((), device="cuda")), (x,)) is None
    assert all(torch.equal(a, b) for a, b in zip(before, drawn(), strict=True))
    assert other.record(noisy, (x,)) is not None


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
