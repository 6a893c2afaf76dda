"""A line to a SuperLink that a test holds at the other end, and orders and answers to send over it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from fedreel.config import Recipe
from fedreel.core.job import Job
from fedreel.core.update import TRAIN, Failure, Order, Update
from fedreel.core.weights import Weights
from fedreel.engines.flower.engine import Transport
from fedreel.engines.flower.link import Link, Lost
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.wire import pack_results, unpack_orders
from fedreel.methods.fedavg import FedAvg
from support.toy import Toy

MODEL = Weights.of({"w": torch.arange(4.0)})
WAITS = 5000  # seconds of waiting in vain after which a test says that the transport hangs


@dataclass
class Sent:
    what: str
    number: int
    node: str
    content: Frame | None

    @property
    def clients(self) -> list[str]:
        assert self.content is not None
        return [row["client"] for row in self.content.head["orders"]]


@dataclass
class FakeLink:
    """Records what is sent, plays what is put on `coming`, tells who is `here`. Time passes while it waits."""

    here: dict[str, str] = field(default_factory=lambda: {"n1": "monday", "n2": "monday"})
    sent: list[Sent] = field(default_factory=list)
    coming: deque[Frame | Callable[[], None] | None] = field(default_factory=deque)  # None: the line breaks
    now: float = 1000.0
    after: deque[Frame | Callable[[], None] | None] = field(default_factory=deque)  # what comes after a reconnection
    broken_sends: list[str] = field(default_factory=list)  # kinds of frames at which the line breaks, once each
    connections: int = 0
    waited: float = 0.0

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def send(self, what: str, *, content: Frame | None = None, node: str = "", ttl: float = 0, number: int = 0) -> int:
        number = number or next(self._numbers)
        if what in self.broken_sends:
            self.broken_sends.remove(what)
            raise Lost
        self.sent.append(Sent(what, number, node, content))
        if what == "nodes":
            self.coming.append(Frame({"what": "nodes", "number": number, "nodes": dict(self.here)}))
        return number

    def event(self, timeout: float) -> Frame | None:
        if not self.coming:
            self.now += timeout
            self.waited += timeout
            assert self.waited < WAITS, "waits for ever"
            return None
        coming = self.coming.popleft()
        if callable(coming):
            coming()
            return None
        if coming is None:
            raise Lost
        return coming

    def nodes(self, timeout: float = 30) -> dict[str, str]:
        self.send("nodes")
        self.coming.pop()
        return dict(self.here)

    def connect(self, wait: float) -> None:
        self.connections += 1
        self.coming = self.after.copy()

    @property
    def messages(self) -> list[Sent]:
        return [s for s in self.sent if s.what == "send"]

    @property
    def dropped(self) -> list[int]:
        return [s.number for s in self.sent if s.what == "drop"]


def job(**recipe: Any) -> Job:
    return Job(Recipe(**recipe), Toy(), FedAvg(), torch.device("cpu"), Path("nowhere"), "run7", 3)


def transport(link: FakeLink, patience: float = 100.0, answer_bytes: int = 1000, **head: Any) -> Transport:
    return Transport(job(), cast(Link, link), answer_bytes, patience, **head)


def orders(n: int, limit: float | None = None, round: int = 1) -> list[Order]:
    return [Order(round, i, f"c{i}", TRAIN, {"global": MODEL}, limit=limit) for i in range(n)]


def reply(sent: Sent, number: int | None = None) -> Frame:
    """The answer of a site that does what it is told: each update tells its order's step."""
    assert sent.content is not None
    done = [Update(*o.key, o.client, o.models["global"], {"step": o.step}) for o in unpack_orders(sent.content)]
    packed = pack_results(done[::-1], site="s")
    return Frame({"what": "reply", "number": number or sent.number, "content": packed.head}, packed.arrays)


def error(sent: Sent, reason: str) -> Frame:
    return Frame({"what": "error", "number": sent.number, "reason": reason})


def rest(carrier: Transport) -> Iterator[Update | Failure]:
    while (result := carrier.next()) is not None:
        yield result


def keys(results: Any) -> list[tuple[int, int]]:
    return sorted((r.round, r.step) for r in results)


def then(link: FakeLink, *steps: Callable[[], Frame | None]) -> None:
    """Play frames that can be made only when their message has been sent."""
    for step in steps:
        link.coming.append(lambda step=step: link.coming.appendleft(step()))  # type: ignore[misc]
