"""Secure sums without engines: who may get lost, and which lies of a server open nothing."""

from __future__ import annotations

import itertools
import json

import pytest

pytest.importorskip("cryptography", reason="needs the extra `secure`")
from fedreel.core.secure.collector import Collector
from fedreel.core.secure.crypto import derived
from fedreel.core.secure.masks import Vector, mask
from fedreel.core.secure.messages import Directory, Entry, Rubbish, Session
from fedreel.core.secure.party import Distrust, own_purpose
from fedreel.errors import RunError
from support.sums import PHASES, SENT, Disk, Sum, copied, rings, session, total

LAST = PHASES[-1]


def same(one: Vector, other: Vector) -> bool:
    return bool((one.head == other.head).all() and (one.body == other.body).all())


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_is_the_plain_sum_and_no_part_is_the_plain_part(bits: int) -> None:
    done = Sum(4, bits=bits)
    assert same(done.opened(), total(done.vectors, done.disks))
    for client, vector in done.hidden.items():
        assert not (vector.head == done.vectors[client].head).any()
        assert not (vector.body == done.vectors[client].body).any()


def test_whoever_gets_lost_in_whatever_phase_the_sum_is_of_the_others() -> None:
    """Every choice of none or one of four clients in every phase: the threshold is three."""
    for phase, gone in itertools.product(PHASES, [(), *((f"c{i}",) for i in range(4))]):
        done = Sum(4, {phase: gone})
        gone_before = set(gone) if phase in PHASES[:3] else set()
        assert same(done.opened(), total(done.vectors, set(done.disks) - gone_before)), (phase, gone)


@pytest.mark.parametrize("phase", PHASES)
def test_three_of_ten_may_get_lost_and_not_four(phase: str) -> None:
    done = Sum(10, {phase: ("c0", "c4", "c9")})
    left = set(done.disks) - ({"c0", "c4", "c9"} if phase in PHASES[:3] else set())
    assert same(done.opened(), total(done.vectors, left))
    with pytest.raises((Distrust, RunError)):
        Sum(10, {phase: ("c0", "c4", "c8", "c9")}).opened()


def test_one_may_get_lost_in_each_of_three_phases() -> None:
    done = Sum(10, {"shares": ("c1",), "masked": ("c5",), "open": ("c7",)})
    assert same(done.opened(), total(done.vectors, set(done.disks) - {"c1", "c5"}))


@pytest.mark.parametrize(("count", "threshold"), [(1, 1), (2, 2), (3, 3), (4, 3), (9, 7), (10, 7), (100, 67)])
def test_more_than_two_thirds_must_be_left(count: int, threshold: int) -> None:
    assert Session("r", 1, 1, tuple(sorted(f"c{i}" for i in range(count))), ("equal",)).threshold == threshold
    assert 3 * threshold > 2 * count


def test_a_repeated_question_gets_the_same_bytes_also_from_a_client_that_was_killed() -> None:
    """Every party here is made anew of what lies on its disk."""
    done = Sum(4, {"masked": ("c3",)})
    done.opened()
    first = done.disks["c0"].text
    assert done.say("c0", lambda p: p.keys(done.session)) == json.loads(first)["said"]["keys"]
    text = done.collector.directory.text
    assert done.say("c0", lambda p: p.shares(done.session, text)) == json.loads(first)["said"]["shares"]
    assert done.say("c0", lambda p: p.agree(done.session, '["c0", "c1", "c2"]')) == json.loads(first)["said"]["agree"]
    assert done.say("c0", lambda p: p.open(done.session, "{}")) == json.loads(first)["said"]["open"]
    assert done.disks["c0"].text == first
    again = Sum(4).until("agree")
    assert same(again.masked("c0"), again.hidden["c0"])


