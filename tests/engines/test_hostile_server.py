"""A server lies to one site, in one way after another: nothing leaves that the site's policy does not allow, nothing of
the site's is changed, and what its clients keep to themselves is as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig, as_table
from fedreel.core.chain import verify
from fedreel.core.task import Population
from fedreel.core.update import ASK, EVALUATE, TRAIN, Order, Value
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_orders
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.methods.fedbn import FedBN
from fedreel.registry import TASKS
from support.toy import Points, Toy, ToyPopulation, make_worker

pytest.importorskip("cryptography", reason="the extra flower is not installed")

from fedreel.sites import site
from fedreel.sites.approval import job_digest
from fedreel.sites.site import SiteFolder

POLICY = """
refuse = ["raw-samples", "features", "label-statistics"]
max_bytes = 10000
min_samples = 4
[jobs]
allow = ["fedbn on *", "fedavg on *", "cfedvs on toy"]
max_rounds = 9
max_epochs = 2
max_minutes = 1
max_model_bytes = 2000
"""
JOB = Recipe(
    task={"name": "toy"}, method={"name": "fedbn"}, train=TrainConfig(batch_size=4), round=RoundConfig(rounds=9)
)
MADE = make_worker(Path("none"), FedBN())
START, WHOLE = MADE.start, MADE.weights.take(MADE.weights.layout)
PATIENT = "patient-4711"


@dataclass(frozen=True)
class Few(Toy):
    """One of the clients has one sample to train on and one for testing."""

    def population(self, data: Any, seed: int) -> Population:
        found = ToyPopulation(self.clients, seed)
        found.clients += ("few",)
        found._data["few"] = tuple(Points(tuple(t[:1] for t in part.tensors)) for part in found._data["c0"])  # type: ignore[assignment]
        return found


class Place:
    """A site where a job has come to its sixth round."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir(parents=True)
        save_file({"t": torch.ones(3)}, folder / f"{PATIENT}.safetensors")
        self.secret = folder / f"{PATIENT}.safetensors"
        self.site: SiteFolder = site.init(folder / "north", "north", {"*": str(folder / "data")}, "", "")
        (self.site.path / "policy.toml").write_text(POLICY)
        self.told = [self.answer(orders(Order(n, 1, "c1", TRAIN, {"global": START}))) for n in range(1, 7)]

    def answer(self, frame: Frame) -> Frame:
        """By a process that has just started."""
        here = self.site
        return Workplace(here.worker, "north", for_others, here.runs, here.approvals().permit).answer(frame)

    def files(self) -> dict[str, bytes]:
        """All that lies at the site, but for notes of jobs that wait."""
        found = {str(p.relative_to(self.site.path)): p.read_bytes() for p in self.site.path.rglob("*") if p.is_file()}
        return {name: data for name, data in found.items() if not name.startswith("jobs/")}


def orders(*wanted: Order, recipe: Recipe = JOB, run: str = "r", start: Any = 1) -> Frame:
    return pack_orders(wanted, type="orders", run=run, start=start, recipe=as_table(recipe))


def order(round: int = 7, client: str = "c1", kind: str = TRAIN, model: Weights | None = START, **more: Any) -> Order:
    return Order(round, 1, client, kind, {} if model is None else {"global": model}, **more)


def roster(recipe: Recipe) -> Frame:
    told = {"type": "roster", "run": job_digest(recipe), "start": 1, "recipe": as_table(recipe)}
    return Frame({**told, "layout": START.layout.id, "frozen": ""})


def of(task: str, data: DataConfig | None = None, **settings: Any) -> Recipe:
    return replace(JOB, task={"name": task, **settings}, data=data or DataConfig())


def spoiled(**changes: Any) -> Frame:
    frame = orders(order())
    frame.head["orders"][0] |= changes
    return frame


def question(name: str, method: str = "fedbn", **args: Value) -> Frame:
    job = replace(JOB, method={"name": method})
    return orders(
        order(kind=ASK, model=None, question=name, args=args), recipe=job, run=method if method != "fedbn" else "r"
    )


