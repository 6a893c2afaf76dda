"""Where orders are carried out: frames may come twice, late or to a process that has just started. Nothing breaks, and
nothing leaves that should not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedreel.config import Recipe, as_table
from fedreel.core.client import Worker
from fedreel.core.exchange import Policy
from fedreel.core.ledger import departures
from fedreel.core.method import Method
from fedreel.core.task import ClientData, Outputs, Population
from fedreel.core.update import EVALUATE, TRAIN, Failure, Order, Reply, Result, Update
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_orders, unpack_results
from fedreel.engines.flower.workplace import Workplace, for_others
from fedreel.errors import DataError, FedreelError
from fedreel.machine.files import file_name
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from support.toy import Toy, ToyPopulation, make_worker

RECIPE = as_table(Recipe(task={"name": "recognition"}, method={"name": "fedavg"}))


class Site:
    """A workplace over a folder, and the workers that it made."""

    def __init__(self, folder: Path, method: Method, **options: Any) -> None:
        self.folder, self.method, self.made = folder, method, list[tuple[Worker, str]]()
        explain = options.pop("explain", for_others)
        fences = folder / "runs" if options.pop("fenced", True) else None
        self.options, self.workplace = options, Workplace(self.make, "north", explain, fences)

    def make(self, recipe: Recipe, run: str) -> Worker:
        self.made.append((make_worker(self.folder / file_name(run), self.method, rounds=20, **self.options), run))
        return self.made[-1][0]

    def answer(self, *orders: Order, run: str = "r", start: int = 1) -> list[Result]:
        return unpack_results(self.frame(*orders, run=run, start=start), orders)

    def frame(self, *orders: Order, run: str = "r", start: int = 1) -> Frame:
        return self.workplace.answer(pack_orders(orders, type="orders", run=run, start=start, recipe=RECIPE))

    def private(self, run: str = "r") -> dict[str, bytes]:
        """What the clients keep, file by file."""
        return {
            str(p.relative_to(self.folder)): p.read_bytes()
            for p in sorted((self.folder / run / "clients").rglob("*.safetensors"))
        }


def start(method: Method) -> Weights:
    return make_worker(Path("nowhere"), method).start


def order(model: Weights, round: int, step: int = 1, client: str = "c1", **options: Any) -> Order:
    return Order(round, step, client, options.pop("kind", TRAIN), {"global": model}, **options)


def plain(frame: Frame) -> tuple[Any, dict[str, bytes]]:
    """All that is in it but how long clients took."""
    rows = [{key: value for key, value in row.items() if key != "times"} for row in frame.head["results"]]
    return {**frame.head, "results": rows}, {name: bytes(a) for name, a in frame.arrays.items()}


def replies(results: list[Result]) -> list[Reply]:
    assert not any(isinstance(r, Failure) for r in results), results
    return [r for r in results if not isinstance(r, Failure)]


METHODS = [FedAvg(), FedBN()]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_the_answer_is_what_a_worker_without_flower_gives(tmp_path: Path, method: Method) -> None:
    model = start(method)
    orders = [order(model, 1, n, f"c{n}") for n in range(3)] + [order(model, 1, 9, kind=EVALUATE)]
    got = replies(Site(tmp_path / "flower", method).answer(*orders))
    worker = make_worker(tmp_path / "local", method)
    for mine, theirs in zip(map(worker.execute, orders), got):
        assert mine.numbers == theirs.numbers
        assert type(mine) is type(theirs)
        if isinstance(mine, Update) and isinstance(theirs, Update):
            assert mine.weights.equal(theirs.weights)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_frame_that_comes_twice_has_one_answer_and_leaves_the_state_of_one(
    tmp_path: Path, method: Method, warm: bool
) -> None:
    model = start(method)
    rounds = [[order(model, r, n, f"c{n}") for n in range(2)] for r in (1, 2)]
    once, twice = Site(tmp_path / "once", method), Site(tmp_path / "twice", method)
    for orders in rounds:
        expected = plain(once.frame(*orders))
        for _ in range(3):
            assert plain(twice.frame(*orders)) == expected
            twice = twice if warm else Site(tmp_path / "twice", method)
    assert [*twice.private().values()] == [*once.private().values()]
    assert bool(once.private()) == isinstance(method, FedBN)


def test_an_answer_that_got_lost_is_not_worked_for_again_but_a_failure_is_tried_again(tmp_path: Path) -> None:
    site, model = Site(tmp_path, FedAvg()), start(FedAvg())
    for _ in range(3):
        site.answer(order(model, 1))
    assert len(list(departures(tmp_path / "r" / "ledger.jsonl"))) == 1
    nobody = order(model, 1, 2, "nobody")
    assert all(isinstance(r, Failure) for _ in range(2) for r in site.answer(nobody))
    site.made[0][0].population.clients += ("nobody",)
    site.made[0][0].population._data["nobody"] = site.made[0][0].population._data["c0"]  # type: ignore[attr-defined]
    assert isinstance(site.answer(nobody)[0], Update)


@pytest.mark.parametrize("life", [1, 2])
@pytest.mark.parametrize("cold", [True, False])
def test_an_order_that_comes_late_is_refused_and_undoes_nothing(tmp_path: Path, life: int, cold: bool) -> None:
    method, model = FedBN(), start(FedBN())
    site, straight = Site(tmp_path / "late", method), Site(tmp_path / "straight", method)
    for n in (1, 2):
        site.answer(order(model, n, 3), start=2)
        straight.answer(order(model, n, 3), start=2)
    before = site.private()
    site = Site(tmp_path / "late", method) if cold else site
    late = order(model, 3, 1) if life == 1 else order(model, 2, 2)
    refused = site.answer(late, start=life)[0]
    assert isinstance(refused, Failure)
    assert "too late" in refused.detail
    assert site.private() == before
    then = order(model, 3, 1)
    assert plain(site.frame(then, start=2)) == plain(straight.frame(then, start=2))


def test_a_late_order_of_one_client_does_not_hold_up_another(tmp_path: Path) -> None:
    site, model = Site(tmp_path, FedBN()), start(FedBN())
    site.answer(order(model, 5, client="c1"))
    got = site.answer(order(model, 4, 1, "c1"), order(model, 4, 2, "c2"))
    assert [type(r) for r in got] == [Failure, Update]


def test_a_server_in_its_next_life_may_go_back_to_an_earlier_round(tmp_path: Path) -> None:
    method, model = FedBN(), start(FedBN())
    site, straight = Site(tmp_path / "back", method), Site(tmp_path / "straight", method)
    for n in (1, 2, 3):
        site.answer(order(model, n))
    straight.answer(order(model, 1))
    again = order(model, 2)
    assert plain(site.frame(again, start=2)) == plain(straight.frame(again, start=2))
    assert [*site.private().values()] == [*straight.private().values()]
    assert isinstance(site.answer(order(model, 3), start=1)[0], Failure)


def test_runs_do_not_fence_each_other_off(tmp_path: Path) -> None:
    site, model = Site(tmp_path, FedAvg()), start(FedAvg())
    site.answer(order(model, 9), run="a")
    assert isinstance(site.answer(order(model, 1), run="b")[0], Update)
    assert isinstance(site.answer(order(model, 8), run="a")[0], Failure)


@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
@pytest.mark.parametrize("cold", [True, False])
def test_a_server_in_a_later_life_cannot_go_back_to_where_a_clients_state_does_not_reach(
    tmp_path: Path, kind: str, cold: bool
) -> None:
    site, model = Site(tmp_path, FedBN()), start(FedBN())
    for n in range(1, 8):
        site.answer(order(model, n))
    before = site.private()
    for life, back in ((2, 0), (3, 1), (9, 4)):
        site = Site(tmp_path, FedBN()) if cold else site
        refused = site.answer(order(model, back, 0, kind=kind), start=life)[0]
        assert isinstance(refused, Failure)
        assert "has come to round 7 and keeps what is its own; expected round 5 or later" in refused.detail
    assert site.private() == before
    assert isinstance(site.answer(order(model, 0, 0, "c2", kind=kind), start=9)[0], Reply)  # it has nothing to lose
    assert isinstance(site.answer(order(model, 5, kind=kind), start=9)[0], Reply)


def test_going_back_step_by_step_leads_no_further(tmp_path: Path) -> None:
    site, model = Site(tmp_path, FedBN()), start(FedBN())
    for n in range(1, 8):
        site.answer(order(model, n))
    reached = [
        n
        for life, n in enumerate(range(6, 0, -1), 2)
        if isinstance(site.answer(order(model, n), start=life)[0], Update)
    ]
    assert reached == [6, 5]


ODD: list[dict[str, Any]] = [
    {"round": -1},
    {"step": -1},
    {"round": 1.5},
    {"round": True},
    {"round": "1"},
    {"round": 2**31},
    {"round": 22},  # of 20, and one more when the last is over
    {"client": "everyone"},
    {"client": "nobody"},
    {"client": ""},
    {"client": ["c1"]},
    {"kind": "rule"},
    {"limit": -1},
    {"limit": float("nan")},
    {"question": None},
    {"models": {}},
]


@pytest.mark.parametrize("change", ODD, ids=str)
def test_an_order_that_no_server_of_ours_gives_leaves_everything_as_it_was(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    site, model = Site(tmp_path, FedBN()), start(FedBN())
    for n in (1, 2, 3):
        site.answer(order(model, n))
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    frame = pack_orders([order(model, 4)], type="orders", run="r", start=9, recipe=RECIPE)
    frame.head["orders"][0] |= change
    answer = site.workplace.answer(frame)
    assert answer.arrays == {}
    assert "problem" in answer.head or [row["reason"] for row in answer.head["results"]] == ["error"]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == files
    assert isinstance(site.answer(order(model, 4))[0], Update)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_cold_workplace_gives_the_same_bytes_as_a_warm_one(tmp_path: Path, method: Method) -> None:
    def rounds(next_site: Callable[[], Site]) -> list[Any]:
        model, answers = start(method), []
        for n in range(1, 5):
            orders = [order(model, n, i, f"c{i}") for i in range(3)]
            frame = next_site().frame(*orders)
            answers.append(plain(frame))
            (reply,) = replies(unpack_results(frame, orders))[:1]
            model = reply.weights if isinstance(reply, Update) else model
        return answers

    warm = Site(tmp_path / "warm", method)
    cold = iter(Site(tmp_path / "cold", method) for _ in range(4))
    assert rounds(lambda: warm) == rounds(lambda: next(cold))


def test_a_worker_for_another_run_replaces_the_first(tmp_path: Path) -> None:
    site, model = Site(tmp_path, FedBN()), start(FedBN())
    for run, n in (("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3)):
        assert isinstance(site.answer(order(model, n), run=run)[0], Update)
    assert [run for _, run in site.made] == ["a", "b", "a"]
    straight = Site(tmp_path / "straight", FedBN())
    for n in (1, 2, 3):
        straight.answer(order(model, n), run="a")
    assert [*site.private("a").values()] == [*straight.private("a").values()]
    assert len(list(departures(tmp_path / "a" / "ledger.jsonl"))) == 3


def test_another_recipe_under_the_same_name_gets_a_worker_of_its_own(tmp_path: Path) -> None:
    site, model = Site(tmp_path, FedAvg()), start(FedAvg())
    one = order(model, 1)
    site.answer(one)
    site.workplace.answer(pack_orders([one], type="orders", run="r", start=2, recipe={**RECIPE, "seed": 5}))
    assert len(site.made) == 2


SECRET = "/home/anna/patient-4711.mp4"


@dataclass(frozen=True)
class Telltale(Toy):
    """Every error that it raises has a secret in it."""

    error: str = ""
    at: str = "loss"

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss(outputs, batch) if self.at != "loss" else self._tell()

    def population(self, data: Any, seed: int) -> Population:
        return Closed(self) if self.at == "data" else super().population(data, seed)

    def _tell(self) -> Any:
        if self.error == "fedreel":
            raise DataError("a video cannot be read", where=SECRET, found=f"{SECRET} has 12 frames", hint="look at it")
        if self.error == "chained":
            try:
                {}[SECRET]
            except KeyError as error:
                raise RuntimeError(SECRET) from error
        raise {"value": ValueError, "os": OSError, "key": KeyError}[self.error](2, SECRET)


class Closed(ToyPopulation):
    def __init__(self, task: Telltale) -> None:
        super().__init__(task.clients, 0)
        self.task = task

    def data(self, client: str) -> ClientData:
        return self.task._tell()


@pytest.mark.parametrize("error", ["fedreel", "value", "os", "key", "chained"])
@pytest.mark.parametrize("at", ["loss", "data"])
def test_no_text_of_an_exception_leaves_a_site(tmp_path: Path, error: str, at: str) -> None:
    model = start(FedAvg())
    frame = Site(tmp_path / "a", FedAvg(), task=Telltale(error=error, at=at)).frame(order(model, 1))
    text = json.dumps(frame.head)
    assert "4711" not in text
    assert "anna" not in text
    assert ("a video cannot be read" in text) == (error == "fedreel")
    assert frame.arrays == {}
    at_home = Site(tmp_path / "b", FedAvg(), task=Telltale(error=error, at=at), explain=None).frame(order(model, 1))
    assert "4711" in json.dumps(at_home.head)


def test_no_text_of_an_exception_leaves_when_the_worker_cannot_be_made() -> None:
    def fails(recipe: Recipe, run: str) -> Worker:
        raise DataError("the folder is gone", where=SECRET, found=SECRET)

    def breaks(recipe: Recipe, run: str) -> Worker:
        raise PermissionError(13, "Permission denied", SECRET)

    for make, expected in ((fails, "the folder is gone"), (breaks, "PermissionError")):
        work = pack_orders([], type="orders", run="r", start=1, recipe=RECIPE)
        roster = Frame({"type": "roster", "run": "r", "start": 1, "recipe": RECIPE, "layout": ""})
        for frame in (work, roster):
            head = Workplace(make, "north", for_others, None).answer(frame).head
            assert head["site"] == "north"
            assert expected in head["problem"]
            assert "4711" not in json.dumps(head)


def test_the_words_of_our_errors_leave_and_what_was_found_does_not() -> None:
    told = for_others(FedreelError("a problem", expected="this", found="that", where="there"))
    assert told == "a problem; expected this"
    assert for_others(ValueError("that")) == "ValueError (the site's log has the rest)"


@pytest.mark.parametrize("refused", ["weights", "loss", "count"])
def test_what_the_policy_refuses_is_named_and_does_not_leave(tmp_path: Path, refused: str) -> None:
    site = Site(tmp_path, FedBN(), policy=Policy(refuse=(refused,)))
    frame = site.frame(order(start(FedBN()), 1))
    got = unpack_results(frame, [order(start(FedBN()), 1)])[0]
    assert isinstance(got, Failure)
    assert got.reason == "policy"
    assert f"lets no {refused} out" in got.detail
    assert frame.arrays == {}
    assert not (tmp_path / "r" / "ledger.jsonl").exists()


@pytest.mark.parametrize("policy", [Policy(max_bytes=10), Policy(min_samples=10**6)], ids=str)
def test_a_departure_beyond_the_policys_measures_stays(tmp_path: Path, policy: Policy) -> None:
    frame = Site(tmp_path, FedAvg(), policy=policy).frame(order(start(FedAvg()), 1))
    assert [row["reason"] for row in frame.head["results"]] == ["policy"]
    assert frame.arrays == {}


def test_tests_of_few_samples_stay_too(tmp_path: Path) -> None:
    few = Site(tmp_path / "few", FedAvg(), policy=Policy(min_samples=5))  # four of each client's are for testing
    assert isinstance(few.answer(order(start(FedAvg()), 1))[0], Update)
    frame = few.frame(order(start(FedAvg()), 1, 2, kind=EVALUATE))
    assert [row["reason"] for row in frame.head["results"]] == ["policy"]
    assert "top1" not in json.dumps(frame.head)
    enough = Site(tmp_path / "enough", FedAvg(), policy=Policy(min_samples=4))
    assert replies(enough.answer(order(start(FedAvg()), 1, 2, kind=EVALUATE)))[0].numbers["n"] == 4


def ask_roster(site: Site, layout: str, frozen: str = "") -> dict[str, Any]:
    asked = {"type": "roster", "run": "r", "start": 1, "recipe": RECIPE, "layout": layout, "frozen": frozen}
    return site.workplace.answer(Frame(asked)).head


def test_a_roster_tells_the_clients_and_the_ledger_says_so(tmp_path: Path) -> None:
    head = ask_roster(Site(tmp_path, FedAvg()), start(FedAvg()).layout.id)
    assert head["clients"] == ["c0", "c1", "c2", "c3"]
    assert head["site"] == "north"
    rows = list(departures(tmp_path / "r" / "ledger.jsonl"))
    assert [(r["client"], r["kinds"], r["numbers"]) for r in rows] == [(c, ["name"], {}) for c in head["clients"]]


def test_a_roster_for_another_model_or_against_the_policy_tells_no_client(tmp_path: Path) -> None:
    other = ask_roster(Site(tmp_path / "a", FedAvg()), start(FedBN()).layout.id)
    refused = ask_roster(Site(tmp_path / "b", FedAvg(), policy=Policy(refuse=("loss",))), start(FedAvg()).layout.id)
    assert "other tensors" in other["problem"]
    assert "lets no loss out" in refused["problem"]
    frozen = ask_roster(Site(tmp_path / "c", FedAvg()), start(FedAvg()).layout.id, "of other weights")
    assert "not trained has other weights here than at the server" in frozen["problem"]
    assert not any(path.exists() for path in tmp_path.glob("*/r/ledger.jsonl"))


@pytest.mark.parametrize("head", [{}, {"type": "orders"}, {"type": "roster"}, {"type": 5, "orders": 3}], ids=str)
def test_a_frame_that_cannot_be_read_is_a_problem_and_not_an_end(tmp_path: Path, head: dict[str, Any]) -> None:
    site = Site(tmp_path, FedAvg())
    assert "problem" in site.workplace.answer(Frame(head)).head
    assert isinstance(site.answer(order(start(FedAvg()), 1))[0], Update)
