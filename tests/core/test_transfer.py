"""Updates in few bytes: what the server reads is what the client wrote, nothing is lost for good, and lies are told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedreel.config import TransferConfig
from fedreel.core.admission import _difference
from fedreel.core.ledger import departures, read_ledger
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL
from fedreel.core.state import State
from fedreel.core.transfer.coded import BASE, Coded, make_coded
from fedreel.core.transfer.codes import INDEX, SCALE, Bf16, Int8, TopK, join
from fedreel.core.update import TRAIN, Order, Update
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.errors import Diverged
from fedreel.methods.cyclic import Cyclic
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from fedreel.methods.fednova import FedNova
from fedreel.methods.fedvssl import FedVSSL
from fedreel.methods.ifca import IFCA
from fedreel.methods.scaffold import SCAFFOLD
from support.toy import Toy, federate, make_worker

UPS = ["bf16", "int8", "top-k"]
LAYOUT = Layout(
    [
        TensorInfo("w", (40, 10), torch.float32),
        TensorInfo("gamma", (7,), torch.float32, "norm"),
        TensorInfo("variance", (7,), torch.float32, "statistics"),
        TensorInfo("batches", (), torch.int64, "statistics"),
    ]
)


def transfer(up: str, **options: Any) -> TransferConfig:
    return TransferConfig(up=up, **{"keep": 0.1, **options})  # type: ignore[arg-type]


def coded(up: str, layout: Layout = LAYOUT, **options: Any) -> Coded:
    made = make_coded(transfer(up, **options), layout)
    assert made is not None
    return made


def drawn(seed: int, layout: Layout = LAYOUT) -> Weights:
    weights = Weights.zeros(layout)
    draw = torch.Generator().manual_seed(seed)
    for t in layout.tensors:
        weights[t.name].copy_(10 * torch.randn(t.shape, generator=draw))
    return weights


def order(*models: Weights, round: int = 1) -> Order:
    return Order(round, 1, "c0", TRAIN, {f"m{i}": model for i, model in enumerate(models)})


@pytest.mark.parametrize("up", UPS)
def test_the_server_reads_what_was_sent_and_the_change_that_the_client_knows_of(up: str) -> None:
    sent, trained, state = drawn(0), drawn(1), State()
    way = coded(up)
    got = way.read(order(sent), way.write(order(sent), trained, state), _difference)
    change, lost = join(trained - sent, LAYOUT.trained), state.tensors["transfer/model/m0"]
    torch.testing.assert_close(join(got - sent, LAYOUT.trained), change - lost, rtol=1e-5, atol=1e-5)
    assert float(lost.abs().max()) > 0
    for name in ("variance", "batches"):
        assert torch.equal(got[name], trained[name])


@pytest.mark.parametrize("up", UPS)
def test_what_was_sent_is_what_was_to_be_sent_but_for_the_last_remainder(up: str) -> None:
    """Summed over rounds: nothing is lost for good."""
    way, state, sent = coded(up), State(), drawn(0)
    wanted = arrived = torch.zeros(407)
    for round in range(1, 20):
        trained = sent + 0.01 * drawn(round)
        got = way.read(order(sent), way.write(order(sent), trained, state), _difference)
        wanted = wanted + join(trained - sent, LAYOUT.trained)
        arrived = arrived + join(got - sent, LAYOUT.trained)
    torch.testing.assert_close(arrived, wanted - state.tensors["transfer/model/m0"], rtol=0, atol=1e-4)
    without = coded(up, feedback=False)
    without.write(order(sent), drawn(1), state := State())
    assert not state


def test_a_change_is_against_the_nearest_of_several_models() -> None:
    models = [drawn(0), drawn(1), drawn(2)]
    way, state = coded("int8"), State()
    sent = order(*models)
    update = way.write(sent, models[2] + 0.001 * drawn(5), state)
    assert update[BASE].item() == 2
    assert [*state.tensors] == ["transfer/model/m2"]
    assert way.read(sent, update, _difference).distance(models[2]) < 1
    update[BASE].fill_(3)
    with pytest.raises(Exception, match="a change of model 3, and 3 were sent"):
        way.read(sent, update, _difference)


def test_tensors_of_other_types_are_coded_too() -> None:
    layout = Layout([TensorInfo("d", (300,), torch.float64), TensorInfo("h", (300,), torch.bfloat16)])
    sent, trained = drawn(0, layout), drawn(1, layout)
    got = (way := coded("int8", layout)).read(order(sent), way.write(order(sent), trained, State()), _difference)
    assert got.layout == layout
    assert got.distance(trained) < 0.02 * trained.distance(sent)


def test_a_model_that_is_not_finite_does_not_stay_with_its_client() -> None:
    state = State()
    bad = drawn(1)
    bad["w"][0, 0] = math.nan
    with pytest.raises(Diverged, match="'c0' diverged"):
        coded("int8").write(order(drawn(0)), bad, state)
    assert not state


def test_nothing_is_coded_where_nothing_that_is_trained_travels() -> None:
    assert make_coded(TransferConfig(), LAYOUT) is make_coded(None, LAYOUT) is None
    assert make_coded(transfer("int8"), LAYOUT.only(lambda t: not t.trained)) is None


# whole runs

METHODS: list[Method] = [FedAvg(), FedBN(), FedNova(), FedVSSL(), SCAFFOLD(), IFCA(groups=2), Cyclic()]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_methods_see_whole_models_near_those_of_full_updates(tmp_path: Path, method: Method) -> None:
    whole, _ = federate(tmp_path / "full", method, rounds=2)
    few, notes = federate(tmp_path / "few", method, rounds=2, transfer=transfer("bf16"))
    assert not notes.of("refused")
    start = make_worker(tmp_path / "start", method).start
    for name, model in few.models.items():
        way = whole.models[name].distance(start)
        assert 0 < model.distance(whole.models[name]) < 0.02 * way


def test_defaults_change_no_bit_and_no_byte(tmp_path: Path) -> None:
    runs = [federate(tmp_path / str(t), SCAFFOLD(), transfer=t) for t in (None, TransferConfig())]
    assert runs[0][0].weights.equal(runs[1][0].weights)
    assert runs[0][0].progress.totals["bytes_up"] == runs[1][0].progress.totals["bytes_up"]


@pytest.mark.parametrize(("up", "each"), [("bf16", 2), ("int8", 1)])
def test_round_and_ledger_count_the_bytes_that_travel(tmp_path: Path, up: str, each: int) -> None:
    """The toy with 5 hidden units: 2*5+5 + 5+5 + 5*2+2 = 37 numbers are trained; 5+5 statistics and a counter go in
    full, and three numbers beside them."""
    _, notes = federate(tmp_path, FedAvg(), rounds=2, transfer=transfer(up))
    update = 37 * each + (4 if up == "int8" else 0) + 10 * 4 + 8 + 3 * 8
    assert [row["bytes_up"] for row in notes.of("train")] == [4 * update] * 2
    trained = [row for row in departures(tmp_path / "ledger.jsonl") if row["purpose"] == TRAIN]
    assert [row["bytes"] for row in trained] == [update] * 8
    [layout] = [row for row in read_ledger(tmp_path / "ledger.jsonl") if row["kind"] == "layout"]
    kinds = {name: kind for name, _, kind, _ in layout["tensors"]}
    assert kinds["head.weight"] == {"bf16": "bfloat16", "int8": "int8"}[up]
    assert kinds["backbone.1.running_var"] == "float32"
    assert kinds["backbone.1.num_batches_tracked"] == "int64"


def test_an_order_that_comes_again_sends_the_same_bits(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), transfer=transfer("int8"))
    orders = [Order(r, 1, "c0", TRAIN, {GLOBAL: worker.start}) for r in (1, 2)]
    first, second, again = (worker.execute(o) for o in (*orders, orders[1]))
    cold = make_worker(tmp_path, FedAvg(), transfer=transfer("int8")).execute(orders[1])
    assert all(isinstance(u, Update) for u in (first, second, again, cold))
    assert second.weights.equal(again.weights)
    assert second.weights.equal(cold.weights)
    elsewhere = make_worker(tmp_path / "other", FedAvg(), transfer=transfer("int8")).execute(orders[1])
    assert not second.weights.equal(elsewhere.weights)  # which has no remainder of round 1


# lies


class Lying:
    at_sites = True

    def __init__(self, inner: Any, harm: Callable[[Update], Any]) -> None:
        self.inner, self.harm, self.slots = inner, harm, 1
        self.clients, self.blueprint = inner.clients, inner.blueprint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def next(self) -> Any:
        result = self.inner.next()
        if isinstance(result, Update) and result.client == "c2":
            self.harm(result)
        return result


def put(name: str, value: float) -> Callable[[Update], Any]:
    return lambda update: update.weights[name].view(-1)[:1].fill_(value)


def uncoded(update: Update) -> None:
    update.weights = make_worker(Path("nowhere"), FedAvg()).start


def longer(update: Update) -> None:
    tensors = [replace(t, shape=(t.size + 1,)) if t.name == INDEX else t for t in update.weights.layout.tensors]
    update.weights = Weights.zeros(Layout(tensors))


def huge(update: Update) -> None:
    update.weights[SCALE].fill_(1e10)


@pytest.mark.parametrize(
    ("up", "harm", "reason", "detail"),
    [
        ("int8", uncoded, "names", "missing: transfer/scale"),
        ("bf16", uncoded, "dtype", "'backbone.0.weight' should be torch.bfloat16, found torch.float32"),
        ("top-k", longer, "shape", "'transfer/index' should be"),
        ("int8", put(SCALE, math.nan), "not-finite", "the scales"),
        ("int8", huge, "norm", "moved by"),
        ("top-k", put(INDEX, 10_000), "range", "there are 37 numbers"),
        ("bf16", put("backbone.1.running_var", math.inf), "not-finite", "backbone.1.running_var"),
    ],
)
def test_a_lie_is_refused_with_its_reason_and_harms_nobody_else(
    tmp_path: Path, up: str, harm: Callable, reason: str, detail: str
) -> None:
    run, notes = federate(
        tmp_path, FedAvg(), rounds=1, transfer=transfer(up, keep=0.2), wrap=lambda inner: Lying(inner, harm)
    )
    [row] = notes.of("refused")
    assert (row["client"], row["reason"]) == ("c2", reason)
    assert detail in row["detail"]
    assert notes.of("train")[0]["clients"] == ["c0", "c1", "c3"]
    assert run.weights.distance(Weights.zeros(run.weights.layout)) < 100


def test_what_lies_beside_the_model_is_looked_at_as_well(tmp_path: Path) -> None:
    def harm(update: Update) -> None:
        update.tensors["control"][SCALE].fill_(math.nan)  # type: ignore[index]

    _, notes = federate(
        tmp_path, SCAFFOLD(), rounds=1, transfer=transfer("int8"), wrap=lambda inner: Lying(inner, harm)
    )
    [row] = notes.of("refused")
    assert (row["client"], row["reason"]) == ("c2", "not-finite")


def test_codes_lose_less_than_they_leave(tmp_path: Path) -> None:
    """Of a change as training makes it: bf16 and int8 keep nearly all of it."""
    worker = make_worker(tmp_path, FedAvg(), Toy(width=200))
    update = worker.execute(Order(1, 1, "c3", TRAIN, {GLOBAL: worker.start}))
    assert isinstance(update, Update)
    change = join(update.weights - worker.start, worker.travelling.trained)

    def lost(code: Any) -> float:
        made = Weights.zeros(Layout(code.layout(worker.travelling.trained)))
        code.write(change, worker.travelling.trained, made)
        rest: Tensor = change - code.read(made, worker.travelling.trained)
        return float(rest.norm() / change.norm())

    assert lost(Bf16()) < 0.003
    assert lost(Int8()) < 0.02
    assert lost(TopK(0.5)) < 0.5