Told = Callable[[Place], Frame]
LIES: dict[str, tuple[Told, str]] = {  # and what the server hears
    # files that no role names
    "weights": (lambda p: roster(of("recognition", backbone={"name": "r3d", "init": str(p.secret)})), "nothing by"),
    "weights within": (
        lambda p: roster(of("recognition", backbone={"name": "frames", "image": {"init": str(p.secret)}})),
        "nothing by the name that the recipe has in task.backbone.image.init",
    ),
    "words": (lambda p: roster(of("moments", words=str(p.secret))), "nothing by the name"),
    "a run's features": (lambda p: roster(of("summary", features=f"run:{p.secret.parent}")), "nothing by the name"),
    "an encoder": (lambda p: roster(of("moments", sentences=f"clip:{p.secret.parent}")), "nothing by the name"),
    "joints": (lambda p: roster(of("skeleton", joints=str(p.secret))), "nothing by the name"),
    "lists": (lambda p: roster(of("recognition", DataConfig(lists=str(p.secret)))), "in another way"),
    "splits": (lambda p: roster(of("summary", splits=f"../{p.secret.name}")), "in another way"),
    # jobs that the policy does not allow
    "another method": (lambda p: roster(replace(JOB, method={"name": "scaffold"})), "not approved"),
    "more rounds": (lambda p: roster(replace(JOB, round=RoundConfig(rounds=10))), "fewer rounds"),
    "more epochs": (lambda p: roster(replace(JOB, train=TrainConfig(epochs=3))), "fewer epochs"),
    "a huge model": (lambda p: roster(of("toy", width=10**12)), "smaller models"),
    "another division": (lambda p: roster(of("toy", DataConfig(test_share=0.26))), "in another way"),
    "divided anew": (
        lambda p: roster(of("toy", DataConfig(partition={"name": "iid", "clients": 1}))),
        "in another way",
    ),
    "another recipe for the run": (
        lambda p: orders(order(), recipe=replace(JOB, train=TrainConfig(lr=0.0))),
        "begun with another recipe",
    ),
    "a recipe that is none": (lambda p: Frame({**roster(JOB).head, "recipe": [1]}), "Error"),
    "code in a recipe": (lambda p: Frame({**roster(JOB).head, "recipe": {"task": "os:system"}}), "unknown task"),
    # orders that no server of ours gives
    "an earlier round in a later life": (lambda p: orders(order(0, kind=EVALUATE), start=99), "keeps what is its own"),
    "training anew": (lambda p: orders(order(1), start=99), "keeps what is its own"),
    "a late order": (lambda p: orders(order(5)), "too late"),
    "a negative round": (lambda p: spoiled(round=-1), "cannot be carried out"),
    "a round that is a word": (lambda p: spoiled(round="1"), "cannot be carried out"),
    "a round after the last": (lambda p: orders(order(11)), "expected at most 10"),
    "a life that is a word": (lambda p: orders(order(), start="later"), "ValueError"),
    "everyone": (lambda p: orders(order(client="everyone")), "no such client"),
    "somebody else": (lambda p: orders(order(client="../../etc")), "no such client"),
    "no model": (lambda p: orders(order(model=None)), "a model to train"),
    "what is private": (lambda p: orders(order(model=WHOLE)), "tensors that travel"),
    "another model": (lambda p: orders(order(model=Weights.of({"w": torch.ones(1)}))), "tensors that travel"),
    "a model of nothing finite": (lambda p: orders(order(model=START * float("nan"))), "diverged"),
    "a question that is none": (lambda p: question("local_training"), "no question"),
    "a question for code": (lambda p: question("__init__"), "no question"),
    "an unknown argument": (lambda p: question("distance", "cfedvs", path=str(p.secret)), "Error"),
    "an order that is none": (lambda p: spoiled(kind="exec"), "cannot be carried out"),
    "no orders": (lambda p: Frame({"type": "orders", "run": "r", "start": 1, "recipe": as_table(JOB)}), "KeyError"),
    "no type": (lambda p: Frame({}), "KeyError"),
    # answers that the policy does not allow
    "labels": (lambda p: question("topics", "cfedvs"), "lets no label-statistics out"),
    "a test of one sample": (lambda p: orders(order(client="few", kind=EVALUATE)), "too few samples"),
    "training on one sample": (lambda p: orders(order(client="few")), "too few samples"),
}


BEGUN = {  # work for which was begun
    *("a model of nothing finite", "a question that is none", "a question for code"),
    *("an unknown argument", "labels", "a test of one sample", "training on one sample"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "toy", f"{__name__}:Few")
        return Place(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("name", LIES)
def test_a_lie_gets_nothing_and_changes_nothing(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", f"{__name__}:Few")
    lie, told = LIES[name]
    before = place.files()
    answer = place.answer(lie(place))
    assert answer.arrays == {}
    text = json.dumps(answer.head)
    assert "numbers" not in text
    assert told in text
    assert text.count(PATIENT) <= json.dumps(lie(place).head).count(PATIENT)
    noted = ("/job", ".fence") if name in BEGUN else ("/job",)  # which runs there are, and how far each client is
    after = {file: data for file, data in place.files().items() if not file.endswith(noted)}
    assert after == {file: data for file, data in before.items() if not file.endswith(noted)}


def test_the_next_honest_order_gets_what_it_would_have_got(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "toy", f"{__name__}:Few")
    straight = Place(tmp_path)
    next_order = orders(Order(8, 5, "c1", TRAIN, {"global": START}))
    mine, theirs = straight.answer(next_order), place.answer(next_order)
    for answer in (mine, theirs):
        assert answer.head["results"][0].pop("times")  # how long it took
    assert mine.head == theirs.head
    assert {n: bytes(a) for n, a in mine.arrays.items()} == {n: bytes(a) for n, a in theirs.arrays.items()}
    assert verify(place.site.ledger, place.site.ledger.with_suffix(".head")).problems == ()
