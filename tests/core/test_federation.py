"""The federation: sampling, order of updates, chains, several models, questions, failures, resume."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import RoundConfig
from fedreel.core.aggregate import Mean
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method, question
from fedreel.core.update import Failure, Order, Update
from fedreel.core.weights import Weights
from fedreel.engines.local import LocalEngine
from fedreel.errors import Diverged, RunError
from fedreel.methods.baselines import Centralised
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedper import FedPer
from fedreel.methods.fedprox import FedProx
from support.faulty import EXPECTED, FAULTS, Faulty, Unlucky
from support.toy import Notes, Toy, federate, make_worker


@dataclass(frozen=True)
class Script(Method):
    """A method whose body is a function."""

    sees = "each"

    body: Any = None

    def run(self, fed: Federation) -> None:
        self.body(fed)


def in_a_round(folder: Path, body: Any, **options: Any) -> tuple[Federation, Notes]:
    def run(fed: Federation) -> None:
        for _ in fed.rounds():
            body(fed)

    return federate(folder, Script(run), **{"rounds": 1, "evaluate_every": 0, **options})


def test_the_client_sequence_depends_on_seed_and_round_only(tmp_path: Path) -> None:
    def sequence(method: Method, seed: int) -> list[list[str]]:
        _, notes = federate(tmp_path / f"{method}{seed}"[:40], method, rounds=6, fraction=0.5, seed=seed)
        return [row["clients"] for row in notes.of("train")]

    a = sequence(FedAvg(), 0)
    assert a == sequence(FedProx(mu=1.0), 0)
    assert a != sequence(FedAvg(), 1)
    assert all(len(set(clients)) == 2 for clients in a)
    assert len({tuple(c) for c in a}) > 1


def test_every_client_is_drawn_equally_often_in_the_long_run(tmp_path: Path) -> None:
    counts: dict[str, int] = {}

    def body(fed: Federation) -> None:
        for c in fed.sample():
            counts[c] = counts.get(c, 0) + 1

    in_a_round(tmp_path, body, rounds=2000, clients=2, task=Toy(clients=5))
    assert set(counts) == {f"c{i}" for i in range(5)}
    assert all(abs(n - 800) < 110 for n in counts.values())  # binomial(2000, .4): sd 22, five of them


def test_training_is_a_function_of_weights_client_and_round(tmp_path: Path) -> None:
    """The same order twice gives the same update to the bit; what other clients did before does not matter."""
    kept: list[Weights] = []

    def body(fed: Federation) -> None:
        w = fed.weights
        kept.extend(u.weights for u in fed.train(["c1"], w))
        list(fed.train(["c0", "c2", "c3"], w))
        kept.extend(u.weights for u in fed.train(["c2", "c1"], w))

    in_a_round(tmp_path, body)
    assert kept[0].equal(kept[2])
    assert not kept[0].equal(kept[1])


def test_updates_are_the_callers_to_keep(tmp_path: Path) -> None:
    def body(fed: Federation) -> None:
        kept = list(fed.train(fed.clients, fed.weights))
        later = [u.weights.clone() for u in kept]
        list(fed.train(fed.clients, fed.weights))
        assert all(k.weights.equal(c) for k, c in zip(kept, later))
        assert len({float(u.weights.norm()) for u in kept}) == 4

    in_a_round(tmp_path, body)


def test_a_chain_is_training_one_after_another(tmp_path: Path) -> None:
    seen: dict[str, Weights] = {}

    def body(fed: Federation) -> None:
        order = []
        for u in fed.train_chains([["c0", "c1", "c2"], ["c3"]], fed.weights):
            order.append(u.client)
            seen[u.client] = u.weights
        assert order == ["c0", "c3", "c1", "c2"]  # by place, then by chain
        by_hand = fed.weights
        for client in ("c0", "c1", "c2"):
            (u,) = fed.train([client], by_hand)
            by_hand = u.weights
            assert by_hand.equal(seen[client])

    in_a_round(tmp_path, body)


class Concurrent:
    """An engine that holds many orders at once and answers them in the order a script wants."""

    def __init__(self, inner: LocalEngine, pick: Any, slots: int = 99) -> None:
        self.inner, self.pick, self.slots = inner, pick, slots
        self.clients, self.blueprint = inner.clients, inner.blueprint
        self.waiting: list[Order] = []
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, order: Order) -> None:
        self.waiting.append(order)
        self.log.append(f"+{order.client}")

    def next(self) -> Update | Failure | None:
        if not self.waiting:
            return None
        order = self.waiting.pop(self.pick(self.waiting))
        self.inner.submit(order)
        self.log.append(f"-{order.client}")
        return self.inner.next()


def test_updates_come_in_fixed_order_whatever_the_engine_does(tmp_path: Path) -> None:
    results = []
    for name, pick in (("first", lambda w: 0), ("last", lambda w: -1), ("middle", lambda w: len(w) // 2)):
        for slots in (1, 2, 99):
            fed, notes = federate(
                tmp_path / f"{name}{slots}", FedAvg(), wrap=lambda e, p=pick, s=slots: Concurrent(e, p, s), rounds=2
            )
            assert notes.of("train")[0]["clients"] == ["c0", "c1", "c2", "c3"]
            results.append(fed.weights)
    assert all(r.equal(results[0]) for r in results)


def test_a_chain_waits_only_for_its_own_predecessor(tmp_path: Path) -> None:
    """Four chains of two; the engine is slow with the first client of chain 0: the other chains finish before it."""
    engines = []

    def wrap(inner: LocalEngine) -> Concurrent:
        def pick(waiting: list[Order]) -> int:
            return next((i for i, o in enumerate(waiting) if o.client != "c0"), 0)

        engines.append(Concurrent(inner, pick))
        return engines[-1]

    def body(fed: Federation) -> None:
        chains = [["c0", "c1"], ["c2", "c3"], ["c4", "c5"], ["c6", "c7"]]
        assert [u.client for u in fed.train_chains(chains, fed.weights)] == [c[i] for i in (0, 1) for c in chains]

    in_a_round(tmp_path, body, task=Toy(clients=8), wrap=wrap)
    log = engines[0].log
    assert log[:4] == ["+c0", "+c2", "+c4", "+c6"]  # all heads at once
    assert log.index("-c7") < log.index("-c0") < log.index("+c1")


def test_a_chain_goes_on_while_the_method_looks_at_what_came(tmp_path: Path) -> None:
    engines = []

    def wrap(inner: LocalEngine) -> Concurrent:
        engines.append(Concurrent(inner, lambda waiting: 0))
        return engines[-1]

    def body(fed: Federation) -> None:
        for update in fed.train_chains([["c0", "c1", "c2"]], fed.weights):
            engines[0].log.append(f"seen {update.client}")

    in_a_round(tmp_path, body, wrap=wrap)
    assert engines[0].log[:9] == ["+c0", "-c0", "+c1", "seen c0", "-c1", "+c2", "seen c1", "-c2", "seen c2"]


def test_several_models_go_to_a_client_that_chooses(tmp_path: Path) -> None:
    """IFCA in small: two models, the client trains the one with the lower loss."""

    @dataclass(frozen=True)
    class Chooser(Method):
        sees = "each"
        sends = {"samples": "count", "loss": "loss", "choice": "derived-number"}

        def run(self, fed: Federation) -> None:
            good = fed.weights
            bad = fed.weights + 100.0 * fed.weights
            fed.models.update(bad=bad, good=good)
            for _ in fed.rounds():
                for u in fed.train(fed.clients, {"bad": fed.models["bad"], "good": fed.models["good"]}):
                    assert u["choice"] == 1.0
                    assert u.weights.distance(good) < u.weights.distance(bad)

        def local_training(self, client: Client) -> None:
            losses = [client.test_loss(w) for w in client.models.values()]
            best = losses.index(min(losses))
            client.load(list(client.models.values())[best])
            client.fit()
            client.numbers["choice"] = float(best)

    fed, notes = federate(tmp_path, Chooser(), rounds=1)
    assert set(fed.models) == {"global", "bad", "good"}
    assert notes.of("train")[0]["bytes_down"] == 4 * 2 * fed.weights.nbytes


def test_questions_reach_the_client_with_arguments_and_leave_state_behind(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Asker(Method):
        @question(distance="derived-number", times="count")
        def distance(self, client: Client, proxy: torch.Tensor, scale: float) -> dict:
            client.state.numbers["asked"] = float(client.state.numbers.get("asked", 0.0)) + 1
            mean = client.data.train.tensors[0].mean(0)
            return {"distance": float((mean - proxy).norm()) * scale, "times": client.state.numbers["asked"]}

        def run(self, fed: Federation) -> None:
            d = fed.once("d", lambda: [a["distance"] for a in fed.ask(fed.clients, "distance", proxy=p, scale=2.0)])
            assert d == fed.once("d", lambda: pytest.fail("computed twice"))
            for _ in fed.rounds():
                again = {a.client: a["times"] for a in fed.ask(fed.clients, "distance", proxy=p, scale=2.0)}
                assert set(again.values()) == {2.0}

    p = torch.tensor([0.5, -0.5])
    fed, _ = federate(tmp_path, Asker(), rounds=1, evaluate_every=0)
    data = Toy().population(None, 0)
    expected = [2 * float((data.data(c).train.tensors[0].mean(0) - p).norm()) for c in fed.clients]
    assert fed.memory["d"] == pytest.approx(expected)


def test_evaluation_weighs_by_samples_and_by_clients(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, FedAvg(), rounds=1)
    row = notes.of("test")[0]
    values = [(c["top1"], c["n"]) for c in row["clients"].values()]
    assert row["metrics"]["top1"] == pytest.approx(sum(v * n for v, n in values) / sum(n for _, n in values))
    assert row["metrics"]["top1_clients"] == pytest.approx(sum(v for v, _ in values) / len(values))


@pytest.mark.parametrize("method", [FedAvg(), FedPer()])
def test_means_can_leave_out_clients_that_never_trained_for_every_method_alike(tmp_path: Path, method: Method) -> None:
    _, notes = federate(tmp_path, method, rounds=3, clients=1, mean_over="trained")
    so_far: set[str] = set()
    for train, row in zip(notes.of("train"), notes.of("test")):
        so_far |= {*train["clients"]}
        assert {*row["counted"]} == so_far
        assert len(row["clients"]) == 4  # the others are in the log, but not in the means
        values = [row["clients"][c]["top1"] for c in row["counted"]]
        assert row["metrics"]["top1_clients"] == pytest.approx(sum(values) / len(values))
    assert len(so_far) < 4


def test_all_clients_count_where_all_data_are_in_one_place(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, Centralised(), rounds=1, mean_over="trained")
    assert notes.of("test")[0]["counted"] == ["c0", "c1", "c2", "c3"]


def test_faults_of_every_kind_are_survived_and_named(tmp_path: Path) -> None:
    fed, notes = federate(tmp_path, Unlucky(), wrap=lambda e: Faulty(e, FAULTS), rounds=6, time_limit=3.0)
    refused = {(r["round"], r["client"]): (r["reason"], r["detail"]) for r in notes.of("refused")}
    assert {k: v[0] for k, v in refused.items()} == EXPECTED
    assert "the camera is broken" in refused[2, "c0"][1]
    assert "3 s" in refused[3, "c1"][1]
    assert [r["answered"] for r in notes.of("train")] == [3, 2, 2, 4, 4, 3]
    assert sum(fed.progress.refused.values()) == 8
    assert all(bool(t.isfinite().all()) for t in fed.weights.values())


def test_a_refused_update_has_no_influence(tmp_path: Path) -> None:
    spoiled, _ = federate(tmp_path / "a", FedAvg(), wrap=lambda e: Faulty(e, {(1, "c2"): "nan"}), rounds=1)

    def body(fed: Federation) -> None:
        average = Mean()
        for u in fed.train(["c0", "c1", "c3"], fed.weights):
            average.add(u.weights, u.samples)
        fed.weights = average.value

    honest, _ = in_a_round(tmp_path / "b", body)
    assert spoiled.weights.equal(honest.weights)


def test_too_few_answers_are_asked_for_again_and_then_the_run_stops(tmp_path: Path) -> None:
    calls: list[str] = []

    @dataclass(frozen=True)
    class Flaky(FedAvg):
        failures: int = 0

        def local_training(self, client: Client) -> None:
            calls.append(client.name)
            if client.name != "c0" and calls.count(client.name) <= self.failures:
                raise ConnectionError("gone")
            client.fit()

    fed, notes = federate(tmp_path / "a", Flaky(failures=1), rounds=1, min_answers=0.75)
    assert notes.of("train")[0]["clients"] == ["c0", "c1", "c2", "c3"]
    assert calls == ["c0", "c1", "c2", "c3", "c1", "c2", "c3"]
    whole, _ = federate(tmp_path / "b", FedAvg(), rounds=1)
    assert fed.weights.equal(whole.weights)  # the repetition made up for everything
    with pytest.raises(RunError, match=r"too few answers(.|\n)*at least 3 of 4(.|\n)*gone"):
        federate(tmp_path / "c", Flaky(failures=99), rounds=1, min_answers=0.75)


def test_a_run_whose_clients_all_diverge_says_so(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Wild(FedAvg):
        gone: str = ""  # a client that fails for another reason

        def local_training(self, client: Client) -> None:
            if client.name == self.gone:
                raise ConnectionError("gone")
            client.trained(math.nan)

    with pytest.raises(Diverged, match="too few answers"):
        federate(tmp_path / "a", Wild(), rounds=1)
    with pytest.raises(RunError, match="too few answers") as other:
        federate(tmp_path / "b", Wild(gone="c1"), rounds=1)
    assert not isinstance(other.value, Diverged)


def test_memory_and_models_are_what_a_later_federation_starts_from(tmp_path: Path) -> None:
    def rounds(fed: Federation) -> Iterator[int]:
        for r in fed.rounds():
            fed.memory["sum"] = fed.memory.get("sum", 0) + r
            yield r

    method = Script(lambda fed: [None for _ in rounds(fed)])
    engine = LocalEngine(make_worker(tmp_path, method))
    fed = Federation(engine, method, RoundConfig(rounds=3, evaluate_every=0), 0)
    method.run(fed)
    assert fed.memory["sum"] == 6
    longer = Federation(engine, method, RoundConfig(rounds=5, evaluate_every=0), 0, progress=fed.progress)
    method.run(longer)
    assert longer.memory["sum"] == 15


def test_global_models_are_kept_evenly_over_the_rounds(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path / "six", FedAvg(), rounds=6, keep_models=3)
    assert sorted(fed.models) == ["global", "round-0002", "round-0004", "round-0006"]
    assert fed.models["round-0006"].equal(fed.weights)
    four, _ = federate(tmp_path / "four", FedAvg(), rounds=4)
    assert fed.models["round-0004"].equal(four.weights), "a kept model is the one that a shorter run ends with"
    assert sorted(four.models) == ["global"]
