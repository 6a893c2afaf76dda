"""Who takes part in a job over Flower: every site that does not fit is named, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedreel.core.blueprint import Blueprint
from fedreel.engines.flower import roster
from fedreel.engines.flower.link import Link
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.roster import call_roster, make_roster
from fedreel.errors import RunError
from support.fakelink import FakeLink, job

WANTED = {"north": "n1", "south": "n2", "west": "n3"}
MADE = cast(Blueprint, SimpleNamespace(travelling=SimpleNamespace(id="layout7"), digest="digest7"))


def said(clients: Any, agreement: Any = "abc") -> dict[str, Any]:
    return {"site": "x", "clients": clients, "agreement": agreement, "fedreel": "0"}


def reasons(answers: Mapping[str, Any]) -> dict[str, str]:
    """Site -> reason, as the error tells them."""
    with pytest.raises(RunError) as caught:
        make_roster(WANTED, answers)
    lines = [line.strip() for line in caught.value.found.splitlines()]
    assert caught.value.problem == f"{len(lines)} of {len(answers)} sites cannot take part"
    return dict(line.split(": ", 1) for line in lines)


def test_sites_that_fit_make_a_roster() -> None:
    made = make_roster(WANTED, {"north": said(["b", "a"]), "south": said(["d"]), "west": said(["c"])})
    assert made.sites == {"north": ("b", "a"), "south": ("d",), "west": ("c",)}
    assert made.nodes == {"a": "n1", "b": "n1", "c": "n3", "d": "n2"}
    assert made.clients == ("a", "b", "c", "d")


def test_a_client_at_two_sites_is_named_with_both() -> None:
    told = reasons({"north": said(["a", "b"]), "south": said(["b"]), "west": said(["c"])})
    assert list(told) == ["south"]
    assert "'b'" in told["south"]
    assert "'north'" in told["south"]


def test_the_site_whose_classes_differ_from_the_others_is_named() -> None:
    told = reasons({"north": said(["a"], "x"), "south": said(["b"], "odd"), "west": said(["c"], "x")})
    assert list(told) == ["south"]
    assert "class names" in told["south"]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"clients": ["a"]},
        said(None),
        said("abc"),
        said([1, 2]),
        said({"a": 1}),
        [],
        None,
        5,
        said(["a"], ["no", "text"]),
    ],
    ids=str,
)
def test_a_site_whose_answer_cannot_be_read_is_named(answer: Any) -> None:
    told = reasons({"north": answer, "south": said(["b"]), "west": said(["c"])})
    assert told == {"north": "its answer cannot be read"}


def test_every_site_that_does_not_fit_is_named_at_once() -> None:
    wanted = {name: name for name in "abcdef"}
    answers: dict[str, Any] = {
        "a": said(["x"]),
        "b": said(["x"]),
        "c": said([]),
        "d": {"problem": "this site lets no weights out"},
        "e": {"clients": 5},
        "f": said(["y"], "other"),
    }
    with pytest.raises(RunError) as caught:
        make_roster(wanted, answers)
    told = dict(line.strip().split(": ", 1) for line in caught.value.found.splitlines())
    assert sorted(told) == ["b", "c", "d", "e", "f"]
    assert told["c"] == "it has no clients"
    assert told["d"] == "this site lets no weights out"
    assert caught.value.problem == "5 of 6 sites cannot take part"


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    made = FakeLink({"n1": "monday", "n2": "monday", "n3": "monday"})

    def sleep(seconds: float) -> None:
        made.now += seconds

    monkeypatch.setattr(roster, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=sleep))
    return made


def answer_all(link: FakeLink, answers: Mapping[str, Frame]) -> None:
    for sent in link.messages:
        if sent.node in answers:
            frame = answers[sent.node]
            link.coming.append(Frame({**frame.head, "number": sent.number}))


def test_the_roster_asks_each_wanted_site_once_and_takes_its_answer(link: FakeLink) -> None:
    answers = {n: Frame({"what": "reply", "content": said([f"c-{n}"])}) for n in ("n1", "n2", "n3")}
    link.coming.append(lambda: answer_all(link, answers))
    made = call_roster(job(), cast(Link, link), MADE, {"north": "n1", "west": "n3"}, 10)
    assert made.nodes == {"c-n1": "n1", "c-n3": "n3"}
    assert [s.node for s in link.messages] == ["n1", "n3"]
    head = cast(Frame, link.messages[0].content).head
    assert (head["type"], head["run"], head["start"], head["layout"]) == ("roster", "run7", 3, "layout7")
    assert head["frozen"] == "digest7"


def test_errors_and_silence_are_reasons_too(link: FakeLink) -> None:
    answers = {
        "n1": Frame({"what": "reply", "content": said(["a"])}),
        "n2": Frame({"what": "error", "reason": "the app raised"}),
    }
    link.coming += [lambda: answer_all(link, answers)] * 3
    with pytest.raises(RunError) as caught:
        call_roster(job(), cast(Link, link), MADE, WANTED, 10)
    assert "south: the app raised" in caught.value.found
    assert "west: no answer in time" in caught.value.found
    assert "north" not in caught.value.found
    assert [s.node for s in link.messages] == ["n1", "n2", "n3", "n2", "n2"]  # who fails is asked three times


def test_a_site_whose_first_answer_got_lost_is_asked_again(link: FakeLink) -> None:
    lost = {"n1": Frame({"what": "error", "reason": "lost"})}
    here = {"n1": Frame({"what": "reply", "content": said(["a"])})}
    link.coming += [lambda: answer_all(link, lost), lambda: answer_all(link, here)]
    assert call_roster(job(), cast(Link, link), MADE, {"north": "n1"}, 10).nodes == {"a": "n1"}


def test_a_site_that_is_not_connected_is_waited_for_and_then_named(link: FakeLink) -> None:
    del link.here["n2"], link.here["n3"]
    start = link.now
    with pytest.raises(RunError, match="not all sites are connected") as caught:
        call_roster(job(), cast(Link, link), MADE, WANTED, 10)
    assert 10 < link.now - start < 13
    assert "south, west" in caught.value.found
    assert link.messages == []


def test_a_site_whose_owner_has_to_approve_is_waited_for_and_named_meanwhile(link: FakeLink) -> None:
    waits = {"problem": "not approved yet", "waiting": True}
    told: list[Any] = []
    replies = {"n1": Frame({"what": "reply", "content": said(["a"])}), "n2": Frame({"what": "reply", "content": waits})}
    link.coming.append(lambda: answer_all(link, replies))
    approved = {"n2": Frame({"what": "reply", "content": said(["b"])})}
    started = link.now

    def tell(sites: Any) -> None:
        told.append((list(sites), link.now - started))
        if len(told) == 1:
            link.coming += [lambda: None] * 3 + [lambda: setattr(link, "now", link.now + 5000)]
            link.coming.append(lambda: link.coming.append(lambda: answer_all(link, approved)))

    made = call_roster(job(), cast(Link, link), MADE, {"north": "n1", "south": "n2"}, 10, 86400, tell)
    assert made.nodes == {"a": "n1", "b": "n2"}
    assert [sites for sites, _ in told] == [["south"], []]
    assert [s.node for s in link.messages] == ["n1", "n2", "n2"]


def test_a_site_whose_owner_does_not_approve_in_time_is_named(link: FakeLink) -> None:
    waits = {"n1": Frame({"what": "reply", "content": {"problem": "not approved yet", "waiting": True}})}
    link.coming += [lambda: answer_all(link, waits)]

    def again(sites: Any) -> None:
        link.coming += [lambda: setattr(link, "now", link.now + 100), lambda: None, lambda: answer_all(link, waits)]

    with pytest.raises(RunError, match="1 of 1 sites cannot take part") as caught:
        call_roster(job(), cast(Link, link), MADE, {"north": "n1"}, 10, 50, again)
    assert "north: not approved yet" in caught.value.found