def test_nothing_is_said_that_is_not_written_down() -> None:
    """A disk that is full: the answer does not leave, and the next one is another."""
    done = Sum(4)
    party = done.disks["c0"].party(4)

    def full(kept: object) -> None:
        raise OSError(28, "No space left on device")

    party._save = full
    with pytest.raises(OSError, match="No space"):
        party.keys(done.session)
    assert json.loads(done.disks["c0"].text)["said"] == {}


# a server that lies


def test_a_second_and_different_part_does_not_leave_under_the_same_masks() -> None:
    done = Sum(4).until("agree")
    done.vectors["c0"] = copied(done.vectors["c1"])
    with pytest.raises(Distrust, match="sent another part of this sum before"):
        done.masked("c0")
    with pytest.raises(Distrust, match="sent its part of this sum before"):
        done.masked("c0", sent=b"\1" * 32)


def test_two_stories_of_who_is_left_open_nothing() -> None:
    """c3 is left for one half and lost for the other: then both kinds of its shares would be told."""
    done = Sum(4).until("agree")
    stories = {"c0": done.left, "c1": done.left, "c2": done.left[:3], "c3": done.left}
    for client, left in stories.items():
        said = done.say(client, lambda p, left=left: p.agree(done.session, json.dumps(left)))  # type: ignore[misc]
        done.collector.take_signature(client, said)
    with pytest.raises(Distrust, match="not enough clients have signed"):
        done.say("c2", lambda p: p.open(done.session, json.dumps({"c2": done.collector._signatures["c2"].hex()})))
    with pytest.raises(Distrust, match="has told this client before that others are left"):
        done.say("c2", lambda p: p.agree(done.session, json.dumps(done.left)))
    said = done.say("c0", lambda p: p.open(done.session, done.collector.signatures))  # three have signed the same
    assert set(json.loads(json.loads(said)[0])) == {"c0", "c1", "c2", "c3"}
    assert json.loads(json.loads(said)[1]) == {}  # of c3 the seed, and never the key


def test_of_nobody_both_kinds_of_share_are_told_however_often_the_server_asks() -> None:
    done = Sum(10, {"masked": ("c9",)})
    done.opened()
    told: dict[str, set[str]] = {}
    asked = [json.dumps(list(some)) for some in itertools.combinations(sorted(done.disks), 9)]
    for client, left in itertools.product(done.left, asked):
        for question in (lambda p, x=left: p.agree(done.session, x), lambda p: p.open(done.session, "{}")):
            try:
                said = done.say(client, question)
            except (Distrust, Rubbish):
                continue
            if said.startswith("["):
                for kind, table in zip(("seed", "key"), map(json.loads, json.loads(said))):
                    for owner in table:
                        told.setdefault(owner, set()).add(kind)
    assert told == {**{f"c{i}": {"seed"} for i in range(9)}, "c9": {"key"}}


def test_two_stories_of_the_keys_end_with_shares_that_cannot_be_opened() -> None:
    """c3's keys are left out for c0: so c0 shares with others than c1 believes."""
    done = Sum(4).until("shares")
    whole = done.collector.directory
    part = Directory.of(done.session, [e for c, e in whole.items() if c != "c3"])
    shares = {c: done.say(c, lambda p: p.shares(done.session, whole.text)) for c in ("c1", "c2")}
    shares["c0"] = done.say("c0", lambda p: p.shares(done.session, part.text))
    sealed = {c: json.loads(json.loads(text)[1]) for c, text in shares.items()}
    with pytest.raises(Distrust, match="were not sealed for this sum"):
        done.disks["c1"].party(4).receive(
            done.session, json.dumps({"c0": sealed["c0"]["c1"], "c2": sealed["c2"]["c1"]})
        )
    with pytest.raises(Distrust, match="told this client of other keys before"):
        done.say("c0", lambda p: p.shares(done.session, whole.text))


