"""The one object a method sees. Sampling, failures, resume, progress and accounting are behind it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fedreel.config import RoundConfig, TransferConfig
from fedreel.core.admission import Admission, agreeing
from fedreel.core.aggregate import Aggregator, Average, CappedMean, check_weighing, make_aggregator
from fedreel.core.chains import Chain, too_few
from fedreel.core.declared import Declarations
from fedreel.core.disclosure import Disclosure, testers
from fedreel.core.engine import Engine
from fedreel.core.flight import Arrival, Flight
from fedreel.core.method import Method
from fedreel.core.round_stats import RoundStats
from fedreel.core.server import GLOBAL, MakeTraining, Server, ServerState, Watcher
from fedreel.core.task import Examples
from fedreel.core.transfer.coded import make_coded
from fedreel.core.transfer.together import weighed_by
from fedreel.core.update import ASK, EVALUATE, SECURE, TRAIN, Answer, Failure, Order, Reply, Update, Value, expect
from fedreel.core.weights import Weights
from fedreel.core.world import World
from fedreel.errors import FedreelError

R = TypeVar("R", Answer, Update)


class Federation(Server):
    """Clients, the current weights, and what can be done with them."""

    def __init__(
        self,
        engine: Engine,
        method: Method,
        config: RoundConfig,
        seed: int,
        *,
        watchers: Sequence[Watcher] = (),
        progress: ServerState | None = None,
        public: Callable[[], Examples | None] = lambda: None,
        training: MakeTraining | None = None,
        disclosure: Disclosure | None = None,
        transfer: TransferConfig | None = None,
        sums: Callable[..., list[Average]] | None = None,
        world: World | None = None,
    ) -> None:
        started = progress or ServerState(models={GLOBAL: engine.blueprint.start.clone()})
        super().__init__(engine.blueprint, started, seed, watchers, public, training)
        self._engine, self._method, self.config, self._sums = engine, method, config, sums
        self._disclosure = disclosure or Disclosure(seed)
        self._disclosure.begin(self.memory)
        made, sites = engine.blueprint, getattr(engine, "at_sites", False)
        self._declare = Declarations(method, made.task, self._disclosure.privacy)
        coded = make_coded(transfer, made.travelling)
        self._together = getattr(engine, "gathers", sites) and transfer is not None and transfer.together
        self._admission = Admission(made.travelling, config.max_change, self._declare, config.max_count, coded)
        self._max_weight = config.max_weight if sites else 0.0  # where all clients are at one place, nobody lies
        self.clients = engine.clients
        self._world = world
        self._flight: Flight | None = None
        if world is not None:
            world.begin(self.memory)
        self.step, self._beyond, self._warned = 0, 0, False
        self.stats = RoundStats()

    # what a method uses

    def rounds(self) -> Iterator[int]:
        """Round numbers from 1. What the loop body leaves in weights, models and memory is tested and checkpointed
        when it comes round; a run that was killed goes on with the first round that is not in a checkpoint."""
        while self.progress.round < self.config.rounds:
            if reason := self._disclosure.reason_to_end(self.round + 1):
                self.record("note", text=reason)
                return
            self.progress.round += 1
            self.step = 0
            self.stats = RoundStats()
            yield self.progress.round
            self._end_round()

    @property
    def tested(self) -> bool:
        """Whether this is one of the rounds that are tested: every so many, and the last."""
        every = self.config.evaluate_every
        due = every > 0 and (self.round == self.config.rounds or self.round % every == 0)
        return due and self._disclosure.tests

    def sample(self, among: Sequence[str] | None = None, fraction: float | None = None) -> list[str]:
        """This round's clients; the same for every method with the same seed."""
        pool = self.clients if among is None else among
        share = self.config.fraction if fraction is None else fraction
        wanted = self.config.clients if self.config.clients and among is None and fraction is None else 0
        n = min(len(pool), wanted or max(1, round(share * len(pool))))
        n = n if self._world is None else self._world.ordered(n, len(pool))
        return self._disclosure.drawn(pool, n, self.round)

    def average(
        self,
        clients: Sequence[str],
        weights: Weights | Mapping[str, Weights],
        *,
        by: str = "samples",
        at_least: float | None = None,
        **args: Value,
    ) -> Average:
        """Every client trains from `weights`; the mean of what they made, by the rule of the recipe's [round] section.
        `by` is a number that clients send, `equal`, or `loss`: then a model counts exp(-loss). Methods that see no
        more than sums get at the clients' models by this call alone."""
        return self.averages(clients, weights, by=(by,), at_least=at_least, **args)[0]

    def averages(
        self,
        clients: Sequence[str],
        weights: Weights | Mapping[str, Weights],
        *,
        by: Sequence[str],
        at_least: float | None = None,
        **args: Value,
    ) -> list[Average]:
        """Several means of the same updates, one for each way to weigh them."""
        for name in by:
            check_weighing(name, (*self._method.sends, *self.task.sends))
        models = _named(weights)
        ways = ("equal",) if self._disclosure.alike else by
        if self._sums is not None:
            return self._disclosure.of_sums(self._sums(self, clients, models, ways, at_least, args), by, self.round)
        together = weighed_by(self._method, ways) if self._together else ()
        updates = self._trained([Chain(deque([c]), models, together) for c in clients], args, at_least)
        return self._disclosure.averages(updates, next(iter(models.values())), by, self.mean, self.round)

    def mean(self, told: bool = True) -> Aggregator:
        """An empty mean of models, by the rule of the recipe's [round] section. Weights that clients have not `told`,
        but that the server knows of itself, may be as large as they like."""
        rule = make_aggregator(self.config, self._max_weight if told else 0.0)
        if rule.needs_all and not isinstance(rule, CappedMean) and not self._warned:
            self._warned = True
            text = f"{self.config.aggregation} keeps all updates of a round in memory and counts clients as equals"
            self.record("note", text=text)
        return rule

    def train(
        self,
        clients: Sequence[str],
        weights: Weights | Mapping[str, Weights],
        *,
        at_least: float | None = None,
        **args: Value,
    ) -> Iterator[Update]:
        """Every client trains from `weights` (or gets several models by name); updates come in the clients' order.
        `at_least` is the share that must answer, if it is not the round's."""
        return self._each([Chain(deque([c]), _named(weights)) for c in clients], args, at_least)

    def train_own(self, models: Mapping[str, Weights], **args: Value) -> Iterator[Update]:
        """Every client trains its own of several global models: client -> weights."""
        return self._each([Chain(deque([c]), {GLOBAL: w}) for c, w in models.items()], args)

    def train_chains(
        self, chains: Sequence[Sequence[str]], weights: Weights | Mapping[str, Weights], **args: Value
    ) -> Iterator[Update]:
        """Clients of a chain train one after another, each from its predecessor's model; chains run side by side where
        the engine can. Updates come by place in the chain, then by chain."""
        return self._each([Chain(deque(chain), _named(weights)) for chain in chains], args)

    def arrivals(self, count: int, in_flight: int, **args: Value) -> Iterator[Arrival]:
        """The next so many updates, in the order in which they arrive by the clock of the recipe's [world], with the
        model that each began with. All the while so many clients are at work, over the ends of rounds: whoever
        answers is followed by another, which begins with the global model as it is then."""
        self._check_sees_each()
        if self._flight is None:
            self._flight = Flight(self, self._engine, self._admission, self._world)
        return self._flight.arrivals(count, in_flight, args)

    def ask(
        self,
        clients: Sequence[str],
        question: str,
        weights: Weights | Mapping[str, Weights] | None = None,
        *,
        at_least: float | None = None,
        **args: Value,
    ) -> Iterator[Answer]:
        """Put one of the method's questions to clients; numbers and tensors of the answers by name. An answer whose
        tensors have other shapes than those of most clients does not count."""
        models = {} if weights is None else _named(weights)
        lanes = [Chain(deque([c]), models) for c in clients]
        answers = [*_only(Answer, self._stream(ASK, lanes, args, question, at_least))]
        kinds = self._declare(Order(0, 0, "", ASK, {}, question=question)).kinds
        kept, others = agreeing(answers, dict(kinds))
        for failure in others:
            self.refuse(failure)
        yield from kept

    def secure(
        self, question: str, args: Mapping[str, Mapping[str, Value]], models: Mapping[str, Weights], at_least: float
    ) -> Iterator[Answer]:
        """A question of a secure sum, to each client with arguments of its own."""
        lanes = [Chain(deque([client]), models, args=own) for client, own in args.items()]
        return _only(Answer, self._stream(SECURE, lanes, {}, question, at_least))

    def summed(self, clients: Sequence[str], loss: float | None) -> None:
        """These clients have trained in this round, and only their sum is known."""
        self.stats.summed([*clients], loss)
        self.progress.trained |= {*clients}

    def evaluate(
        self, weights: Weights | Mapping[str, Weights], clients: Sequence[str] | None = None, phase: str = "test"
    ) -> dict[str, float]:
        """Each client tests `weights` (or, given client -> weights, its own) on its test data; records and returns the
        means over samples, and over clients as `NAME_clients`. With `round.mean_over = "trained"` only clients that
        have trained are in the means (the record's `counted`): what stays at a client that never did, such as a head,
        is as initialised. As all methods draw the same clients, they are the same for all of them. If none has, as
        when all data are in one place, every client counts."""
        began = time.monotonic()
        who = testers(self.clients if clients is None else clients, self.config.test_clients, self.seed, self.round)
        lanes = [Chain(deque([c]), {GLOBAL: weights if isinstance(weights, Weights) else weights[c]}) for c in who]
        told = self._stream(EVALUATE, lanes, {})
        answers = {u.client: u.numbers for u in told if self._disclosure.was_tested(u.numbers)}
        counted = self._counted(answers)
        overall = self._disclosure.test_means(answers, counted, self.round)
        if phase == "test":
            self.progress.metrics = overall
        beside = self._disclosure.of_test(answers, counted if self.config.mean_over == "trained" else None)
        self.record(phase, metrics=overall, **beside, seconds=time.monotonic() - began)
        return overall

    def finish(self) -> RoundStats:
        """No round is left. What is asked from now on is numbered as in one round more, so that clients answer with
        what the last one left, however often a run is resumed after it; the bytes are counted apart."""
        self._beyond, self.step, self.stats = 1, 0, RoundStats()
        return self.stats

    # behind it

    def _counted(self, tested: Mapping[str, Any]) -> list[str]:
        """Whose tests are in the means."""
        trained = [client for client in tested if client in self.progress.trained]
        return trained if trained and self.config.mean_over == "trained" else [*tested]

    def _each(self, lanes: list[Chain], args: Mapping[str, Value], at_least: float | None = None) -> Iterator[Update]:
        self._check_sees_each()
        return self._trained(lanes, args, at_least)

    def _check_sees_each(self) -> None:
        if self._method.sees != "each":
            raise FedreelError(
                f"{type(self._method).__name__} declares that it sees sums only, and asks for each single update",
                expected='fed.average(...), or `sees = "each"` in the method',
            )

    def _trained(
        self, lanes: list[Chain], args: Mapping[str, Value], at_least: float | None = None
    ) -> Iterator[Update]:
        moved = {}
        if self._world is not None:
            lanes = self._world.in_time(lanes, self.round, self._share(at_least), self.refuse)
        for update in _only(Update, self._stream(TRAIN, lanes, args, at_least=at_least)):
            self.stats.trained(update)
            self.progress.trained.add(update.client)
            if self.config.divergence:
                moved[update.client] = update.weights.distances(self.weights)
            yield update
        if moved:
            self.record("divergence", clients=moved)

    def _share(self, at_least: float | None) -> float:
        return self.config.min_answers if at_least is None else at_least

    def _stream(
        self,
        kind: str,
        lanes: list[Chain],
        args: Mapping[str, Value],
        question: str = "",
        at_least: float | None = None,
    ) -> Iterator[Reply]:
        """Send orders out, at most `engine.slots` at once, and yield what is admitted in a fixed order. If too few
        answer, those who failed are asked again at the end of their chain; if that does not help, the run stops."""
        total = sum(len(lane.clients) for lane in lanes)
        share = 0.0 if kind == EVALUATE else self._share(at_least)
        needed = math.ceil(share * total)
        failures: list[Failure] = []
        answered = 0
        self.tell_begin(kind, [client for lane in lanes for client in lane.clients])
        for attempt in range(self.config.repeat + 1):
            lost: list[tuple[Chain, str]] = []
            for update in self._once_through(kind, lanes, args, question, failures, lost):
                answered += 1
                if kind in (TRAIN, ASK) or question == "masked":
                    self.tell_answer(answered, len(failures), total, update)
                yield update
            if answered >= needed:
                return
            for lane, client in lost:
                lane.clients.append(client)
            if attempt < self.config.repeat:
                self.record("note", text=f"{answered} of {total} clients answered, {needed} are needed: asking again")
        raise too_few(self.round, f"at least {needed} of {total}", str(answered), failures)

    def _once_through(
        self,
        kind: str,
        lanes: list[Chain],
        args: Mapping[str, Value],
        question: str,
        failures: list[Failure],
        lost: list[tuple[Chain, str]],
    ) -> Iterator[Reply]:
        waiting = deque(lane for lane in lanes if lane.clients)
        sequence = sorted((p, i) for i, lane in enumerate(lanes) for p in range(len(lane.clients)))
        index, position = {id(lane): i for i, lane in enumerate(lanes)}, [0] * len(lanes)
        under_way: dict[tuple[int, int], Chain] = {}
        results: dict[tuple[int, int], Reply | None] = {}
        at = 0

        def send() -> None:
            while waiting and len(under_way) < self._engine.slots:
                lane = waiting.popleft()
                under_way[self._order(kind, lane, args, question)] = lane

        send()
        while at < len(sequence):
            result = self._engine.next()
            if result is None:  # the engine lost them
                key, lane = next(iter(under_way.items()))
                result = Failure(*key, lane.clients[0], "error", "the engine lost this order")
            failure = result if isinstance(result, Failure) else self._admission.judge(result)
            key = (result.round, result.step)
            if failure is not None:
                failures.append(failure)
                self.refuse(failure)
                if failure.reason in ("stale", "duplicate") or key not in under_way:
                    continue
                self._admission.close(key)
            lane = under_way.pop(key)
            client, i = lane.clients.popleft(), index[id(lane)]
            self.tell_state(client, "done" if failure is None else "failed")
            if failure is not None:
                lost.append((lane, client))
                results[position[i], i] = None
            else:
                assert not isinstance(result, Failure)
                results[position[i], i] = result
                self.stats.moved(kind, up=result.nbytes)
                if isinstance(result, Update) and lane.clients:
                    lane.models = {GLOBAL: result.weights}
            position[i] += 1
            if lane.clients:
                waiting.append(lane)
            send()  # a chain goes on while the method looks at what came
            while at < len(sequence) and sequence[at] in results:
                ready = results.pop(sequence[at])
                at += 1
                if ready is not None:
                    yield ready

    def _order(self, kind: str, lane: Chain, args: Mapping[str, Value], question: str) -> tuple[int, int]:
        self.step += 1
        limit = self.config.time_limit or None
        at, client, own = self.round + self._beyond, lane.clients[0], {**args, **lane.args}
        awaited = len(lane.clients) > 1
        order = Order(at, self.step, client, kind, lane.models, own, question, limit, lane.together, awaited)
        self._admission.expect(order)
        self.tell_state(order.client, "working")
        self._engine.submit(order)
        self.stats.moved(kind, down=order.nbytes)
        self.stats.ordered += order.trains
        return order.key

    def _end_round(self) -> None:
        stats, progress = self.stats, self.progress
        if self.tested:
            self._method.evaluate(self)
        kept = range(1, self.config.keep_models + 1)
        if progress.round in {round(i * self.config.rounds / self.config.keep_models) for i in kept}:
            self.models[f"round-{progress.round:04}"] = self.weights.clone()
        seconds = time.monotonic() - stats.began
        line: dict[str, int] = getattr(self._engine, "traffic", dict)()  # of engines that have one
        clock = {} if self._world is None else {"clock": self._world.now}
        self.record("train", **self._disclosure.of_training(stats.summary()), **line, **clock, seconds=seconds)
        if spent := self._disclosure.of_round():
            self.record("privacy", **spent)
        stats.add_to(progress.totals, seconds)
        for watcher in self._watchers:
            watcher.round_done(progress, self._engine.sync)


def _only(kind: type[R], replies: Iterator[Reply]) -> Iterator[R]:
    """Replies, which admission has seen to be of the kind that their orders ask for."""
    return (expect(reply, kind, "a reply") for reply in replies)


def _named(weights: Weights | Mapping[str, Weights]) -> Mapping[str, Weights]:
    return {GLOBAL: weights} if isinstance(weights, Weights) else weights
