"""Harnesses for the messages of secure sums: as a server gets them from clients, and clients from a server."""

from __future__ import annotations

import copy
import json
import random

from fedreel.core.secure.collector import Collector
from fedreel.core.secure.messages import Session
from fedreel.core.secure.party import Distrust
from fuzz.harness import Harness
from fuzz.mutate import spoil_json
from support.sums import Disk, Sum

COUNT = 4
_done: list[Sum] = []


def done() -> Sum:
    """A sum whose messages are spoiled; made once."""
    if not _done:
        _done.append(Sum(COUNT, {"masked": ("c3",)}))
        _done[0].opened()
    return _done[0]


def said(phase: str) -> str:
    return json.loads(done().disks["c0"].text)["said"][phase]


def to_server() -> list[bytes]:
    """What one client says, phase by phase."""
    return [json.dumps([phase, said(phase)]).encode() for phase in ("keys", "shares", "agree", "open")]


def at_server(data: bytes) -> object:
    phase, text = json.loads(data)
    sum_ = done()
    if phase == "keys":
        return Collector(sum_.session).take_keys("c0", text)
    collector = copy.copy(sum_.collector)
    collector._sealed, collector._commitments = dict(collector._sealed), dict(collector._commitments)
    collector._signatures, collector._seeds, collector._keys = dict(collector._signatures), {}, {}
    if phase == "shares":
        return collector.take_shares("c0", text)
    return collector.take_signature("c0", text) if phase == "agree" else collector.take_opened("c0", text, sum_.left)


def to_client() -> list[bytes]:
    """What the server sends one client, phase by phase."""
    sum_ = done()
    messages = {
        "shares": sum_.collector.directory.text,
        "receive": sum_.collector.delivery("c0"),
        "agree": json.dumps(sum_.left),
        "open": sum_.collector.signatures,
    }
    return [json.dumps([phase, sum_.session.text, text]).encode() for phase, text in messages.items()]


def at_client(data: bytes) -> object:
    """A client that has come to the phase before. Whatever it is told, it says one kind of share of anybody."""
    phase, session, text = json.loads(data)
    sum_ = done()
    kept = json.loads(sum_.disks["c0"].text)
    before = {"shares": ("keys",), "open": ("keys", "shares", "agree")}.get(phase, ("keys", "shares"))
    kept["said"] = {name: kept["said"][name] for name in before}
    if phase == "shares":
        kept |= {"directory": "", "shares": {}, "shared": [], "masked": "", "left": []}
    elif phase == "receive":
        kept |= {"shared": [], "masked": "", "left": []}
    elif phase == "agree":
        kept |= {"left": []}
    party = Disk("c0", text=json.dumps(kept)).party(COUNT)
    read = Session.read(session)
    answer = getattr(party, phase)(read, text)
    if phase == "open":
        seeds, keys = map(json.loads, json.loads(answer))
        assert not set(seeds) & set(keys)
    return answer


def spoil_message(data: bytes, rng: random.Random) -> bytes:
    """The message alone, mostly; what is around it is the harness's."""
    *around, text = json.loads(data)
    if len(around) > 1 and rng.random() < 0.2:
        around[1] = spoil_json(around[1].encode(), rng).decode("utf-8", "replace")
    else:
        text = (
            spoil_json(text.encode(), rng).decode("utf-8", "replace") if text[0] in "[{" else text[rng.randrange(9) :]
        )
    return json.dumps([*around, text]).encode()


HARNESSES = (
    Harness("secure answers", to_server, at_server, spoil_message, errors=(ValueError,)),
    Harness("secure questions", to_client, at_client, spoil_message, errors=(ValueError, Distrust)),
)
