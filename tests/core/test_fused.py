"""Steps by the compiler: what comes of them, how many are compiled, and what happens where one cannot be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedreel.core.fused as fused
from fedreel.config import TrainConfig
from fedreel.core.method import Method
from fedreel.core.terms import OfJob, term
from fedreel.core.update import Update
from fedreel.core.weights import Weights
from fedreel.core.work import OutOfTime, Work
from fedreel.engines.local import LocalEngine
from fedreel.engines.streams import StreamsEngine
from fedreel.engines.vector import UNFUSED, VectorEngine
from fedreel.kernels import fusing
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx, proximal
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from support.recorder import FakeRecorder
from support.stacked import Maps, Points, assert_close
from support.stacked import federate as on_engine
from support.toy import Random, Toy, federate, make_worker, orders, results

TRAIN = {"batch_size": 4, "lr": 0.1, "momentum": 0.9, "clip_norm": 0.5, "epochs": 2}
NEAR = 1e-5
Traced = list[int]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Steps are written down, as for the compiler, and what was written is carried out; their numbers of inputs."""
    found: Traced = []

    def graph_of(function: fusing.Function, tensors: Sequence[Tensor]) -> fusing.Function:
        graph, constants = fusing.written_down(function, tensors)
        found.append(len(tensors))
        return lambda *given: [*graph(*given, *constants)]

    monkeypatch.setattr(fused, "compiled", graph_of)
    return found


def both(folder: Path, method: Method, **own: Any) -> tuple[Any, Any]:
    """The same federation without and with fused steps."""
    train = {**TRAIN, **own.pop("train", {})}
    made = []
    for fuse in (False, True):
        fed, notes = federate(folder / str(fuse), method, train=TrainConfig(**train, fuse=fuse), rounds=2, **own)
        made.append((fed.weights, [row["loss"] for row in notes.of("train")]))
    return tuple(made)


def assert_same(one: Any, other: Any) -> None:
    assert_close(one[0], other[0], NEAR)
    assert one[1] == pytest.approx(other[1], abs=NEAR)


@pytest.mark.parametrize(
    ("method", "steps"),
    [(FedAvg(), 1), (FedProx(mu=0.3), 1), (MOON(mu=0.5), 2), (FSAR(mu=0.1, blocks=2), 1), (SCAFFOLD(), 1)],
    ids=lambda m: type(m).__name__ if isinstance(m, Method) else "",
)
@pytest.mark.parametrize("task", [Toy(clients=5), Random(clients=3)], ids=["batch norm", "random"])
def test_a_step_written_down_serves_all_clients_and_rounds(
    tmp_path: Path, traced: Traced, method: Method, steps: int, task: Any
) -> None:
    """One for each kind of step: MOON's first round has no contrast."""
    assert_same(*both(tmp_path, method, task=task))
    assert len(traced) == steps


def test_norms_of_maps_and_tied_and_frozen_tensors(tmp_path: Path, traced: Traced) -> None:
    assert_same(*both(tmp_path / "maps", FedAvg(), task=Maps(clients=2)))
    assert_same(*both(tmp_path / "points", FedProx(mu=0.3), task=Points(clients=3)))
    assert len(traced) == 2


def test_a_recorded_step_is_the_fused_one(tmp_path: Path, traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded reads the tensors that the step does."""
    recorders: list[FakeRecorder] = []

    def worker_with_recorder(engine: Any) -> Any:
        engine.worker.recorder = FakeRecorder()
        recorders.append(engine.worker.recorder)
        return engine

    assert_same(*both(tmp_path, FSAR(mu=0.1, blocks=2), wrap=worker_with_recorder, train={"epochs": 8}))
    assert len(traced) == 1
    assert all(any(graph.replays for graph in recorder.made) for recorder in recorders)


def test_lanes_share_what_was_written_down(tmp_path: Path, traced: Traced) -> None:
    """Each has a model of its own, of the same form."""
    train = TrainConfig(**TRAIN, fuse=True)  # type: ignore[arg-type]
    local = on_engine(tmp_path / "local", LocalEngine, FedProx(mu=0.3), task=Random(clients=4), train=train)[0]
    assert len(traced) == 1
    streams = on_engine(tmp_path / "streams", StreamsEngine, FedProx(mu=0.3), task=Random(clients=4), train=train)[0]
    assert len(traced) == 2
    assert local.weights.equal(streams.weights)


def test_stacked_clients_are_not_fused_and_the_engine_says_so(
    tmp_path: Path, traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    train = TrainConfig(**TRAIN, fuse=True)  # type: ignore[arg-type]
    engine = VectorEngine(make_worker(tmp_path, FedAvg(), Points(clients=3), train))
    done = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1", "c2"]))
    assert all(isinstance(update, Update) for update in done)
    assert not traced
    assert engine.notices == [UNFUSED]
    assert [r.getMessage() for r in caplog.records].count(UNFUSED) == 1


@pytest.mark.skipif(not shutil.which("g++"), reason="PyTorch's compiler for CPUs needs g++")
def test_a_compiled_step_ends_as_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm, dropout, noise on the batch, a term with a teacher: all of a step, by the compiler itself."""
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    made: list[bool] = []
    compile_step = fused.Fuser._compile

    def counting(self: fused.Fuser, *args: Any) -> Any:
        found = compile_step(self, *args)
        made.append(found is not None)
        return found

    monkeypatch.setattr(fused.Fuser, "_compile", counting)
    assert_same(*both(tmp_path, FSAR(mu=0.1, blocks=2), task=Random(clients=3)))
    assert made == [True]
    assert any((tmp_path / "cache" / "compiled").rglob("*.so"))


def broken(reason: str) -> Callable[..., Any]:
    def compiled(*_: Any) -> Any:
        raise RuntimeError(reason)

    return compiled


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "unfused" in r.getMessage()]