def test_keys_that_the_server_made_are_refused() -> None:
    done = Sum(4).until("shares")
    forged = Sum(4)
    stranger = Disk("c3", ring=rings(5)["c4"])  # a site that c0 knows under no such key
    entry = Entry.read(json.loads(stranger.party(4).keys(forged.session)))
    others = [e for c, e in done.collector.directory.items() if c != "c3"]
    for false in (entry, Entry("c3", "c3", entry.channel, entry.masking, entry.signature)):
        text = Directory.of(done.session, [*others, false]).text
        with pytest.raises(Distrust, match="not signed by a site that is known here"):
            done.say("c0", lambda p, text=text: p.shares(done.session, text))  # type: ignore[misc]
    own = done.collector.directory["c1"]
    replaced = [e for c, e in done.collector.directory.items() if c != "c0"]
    swapped = Entry("c0", "c0", entry.channel, entry.masking, own.signature)
    with pytest.raises(Distrust, match="replaced this client's keys"):
        done.say("c0", lambda p: p.shares(done.session, Directory.of(done.session, [*replaced, swapped]).text))


@pytest.mark.parametrize("other", [{"round": 2}, {"run": "s"}, {"start": 2}, {"by": ("samples",)}])
def test_keys_of_another_sum_are_good_for_nothing_in_this_one(other: dict[str, object]) -> None:
    done, elsewhere = Sum(4).until("shares"), session(4, **other)
    old = Entry.read(json.loads(Disk("c3").party(4).keys(elsewhere)))
    rest = [e for c, e in done.collector.directory.items() if c != "c3"]
    with pytest.raises(Distrust, match="not signed by a site that is known here"):
        done.say("c0", lambda p: p.shares(done.session, Directory.of(done.session, [*rest, old]).text))
    with pytest.raises(Distrust, match="has no keys for such a sum"):
        done.say("c0", lambda p: p.shares(elsewhere, done.collector.directory.text))


def test_small_cohorts_are_refused_at_the_beginning_and_at_the_end() -> None:
    two = Session("r", 1, 1, ("c0", "c1"), ("equal",))
    with pytest.raises(Distrust, match="so small a sum"):
        Disk("c0").party(4).keys(two)
    with pytest.raises(Distrust, match="so small a sum"):
        Disk("c3").party(4).keys(Session("r", 1, 1, ("c0", "c1", "c2"), ("equal",)))
    done = Sum(4).until("agree")
    with pytest.raises(Distrust, match="too few take part"):
        done.say("c0", lambda p: p.agree(done.session, '["c0", "c1"]'))
    large = Sum(10).until("shares")
    few = Directory.of(large.session, [large.collector.directory[f"c{i}"] for i in range(6)])
    with pytest.raises(Distrust, match="too few take part"):
        large.say("c0", lambda p: p.shares(large.session, few.text))


def test_clients_of_one_site_are_one_to_the_least_cohort() -> None:
    """Ten clients, nine of them at one site."""
    ring = rings(10)
    disks = {c: Disk(c, ring=ring["c0"] if c != "c9" else None, min_cohort=2) for c in ring}
    sum_ = Collector(session(10))
    for client, disk in disks.items():
        sum_.take_keys(client, disk.party(10).keys(sum_.session))
    assert sum_.directory.threshold == 10
    disks["c9"].min_cohort = 3
    with pytest.raises(Distrust, match="too few take part"):
        disks["c9"].party(10).shares(sum_.session, sum_.directory.text)


