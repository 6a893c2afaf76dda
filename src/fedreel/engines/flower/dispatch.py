"""Orders for a simulation's actors: one message an actor, and another simulation where an actor has died."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedreel.core.job import Job
from fedreel.core.update import ASK, EVALUATE, Order
from fedreel.engines.flower.engine import _GRACE, _TRIES, Transport, _Message
from fedreel.engines.flower.link import Lost
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.placement import Part, parts_of, spread
from fedreel.engines.flower.wire import pack_orders
from fedreel.engines.processes.forecast import Forecast
from fedreel.errors import RunError

if TYPE_CHECKING:
    from fedreel.engines.flower.cluster import Simulation

_ANSWER_BYTES = 128 << 20  # of a message's answer: while it is read, the actor works for the next clients
_MOST = 2000  # orders of a message
_RESTARTS = 20  # simulations in a row that end without an answer


@dataclass
class _Parts(_Message):
    """A message of parts that are not to be divided any further."""

    parts: list[Part] = field(default_factory=list)
    deaths: int = 0  # of actors that were at it, since it has only one part


class Dispatch(Transport):
    """Gives each actor as much to do as the others, by how long clients took before. Orders whose results others wait
    for travel alone."""

    def __init__(self, job: Job, simulation: Simulation, answer_bytes: int, told: Mapping[str, Any]) -> None:
        """`told` is what the population says of its clients."""
        shape = simulation.shape
        super().__init__(
            job,
            simulation.link,
            answer_bytes,
            60.0,
            out=str(job.out.resolve()),
            threads=simulation.threads,
            workers=shape.workers,
            share=shape.share,
        )
        self._simulation, self._forecast = simulation, Forecast(told)
        self._size = max(1, answer_bytes)
        self._turns = itertools.count()
        self._aside: list[_Parts] = []  # whose actors have died; sent again when the others have answered
        self._stuck = False  # whether an actor is at work on what nobody waits for any more
        self._restarts = 0

    def _send_waiting(self) -> None:
        orders = [order for waiting in self._waiting.values() for order in waiting]
        self._waiting.clear()
        messages = deque(self._messages(orders))
        try:
            while messages:
                self._send(messages.popleft())
        except Lost:
            self._put_back(messages)
            raise

    def _messages(self, orders: Sequence[Order]) -> Iterator[_Parts]:
        """One for each actor; more if answers are large, all actors' first ones before their second ones."""
        nodes = self._simulation.nodes
        for order in orders:
            if order.awaited:
                yield self._message(nodes[next(self._turns) % len(nodes)], [[order]])
        parts = parts_of([order for order in orders if not order.awaited])
        places = [self._cut(mine) for mine in spread(parts, self._forecast.seconds, len(nodes))]
        before = dict.fromkeys(nodes, 0.0)
        for turn in itertools.zip_longest(*places):
            for node, some in zip(nodes, turn):
                if some:
                    message = self._message(node, some, before[node])
                    before[node] += _limit(message.orders)
                    yield message

    def _cut(self, parts: Sequence[Part]) -> list[list[Part]]:
        """Parts in messages none of which asks for a very large answer, or none of several models."""
        cut: list[list[Part]] = []
        nbytes = orders = 0
        for part in parts:
            answer = 0 if part[0].kind in (EVALUATE, ASK) else self._size
            if not cut or (nbytes + answer > _ANSWER_BYTES and len(cut[-1]) >= 4) or orders + len(part) > _MOST:
                cut.append([])
                nbytes = orders = 0
            cut[-1].append(part)
            nbytes, orders = nbytes + answer, orders + len(part)
        return cut

    def _message(self, node: str, parts: list[Part], before: float = 0.0) -> _Parts:
        """A message for an actor that has so many seconds of others to do `before`."""
        orders = [order for part in parts for order in part]
        sizes = [len(part) for part in parts]
        frame = pack_orders(orders, node, None, **self._head, parts=sizes)
        limit = before + _limit(orders)
        deadline = time.monotonic() + limit + _GRACE if math.isfinite(limit) else None
        return _Parts(node, orders, frame, deadline, parts=parts)

    def _take(self, frame: Frame) -> None:
        message = self._under_way.get(frame.head["number"])
        if frame.head["what"] == "error" and message is not None and _has_died(frame.head["reason"]):
            del self._under_way[frame.head["number"]]
            assert isinstance(message, _Parts)
            self._set_aside(message, frame.head["reason"])
            return
        if frame.head["what"] == "reply" and message is not None:
            self._restarts = 0
            self._note(message.orders, frame.head["content"])
        super()._take(frame)

    def _note(self, orders: Sequence[Order], head: object) -> None:
        """How long clients took."""
        seconds = head.get("seconds") if isinstance(head, dict) else None
        for order, took in zip(orders, seconds or []):
            if math.isfinite(took):
                self._forecast.note(order, took)

    def _set_aside(self, message: _Parts, reason: str) -> None:
        """An actor has died. Which client it was at is not known: what it had comes again in halves."""
        middle = len(message.parts) // 2
        if middle:
            halves = (message.parts[:middle], message.parts[middle:])
            self._aside += [self._message(message.node, half) for half in halves]
            return
        message.deaths += 1
        if message.deaths < _TRIES:
            self._aside.append(message)
        else:
            detail = f"{_TRIES} actors have died over it (were they out of memory?): {reason[:500]}"
            self._fail(message, "error", detail)

    def _give_up(self) -> None:
        before = len(self._under_way)
        super()._give_up()
        self._stuck = self._stuck or len(self._under_way) < before
        if (self._aside or self._stuck) and not any(number > 0 for number in self._under_way):
            self._put_back(self._aside)
            self._aside, self._stuck = [], False
            raise Lost  # with all that is left of it

    def _reconnect(self) -> None:
        """Other actors in place of all that there are, and everything that is open goes to them."""
        self._restarts += 1
        if self._restarts > _RESTARTS:
            raise RunError("the simulation ends again and again", found=self._simulation.said())
        self._simulation.restart()
        self.link, messages = self._simulation.link, list(self._under_way.values())
        shape, nodes = self._simulation.shape, itertools.cycle(self._simulation.nodes)
        self._head |= {"workers": shape.workers, "share": shape.share}
        self._under_way, self._looking, limit = {}, 0, 0.0
        for message, node in zip(messages, nodes):
            assert isinstance(message, _Parts)
            limit += _limit(message.orders)
            again = self._message(node, message.parts, limit)
            again.deaths, again.tries = message.deaths, message.tries
            self._put_back([again])
        self._here = self.link.nodes()
        self._saw(self._here)
        self._lost = False

    def _put_back(self, messages: Sequence[_Parts] | deque[_Parts]) -> None:
        self._under_way |= {-next(self._numbers): message for message in messages}


def _limit(orders: Sequence[Order]) -> float:
    """Seconds that these orders may take one after another."""
    return sum(math.inf if order.limit is None else order.limit for order in orders)


def _has_died(reason: str) -> bool:
    """Whether Ray says so: an actor, its host, or what it had to hand over. What a client raises is no such thing."""
    return "ray.exceptions." in reason and "RayTaskError" not in reason
