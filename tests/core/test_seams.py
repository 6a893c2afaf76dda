"""What a method can say, see and need: tensors beside the model, sums only, abilities of tasks, parts of models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from fedreel.config import RoundConfig, TrainConfig, make_recipe
from fedreel.core.admission import Admission
from fedreel.core.client import Client
from fedreel.core.declared import declared
from fedreel.core.federation import Federation
from fedreel.core.job import check_fit
from fedreel.core.ledger import departures, tensors
from fedreel.core.method import Method
from fedreel.core.terms import Gradients, Step
from fedreel.core.training import Fitted
from fedreel.core.update import TRAIN, Answer, Order, Update
from fedreel.core.weights import Weights, bind
from fedreel.errors import FedreelError, RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.registry import METHODS, TASKS
from fedreel.runs.run import run
from fedreel.tasks.skeleton.stgcn import STGCNConfig
from fedreel.tasks.skeleton.task import SkeletonRecognition
from support.pull import pulled
from support.toy import Toy, federate, make_worker


@dataclass(frozen=True)
class Telling(FedAvg):
    """FedAvg whose clients send two things beside the model, if these are declared."""

    sends: ClassVar = {**FedAvg.sends, "gradient": "weights"}

    def local_training(self, client: Client) -> None:
        client.fit()
        client.tensors["gradient"] = client.received.trained - client.current.trained


@dataclass(frozen=True)
class TellingMore(Telling):
    def local_training(self, client: Client) -> None:
        super().local_training(client)
        client.tensors["secret"] = torch.zeros(1)


def test_tensors_beside_the_model_leave_under_their_names_and_are_written_down(tmp_path: Path) -> None:
    federate(tmp_path, Telling(), rounds=1, evaluate_every=0)
    rows = departures(tmp_path / "ledger.jsonl")
    worker = make_worker(tmp_path / "b", Telling())
    trained = worker.travelling.trained
    assert {r["bytes"] for r in rows} == {worker.travelling.nbytes + trained.nbytes + 8 * 3}  # samples, loss, frames
    ((_, left),) = tensors(tmp_path / "ledger.jsonl")
    assert [row[0] for row in left] == [*worker.travelling.place, *(f"gradient/{name}" for name in trained.place)]


def test_a_tensor_that_was_not_declared_does_not_leave(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, TellingMore())
    with pytest.raises(FedreelError, match="tensor 'secret' was not declared"):
        worker.execute(Order(1, 1, "c0", TRAIN, {"global": worker.start}))
    assert not (tmp_path / "ledger.jsonl").exists()


def _judged(tmp_path: Path, change: Any) -> str | None:
    worker = make_worker(tmp_path, Telling())
    order = Order(1, 1, "c0", TRAIN, {"global": worker.start})
    reply = change(worker.execute(order))
    admission = Admission(worker.travelling, 100.0, lambda order: declared(worker.method, worker.task, order))
    admission.expect(order)
    failure = admission.judge(reply)
    return failure and failure.reason


def test_what_is_wrong_with_a_tensor_beside_the_model_is_named(tmp_path: Path) -> None:
    def with_gradient(gradient: Any) -> Any:
        return lambda u: Update(u.round, u.step, u.client, u.weights, u.numbers, {"gradient": gradient(u)})

    assert _judged(tmp_path / "a", lambda u: u) is None
    assert _judged(tmp_path / "b", with_gradient(lambda u: u.weights)) == "names"  # statistics are not trained
    assert _judged(tmp_path / "c", with_gradient(lambda u: math.nan * u.weights.trained)) == "not-finite"
    assert _judged(tmp_path / "d", with_gradient(lambda u: torch.tensor([math.inf]))) == "names"  # nor a model's
    assert _judged(tmp_path / "e", lambda u: Answer(u.round, u.step, u.client, u.numbers)) == "names"


def test_a_training_tells_what_happened(tmp_path: Path) -> None:
    told: list[Fitted] = []

    class Noting(FedAvg):
        def local_training(self, client: Client) -> None:
            told.append(client.fit(epochs=3))

    train = TrainConfig(batch_size=4, lr=0.2, schedule="step", milestones=(1,), decay=0.5)
    federate(tmp_path, Noting(), train=train, rounds=2, evaluate_every=0)
    assert [(t.samples, t.steps, t.lr) for t in told[:4]] == [(24, 6, 0.2), (36, 9, 0.2), (48, 12, 0.2), (60, 15, 0.2)]
    assert {t.lr for t in told[4:]} == {0.1}


def test_gradients_twice_as_long_are_a_rate_twice_as_high(tmp_path: Path) -> None:
    class Doubled(FedAvg):
        def local_training(self, client: Client) -> None:
            def twice(step: Step, grads: Gradients) -> Gradients:
                assert {*grads} == {n for n, p in step.model.named_parameters()}
                return {name: 2 * g for name, g in grads.items()}

            client.fit(adjust=twice)

    one, _ = federate(tmp_path / "a", Doubled(), train=TrainConfig(batch_size=4, lr=0.05))
    other, _ = federate(tmp_path / "b", FedAvg(), train=TrainConfig(batch_size=4, lr=0.1))
    assert one.weights.distance(other.weights) < 1e-5


def test_clipping_bounds_what_adjusting_made(tmp_path: Path) -> None:
    class Huge(FedAvg):
        def local_training(self, client: Client) -> None:
            before = client.current
            client.fit(adjust=lambda step, grads: {n: 1e6 * g for n, g in grads.items()}, epochs=1)
            steps = len(client.data.train) / 4
            assert before.trained.distance(client.current.trained) <= 0.1 * 0.5 * steps + 1e-4

    federate(tmp_path, Huge(), train=TrainConfig(batch_size=4, lr=0.1, clip_norm=0.5), rounds=1)


def test_a_method_that_sees_sums_cannot_get_at_a_single_update(tmp_path: Path) -> None:
    class Curious(Method):
        def run(self, fed: Federation) -> None:
            for _ in fed.rounds():
                list(fed.train(fed.sample(), fed.weights))

    with pytest.raises(FedreelError, match=r"Curious declares that it sees sums only(.|\n)*fed\.average"):
        federate(tmp_path, Curious())
    assert not (tmp_path / "ledger.jsonl").exists()


def test_averages_of_one_training_differ_only_in_their_weights(tmp_path: Path) -> None:
    """Near ends at 1 with loss 4 (both numbers are 2 off), far at 5.25; by loss the weights are exp(-loss)."""
    seen: dict[str, Any] = {}

    class Both(Method):
        def run(self, fed: Federation) -> None:
            for _ in fed.rounds():
                seen["sums"] = fed.averages(fed.clients, fed.weights, by=("equal", "loss"))

    pulled(tmp_path, Both())
    equal, by_loss = seen["sums"]
    near, far = (equal.numbers[c]["loss"] for c in ("near", "far"))
    assert near == pytest.approx(4.0)
    share = 1 / (1 + math.exp(near - far))
    assert float(by_loss.weights["backbone.w"]) == pytest.approx(share * 1 + (1 - share) * 5.25)
    assert by_loss.number("samples") == pytest.approx(share * 1 + (1 - share) * 3)
    assert equal.number("samples") == 2
    assert equal.count == 2
    assert len(departures(tmp_path / "ledger.jsonl")) == 2 + 2  # one training each, one test each


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_pair_of_method_and_task_fits_or_is_refused_in_a_sentence(method: str, task: str, tmp_path: Path) -> None:
    """Nothing is read: the data do not even exist."""
    needs = [ability for ability in METHODS.lookup(method).needs if not issubclass(TASKS.lookup(task), ability)]
    if not needs:
        return
    table = {"task": {"name": task}, "method": {"name": method}, "data": {"source": "nowhere"}, "device": "cpu"}
    with pytest.raises(RecipeError) as caught:
        run(make_recipe(table), tmp_path / "run")
    assert f"needs a task that {needs[0].says}" in caught.value.problem
    assert caught.value.expected.startswith("the task ")
    assert not (tmp_path / "run").exists()


def test_a_method_may_refuse_settings_of_a_task(tmp_path: Path) -> None:
    class Picky(FedAvg):
        def check(self, task: Any) -> None:
            if task.width > 4:
                raise RecipeError("too wide")

    check_fit(Toy(width=4), Picky())
    with pytest.raises(RecipeError, match="too wide"):
        check_fit(Toy(width=5), Picky())


class Parted(nn.Module):
    def __init__(self, **parts: str) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.backbone = nn.ModuleDict({"eye": inner, "rest": nn.Linear(2, 2)})
        self.head = nn.Linear(2, 2)
        self.model_parts = parts


def test_parts_are_what_a_model_declares_and_else_the_first_word() -> None:
    model = Parted(**{"backbone.eye": "encoder"})
    model.backbone["eye"].model_parts = {"1": "norm of the encoder"}  # an inner module's word counts more
    parts = {t.name: t.part for t in bind(model).layout.tensors}
    assert parts["backbone.eye.0.weight"] == "encoder"
    assert parts["backbone.eye.1.running_var"] == "norm of the encoder"
    assert parts["backbone.rest.bias"] == "backbone"
    assert parts["head.weight"] == "head"


def test_a_part_that_no_tensor_has_is_an_error_not_a_leak() -> None:
    with pytest.raises(FedreelError, match=r"declares 'backbone\.eyes' as its encoder, but has no such tensor"):
        bind(Parted(**{"backbone.eyes": "encoder"}))


def test_what_stays_home_is_told_by_the_tasks_own_models() -> None:
    """FSAR keeps the unique topology, FedCMR the encoders of video and sentence, FedVSSL and FedPer the head."""
    learnable = STGCNConfig(topology="learnable")
    skeleton = {t.part for t in bind(SkeletonRecognition(classes=2, backbone=learnable).model()).layout.tensors}
    assert skeleton == {"backbone", "unique topology", "coefficients", "head"}
    from fedreel.tasks.moments.grounding import Grounder

    model = Grounder(video_width=4, length=6, n_words=9, word_width=3, width=4)
    parts = {t.name: t.part for t in bind(model).layout.tensors}
    encoders = {name for name, part in parts.items() if part == "encoder"}
    prefixes = ("backbone.project.", "backbone.positions", "backbone.video.", "backbone.sentence.")
    assert encoders == {name for name in parts if name.startswith(prefixes)}
    assert {part for name, part in parts.items() if name not in encoders} == {"backbone", "head"}


def test_state_is_kept_in_groups() -> None:
    from fedreel.core.state import State

    like = Weights.of({"a": torch.ones(2), "b": torch.ones(1)})
    state = State()
    assert float(state.weights("control", like).norm()) == 0.0
    state.keep("control", {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(1)})
    state.keep("other", {"a": torch.zeros(1)})
    assert state.weights("control", like).norm() == pytest.approx(5.0)
    state.keep("control", {"a": torch.zeros(2)})
    assert {*state.tensors} == {"control/a", "other/a"}
    assert {*state.group("other")} == {"a"}


def test_the_rule_is_a_setting_of_the_round_and_said_once(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, FedAvg(), aggregation="median", rounds=3)
    assert [row["text"].split()[0] for row in notes.of("note")] == ["median"]
    with pytest.raises(RecipeError, match="trim"):
        RoundConfig(trim=0.5)
