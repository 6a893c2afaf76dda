"""Messages of a simulation: one for each actor, and each order has its result whatever becomes of actors."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedreel.core.update import EVALUATE, Failure, Order, Update
from fedreel.engines.flower import dispatch, engine
from fedreel.engines.flower.cluster import FlowerSimEngine, Simulation
from fedreel.engines.flower.dispatch import Dispatch
from fedreel.engines.flower.pipe import Frame
from fedreel.errors import RecipeError, RunError
from support.fakelink import job, keys, orders, rest

pytest.importorskip("flwr", reason="needs the extra `flower`")
from support.near_cluster import NearCluster, NearLine, obey


def over(cluster: NearCluster, answer_bytes: int = 16, **told: Any) -> Dispatch:
    return Dispatch(job(), cast(Simulation, cluster), answer_bytes, told)


def carried(carrier: Dispatch, given: list[Order]) -> list[Any]:
    for order in given:
        carrier.submit("", order)
    return list(rest(carrier))


def test_each_actor_has_one_message_with_the_model_in_it_once() -> None:
    cluster = NearCluster(obey, actors=3)
    found = carried(over(cluster), orders(10))
    assert keys(found) == keys(orders(10))
    assert all(isinstance(result, Update) and result["step"] == result.step for result in found)
    assert sorted(len(told.clients) for told in cluster.messages) == [3, 3, 4]
    assert {told.node for told in cluster.messages} == {"n0", "n1", "n2"}
    assert all(len(told.content.arrays) == 1 for told in cluster.messages)
    assert [told.content.head["parts"] for told in cluster.messages if len(told.clients) == 4] == [[1] * 4]


def test_what_another_order_waits_for_travels_alone() -> None:
    cluster = NearCluster(obey)
    first, *others = orders(5)
    carried(over(cluster), [replace(first, awaited=True), *others])
    assert cluster.messages[0].clients == ["c0"]
    assert [len(told.clients) for told in cluster.messages] == [1, 2, 2]


def test_clients_are_placed_by_how_long_they_took() -> None:
    seconds = {"c0": 6.0, "c1": 1.0, "c2": 2.0, "c3": 3.0}

    def answer(node: str, content: Frame) -> Frame:
        return obey(node, content, seconds=[seconds[row["client"]] for row in content.head["orders"]])

    cluster = NearCluster(answer)
    carrier = over(cluster, train={"c0": 1, "c1": 9, "c2": 1, "c3": 1})
    carried(carrier, orders(4))
    assert [told.clients for told in cluster.messages] == [["c1"], ["c0", "c2", "c3"]]  # by samples
    carried(carrier, orders(4, round=2))
    assert [told.clients for told in cluster.messages[2:]] == [["c0"], ["c1", "c2", "c3"]]


def test_updates_that_leave_together_stay_together() -> None:
    cluster = NearCluster(obey)
    joint = [replace(order, together=("samples",)) for order in orders(10)]
    carried(over(cluster), joint)
    assert [(told.clients, told.content.head["parts"]) for told in cluster.messages] == [
        (["c0", "c1", "c2", "c3", "c8", "c9"], [4, 2]),
        (["c4", "c5", "c6", "c7"], [4]),
    ]


def test_a_large_answer_comes_in_several_messages_and_tests_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_ANSWER_BYTES", 80)
    cluster = NearCluster(obey, actors=1)
    carried(over(cluster), orders(12))
    assert [len(told.clients) for told in cluster.messages] == [5, 5, 2]
    cluster = NearCluster(lambda node, content: Frame({"results": [], "layouts": {}, "weights": []}), actors=1)
    carried(over(cluster), [replace(order, kind=EVALUATE) for order in orders(12)])
    assert [len(told.clients) for told in cluster.messages] == [12]


def test_a_client_over_whom_actors_die_costs_no_other_client_its_answer() -> None:
    cluster = NearCluster(obey, deadly={"c5"})
    found = carried(over(cluster), orders(16))
    assert keys(found) == keys(orders(16))
    failures = [result for result in found if isinstance(result, Failure)]
    assert [(failure.client, failure.reason) for failure in failures] == [("c5", "error")]
    assert "3 actors have died over it" in failures[0].detail
    dead = [len(told.clients) for told in cluster.messages if told.died]
    assert dead == [8, 4, 2, 1, 1, 1]  # in halves, and alone three times
    assert cluster.starts == 6  # each of them was the last of its simulation
    answered = [client for told in cluster.messages if not told.died for client in told.clients]
    assert sorted(answered) == sorted({f"c{i}" for i in range(16)} - {"c5"})  # nobody worked twice


def test_what_died_is_sent_again_only_when_the_others_have_answered() -> None:
    cluster = NearCluster(obey, deadly={"c0"})
    carrier = over(cluster)
    for order in orders(4):
        carrier.submit("", order)
    first = [carrier.next(), carrier.next()]
    assert keys(first) == [(1, 1), (1, 3)]
    assert cluster.starts == 1
    cluster.deadly = ()
    assert keys(rest(carrier)) == [(1, 0), (1, 2)]
    assert cluster.starts == 2


def test_a_part_over_which_an_actor_dies_is_not_divided() -> None:
    cluster = NearCluster(obey, actors=1, deadly={"c1"})
    joint = [replace(order, together=("samples",)) for order in orders(8)]
    found = carried(over(cluster), joint)
    assert [r.client for r in found if isinstance(r, Failure)] == ["c0", "c1", "c2", "c3"]
    assert [told.clients for told in cluster.messages if not told.died] == [["c4", "c5", "c6", "c7"]]


def test_an_actor_that_hangs_is_not_given_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(1.0)
    for module in (engine, dispatch):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    cluster = NearCluster(obey, silent={"c1"})
    carrier = over(cluster)
    for order in orders(4, limit=10.0):
        carrier.submit("", order)
    found = [carrier.next() for _ in range(4)]
    assert {r.client: r.reason for r in found if isinstance(r, Failure)} == dict.fromkeys(("c1", "c3"), "timeout")
    assert cluster.starts == 1
    cluster.silent = ()
    assert all(isinstance(result, Update) for result in carried(carrier, orders(4, limit=10.0, round=2)))
    assert {told.start for told in cluster.messages[2:]} == {2}


def test_where_every_actor_dies_every_order_has_failed_soon() -> None:
    cluster = NearCluster(obey, deadly={f"c{i}" for i in range(64)})
    found = carried(over(cluster), orders(64))
    assert keys(found) == keys(orders(64))
    assert all(isinstance(result, Failure) for result in found)
    assert cluster.starts == 1 + 5 + 2  # halves of 32 down to single orders, and these three times


def test_a_simulation_that_takes_no_message_ends_the_run() -> None:
    cluster = NearCluster(obey)
    carrier = over(cluster)
    cluster.restart = lambda: setattr(cluster, "link", NearLine(NearCluster(obey)))  # type: ignore[method-assign]
    cluster.restart()
    with pytest.raises(RunError, match="ends again and again"):
        carried(carrier, orders(4))


@pytest.mark.parametrize("settings", [{"actors": -1}, {"threads": 1.5}, {"actors": True}])
def test_a_number_of_actors_or_threads_that_is_none_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=rf"\[engine\] {next(iter(settings))}"):
        FlowerSimEngine.begin(job(), **settings)


def test_where_no_cluster_answers_the_run_says_so() -> None:
    with pytest.raises(RunError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        Simulation(address="127.0.0.1:1")
