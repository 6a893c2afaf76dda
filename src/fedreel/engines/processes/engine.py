"""Several clients at once in worker processes of this machine, one thread each: the same bits for any number."""

from __future__ import annotations

import bisect
import os
import selectors
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from fedreel.core.client import Worker
from fedreel.core.job import Job
from fedreel.core.task import EVERYONE
from fedreel.core.update import Failure, Order, Reply, Result, Update
from fedreel.engines.local import LocalEngine, attempt
from fedreel.engines.processes.crew import Crew, ForkedCrew, SpawnedCrew, can_fork
from fedreel.engines.processes.forecast import Forecast
from fedreel.engines.processes.messages import Channel, Ended, Shared
from fedreel.errors import RecipeError, RunError
from fedreel.machine.processes import cores

MOST = 256  # workers, and orders under way
MOST_BYTES = 1 << 30  # of results that wait for those before them
_GRACE = 10.0  # seconds beyond an order's limit, after which a worker that does not even notice it is killed

Key = tuple[int, int]


@dataclass
class _Hand:
    """A worker process, and the orders it has: the first is being carried out."""

    pid: int
    channel: Channel
    number: int
    orders: deque[Order] = field(default_factory=deque)
    began: float = 0.0
    ready: bool = False

    def give(self, order: Order) -> None:
        if not self.orders:
            self.began = time.monotonic()
        self.orders.append(order)

    def take(self) -> Order:
        """The order that has just ended."""
        self.began = time.monotonic()
        return self.orders.popleft()

    @property
    def deadline(self) -> float | None:
        limit = self.orders[0].limit if self.orders and self.ready else None
        return None if limit is None else self.began + limit + _GRACE


@dataclass(frozen=True)
class _Outcome:
    result: Result
    departures: list[dict[str, Any]] = field(default_factory=list)


