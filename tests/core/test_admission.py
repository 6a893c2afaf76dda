"""What one client cannot do to a run: count for more than it may, grow, answer what nobody asked, spoil the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedreel.config import RoundConfig
from fedreel.core.admission import Admission, agreeing
from fedreel.core.aggregate import Average, CappedMean, Mean, capped, make_aggregator
from fedreel.core.declared import Declared, declared
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL
from fedreel.core.trust import BINS, calibration_bins, calibration_sums
from fedreel.core.update import ASK, TRAIN, Answer, Named, Order, Update
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.engines.local import LocalEngine
from fedreel.errors import RecipeError, plain
from fedreel.methods.cfedvs import CFedVS
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedca import FedCA
from fedreel.methods.fednova import FedNova
from fedreel.methods.fedvmr import FedVMR
from fedreel.methods.scaffold import SCAFFOLD
from fedreel.metrics.calibration import MANY, TEMPERATURES, binomial_tail
from fedreel.metrics.familiarity import LEAST, MOST, STEPS, Sums
from support.toy import Toy, federate

MODEL = Weights.of({"w": torch.ones(3)})


def model(value: float) -> Weights:
    return Weights.of({"w": torch.full((3,), value)})


class Lying:
    """An engine whose client c2 changes what it says."""

    at_sites = True

    def __init__(self, inner: LocalEngine, change: Callable[[Any], None]) -> None:
        self.inner, self.change, self.slots = inner, change, 1
        self.clients, self.blueprint = inner.clients, inner.blueprint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def next(self) -> Any:
        result = self.inner.next()
        if result is not None and result.client == "c2":
            self.change(result)
        return result


def lied_to(folder: Path, method: Method, change: Callable[[Any], None], **options: Any) -> tuple[Any, Any]:
    return federate(folder, method, wrap=lambda inner: Lying(inner, change), **{"rounds": 2, **options})


def mean_of(most: float, *weighted: tuple[float, float]) -> float:
    mean = CappedMean(most) if most else Mean()
    for value, weight in weighted:
        mean.add(model(value), weight)
    return float(mean.value["w"][0])


def test_no_model_counts_for_more_than_so_many_times_the_middle_one() -> None:
    assert mean_of(10, (0.0, 1), (0.0, 1), (7.0, 1e9)) == pytest.approx(7 * 10 / 12)
    assert mean_of(1, (0.0, 1), (0.0, 5), (7.0, 1e9)) == pytest.approx(7 * 5 / 11)
    assert mean_of(10, (0.0, 1), (7.0, 1e9)) == pytest.approx(7 * 10 / 11)  # of two, the lower one is the middle
    assert mean_of(10, (3.0, 5)) == 3.0
    assert capped([-math.inf, 0.0, 100.0], 10) == [-math.inf, 0.0, pytest.approx(math.log(10))]
    assert capped([-math.inf], 10) == [-math.inf]


def test_where_nobody_counts_for_too_much_the_capped_mean_is_the_mean_to_the_bit() -> None:
    draw = np.random.default_rng(0)
    weighted = [(float(v), float(w)) for v, w in zip(draw.normal(size=30), draw.uniform(1, 9, 30))]
    assert mean_of(10, *weighted) == mean_of(0, *weighted)


def test_the_cap_is_for_real_sites_and_for_every_way_to_weigh(tmp_path: Path) -> None:
    assert isinstance(make_aggregator(RoundConfig()), Mean)
    assert isinstance(make_aggregator(RoundConfig(), 10.0), CappedMean)
    with pytest.raises(RecipeError, match="max_weight"):
        RoundConfig(max_weight=0.5)
    average = Average("loss", lambda: CappedMean(2.0))
    for loss, value, client in ((1.0, 0.0, "a"), (1.0, 0.0, "b"), (-9000.0, 8.0, "c")):
        average.add(Update(1, 1, client, model(value), {"loss": loss, "tau": 1e6 if client == "c" else 1.0}))
    assert float(average.weights["w"][0]) == pytest.approx(8 * 2 / 4)
    assert average.number("tau") == pytest.approx((1 + 1 + 2 * 2) / 4)  # its number is capped, and so is its weight


def test_a_client_that_claims_many_samples_is_capped_in_a_whole_run(tmp_path: Path) -> None:
    """Toy clients have 8, 12, 16 and 20 samples: the middle is 12, so c2 counts at most 10 * 12 = 120 of 160."""
    folders = {n: tmp_path / str(n) for n in (120.0, 1e9)}
    runs = {n: lied_to(f, FedAvg(), lambda u, n=n: u.numbers.update(samples=n), rounds=1) for n, f in folders.items()}
    assert runs[120.0][0].weights.equal(runs[1e9][0].weights)


def test_a_client_does_not_become_larger(tmp_path: Path) -> None:
    def grow(reply: Any) -> None:
        reply.numbers.update({n: v + reply.round - 1 for n, v in reply.numbers.items() if n in ("samples", "n")})

    _, notes = lied_to(tmp_path, FedAvg(), grow)
    found = [(row["round"], row["client"], row["reason"]) for row in notes.of("refused")]
    assert found == [(2, "c2", "range"), (2, "c2", "range")]
    assert "was 16 when this client first said it" in notes.of("refused")[0]["detail"]


def test_an_admission_that_trips_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(order: Order) -> Declared:
        raise RuntimeError("\x1b[31mred")

    admission = Admission(MODEL.layout, 1.0, trip)
    admission.expect(Order(1, 1, "a", TRAIN, {GLOBAL: MODEL}))
    failure = admission.judge(Update(1, 1, "a", MODEL, {}))
    assert failure is not None
    assert failure.reason == "rubbish"
    assert "\\x1b[31mred" in failure.detail


def spoil_tensor(name: str, change: Callable[[Named], Named]) -> Callable[[Any], None]:
    def spoil(reply: Any) -> None:
        if name in reply.tensors:
            reply.tensors[name] = change(reply.tensors[name])

    return spoil


@pytest.mark.parametrize(
    ("method", "lie", "reason"),
    [
        (SCAFFOLD(), spoil_tensor("control", lambda t: 1e30 * t), "norm"),
        (SCAFFOLD(), spoil_tensor("control", lambda t: torch.zeros(3)), "names"),
        (FedVMR(weight_by="equal"), spoil_tensor("counts", lambda t: -t), "range"),
        (FedVMR(weight_by="equal"), spoil_tensor("counts", lambda t: t[:3]), "shape"),
        (FedVMR(weight_by="equal"), spoil_tensor("counts", lambda t: t.double()), "shape"),
        (FedVMR(lambda_=0.0), spoil_tensor("video", lambda t: torch.ones(2, 5)), "shape"),
        (FedVMR(lambda_=0.0), spoil_tensor("video", lambda t: t[:0]), "rubbish"),
        (FedVMR(lambda_=0.0), lambda r: r.tensors.pop("spans", None), "names"),
        (CFedVS(grouping="topics"), spoil_tensor("topics", lambda t: t[:1]), "shape"),
        (CFedVS(), lambda r: r.numbers.pop("distance", None), "names"),
        (CFedVS(), lambda r: r.numbers.update(distance=1e300) if "distance" in r.numbers else None, "range"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else "",
)
def test_what_comes_beside_the_model_cannot_end_a_run(
    tmp_path: Path, method: Method, lie: Callable[[Any], None], reason: str
) -> None:
    fed, notes = lied_to(tmp_path, method, lie)
    assert fed.round == 2
    assert {(row["client"], row["reason"]) for row in notes.of("refused")} == {("c2", reason)}
    assert all(bool(t.isfinite().all()) for t in fed.weights.values())


@pytest.mark.parametrize("lie", [lambda t: 1e30 * t, lambda t: t[:, :1], lambda t: t[0], lambda t: t.double()])
def test_what_is_no_direction_does_not_enter_the_dictionary(tmp_path: Path, lie: Callable[[Tensor], Tensor]) -> None:
    fed, _ = lied_to(tmp_path / "a", FedCA(public=1), spoil_tensor("projections", lie))
    lengths = fed.memory["dictionary"].norm(dim=1)
    assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-3)


def test_a_number_that_a_server_multiplies_by_is_bounded(tmp_path: Path) -> None:
    honest, _ = lied_to(tmp_path / "a", FedNova(), lambda u: None)
    lied, notes = lied_to(
        tmp_path / "b", FedNova(), lambda u: u.numbers.update(tau=1e8) if "tau" in u.numbers else None
    )
    assert notes.of("refused") == []
    assert lied.weights.distance(honest.weights) < 100 * honest.weights.norm()


def test_answers_of_other_shapes_than_most_do_not_count() -> None:
    def answer(client: str, **tensors: Tensor) -> Answer:
        return Answer(1, 1, client, {}, dict(tensors))

    answers = [answer(c, t=torch.zeros(3)) for c in "abc"] + [answer("d", t=torch.zeros(4)), answer("e")]
    kept, others = agreeing(answers, {"t": "metric"})
    assert [a.client for a in kept] == ["a", "b", "c", "e"]
    assert [(f.client, f.reason) for f in others] == [("d", "shape")]
    rows = [answer(c, t=torch.zeros(n, 2)) for n, c in enumerate("abc")]
    assert agreeing(rows, {"t": "features"})[0] == rows  # everybody has as many as he likes
    assert len(agreeing(rows, {"t": "label-statistics"})[0]) == 1


def sums(seed: int = 0) -> Answer:
    looks = torch.from_numpy(np.random.default_rng(seed).normal(size=(20, 5)))
    made = Sums.of(looks)
    tensors: dict[str, Named] = {
        "losses": torch.ones(2, len(TEMPERATURES), dtype=torch.float64),
        "scores": torch.tensor([7.0, 5.0, 6.0], dtype=torch.float64),
        "total": made.total,
        "products": made.products,
    }
    return Answer(1, 1, "a", {"samples": 10.0, "held_out": 10.0, "learned": 20.0}, tensors)


def judged(answer: Answer, question: str) -> str:
    admission = Admission(MODEL.layout, 1.0, lambda order: declared(FedAvg(), Toy(), order))
    admission.expect(Order(1, 1, "a", ASK, {}, question=question))
    failure = admission.judge(answer)
    return failure.reason if failure else ""


@pytest.mark.parametrize(
    "lie",
    [
        lambda a: a.numbers.update(held_out=1.0),  # so few samples have no such scores
        lambda a: a.numbers.pop("held_out"),
        lambda a: a.numbers.update(held_out=1e300),
        lambda a: a.numbers.pop("learned"),
        lambda a: a.tensors.pop("products"),
        lambda a: a.tensors.update(losses=-a.tensors["losses"]),
        lambda a: a.tensors.update(losses=torch.ones(2, 3, dtype=torch.float64)),
        lambda a: a.tensors.update(scores=torch.tensor([7.0, 5.0, -6.0], dtype=torch.float64)),
        lambda a: a.tensors.update(scores=torch.ones(2, dtype=torch.float64)),
        lambda a: a.tensors.update(products=-a.tensors["products"]),
        lambda a: a.tensors.update(products=a.tensors["products"] + torch.triu(torch.ones(5, 5)).double()),
        lambda a: a.tensors.update(products=torch.zeros(5, 5, dtype=torch.float64)),
        lambda a: a.tensors.update(total=1e9 * a.tensors["total"]),
        lambda a: a.tensors.update(total=torch.zeros(500, dtype=torch.float64), products=torch.eye(500).double()),
    ],
)
def test_sums_that_no_samples_have_are_refused(lie: Callable[[Answer], Any]) -> None:
    answer = sums()
    assert judged(answer, calibration_sums.__name__) == ""
    lie(answer)
    assert judged(answer, calibration_sums.__name__) in ("range", "names")


@pytest.mark.parametrize("name", ["before", "after", "distances"])
@pytest.mark.parametrize("lie", [lambda t: -t, lambda t: t[1:], lambda t: t.float(), lambda t: math.inf * t])
def test_counts_that_no_samples_have_are_refused(name: str, lie: Callable[[Tensor], Tensor]) -> None:
    bins = torch.ones(BINS, 3, dtype=torch.float64)
    steps = torch.ones(STEPS * (MOST - LEAST) + 1, dtype=torch.float64)
    tensors: dict[str, Named] = {"before": bins, "after": bins, "distances": steps}
    assert judged(Answer(1, 1, "a", {"samples": 3.0}, dict(tensors)), calibration_bins.__name__) == ""
    tensors[name] = lie(tensors[name])  # type: ignore[arg-type]
    assert judged(Answer(1, 1, "a", {"samples": 3.0}, tensors), calibration_bins.__name__) in ("range", "not-finite")


def test_of_very_many_samples_the_binomial_tail_is_the_normal_one() -> None:
    for right in (49_800, 50_000, 50_300):
        assert binomial_tail(right * 2, MANY * 2, 0.5) == pytest.approx(
            binomial_tail(right * 2, MANY * 2 + 1, 0.5), abs=0.01
        )
    near, far = MANY // 2 + 100, MANY + 1
    assert binomial_tail(near, MANY, 0.5) == pytest.approx(binomial_tail(near, far, 0.5), abs=0.005)
    assert binomial_tail(10**9, 10**9, 0.5) == 0.0  # at once


def test_an_escape_sequence_is_spelled_out_and_a_line_stays_a_line() -> None:
    assert plain("a\x1b[2Jb\x9b\u202e\nc\r\t") == "a\\x1b[2Jb\\x9b\\u202e\nc\\r\\t"
    assert plain("Zürich 東京") == "Zürich 東京"
    assert plain("x" * 50, 10) == "x" * 10 + "..."
    assert plain("\udcff") == "\\udcff"


def test_a_cap_is_on_what_is_trained_and_running_statistics_may_leap() -> None:
    """A variance that goes from 1 to 40 in a first round is no lie; a weight that moves as far is past the cap."""
    layout = Layout([TensorInfo("w", (1,), torch.float32), TensorInfo("var", (1,), torch.float32, "statistics")])

    def at(w: float, var: float) -> Weights:
        made = Weights.zeros(layout)
        made.fill({"w": torch.tensor([w]), "var": torch.tensor([var])})
        return made

    def judge(answer: Weights) -> str:
        admission = Admission(layout, 0.5, lambda order: Declared({}))
        admission.expect(Order(1, 1, "a", TRAIN, {GLOBAL: at(1.0, 1.0)}))
        failure = admission.judge(Update(1, 1, "a", answer, {}))
        return failure.reason if failure else ""

    assert judge(at(2.0, 40.0)) == ""  # 1 of 0.5 * (1 + 1)
    assert judge(at(2.1, 1.0)) == "norm"
    assert judge(at(1.0, 1.0 + 100 * (1 + math.sqrt(2)) + 1)) == "norm"
