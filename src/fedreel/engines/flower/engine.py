"""The engine `flower`: orders become messages, one for each site, and replies become results."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.config import as_table
from fedreel.core.blueprint import Blueprint
from fedreel.core.job import Job
from fedreel.core.update import Failure, Order, Result
from fedreel.engines.flower.link import Link, Lost
from fedreel.engines.flower.pace import Pace
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.roster import Roster, call_roster
from fedreel.engines.flower.server import Server
from fedreel.engines.flower.versions import Versions
from fedreel.engines.flower.wire import pack_orders, unpack_results
from fedreel.errors import RunError, plain

_MESSAGE_BYTES = 1 << 30  # of one message's answer; a node's orders beyond that go into another
_TOGETHER = 100  # clients that a site averages: if it dies over them, it begins with them again
_TTL = 7 * 86400.0  # seconds after which Flower forgets a message
_LOOK = 5.0  # seconds between two looks at who is there
_AGAIN = 1800.0  # seconds after which an unanswered message is sent again: a site knows an order it has carried out
_TRIES = 3  # how often a message is sent to a node whose Flower processes fail over it
_SENDS = 100  # how often a message is sent at all: a site that always comes back does not hold up the others for ever
_GRACE = 60.0  # seconds beyond an order's own limit: transport, and a process to start


@dataclass
class _Message:
    """Orders under way to one node, until they are answered or given up."""

    node: str
    orders: list[Order]
    frame: Frame
    deadline: float | None
    came: str = ""  # when the node had come at the time of sending
    away_since: float | None = None
    sent: float = 0.0
    began: float = 0.0  # when it was first sent
    tries: int = 0
    whole: bool = False  # sent again because the node lacked what it referred to


class Transport:
    """Sends orders, re-sends them to nodes that came back, and gives each order exactly one result."""

    def __init__(
        self,
        job: Job,
        link: Link,
        answer_bytes: int,
        patience: float,
        here: Mapping[str, str] | None = None,
        stragglers: float = 0.0,
        versions: Versions | None = None,
        **head: Any,
    ) -> None:
        """`here` are the nodes that are there, with the times when they came. When half of the orders of a round are
        answered, none of the others may take more than `stragglers` times as long as the slowest of them; 0: it may.
        With `versions`, models travel as what is new against those that a node has."""
        self.link, self.patience, self.stragglers = link, patience, stragglers
        self._pace, self._versions = Pace(), versions
        self._most = max(1, _MESSAGE_BYTES // max(1, answer_bytes))  # orders in one message
        self._head = {"type": "orders", "run": job.run_id, "start": job.start, "recipe": as_table(job.recipe), **head}
        self._waiting: dict[str, list[Order]] = {}
        self._under_way: dict[int, _Message] = {}
        self._results: deque[Result] = deque()
        self._here = dict(here or {})
        self._gone: set[str] = set()  # nodes that an order waited for in vain, until they are seen again
        self._numbers = itertools.count(1)  # negative keys of what waits for its node, positive ones are the link's
        self._looked, self._looking, self._lost = 0.0, 0, False
        self.moved = {"wire_up": 0, "wire_down": 0}  # bytes of tensors, as they lie in messages

    def submit(self, node: str, order: Order) -> None:
        self._waiting.setdefault(node, []).append(order)
        self._pace.ordered(order)

    def next(self) -> Result | None:
        """One result; None if nothing is under way."""
        while not self._results:
            try:
                if self._lost:
                    self._reconnect()
                self._send_waiting()
                if not self._under_way:
                    return None
                self._look()
                frame = self.link.event(1.0)
                if frame is not None:
                    self._take(frame)
                self._give_up()
            except Lost:
                self._lost = True  # perhaps while it was being mended
        return self._results.popleft()

    def traffic(self) -> dict[str, int]:
        """Bytes that went over the line since this was last asked."""
        moved, self.moved = self.moved, dict.fromkeys(self.moved, 0)
        return moved

    def _send_waiting(self) -> None:
        if self._versions is not None and self._waiting:
            self._versions.begin()
        for node in list(self._waiting):
            while orders := self._waiting[node]:
                most = _TOGETHER if orders[0].together else self._most  # whose answer is one model
                some, self._waiting[node] = orders[:most], orders[most:]
                limits = [o.limit for o in some if o.limit is not None]
                deadline = time.monotonic() + sum(limits) + _GRACE if len(limits) == len(some) else None
                message = _Message(node, some, self._frame(some, node), deadline)
                if node in self._gone:  # it had its time before: a look whether it is back must do
                    message.away_since = time.monotonic() - self.patience + 2 * _LOOK
                    self._under_way[-next(self._numbers)] = message
                else:
                    self._send(message)
            del self._waiting[node]

    def _frame(self, orders: Sequence[Order], node: str) -> Frame:
        return pack_orders(orders, node, self._versions, **self._head)

    def _send(self, message: _Message) -> None:
        message.came, message.sent = self._here.get(message.node, ""), time.monotonic()
        message.began = message.began or message.sent
        message.tries += 1
        if message.tries > _SENDS:
            self._fail(message, "error", f"sent {_SENDS} times, and never answered")
            return
        try:
            self.moved["wire_down"] += sum(map(len, message.frame.arrays.values()))
            number = self.link.send("send", content=message.frame, node=message.node, ttl=_TTL)
        except Lost:
            self._under_way[-next(self._numbers)] = message  # sent again after the reconnection
            raise
        self._under_way[number] = message

    def _take(self, frame: Frame) -> None:
        what, number = frame.head["what"], frame.head["number"]
        if what == "nodes":
            self._saw(frame.head["nodes"])
            return
        message = self._under_way.pop(number, None)
        if message is None:
            return  # given up before, or answered twice
        if what == "reply":
            content = Frame(frame.head["content"], frame.arrays)
            self.moved["wire_up"] += sum(map(len, frame.arrays.values()))
            problem = content.head.get("problem") if isinstance(content.head, dict) else None
            if self._versions is not None and self._lacks(message, content):
                return
            self._pace.took(message.orders, time.monotonic() - message.began)
            if problem is None:
                self._results += unpack_results(content, message.orders)
            else:
                self._fail(message, "error", plain(str(problem)[:2000]))
        elif message.node not in self._here or "unavailable" in frame.head["reason"].lower():
            message.away_since = message.away_since or time.monotonic()
            self._under_way[-next(self._numbers)] = message  # until it is back, or patience ends
        elif message.tries < _TRIES:  # Flower's own process died, not our worker: it has the answer or makes it again
            self._send(message)
        else:
            self._fail(message, "error", plain(str(frame.head["reason"])[:2000]))

    def _lacks(self, message: _Message, content: Frame) -> bool:
        """Whether a node needs the whole of what it was told in part, which is then sent. It is so once at most."""
        assert self._versions is not None
        lacks = isinstance(content.head, dict) and content.head.get("lacks") is True
        if lacks and not message.whole:
            self._versions.forget(message.node)
            message.frame, message.whole = self._frame(message.orders, message.node), True
            self._send(message)
            return True
        if not lacks:
            self._versions.answered(message.node, message.orders)
        return False

    def _look(self) -> None:
        """Ask who is there, now and then: a node that came back has forgotten what it was told before."""
        now = time.monotonic()
        if not self._looking and now - self._looked > _LOOK:
            self._looking = self.link.send("nodes")

    def _saw(self, here: dict[str, str]) -> None:
        self._here, self._looking, self._looked = here, 0, time.monotonic()
        self._gone -= set(here)
        for number, message in list(self._under_way.items()):
            came = here.get(message.node)
            if came is None:
                message.away_since = message.away_since or time.monotonic()
            elif number < 0 or (message.came and came != message.came) or time.monotonic() - message.sent > _AGAIN:
                if number > 0:
                    self.link.send("drop", number=number)
                del self._under_way[number]
                message.away_since = None
                self._send(message)
            else:
                message.came, message.away_since = came, None

    def _give_up(self) -> None:
        now, longest = time.monotonic(), self._pace.limit(self.stragglers)
        for number, message in list(self._under_way.items()):
            slow = message.began > 0 and now - message.began > longest * len(message.orders)
            late = slow or (message.deadline is not None and now > message.deadline)
            away = message.away_since is not None and now - message.away_since > self.patience
            if not late and not away:
                continue
            if number > 0:
                self.link.send("drop", number=number)
            del self._under_way[number]
            if away:
                self._gone.add(message.node)
                self._fail(message, "offline", f"the site was away for more than {self.patience:g} s")
            else:
                limit = longest if slow else message.orders[0].limit
                self._fail(message, "timeout", f"no answer within {limit:g} s for an order")

    def _fail(self, message: _Message, reason: str, detail: str) -> None:
        self._results += [Failure(*o.key, o.client, reason, detail) for o in message.orders]

    def _reconnect(self) -> None:
        """The server went away: wait for it, start our app there anew, and send everything again."""
        self.link.connect(max(self.patience, 600.0))
        messages = list(self._under_way.values())
        self._under_way, self._here, self._looking = {}, {}, 0
        for message in messages:
            message.began = 0.0  # the sites have had no time
            self._under_way[-next(self._numbers)] = message
        self._here = self.link.nodes()
        self._saw(self._here)
        self._lost = False


class FlowerEngine:
    """Real sites: SuperNodes that `fedreel site start` runs, reached over the SuperLink of `fedreel server start`."""

    at_sites = True

    def __init__(
        self, job: Job, blueprint: Blueprint, link: Link, roster: Roster, patience: float, stragglers: float = 30.0
    ) -> None:
        self.blueprint = blueprint
        self.roster, self.clients, self.slots = roster, roster.clients, max(1, len(roster.clients))
        self._link = link
        transfer, size = job.recipe.transfer, blueprint.travelling.nbytes
        versions = Versions() if transfer is not None and transfer.down == "changes" else None
        self._transport = Transport(job, link, size, patience, link.nodes(), stragglers, versions)

    @classmethod
    def begin(
        cls,
        job: Job,
        server: str = "server",
        sites: Sequence[str] = (),
        wait: float = 120.0,
        patience: float = 300.0,
        stragglers: float = 30.0,
        approval: float = 86400.0,
        silence: float = 30.0,
    ) -> FlowerEngine:
        """`server` is the server's folder on this machine. `sites` names those that take part, all enrolled ones if
        empty; the run waits `wait` seconds for them to be there, and `approval` seconds for their owners to approve it.
        An order waits `patience` seconds for a site that is away; when half of a round's orders are answered, no other
        may take more than `stragglers` times as long as the slowest of these, an hour at least (0: as it likes). A site
        that has been silent for `silence` seconds is asked whether an order got lost on the way."""
        folder = Server(Path(server))
        blueprint = Blueprint(job.task, job.method, job.recipe.seed, job.device)
        link = Link(folder.flower_home, silence=silence, wait=30, log=folder.log)
        try:
            with folder.waiting(job.run_id, job.out) as tell:
                roster = call_roster(job, link, blueprint, folder.nodes_of(sites), wait, approval, tell)
            folder.note_job(job.run_id, job.out)
            return cls(job, blueprint, link, roster, patience, stragglers)
        except Lost as lost:
            link.close()
            raise RunError(
                "the server went away while the sites were being asked", where=server, hint="start it again"
            ) from lost
        except BaseException:
            link.close()
            raise

    def describe(self) -> dict[str, Any]:
        return {"sites": {site: list(clients) for site, clients in self.roster.sites.items()}}

    def submit(self, order: Order) -> None:
        node = self.roster.nodes.get(order.client)
        if node is None:
            raise RunError(
                f"no site has a client '{order.client}'",
                hint="this method needs all data in one place: run it with --engine local where they are"
                if order.client == "everyone"
                else "",
            )
        self._transport.submit(node, order)

    def next(self) -> Result | None:
        return self._transport.next()

    def traffic(self) -> dict[str, int]:
        return self._transport.traffic()

    def sync(self) -> None:
        """Sites force to disk what they keep before they answer."""

    def close(self) -> None:
        self._link.close()
