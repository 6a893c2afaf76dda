"""Orders become messages and come back as results, one for each, whatever nodes and lines do."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedreel.core.update import Failure, Update
from fedreel.engines.flower import engine
from fedreel.engines.flower.link import Lost
from fedreel.engines.flower.pipe import Frame
from support.fakelink import FakeLink, Sent, error, keys, orders, reply, rest, then, transport


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    made = FakeLink()
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_orders_of_a_node_travel_together_and_results_come_in_their_order(link: FakeLink) -> None:
    carrier = transport(link, out="there", threads=2)
    for order in orders(5):
        carrier.submit("n1" if order.step % 2 else "n2", order)
    assert link.sent == []
    then(link, lambda: reply(link.messages[0]), lambda: reply(link.messages[1]))
    got = list(rest(carrier))
    assert [(s.node, s.clients) for s in link.messages] == [("n2", ["c0", "c2", "c4"]), ("n1", ["c1", "c3"])]
    assert [r.step for r in got] == [0, 2, 4, 1, 3]
    assert all(isinstance(r, Update) and r["step"] == r.step and r.weights is not None for r in got)
    head = cast(Frame, link.messages[0].content).head
    assert (head["type"], head["run"], head["start"], head["out"], head["threads"]) == ("orders", "run7", 3, "there", 2)
    assert head["recipe"]["engine"] == {"name": "auto"}


def test_with_nothing_under_way_there_is_no_next_result(link: FakeLink) -> None:
    assert transport(link).next() is None
    assert link.sent == []


def test_no_message_asks_for_an_answer_larger_than_a_message_may_be(link: FakeLink) -> None:
    carrier = transport(link, answer_bytes=engine._MESSAGE_BYTES // 2)
    for order in orders(5):
        carrier.submit("n1", order)
    then(link, *(lambda i=i: reply(link.messages[i]) for i in range(3)))  # type: ignore[misc]
    assert keys(rest(carrier)) == [(1, i) for i in range(5)]
    assert [len(s.clients) for s in link.messages] == [2, 2, 1]


@pytest.mark.parametrize("known", [True, False], ids=["an error of Flower's", "a node that nobody has seen"])
def test_what_an_unavailable_node_did_not_take_is_sent_again_when_it_is_back(link: FakeLink, known: bool) -> None:
    link.here = {"n1": "monday"} if known else {}
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])
    link.coming.append(Frame({"what": "nodes", "number": 0, "nodes": dict(link.here)}))
    then(link, lambda: error(link.messages[0], "2: Node Unavailable" if known else "some error"))
    link.coming.append(lambda: link.here.update(n1="tuesday"))
    link.coming.append(lambda: answer_next(link, after=1))
    assert isinstance(carrier.next(), Update)
    assert len(link.messages) == 2
    assert carrier.next() is None


def answer_next(link: FakeLink, after: int) -> None:
    """Answer the message after so many, once it has been sent."""
    if len(link.messages) > after:
        link.coming.append(reply(link.messages[after]))
    else:
        link.now += 1
        link.coming.append(lambda: answer_next(link, after))


@pytest.mark.parametrize("refused", [True, False], ids=["refused by Flower", "gone while it worked"])
def test_orders_of_a_node_that_stays_away_fail_when_patience_ends(link: FakeLink, refused: bool) -> None:
    link.here = {"n2": "monday"}
    carrier = transport(link, patience=100)
    for order in orders(3):
        carrier.submit("n1", order)
    if refused:
        then(link, lambda: error(link.messages[0], "node unavailable"))
    start = link.now
    got = list(rest(carrier))
    assert [(r.step, r.reason) for r in got if isinstance(r, Failure)] == [(i, "offline") for i in range(3)]
    assert 100 < link.now - start < 120
    assert link.dropped == ([] if refused else [link.messages[0].number])


def test_without_patience_an_absent_node_is_given_up_at_once(link: FakeLink) -> None:
    link.here = {}
    carrier = transport(link, patience=0)
    carrier.submit("n1", orders(1)[0])
    start = link.now
    assert [r.reason for r in rest(carrier) if isinstance(r, Failure)] == ["offline"]
    assert link.now - start < 10


def test_a_node_that_was_given_up_once_is_not_waited_for_as_long_again(link: FakeLink) -> None:
    link.here = {}
    carrier = transport(link, patience=1000)
    carrier.submit("n1", orders(1)[0])
    assert [r.reason for r in rest(carrier) if isinstance(r, Failure)] == ["offline"]
    start = link.now
    carrier.submit("n1", orders(2)[1])
    assert [r.reason for r in rest(carrier) if isinstance(r, Failure)] == ["offline"]
    assert link.now - start < 100
    link.here = {"n1": "tuesday"}
    carrier.submit("n1", orders(3)[2])
    link.coming.append(lambda: answer_next(link, after=len(link.messages)))
    assert [type(r) for r in rest(carrier)] == [Update]


def test_a_node_that_is_away_for_less_than_the_patience_loses_nothing(link: FakeLink) -> None:
    carrier = transport(link, patience=100)
    carrier.submit("n1", orders(1)[0])
    link.coming.extend([Frame({"what": "nodes", "number": 0, "nodes": {}}), lambda: setattr(link, "now", 1090.0)])
    link.coming.append(Frame({"what": "nodes", "number": 0, "nodes": dict(link.here)}))
    link.coming.append(lambda: setattr(link, "now", 1180.0))
    then(link, lambda: reply(link.messages[0]))
    assert isinstance(carrier.next(), Update)
    assert len(link.messages) == 1


def test_a_node_that_started_anew_gets_its_message_again_and_the_old_answer_is_ignored(link: FakeLink) -> None:
    carrier = transport(link)
    for order in orders(2):
        carrier.submit("n1", order)
    carrier.submit("n2", orders(3)[2])
    link.coming.append(Frame({"what": "nodes", "number": 0, "nodes": {"n1": "monday", "n2": "monday"}}))
    link.coming.append(Frame({"what": "nodes", "number": 0, "nodes": {"n1": "tuesday", "n2": "monday"}}))
    then(link, lambda: reply(link.messages[0]), lambda: reply(link.messages[1]), lambda: reply(link.messages[2]))
    then(link, lambda: reply(link.messages[2]))
    got = list(rest(carrier))
    assert [s.node for s in link.messages] == ["n1", "n2", "n1"]
    assert link.dropped == [link.messages[0].number]
    assert [r.step for r in got] == [2, 0, 1]


def test_after_a_lost_line_everything_open_is_sent_again(link: FakeLink) -> None:
    carrier = transport(link)
    for order in orders(3):
        carrier.submit(f"n{1 + order.step % 2}", order)
    then(link, lambda: reply(link.messages[0]))
    link.coming.append(None)
    link.after.append(lambda: link.coming.extend(reply(s) for s in link.messages))
    assert keys(rest(carrier)) == [(1, 0), (1, 1), (1, 2)]
    assert [m.clients for m in link.messages] == [["c0", "c2"], ["c1"], ["c1"]]
    assert link.connections == 1


def test_what_could_not_be_sent_over_a_lost_line_is_sent_when_it_is_back(link: FakeLink) -> None:
    carrier = transport(link)
    for order in orders(2):
        carrier.submit(f"n{1 + order.step}", order)
    link.broken_sends = ["send"]
    then(link, lambda: reply(link.messages[0]), lambda: reply(link.messages[1]))
    link.after = link.coming.copy()
    assert keys(rest(carrier)) == [(1, 0), (1, 1)]
    assert link.connections == 1


def test_an_order_without_an_answer_in_its_time_fails_and_a_late_answer_is_ignored(link: FakeLink) -> None:
    carrier = transport(link)
    for order in orders(2, limit=30.0):
        carrier.submit("n1", order)
    start = link.now
    got = [carrier.next(), carrier.next()]
    assert [(r.step, r.reason) for r in got if isinstance(r, Failure)] == [(0, "timeout"), (1, "timeout")]
    assert link.now - start > 60  # both orders' time, and some for the way
    assert link.dropped == [link.messages[0].number]
    link.coming.append(reply(link.messages[0]))
    carrier.submit("n2", orders(3)[2])
    then(link, lambda: reply(link.messages[1]))
    assert keys(rest(carrier)) == [(1, 2)]


def test_an_order_without_a_limit_is_waited_for_while_its_node_is_there(link: FakeLink) -> None:
    carrier = transport(link, patience=1)
    carrier.submit("n1", orders(1)[0])
    carrier.submit("n1", orders(2, limit=1.0)[1])
    for _ in range(1000):
        link.coming.append(lambda: setattr(link, "now", link.now + 3))
    then(link, lambda: reply(link.messages[0]))
    assert [type(r) for r in rest(carrier)] == [Update, Update]


def test_a_message_without_an_answer_for_hours_is_sent_again(link: FakeLink) -> None:
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])
    link.coming.append(lambda: setattr(link, "now", link.now + 7200))
    link.coming.append(lambda: answer_next(link, after=1))
    assert [type(r) for r in rest(carrier)] == [Update]
    assert link.dropped == [link.messages[0].number]


def test_a_problem_of_the_whole_site_fails_all_its_orders(link: FakeLink) -> None:
    carrier = transport(link)
    for order in orders(2):
        carrier.submit("n1", order)
    link.coming.append(Frame({"what": "reply", "number": 1, "content": {"site": "s", "problem": "p" * 10**5}}))
    got = list(rest(carrier))
    assert [(r.step, r.reason, r.detail) for r in got if isinstance(r, Failure)] == [
        (i, "error", "p" * 2000) for i in range(2)
    ]


def test_a_node_that_is_there_and_fails_gets_its_message_three_times(link: FakeLink) -> None:
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])
    link.coming.append(Frame({"what": "nodes", "number": 0, "nodes": dict(link.here)}))
    then(link, *(lambda nth=nth: error(link.messages[nth], "8: the app stopped") for nth in range(3)))
    got = carrier.next()
    assert isinstance(got, Failure)
    assert (got.reason, got.detail) == ("error", "8: the app stopped")
    assert [m.clients for m in link.messages] == [["c0"]] * 3


def test_an_answer_that_is_rubbish_fails_its_orders(link: FakeLink) -> None:
    carrier = transport(link)
    for order in orders(2):
        carrier.submit("n1", order)
    link.coming.append(Frame({"what": "reply", "number": 1, "content": {"results": 5}}))
    assert [r.reason for r in rest(carrier) if isinstance(r, Failure)] == ["rubbish", "rubbish"]


@pytest.mark.parametrize("content", [[], None, "text", 5], ids=str)
def test_an_answer_that_is_no_table_fails_its_orders(link: FakeLink, content: Any) -> None:
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])
    link.coming.append(Frame({"what": "reply", "number": 1, "content": content}))
    assert [r.reason for r in rest(carrier) if isinstance(r, Failure)] == ["rubbish"]


def test_a_line_that_breaks_between_two_messages_to_a_node_loses_no_order(link: FakeLink) -> None:
    carrier = transport(link, answer_bytes=engine._MESSAGE_BYTES)
    for order in orders(3):
        carrier.submit("n1", order)
    link.broken_sends = ["send"]
    link.after.append(lambda: answer_next(link, after=0))
    link.after.append(lambda: answer_next(link, after=1))
    link.after.append(lambda: answer_next(link, after=2))
    assert keys(rest(carrier)) == [(1, 0), (1, 1), (1, 2)]


def test_a_line_that_breaks_while_a_message_waits_for_its_node_loses_no_order(link: FakeLink) -> None:
    link.here = {"n1": "monday"}
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])
    carrier.submit("n2", orders(2)[1])
    then(link, lambda: error(link.messages[1], "node unavailable"), lambda: reply(link.messages[0]))
    assert isinstance(carrier.next(), Update)
    carrier.submit("n1", orders(3)[2])
    link.broken_sends, link.here = ["send"], {"n1": "monday", "n2": "monday"}
    link.after.append(lambda: link.coming.extend(reply(s) for s in link.messages[2:]))
    assert keys(rest(carrier)) == [(1, 1), (1, 2)]


@pytest.mark.parametrize("how", ["its node is away", "its node is new", "its time is over"])
def test_a_line_that_breaks_when_a_message_is_dropped_loses_no_order(link: FakeLink, how: str) -> None:
    carrier = transport(link, patience=0)
    carrier.submit("n1", orders(1, limit=1.0 if how == "its time is over" else None)[0])
    link.coming.append(Frame({"what": "nodes", "number": 0, "nodes": {"n1": "monday"}}))
    if how != "its time is over":
        link.here = {} if how == "its node is away" else {"n1": "tuesday"}
    link.broken_sends = ["drop"]
    link.after.append(lambda: link.coming.extend(reply(s) for s in link.messages[1:]))
    assert keys(rest(carrier)) == [(1, 0)]


def test_a_line_may_break_again_while_it_is_mended(link: FakeLink) -> None:
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])
    link.broken_sends = ["send", "send"]
    link.after.append(lambda: link.coming.extend(reply(s) for s in link.messages))
    assert keys(rest(carrier)) == [(1, 0)]


class World(FakeLink):
    """Nodes come and go, answers come twice, late or not at all, and the line breaks, until it is calm."""

    def start(self, seed: int, fragile: str) -> World:
        self.rng, self.fragile = random.Random(seed), fragile
        self.pending: list[Sent] = []
        self.left = 150
        return self

    def send(self, what: str, **options: Any) -> int:
        if what == self.fragile and self.left and self.rng.random() < 0.1:
            raise self._break()
        number = super().send(what, **options)
        if what == "send":
            self.pending.append(self.sent[-1])
        return number

    def event(self, timeout: float) -> Frame | None:
        if not self.coming:
            self.now += self.rng.choice((0.01, 1, 20))
            self.left = max(0, self.left - 1)
            self._happen()
        return super().event(timeout)

    def _happen(self) -> None:
        node, chance = self.rng.choice(("n1", "n2", "n3")), self.rng.random() if self.left else 0.99
        if not self.left:
            self.here = {n: self.here.get(n, "last") for n in ("n1", "n2", "n3")}
        if chance < 0.15:
            self.here.pop(node, None)
        elif chance < 0.35:
            self.here[node] = f"{self.now}"
            self.pending = [s for s in self.pending if s.node != node or self.rng.random() < 0.3]
        elif chance < 0.40:
            raise self._break()
        elif self.pending:
            sent = self.rng.choice(self.pending)
            if chance < 0.5 and sent.node not in self.here:
                self.coming.append(error(sent, "Node Unavailable"))
                self.pending.remove(sent)
            elif sent.node in self.here:
                self.coming.append(reply(sent))
                if self.rng.random() < 0.7:
                    self.pending.remove(sent)  # otherwise it is answered once more

    def _break(self) -> Lost:
        self.pending.clear()
        return Lost()


@pytest.mark.parametrize("fragile", ["", "nodes", "send", "drop"])
def test_each_order_gets_exactly_one_result_whatever_happens(monkeypatch: pytest.MonkeyPatch, fragile: str) -> None:
    kinds = set()
    for seed in range(60):
        world = World({"n1": "a", "n2": "a", "n3": "a"}).start(seed, fragile)
        monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda world=world: world.now))
        carrier = transport(world, patience=100, answer_bytes=engine._MESSAGE_BYTES // 2)
        got: list[Any] = []
        for round in range(1, 4):
            ordered = orders(6, limit=world.rng.choice((None, 50.0)), round=round)
            for order in ordered:
                carrier.submit(f"n{1 + order.step % 3}", order)
            got += [carrier.next() for _ in ordered[: world.rng.randrange(7)]]
        got += rest(carrier)
        assert keys(got) == [(round, step) for round in range(1, 4) for step in range(6)], f"seed {seed}"
        kinds |= {r.reason if isinstance(r, Failure) else "update" for r in got}
    assert {"update", "offline", "timeout"} <= kinds


def test_a_site_that_always_says_it_is_about_to_come_is_given_up(link: FakeLink) -> None:
    """With nobody else to compare it with, so no straggler."""
    carrier = transport(link)
    carrier.submit("n1", orders(1)[0])

    def unavailable() -> None:
        if len(link.messages) <= engine._SENDS:
            link.now += 1
            link.coming.append(error(link.messages[-1], "2: Node Unavailable"))
            link.coming.append(unavailable)

    link.coming.append(unavailable)
    (failure,) = rest(carrier)
    assert isinstance(failure, Failure)
    assert failure.reason == "error"
    assert len(link.messages) == engine._SENDS


@pytest.mark.parametrize("stragglers", [0.0, 30.0])
def test_a_silent_site_is_given_up_when_half_of_the_orders_are_answered(link: FakeLink, stragglers: float) -> None:
    carrier = transport(link, stragglers=stragglers)
    for order in orders(2):
        carrier.submit(f"n{order.step + 1}", order)
    link.coming.append(lambda: setattr(link, "now", link.now + 200))  # the first takes 200 s
    then(link, lambda: reply(link.messages[0]))
    assert isinstance(carrier.next(), Update)
    if not stragglers:
        with pytest.raises(AssertionError, match="waits for ever"):
            carrier.next()
        return
    link.waited = -5000.0
    failure = carrier.next()
    assert isinstance(failure, Failure)
    assert failure.reason == "timeout"
    assert "6000 s" in failure.detail