class ProcessesEngine(LocalEngine):
    """Carries out as many orders at once as there are workers, those that take longest first. Each client draws its own
    random numbers and starts from its own state, so that it does not matter who works for it. Results are noted in the
    ledger and handed out in the order in which the local engine would; only one that another order waits for goes out
    when it is there. While clients are worked for, this process has one thread as well."""

    def __init__(self, worker: Worker, crew: Crew, workers: int, alone: float = 0.0) -> None:
        """So many seconds of work are done here, `alone`, before any worker is started."""
        super().__init__(worker)
        self.workers = workers
        size = max(1, worker.travelling.nbytes)
        self.slots = max(2 * workers, min(MOST, MOST_BYTES // size))
        self._crew, self._alone = crew, alone
        self._threads = torch.get_num_threads()  # for what the server does while no client is worked for
        self._hands: list[_Hand] = []
        self._started = 0
        self._open: dict[Key, Order] = {}  # as submitted; not handed out yet
        self._waiting: list[tuple[float, Key]] = []  # of these, who has none yet: the longest first
        self._outcomes: dict[Key, _Outcome] = {}
        self._shared = Shared()
        self._forecast = Forecast(worker.population.describe())
        self._homes: dict[str, int] = {}  # which worker a client was last worked for by: it may have its data in memory
        self._selector = selectors.DefaultSelector()
        self._goes_on = False  # what was handed out last is what another order has been waiting for

    @classmethod
    def begin(cls, job: Job, keep_trained: bool = False, workers: int = 0) -> ProcessesEngine:
        check_workers(workers)
        if os.name != "posix":  # no open file passes from one process to another
            raise RecipeError(
                "worker processes need Linux or macOS", where="[engine] name", expected="local", found="processes"
            )
        wanted = workers or default_workers(job.device)
        worker = job.worker(keep_trained)
        forks = can_fork(job.device)
        crew = ForkedCrew(worker, wanted) if forks else SpawnedCrew(job, keep_trained, wanted)
        return cls(worker, crew, wanted)

    def submit(self, order: Order) -> None:
        torch.set_num_threads(1)
        self._open[order.key] = order
        bisect.insort(self._waiting, (-self._forecast.seconds(order), order.key))
        if self._goes_on and not self._works_alone():  # else the longest of all that are about to come goes out first
            self._give_out()
        self._goes_on = False

    def next(self) -> Result | None:
        while self._open:
            if self._works_alone():
                return self._hand_out(self._work_here())
            self._listen(0.0)
            self._give_out()
            for key in self._presentable():
                return self._hand_out(key)
            self._listen(self._patience())
        return None

    def close(self) -> None:
        self._crew.close()
        self._selector.close()
        for hand in self._hands:
            hand.channel.close()
        torch.set_num_threads(self._threads)
        super().close()

    # what goes out and comes back

    def _works_alone(self) -> bool:
        """Whether workers would not pay: yet, or because all data are to be trained on in one place."""
        return (self._alone > 0 and not self._hands) or self._open[next(iter(self._open))].client == EVERYONE

    def _work_here(self) -> Key:
        """Carry out the next order as the local engine does; if it took long and others wait, the next ones go out."""
        key, order = next(iter(self._open.items()))
        self._waiting = [row for row in self._waiting if row[1] != key]
        torch.set_num_threads(self._threads if order.client == EVERYONE else 1)
        began = time.monotonic()
        self._outcomes[key] = _Outcome(attempt(order, self.worker.execute))
        spent = time.monotonic() - began
        self._forecast.note(order, spent)
        if self._alone > 0:
            self._alone = max(self._alone - spent, 0.0 if self._waiting else 1e-9)
        return key

    def _presentable(self) -> list[Key]:
        """What may be handed out next: the first in order, or one that another waits for."""
        first = next(iter(self._open))
        if first in self._outcomes:
            return [first]
        return [key for key in self._outcomes if self._open[key].awaited][:1]

    def _hand_out(self, key: Key) -> Result:
        outcome, order = self._outcomes.pop(key), self._open.pop(key)
        self._shared.release(key)
        self._goes_on = order.awaited
        if not self._waiting and not any(hand.orders for hand in self._hands):
            torch.set_num_threads(self._threads)  # every worker is idle
        reply = outcome.result
        if isinstance(reply, Failure):
            return reply

        def noted(order: Order) -> Reply:
            for departure in outcome.departures:
                self.worker.door.ledger.write(order, reply, **departure)
            return _moved(reply, self.worker.device)

        return attempt(order, noted)

    def _give_out(self) -> None:
        """Orders to workers that have none; while many wait, each has one in reserve, so that it need not wait for us.
        Near the end that would keep short orders behind a long one."""
        while self._waiting:
            depth = 2 if len(self._waiting) > 2 * self.workers else 1
            hand = min(self._hands, key=lambda hand: len(hand.orders), default=None)
            if (hand is None or hand.orders) and len(self._hands) < self.workers:
                hand = self._start()
            if hand is None or len(hand.orders) >= depth:
                return
            order = self._choose(hand)
            if order is None:
                return
            hand.give(order)
            self._homes[order.client] = hand.number
            try:
                hand.channel.send_order(order, self._shared)
            except Ended:
                self._lose(hand)

    def _choose(self, hand: _Hand) -> Order | None:
        """The longest order of a client that this worker last worked for, or that nobody did; else the longest of all.
        A client's next order begins when its last one has ended."""
        busy = {order.client for other in self._hands for order in other.orders}
        chosen: int | None = None
        for i, (_, key) in enumerate(self._waiting):
            client = self._open[key].client
            if client in busy:
                continue
            chosen = i if chosen is None else chosen
            if self._homes.get(client, hand.number) == hand.number:
                chosen = i
                break
        return None if chosen is None else self._open[self._waiting.pop(chosen)[1]]

    def _start(self) -> _Hand:
        pid, channel = self._crew.start()
        hand = _Hand(pid, channel, self._started)
        self._started += 1
        self._hands.append(hand)
        self._selector.register(channel.line, selectors.EVENT_READ, hand)
        return hand

    def _listen(self, patience: float | None) -> None:
        for event, _ in self._selector.select(patience):
            hand: _Hand = event.data
            try:
                self._take_in(hand)
            except Ended:
                self._lose(hand)
        now = time.monotonic()
        for hand in [hand for hand in self._hands if hand.deadline is not None and hand.deadline < now]:
            os.kill(hand.pid, signal.SIGKILL)
            self._lose(hand, late=True)

    def _take_in(self, hand: _Hand) -> None:
        if not hand.ready:
            problem = hand.channel.receive()[0]["problem"]
            if problem:
                raise RunError(
                    "a worker process cannot work",
                    found=problem,
                    hint="choose the engine local; where a GPU is not to be used, set CUDA_VISIBLE_DEVICES=",
                )
            hand.ready, hand.began = True, time.monotonic()
            return
        result, beside = hand.channel.receive_result()
        order = hand.take()
        self._forecast.note(order, beside["seconds"])
        self.worker.store.add_unsynced(beside["files"])
        self._outcomes[order.key] = _Outcome(result, beside["departures"])

    def _lose(self, hand: _Hand, late: bool = False) -> None:
        """A worker has died: the order it was at has failed, one that it had in reserve waits again."""
        self._hands.remove(hand)
        self._selector.unregister(hand.channel.line)
        hand.channel.close()
        how = _death(self._crew.ended(hand.pid))
        for i, order in enumerate(hand.orders):
            if i:
                bisect.insort(self._waiting, (-self._forecast.seconds(order), order.key))
                continue
            reason, detail = ("timeout", f"no answer within {order.limit:g} s") if late else ("error", how)
            self._outcomes[order.key] = _Outcome(Failure(*order.key, order.client, reason, detail))

    def _patience(self) -> float | None:
        deadlines = [hand.deadline for hand in self._hands if hand.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None


def check_workers(workers: object) -> None:
    """Raise unless this is a number of workers, or 0."""
    if not isinstance(workers, int) or isinstance(workers, bool) or not 0 <= workers <= MOST:
        raise RecipeError(
            "workers says in how many processes clients are worked for at once",
            where="[engine] processes",
            expected=f"1 to {MOST}, or 0 for one a core, or one a GPU",
            found=repr(workers),
        )


def default_workers(device: torch.device) -> int:
    """One for each core that this process may use, or for each GPU."""
    if device.type == "cuda":
        return 1 if device.index is not None else torch.cuda.device_count()
    return min(cores(), MOST)


def _moved(reply: Reply, device: torch.device) -> Reply:
    """The reply with its model where the server's is."""
    if device.type != "cpu":
        if isinstance(reply, Update):
            reply.weights = reply.weights.to(device)
            reply.means = {name: mean.to(device) for name, mean in reply.means.items()}
        reply.tensors = {name: value.to(device) for name, value in reply.tensors.items()}
    return reply


def _death(code: int) -> str:
    if code < 0:
        cause = " (was it out of memory?)" if code == -signal.SIGKILL else ""
        return (
            f"the process that worked for it was ended by {signal.Signals(-code).name}{cause}; another takes its place"
        )
    return f"the process that worked for it ended with status {code}; another takes its place"
