"""Orders under way over several rounds: a server that does not wait for the slowest. In-flight orders are part of the
run's state: a run that was killed gives them again, and gets the same answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from fedreel.core.admission import Admission
from fedreel.core.engine import Engine
from fedreel.core.server import GLOBAL
from fedreel.core.update import TRAIN, Failure, Order, Update, Value, expect
from fedreel.core.version import Version
from fedreel.core.weights import Weights
from fedreel.core.world import GONE, World, no_clock
from fedreel.errors import RunError

if TYPE_CHECKING:
    from fedreel.core.federation import Federation

Key = tuple[int, int]
MEMORY = "flight"  # where the server's memory has the orders that are under way


@dataclass(frozen=True)
class Arrival:
    """An update, the model that its client began with, and how many rounds the server's model has gone on since."""

    update: Update
    sent: Weights
    behind: int


@dataclass(frozen=True)
class _Flying:
    """An order that is under way: its client, its key, when it is back, and whether it never will be."""

    client: str
    round: int
    step: int
    back: float
    lost: bool

    @property
    def key(self) -> Key:
        return (self.round, self.step)


class Flight:
    """Keeps so many orders under way, and hands updates out in the order in which they arrive by the world's clock,
    whatever the engine takes for them."""

    def __init__(self, fed: Federation, engine: Engine, admission: Admission, world: World | None) -> None:
        if world is None:
            raise no_clock()
        self._fed, self._engine, self._admission, self._world = fed, engine, admission, world
        admission.lasting = True
        kept: dict[str, Any] = fed.memory.setdefault(MEMORY, {"orders": [], "models": {}, "number": 0})
        self._kept = kept
        self._flying = {f.key: f for f in (_Flying(*row) for row in kept["orders"])}
        self._busy = {f.client for f in self._flying.values()}
        self._of_round = Counter(f.round for f in self._flying.values())  # how many began with each model
        self._due = [_when(f) for f in self._flying.values()]  # two heaps: who is back next, and of those that will
        self._unbegun = [_when(f) for f in self._flying.values() if not f.lost]  # answer, who has not begun
        heapify(self._due)
        heapify(self._unbegun)
        self._begun: set[Key] = set()  # the engine has them, or had them
        self._results: dict[Key, Update | Failure] = {}

    def arrivals(self, count: int, in_flight: int, args: Mapping[str, Value]) -> Iterator[Arrival]:
        """The next so many updates. Whoever comes back, or is given up, is followed by another client, which begins
        with the model as it is then."""
        arrived = failed = 0
        moved: dict[str, dict[str, float]] = {}
        self._fed.tell_begin(TRAIN, [f.client for f in self._flying.values()])
        while arrived < count:
            self._top_up(in_flight, args)
            first = self._flying[self._due[0][1]]
            result = self._result(first, args)
            self._world.move_to(first.back)
            sent = self._model(first.round)
            self._end(first)
            if isinstance(result, Failure):
                failed += 1
                self._fed.refuse(result)
                self._fed.tell_state(first.client, "failed")
                if failed > 100 + 10 * count:
                    raise RunError(
                        f"round {self._fed.round} got too few answers",
                        expected=f"{count} updates",
                        found=f"{arrived}, and {failed} clients failed; the last: {result.reason} ({result.detail})",
                    )
                continue
            arrived += 1
            self._fed.stats.moved(TRAIN, up=result.nbytes)
            self._fed.stats.trained(result)
            self._fed.progress.trained.add(result.client)
            self._fed.tell_state(first.client, "done")
            self._fed.tell_answer(arrived, failed, count, result)
            if self._fed.config.divergence:
                moved[result.client] = result.weights.distances(self._fed.weights)
            yield Arrival(result, sent, self._fed.round - first.round)
        if moved:
            self._fed.record("divergence", clients=moved)
        self._land()

    def _top_up(self, in_flight: int, args: Mapping[str, Value]) -> None:
        """Orders to further clients, until so many are under way."""
        fed, kept = self._fed, self._kept
        while len(self._flying) < min(in_flight, len(fed.clients)):
            kept["number"] += 1
            client = self._world.reachable(fed.clients, self._busy, kept["number"])
            if client is None:
                return
            if str(fed.round) not in kept["models"]:
                kept["models"][str(fed.round)] = Version(fed.weights.clone())
            fed.step += 1
            order = Order(fed.round, fed.step, client, TRAIN, {GLOBAL: self._model(fed.round)}, args)
            fed.stats.moved(TRAIN, down=order.nbytes)
            fed.stats.ordered += 1
            fed.tell_state(client, "working")
            trip = self._world.trip(client, order.key, order.nbytes, self._world.now)
            self._begin(_Flying(client, *order.key, trip.back, trip.lost))

    def _begin(self, flying: _Flying) -> None:
        self._flying[flying.key] = flying
        self._busy.add(flying.client)
        self._of_round[flying.round] += 1
        heappush(self._due, _when(flying))
        if not flying.lost:
            heappush(self._unbegun, _when(flying))

    def _end(self, first: _Flying) -> None:
        """Of the one that is due first. A model that nobody is at work with any more is forgotten, unless others will
        begin with it in this round."""
        heappop(self._due)
        del self._flying[first.key]
        self._busy.discard(first.client)
        self._of_round[first.round] -= 1
        if not self._of_round[first.round]:
            del self._of_round[first.round]
            if first.round != self._fed.round:
                del self._kept["models"][str(first.round)]

    def _result(self, wanted: _Flying, args: Mapping[str, Value]) -> Update | Failure:
        """What an order came to. While it is waited for, the engine works on those that are due soonest."""
        if wanted.lost:
            return Failure(*wanted.key, wanted.client, "offline", GONE)
        while wanted.key not in self._results:
            self._submit(args)
            self._take()
        self._begun.discard(wanted.key)
        return self._results.pop(wanted.key)

    def _submit(self, args: Mapping[str, Value]) -> None:
        """The soonest of those that have not begun, as far as the engine has room."""
        room = self._engine.slots - (len(self._begun) - len(self._results))
        limit = self._fed.config.time_limit or None
        for _ in range(min(room, len(self._unbegun))):
            flying = self._flying[heappop(self._unbegun)[1]]
            self._begun.add(flying.key)
            models = {GLOBAL: self._model(flying.round)}
            order = Order(*flying.key, flying.client, TRAIN, models, args, limit=limit)
            self._admission.expect(order)
            self._engine.submit(order)

    def _take(self) -> None:
        """One more result from the engine."""
        result = self._engine.next()
        if result is None:  # the engine lost them
            key = next(key for key in self._begun if key not in self._results)
            result = Failure(*key, self._flying[key].client, "error", "the engine lost this order")
        failure = result if isinstance(result, Failure) else self._admission.judge(result)
        key = (result.round, result.step)
        if key not in self._begun or key in self._results:
            self._fed.refuse(failure or Failure(*key, result.client, "duplicate", "answered before"))
            return
        self._admission.close(key)
        self._results[key] = failure or expect(result, Update, "a reply")

    def _land(self) -> None:
        """The round is over: the engine ends what it has begun, and what is under way is remembered."""
        while len(self._begun) > len(self._results):
            self._take()
        self._kept["orders"] = [[f.client, f.round, f.step, f.back, f.lost] for f in self._flying.values()]
        if not self._of_round[self._fed.round]:  # nobody is at work with this round's model
            self._kept["models"].pop(str(self._fed.round), None)

    def _model(self, round: int) -> Weights:
        return expect(self._kept["models"][str(round)], Version, "a model that was sent").weights


def _when(flying: _Flying) -> tuple[float, Key]:
    return (flying.back, flying.key)
