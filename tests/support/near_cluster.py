"""What a simulation is to its engine, without Flower and Ray: messages are answered here, over the bytes that would
travel."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from fedreel.core.update import Update
from fedreel.engines.flower.link import Lost
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.placement import Shape
from fedreel.engines.flower.relay import unwrap, wrap
from fedreel.engines.flower.wire import pack_results, unpack_orders

DIED = "0: <class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly'>"


@dataclass(frozen=True)
class Told:
    """A message: by which start of the simulation, to which node, what, and how it was answered."""

    start: int
    node: str
    content: Frame
    died: bool

    @property
    def clients(self) -> list[str]:
        return [row["client"] for row in self.content.head["orders"]]


class NearLine:
    def __init__(self, cluster: NearCluster) -> None:
        self._cluster, self._numbers, self._events = cluster, itertools.count(1), deque[Frame]()

    def nodes(self, timeout: float = 30) -> dict[str, str]:
        return dict.fromkeys(self._cluster.nodes, "now")

    def send(self, what: str, *, content: Frame | None = None, node: str = "", ttl: float = 0, number: int = 0) -> int:
        if self._cluster.link is not self:
            raise Lost
        number = number or next(self._numbers)
        if what == "nodes":
            self._events.append(Frame({"what": "nodes", "number": number, "nodes": self.nodes()}))
        elif content is not None:
            self._events += self._cluster.answered(number, node, content)
        return number

    def event(self, timeout: float) -> Frame | None:
        return self._events.popleft() if self._events else None


class NearCluster:
    """So many actors, all in this process. One that has to work for a `deadly` client dies, and one that has to work
    for a `silent` one is not heard of again."""

    threads = 1

    def __init__(
        self,
        answer: Callable[[str, Frame], Frame],
        actors: int = 2,
        workers: int = 1,
        deadly: Collection[str] = (),
        silent: Collection[str] = (),
    ) -> None:
        self.shape, self.nodes = Shape(actors, workers, workers, actors * workers), [f"n{i}" for i in range(actors)]
        self._answer, self.deadly, self.silent = answer, deadly, silent
        self.starts, self.messages = 0, list[Told]()
        self.restart()

    def restart(self) -> None:
        self.starts += 1
        self.link = NearLine(self)

    def said(self) -> str:
        return "nothing"

    def close(self) -> None:
        """Nothing runs."""

    def answered(self, number: int, node: str, content: Frame) -> list[Frame]:
        content = _sent(content)
        told = Told(self.starts, node, content, False)
        died = bool({*told.clients} & {*self.deadly})
        self.messages.append(Told(self.starts, node, content, died))
        if {*told.clients} & {*self.silent}:
            return []
        if died:
            return [Frame({"what": "error", "number": number, "reason": DIED})]
        reply = _sent(self._answer(node, content))
        return [Frame({"what": "reply", "number": number, "content": reply.head}, reply.arrays)]


def obey(node: str, content: Frame, **beside: Any) -> Frame:
    """The answer of an actor that does what it is told, without any work."""
    done = [Update(*o.key, o.client, o.models["global"], {"step": o.step}) for o in unpack_orders(content)]
    return pack_results(done, site="s", **beside)


def _sent(frame: Frame) -> Frame:
    return unwrap(wrap(Frame(frame.head, {name: bytes(data) for name, data in frame.arrays.items()})))
