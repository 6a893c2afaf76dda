"""Many clients at once, their parameters stacked: for small models, where a client's step is mostly overhead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from fedreel.core.client import Client, Worker
from fedreel.core.discretion import Discretion
from fedreel.core.method import Method
from fedreel.core.residence import memory_of
from fedreel.core.training import Fitted
from fedreel.core.update import TRAIN, Order, Reply, Result, Update
from fedreel.engines.local import LocalEngine, attempt
from fedreel.engines.lock_step import companion
from fedreel.engines.stacked.ask import Ask, CannotStack, asked_with_terms, full_ask, plain_ask
from fedreel.engines.stacked.draws import generator_of
from fedreel.engines.stacked.feed import steps_of
from fedreel.engines.stacked.training import StackedTraining, Trained
from fedreel.engines.step_size import measured_step

MOST_CLIENTS = 64
MOST_BYTES = 512 * 2**20  # of the stacked models; gradients and momentum take as much again each
SHARE = 32  # one such part of a GPU's memory, if that is more
SHORT = 10  # steps: what is done for a client after so few takes about as long as they do
LONG = 1e8  # operations of a step, of which a CPU is as busy with one client as with many
MANY = 32  # clients that are worth being trained in parts, so that a GPU trains one while another is answered
PARTS = 2
UNFUSED = "steps of stacked clients are not fused: every number of clients would be a compilation of its own"

_log = logging.getLogger(__name__)
Rest = Callable[[Order], Reply]  # what is left to do of an order


class VectorEngine(LocalEngine):
    """Trains the waiting clients together where that gives what the local engine gives, up to rounding; on a GPU each
    step is one recorded graph, and random numbers are drawn for all at once, from the same distributions. Where a
    method has its own `local_training`, not only `terms`, it is carried out twice: up to its first `client.fit`, and
    when clients have been trained, to its end. What cannot be stacked is carried out as the local engine does it, and
    the log says why."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        recorder, gpu = worker.recorder, worker.device.type == "cuda"
        self._training = StackedTraining(worker, None if recorder is None else type(recorder), not gpu)
        self._plain = type(worker.method).local_training is Method.local_training  # clients train and do no more
        self._bare = self._plain and type(worker.method).terms is Method.terms
        self._trained: deque[tuple[Order, Rest]] = deque()  # and what is left to do
        self._said: set[str] = set()
        self._stacked = self._alone = 0  # clients that were trained so
        self._looked = False
        self._companion = companion()
        self._ahead = gpu  # whether training goes on while this process does something else
        if worker.fuser is not None:
            self.notices.append(UNFUSED)
            _log.warning(UNFUSED)
        self._obstacle = _obstacle(worker)
        self._size = sum(n * dtype.itemsize for dtype, n in worker.weights.layout.moving.sizes.items())
        most = max(MOST_BYTES, memory_of(worker.device) // SHARE) if gpu else MOST_BYTES
        self.slots = 1 if self._obstacle else max(1, min(MOST_CLIENTS, most // max(self._size, 1)))
        if self._obstacle:
            self._say(self._obstacle)

    def next(self) -> Result | None:
        if not self._trained:
            self._train_waiting()
        if self._trained:
            return attempt(*self._trained.popleft())
        self._alone += bool(self._queue) and self._queue[0].kind == TRAIN
        return super().next()

    @property
    def ran(self) -> str:
        return "local" if self._alone and not self._stacked else self.chosen

    def _train_waiting(self) -> None:
        """Train the clients at the head of the queue; on a GPU many of them in parts, if that pays: while it trains
        one, others are made ready or answered."""
        waiting = min(len(self._queue), self.slots)
        part = -(-waiting // PARTS) if self._ahead and waiting >= MANY else waiting
        asks = self._waiting(part)
        if part < waiting and not self._divisible(asks):
            part, asks = waiting, self._waiting(waiting, asks)
        while len(asks) > 1:
            for _ in asks:
                self._queue.popleft()
            waiting -= len(asks)
            self._trained.extend(self._train(asks))
            asks = self._waiting(min(part, waiting))

    def _divisible(self, asks: list[Ask]) -> bool:
        """Whether clients have so few steps that a GPU would wait for what comes after them. What is done for a client
        here takes as long however many steps it has; of many, the more clients take one together the faster it is."""
        steps = max((a.epochs * steps_of(a.examples, self.worker.config.batch_size) for a in asks), default=0)
        return steps <= SHORT

    def _waiting(self, most: int, begun: Sequence[Ask] = ()) -> list[Ask]:
        """What the clients at the head of the queue ask that may be stacked, those that have `begun` to ask among them;
        of a client's several orders only the first, because the others start from what that one leaves."""
        asks = {ask.client.name: ask for ask in begun}
        if len(self._queue) < 2:
            return []
        self._look_at_step()
        busy = {order.client for order, _ in self._trained}
        for order in islice(self._queue, len(asks), most):
            ask = self._ask(order) if order.client not in asks and order.client not in busy else None
            if ask is None:
                break
            asks[order.client] = ask
        return list(asks.values())

    def _look_at_step(self) -> None:
        """On a CPU, whether stacking pays: it saves the overhead of a step, and stacked convolutions are slow."""
        if self._looked or self.worker.device.type != "cpu":
            return
        self._looked, size = True, measured_step(self.worker)
        if size.operations > LONG and not self._obstacle:
            self._obstacle = f"{size}, which a CPU makes faster so"
            self._say(self._obstacle)

    def _ask(self, order: Order) -> Ask | None:
        """How a client wants to be trained, if it can be trained with others."""
        if self._obstacle or order.kind != TRAIN or order.limit is not None or not order.models:
            return None
        try:
            ask = self._plain_ask(order) if self._plain else self._full_ask(order)
            sent = next(iter(order.models.values()))
            if ask is None or sent.layout != self.worker.travelling or not len(ask.examples):
                return None
            self._training.check(ask)
            return ask
        except CannotStack as reason:
            self._say(str(reason))
            if not self._bare:
                self._obstacle = str(reason)  # all that is done before a training need not be done twice
        except Exception as error:  # carried out alone, this order will say what is wrong with it
            _log.debug("an order is carried out alone: %s", error)
        return None

    def _plain_ask(self, order: Order) -> Ask:
        worker = self.worker
        worker.door.policy.jobs.check_epochs(worker.config.epochs)
        if self._bare:
            return plain_ask(worker.open(order), worker.seed_of(order))
        client = worker.begin(order)
        return asked_with_terms(client, worker.method.terms(client))

    def _full_ask(self, order: Order) -> Ask | None:
        """The method's own work up to its first training, as it would be done alone."""
        worker = self.worker
        worker.check_training()
        worker.trainer = _collect
        try:
            worker.method.local_training(worker.begin(order))
        except _Asked as asked:
            return asked.ask
        finally:
            worker.trainer = worker.discretion.fit
        return None

    def _train(self, asks: list[Ask]) -> list[tuple[Order, Rest]]:
        """Orders, as they came, with what is left to do of each: to keep and to let out, when its result is asked for,
        or all of it where stacking came to nothing."""
        groups: dict[object, list[Ask]] = {}
        for ask in asks:
            groups.setdefault(ask.together, []).append(ask)
        rest: dict[str, Rest] = {}
        for group in groups.values():
            if len(group) > 1:
                rest |= self._train_group(sorted(group, key=lambda ask: -len(ask.examples)))
        orders = [ask.client.order for ask in asks]
        self._stacked += len(rest)
        self._alone += len(orders) - len(rest)
        return [(order, rest.get(order.client, self.worker.execute)) for order in orders]

    def _train_group(self, asks: list[Ask]) -> dict[str, Rest]:
        """By client, what is left to do; nothing if training failed: each is then carried out anew and alone, so that
        the failure is its client's and nobody else's."""
        finish = self._finish if self._plain else self._go_on
        try:
            self.worker.check_training()
            trained = self._fit(asks)
        except CannotStack as reason:
            self._obstacle = str(reason)
            self._say(self._obstacle)
            return {}
        except Exception as error:
            _log.debug("clients that could not be trained together are trained one by one: %s", error)
            return {}
        return {ask.client.name: partial(finish, trained, row) for row, ask in enumerate(asks)}

    def _fit(self, asks: list[Ask]) -> Trained:
        if self._companion is None:
            return self._training.fit(asks)
        return self._companion.fit(self._training, asks, self.slots)

    def _finish(self, trained: Trained, row: int, order: Order) -> Update:
        worker, ask = self.worker, trained.asks[row]
        fitted = trained.fitted(row)
        ask.client.trained(fitted.loss)
        ask.client.times += fitted.times
        if worker.config.keep_optimizer:
            ask.client.state.keep(worker.optimizers.group(ask.optimizer), trained.kept(row))
        whole = trained.rows[row]
        leaving = whole if trained.travelling is trained.rows else trained.travelling[row]
        return worker.leave(ask.client, order, whole, leaving)

    def _go_on(self, trained: Trained, row: int, order: Order) -> Reply:
        """All that the method does, with a first training that is done already. Further ones are the client's own."""
        worker = self.worker

        def done(
            client: Client, model: Any, task: Any, examples: Any, optimizer: Any, *_: Any, **settings: Any
        ) -> Fitted:
            worker.trainer = worker.discretion.fit
            fitted = trained.fitted(row)
            client.data.loading += trained.asks[row].client.data.loading
            worker.weights.put(trained.rows[row])
            optimizer.restore(trained.kept(row))
            order_of_batches, random = trained.asks[row].order, trained.random(row)
            if order_of_batches is not None:
                settings["generator"].set_state(order_of_batches.get_state())
            if random is not None:
                generator_of(worker.device).set_state(random)
            return fitted

        worker.trainer = done
        try:
            return worker.execute(order)
        finally:
            worker.trainer = worker.discretion.fit

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self.notices.append(f"clients are trained one by one, not stacked: {reason}")
            _log.warning(self.notices[-1])


class _Asked(BaseException):
    """Ends a method's work where it wants to train."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask


def _collect(client: Client, *arguments: Any, **settings: Any) -> Fitted:
    raise _Asked(full_ask(client, arguments, settings, generator_of(client._worker.device).get_state()))


def _obstacle(worker: Worker) -> str:
    """What of recipe and method stands against stacking, if anything does."""
    if type(worker.discretion).fit is not Discretion.fit:
        return "noise is added to the gradients of single examples"
    if worker.sums is not None:
        return "updates are summed securely"
    return "" if any(p.requires_grad for p in worker.model.parameters()) else "nothing of the model is trained"
