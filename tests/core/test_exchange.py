"""The guard at the door, the policy, the ledger; and what a server admits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedreel.config import WorldConfig
from fedreel.core.admission import Admission
from fedreel.core.client import Client
from fedreel.core.declared import Declared
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.ledger import departures, read_ledger, tensors, totals
from fedreel.core.method import question
from fedreel.core.update import TRAIN, Answer, Order, Update
from fedreel.core.weights import TensorInfo, Weights
from fedreel.core.world import make_world
from fedreel.errors import FedreelError, RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from fedreel.registry import METHODS
from support.toy import federate, make_worker


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_private_name_is_ever_in_an_update_or_a_ledger(tmp_path: Path, name: str) -> None:
    method = METHODS.lookup(name)()
    worker = make_worker(tmp_path, method)
    clock = make_world(WorldConfig(), 0, worker.population.describe(), 1)  # for methods that do not wait
    federate(tmp_path / "run", method, world=clock)
    private = set(worker.private.place)
    left = {row[0] for _, rows in tensors(tmp_path / "run" / "ledger.jsonl") for row in rows}
    assert left.isdisjoint(private)
    beside = {f"{name}/{tensor}" for name in method.sends for tensor in worker.travelling.place}
    assert left <= {*worker.travelling.place, *worker.leaves(), *beside}
    numbers = {n for r in departures(tmp_path / "run" / "ledger.jsonl") for n in r["numbers"]}
    assert numbers <= {*worker.leaves(), "top1", "score", "n"}


def test_fedbn_keeps_batch_norm_at_home(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedBN())
    assert set(worker.private.place) == {
        "backbone.1.weight",
        "backbone.1.bias",
        "backbone.1.running_mean",
        "backbone.1.running_var",
        "backbone.1.num_batches_tracked",
    }


@dataclass(frozen=True)
class Leaky(FedAvg):
    def local_training(self, client: Client) -> None:
        client.fit()
        client.numbers["secret"] = 1.0


@dataclass(frozen=True)
class Curious(FedAvg):
    """Asks one declared and one undeclared thing."""

    @question(count="count", histogram="label-statistics")
    def labels(self, client: Client) -> dict:
        y = client.data.train.tensors[1]
        return {"count": len(y), "histogram": torch.bincount(y, minlength=2)}

    @question(count="count")
    def more(self, client: Client) -> dict:
        return {"count": 1, "samples": client.data.train.tensors[0]}


def _order(client: str = "c0", kind: str = TRAIN, **more: object) -> Order:
    return Order(1, 1, client, kind, {}, **more)  # type: ignore[arg-type]


def test_an_undeclared_number_or_tensor_does_not_leave(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, Leaky())
    with pytest.raises(Exception, match="'secret' was not declared"):
        worker.execute(_order())
    worker = make_worker(tmp_path / "b", Curious())
    with pytest.raises(Exception, match="'samples' was not declared"):
        worker.execute(_order(kind="ask", question="more"))
    assert not list(read_ledger(tmp_path / "ledger.jsonl"))
    assert not list(read_ledger(tmp_path / "b" / "ledger.jsonl"))


def test_questions_bring_numbers_and_tensors(tmp_path: Path) -> None:
    answer = make_worker(tmp_path, Curious()).execute(_order(kind="ask", question="labels"))
    assert answer["count"] == 8
    assert int(answer.tensor("histogram").sum()) == 8
    with pytest.raises(Exception, match="did you mean 'labels'"):
        make_worker(tmp_path, Curious()).execute(_order(kind="ask", question="label"))
    with pytest.raises(Exception, match="no question"):  # only marked functions are questions
        make_worker(tmp_path, Curious()).execute(_order(kind="ask", question="run"))


def test_a_sites_policy_refuses_before_any_work_and_names_the_kind(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('refuse = ["label-statistics", "raw-samples"]\nmin_samples = 10\n')
    policy = Policy.read(tmp_path / "policy.toml")
    worker = make_worker(tmp_path, Curious(), policy=policy)
    with pytest.raises(Exception, match="label-statistics"):
        worker.execute(_order(kind="ask", question="labels"))
    with pytest.raises(Exception, match="too few samples"):
        worker.execute(_order("c0"))  # 8 samples
    assert worker.execute(_order("c3")).samples == 20
    with pytest.raises(Exception, match="larger than the site allows"):
        make_worker(tmp_path, FedAvg(), policy=Policy(max_bytes=10)).execute(_order())
    for text, match in (('refuse = ["labels"]', "label-statistics"), ("refuze = []", "did you mean 'refuse'")):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(RecipeError, match=match):
            Policy.read(tmp_path / "bad.toml")


def test_the_ledger_adds_up_and_survives_a_torn_line(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path, FedAvg(), rounds=2)
    path = tmp_path / "ledger.jsonl"
    sent = [r for r in departures(path) if r["purpose"] == "train"]
    assert len(sent) == 8
    assert sum(r["bytes"] for r in sent) == fed.progress.totals["bytes_up"]
    assert [row[:3] for row in totals(path, "c1")] == [["c1", "evaluate", "2"], ["c1", "train", "2"]]
    ((_, rows),) = tensors(path)
    assert sum(int(r[3]) for r in rows) == fed.weights.nbytes
    with open(path, "a") as file:
        file.write('{"kind": "departure", "cli')  # killed while writing
    Ledger(path).close()
    ledger = Ledger(path)
    ledger.write(_order(), Answer(1, 1, "c0", {"samples": 1.0}), {"samples": "count"})
    ledger.close()
    assert len(departures(path)) == len(sent) + 8 + 1
    assert json.loads(path.read_text().splitlines()[-1])["client"] == "c0"


def _admission() -> tuple[Admission, Order, Weights]:
    sent = Weights.of({"w": torch.ones(4), "n": torch.tensor(1)})
    kinds = {"samples": "count", "loss": "loss"}
    admission = Admission(sent.layout, 2.0, lambda order: Declared(kinds, trained=True))
    order = Order(3, 1, "a", TRAIN, {"global": sent})
    admission.expect(order)
    return admission, order, sent


def _with(sent: Weights, **tensors: torch.Tensor) -> Weights:
    return Weights.of({**sent, **tensors})


def test_an_honest_update_is_admitted_once() -> None:
    admission, _, sent = _admission()
    update = Update(3, 1, "a", sent.clone(), {"samples": 5, "loss": 1.0})
    assert admission.judge(update) is None
    again = admission.judge(update)
    assert again is not None
    assert again.reason == "duplicate"


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("not-finite", lambda u, s: setattr(u, "weights", _with(s, w=torch.tensor([1, math.nan, 1, 1])))),
        ("not-finite", lambda u, s: setattr(u, "weights", _with(s, w=torch.tensor([1, math.inf, 1, 1])))),
        ("not-finite", lambda u, s: u.numbers.update(loss=math.nan)),
        ("range", lambda u, s: u.numbers.update(samples=-1.0)),
        ("norm", lambda u, s: setattr(u, "weights", _with(s, w=torch.full((4,), 100.0)))),
        ("shape", lambda u, s: setattr(u, "weights", _with(s, w=torch.ones(5)))),
        ("dtype", lambda u, s: setattr(u, "weights", _with(s, w=torch.ones(4, dtype=torch.float64)))),
        ("names", lambda u, s: setattr(u, "weights", Weights.of({"w": torch.ones(4)}))),
        ("names", lambda u, s: setattr(u, "weights", _with(s, extra=torch.ones(1)))),
        ("stale", lambda u, s: setattr(u, "round", 2)),
        ("duplicate", lambda u, s: setattr(u, "client", "b")),
        ("duplicate", lambda u, s: setattr(u, "step", 9)),
    ],
)
def test_what_is_wrong_with_an_update_is_named(reason: str, change: object) -> None:
    admission, _, sent = _admission()
    update = Update(3, 1, "a", sent.clone(), {"samples": 5.0, "loss": 1.0})
    change(update, sent)  # type: ignore[operator]
    failure = admission.judge(update)
    assert failure is not None
    assert failure.reason == reason
    assert failure.detail


def test_travels_may_look_at_names_too(tmp_path: Path) -> None:
    class HeadStays(FedAvg):
        def travels(self, tensor: TensorInfo) -> bool:
            return not tensor.name.startswith("head.")

    worker = make_worker(tmp_path, HeadStays())
    assert set(worker.private.place) == {"head.weight", "head.bias"}


def test_an_unknown_kind_is_refused_where_it_is_declared(tmp_path: Path) -> None:
    with pytest.raises(FedreelError, match="did you mean 'label-statistics'"):
        question(histogram="label-statistic")

    @dataclass(frozen=True)
    class Vague(FedAvg):
        sends = {"samples": "cuont"}

    with pytest.raises(FedreelError, match="did you mean 'count'"):
        make_worker(tmp_path, Vague())


def test_a_question_without_a_model_sees_the_first_one_whoever_worked_before(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Norm(FedAvg):
        @question(norm="derived-number")
        def norm(self, client: Client) -> dict:
            return {"norm": client.weights().norm()}

        @question(word="count")
        def word(self, client: Client) -> dict:
            return {"word": "many"}

    worker = make_worker(tmp_path, Norm())
    before = worker.execute(_order(kind="ask", question="norm"))["norm"]
    worker.execute(Order(1, 2, "c3", TRAIN, {"global": worker.start.clone()}))
    assert worker.execute(Order(1, 3, "c0", "ask", {}, question="norm"))["norm"] == before
    with pytest.raises(FedreelError, match="neither a number nor a tensor"):
        worker.execute(Order(1, 4, "c0", "ask", {}, question="word"))