@pytest.mark.parametrize("largest", range(1, 10))
def test_the_server_and_one_site_cannot_have_the_others_agree_on_two_ends(largest: int) -> None:
    """All clients of the largest site sign every story, each other client one: two stories do not get enough."""
    collector = Collector(session(10))
    for number, client in enumerate(collector.session.cohort):
        ring = rings(10)["c0" if number < largest else client]
        collector.take_keys(client, Disk(client, ring=ring).party(10).keys(collector.session))
    honest = 10 - largest
    assert collector.directory.threshold == min(10, max(7, (10 + largest) // 2 + 1))
    for one in range(honest + 1):
        enough = [largest + some >= collector.directory.threshold for some in (one, honest - one)]
        assert not all(enough)


def test_a_round_is_summed_once() -> None:
    done = Sum(4)
    done.opened()
    for again in (session(4, start=2), session(4, start=2, cohort=("c0", "c1", "c2")), session(4, round=0)):
        with pytest.raises(Distrust, match="has sent its part of the sum of round 1 before"):
            done.say("c0", lambda p, again=again: p.keys(again))  # type: ignore[misc]
    assert done.say("c0", lambda p: p.keys(session(4, start=2, round=2)))
    fresh = Sum(4).until("masked")  # nothing of it has left: a server that starts anew may begin again
    assert fresh.say("c0", lambda p: p.keys(session(4, start=2)))


def test_other_models_for_some_make_masks_that_do_not_cancel() -> None:
    """A server that sends c0 the model and all others one that learns nothing would find c0's part in the sum."""
    done = Sum(4).until("masked")
    done.left = [*done.disks]
    done.hidden = {c: done.masked(c, SENT if c == "c0" else b"\1" * 32) for c in done.disks}
    left = json.dumps(done.left)
    for client in done.disks:
        done.collector.take_signature(client, done.say(client, lambda p: p.agree(done.session, left)))
    with pytest.raises(Distrust, match="not enough clients have signed"):
        done.say("c0", lambda p: p.open(done.session, done.collector.signatures))
    for client in ("c1", "c2", "c3"):  # three are enough, and have signed the same
        said = done.say(client, lambda p: p.open(done.session, done.collector.signatures))
        done.collector.take_opened(client, said, done.left)
    found = total(done.hidden, done.left)
    sum_ = done.collector
    for client in done.left:  # it knows what it has sent to whom, and so takes off everybody's own mask rightly
        sent = SENT if client == "c0" else b"\1" * 32
        seed = sum_._joined(client, sum_._seeds, lambda s, c=client: sum_._is_seed(c, s))  # type: ignore[misc]
        mask(found, derived(seed, own_purpose(sum_.directory.digest, sent, client)), -1)
    assert not (found.body == total(done.vectors, done.disks).body).any()


# clients that lie


def test_a_false_share_is_found_out_and_others_are_taken() -> None:
    done = Sum(10, {"masked": ("c9",)}).until("open")
    for client in done.left:
        seeds, keys = map(
            json.loads, json.loads(done.say(client, lambda p: p.open(done.session, done.collector.signatures)))
        )
        if client == "c2":
            seeds["c0"] = keys["c9"] = "01" * 66
        done.collector.take_opened(client, json.dumps([json.dumps(seeds), json.dumps(keys)]), done.left)
    found = total(done.hidden, done.left)
    done.collector.unmask(found, done.left, SENT)
    assert same(found, total(done.vectors, done.left))


def test_rubbish_of_a_client_is_refused_by_the_server() -> None:
    done = Sum(4).until("shares")
    for text in ("", "[]", "null", '["c1", "c1", "00", "00", "00"]', done.say("c0", lambda p: p.keys(done.session))):
        with pytest.raises(Rubbish):
            Collector(done.session).take_keys("c1", text)
    for text in ("{}", '["00", "{}"]', json.dumps(["00" * 32, json.dumps({"c1": "00" * 160})])):
        with pytest.raises(Rubbish):
            done.collector.take_shares("c0", text)
    with pytest.raises(Rubbish):
        done.collector.take_opened("c0", '["{}", "{}"]', ["c0"])


def test_a_session_is_what_it_says() -> None:
    made = session(4)
    assert Session.read(made.text) == made
    for cohort in (("c1", "c0"), ("c0", "c0")):
        with pytest.raises(Rubbish):
            session(4, cohort=cohort)
    with pytest.raises(Rubbish):
        session(4, by=("a", "b", "c"))
    for text in ("{}", '["r", 1, 1, [1], ["a"]]', '["r", 1, 1, ["c0"], []]', "nonsense"):
        with pytest.raises(Rubbish):
            Session.read(text)
