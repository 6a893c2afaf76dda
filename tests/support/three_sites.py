"""Three sites and their line to a server in one process: the whole path of a run at real sites but for Flower itself.
One of the sites lies."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, cast

from flwr.app import ConfigRecord, RecordDict

from fedreel.core.blueprint import Blueprint
from fedreel.core.client import Worker
from fedreel.core.job import Job
from fedreel.core.task import Population
from fedreel.engines.flower.engine import FlowerEngine
from fedreel.engines.flower.link import Link
from fedreel.engines.flower.pipe import Frame, receive
from fedreel.engines.flower.relay import _hand_over, wrap
from fedreel.engines.flower.roster import call_roster
from fedreel.engines.flower.workplace import Workplace, for_others
from support.toy import Toy, ToyPopulation, make_worker

LIAR = "c2"
Lie = Callable[[Frame, Any], Any]  # an honest answer and its order -> a frame, Flower's records, or an error


@dataclass(frozen=True)
class ToyAt(Toy):
    """The toy where only some clients are."""

    here: tuple[str, ...] = ()

    def population(self, data: Any, seed: int) -> Population:
        return ToyPopulation(self.clients, seed, self.here)


class Error(Exception):
    """What Flower reports instead of an answer."""


@dataclass
class Reply:
    """As much of Flower's reply as the relay looks at."""

    content: RecordDict | None = None
    error: Any = None

    def has_error(self) -> bool:
        return self.error is not None


@dataclass
class Fault:
    reason: str
    code: int = 1


@dataclass
class SitesLink:
    """A line to sites that answer at once. Time passes while it waits."""

    sites: dict[str, Workplace]
    lie: Lie | None
    coming: deque[Frame] = field(default_factory=deque)
    piped: deque[bytes] = field(default_factory=deque)  # between the relay's process and the engine's
    now: float = 1000.0

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def send(self, what: str, *, content: Frame | None = None, node: str = "", ttl: float = 0, number: int = 0) -> int:
        number = number or next(self._numbers)
        if what == "nodes":
            self.coming.append(Frame({"what": "nodes", "number": number, "nodes": self.nodes()}))
        elif what == "send":
            assert content is not None
            honest = self.sites[node].answer(content)
            lies = node == LIAR and self.lie is not None and content.head["type"] == "orders"
            answer = self.lie(honest, content.head["orders"][0]) if lies and self.lie is not None else honest
            if answer is not None:
                _hand_over(cast(Connection, self), cast(Any, reply_of(answer)), number)
                self.coming.append(receive(cast(Connection, self)))
        return number

    def send_bytes(self, data: bytes) -> None:
        self.piped.append(data)

    def recv_bytes(self) -> bytes:
        return self.piped.popleft()

    def event(self, timeout: float) -> Frame | None:
        if self.coming:
            return self.coming.popleft()
        self.now += 60 * timeout
        assert self.now < 100_000, "waits for ever"
        return None

    def nodes(self, timeout: float = 30) -> dict[str, str]:
        return dict.fromkeys(self.sites, "monday")

    def close(self) -> None:
        """There is nothing to close."""


def reply_of(answer: Any) -> Reply:
    if isinstance(answer, Error):
        return Reply(error=Fault(str(answer)))
    if isinstance(answer, str):  # the head's text, such as no packer makes
        return Reply(RecordDict({"0": ConfigRecord({"json": answer, "bytes": b""})}))
    return Reply(wrap(answer))


class ThreeSites:
    """As the registry wants an engine. `names` are the sites that take part, `lie` is what the liar does to answers."""

    at_sites: ClassVar = True
    names: ClassVar[tuple[str, ...]] = ("c0", "c1", LIAR)
    lie: ClassVar[Lie | None] = None
    link: ClassVar[SitesLink | None] = None

    @classmethod
    def begin(cls, job: Job) -> FlowerEngine:
        engine, ThreeSites.link = engine_at(job, {name: (name,) for name in cls.names}, clients=3, lie=cls.lie)
        return engine


def engine_at(
    job: Job, here: Mapping[str, tuple[str, ...]], *, clients: int, lie: Lie | None = None
) -> tuple[FlowerEngine, SitesLink]:
    """An engine for sites that have these of the toy's clients, and its line to them."""

    def make(folder: Path, name: str) -> Callable[[Any, str], Worker]:
        task = ToyAt(clients=clients, here=here[name])
        rounds = job.recipe.round.rounds
        return lambda recipe, run: make_worker(
            folder, job.method, task, recipe.train, rounds=rounds, transfer=recipe.transfer
        )

    places = {n: Workplace(make(job.out.parent / f"at-{n}", n), n, for_others, None) for n in here}
    link = SitesLink(places, lie)
    blueprint = Blueprint(job.task, job.method, job.recipe.seed, job.device)
    roster = call_roster(job, cast(Link, link), blueprint, {name: name for name in here}, 10.0)
    return FlowerEngine(job, blueprint, cast(Link, link), roster, 300.0), link