def test_where_the_compiler_fails_training_goes_on_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused, "compiled", broken("\nno compiler here\nmore"))
    one, other = both(tmp_path, FedAvg(), task=Random(clients=3))
    assert one[0].equal(other[0])
    assert one[1] == other[1]
    assert warnings(caplog) == [
        "training goes on unfused: this step cannot be compiled (RuntimeError: no compiler here)"
    ]


def test_a_time_limit_that_ends_while_compiling_is_the_client_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails as it would anywhere; the step is compiled when the next one comes."""

    def late(*_: Any) -> Any:
        raise OutOfTime

    monkeypatch.setattr(fused, "compiled", late)
    engine = LocalEngine(make_worker(tmp_path, FedAvg(), Toy(clients=2), TrainConfig(**TRAIN, fuse=True)))  # type: ignore[arg-type]
    wanted = [replace(o, limit=60.0) for o in orders(engine.blueprint.start.clone(), ["c0", "c1"])]
    assert [(r.client, r.reason) for r in results(engine, wanted)] == [("c0", "timeout"), ("c1", "timeout")]
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("place", "by", "told"),
    [
        (0, 2.0, "other gradients"),
        (1, 2, "other statistics"),
        (2, -1.0, "other gradients"),
        (-1, 3.0, "other statistics"),
    ],
    ids=["loss", "counter", "gradient", "statistics"],
)
def test_a_compiled_step_that_gives_something_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: int, by: float, told: str
) -> None:
    def wrong(function: fusing.Function, tensors: Sequence[Tensor]) -> fusing.Function:
        graph, constants = fusing.written_down(function, tensors)

        def call(*given: Tensor) -> list[Tensor]:
            found = [*graph(*given, *constants)]
            found[place] = found[place] * by
            return found

        return call

    monkeypatch.setattr(fused, "compiled", wrong)
    one, other = both(tmp_path, FedAvg(), task=Toy(clients=2))
    assert one[0].equal(other[0])
    assert warnings(caplog) == [f"training goes on unfused: a compiled step gives {told}"]


def test_no_more_than_so_many_kinds_of_steps_are_compiled(
    tmp_path: Path, traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that changes with the round makes another step each time."""

    class Louder(FedAvg):
        def terms(self, client: Any) -> Any:
            return [louder(float(client.round))]

    monkeypatch.setattr(fused, "MOST", 1)
    assert_same(*both(tmp_path, Louder(), task=Toy(clients=2)))
    assert len(traced) == 1
    assert [w for w in warnings(caplog) if "no more are" in w]


@term
def louder(step: Any, by: float) -> Tensor:
    return by * step.outputs.logits.square().mean()


def test_a_plain_function_of_the_method_is_not_compiled(
    tmp_path: Path, traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(FedAvg):
        def terms(self, client: Any) -> Any:
            return [lambda step: step.outputs.logits.square().mean()]

    one, other = both(tmp_path, Plain(), task=Toy(clients=2))
    assert one[0].equal(other[0])
    assert not traced
    assert len(warnings(caplog)) == 1


def test_a_gradient_in_closed_form_is_that_of_the_term(tmp_path: Path) -> None:
    """Also where the loss itself does not reach a parameter, and where one is not trained."""
    worker = make_worker(tmp_path, FedProx(mu=0.3), Points(clients=1))
    model = worker.model
    model.apart = torch.nn.Linear(2, 2)
    received = Weights.of({n: p.detach() + 0.5 for n, p in model.named_parameters()})
    closed = proximal(received, 0.3)
    names, params = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad))
    batch = next(iter(worker.population.data("c0").train.batches(4)))
    (loss, mine), (same, theirs) = (
        Work(model, worker.task, params, names, (added,), None, False, torch.ones(()))(batch)
        for added in (closed, OfJob(closed.function, closed.given))
    )
    assert loss.equal(same)
    assert "apart.weight" in names
    torch.testing.assert_close(mine, theirs)


def test_code_that_looks_at_values_cannot_be_written_down() -> None:
    def looks(x: Tensor) -> list[Tensor]:
        return [x if float(x.sum()) > 0 else -x]

    with pytest.raises(Exception, match=r"[Dd]ata|value|trac"):
        fusing.written_down(looks, [torch.ones(2)])


@pytest.mark.parametrize("form", [(6, 4), (6, 4, 5), (6, 4, 2, 3), (6, 4, 2, 2, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_by_plain_operations(form: tuple[int, ...], training: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(form, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found = []
    for norm in (torch.nn.functional.batch_norm, fusing.batch_norm):
        mean, var = torch.linspace(-1, 1, 4).double(), torch.linspace(1, 2, 4).double()
        y = norm(x, mean, var, weight, bias, training, 0.3, 1e-3)
        grads = torch.autograd.grad((y * torch.arange(y.numel()).view(form)).sum(), [x, weight, bias])
        found.append([y, mean, var, *grads])
    for mine, theirs in zip(*found):
        torch.testing.assert_close(mine, theirs)
