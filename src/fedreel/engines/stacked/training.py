"""Local training of several clients at once: their tensors are rows, a step is one call or the replay of one graph."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor

from fedreel.core.capture import Recorder, Replayed
from fedreel.core.client import Worker
from fedreel.core.task import Examples, Tensors
from fedreel.core.timing import Stopwatch, Times, resident
from fedreel.core.training import Fitted
from fedreel.engines.stacked.agreement import Agreement, agreement, held_rows, trained_names
from fedreel.engines.stacked.alike import Ground, ground_of
from fedreel.engines.stacked.ask import Ask, CannotStack
from fedreel.engines.stacked.draws import OwnDraws, generator_of
from fedreel.engines.stacked.feed import Form, feed, steps_of
from fedreel.engines.stacked.optimizers import make_row_optimizer
from fedreel.engines.stacked.rows import Named, Part, Rows
from fedreel.engines.stacked.step import Kind, StackedStep
from fedreel.machine.device import sent

PLACES = 3  # sizes of groups and kinds of steps whose memory and recordings are kept
FEW, ENOUGH = 4, 16  # clients and steps from which it shows whether clients' batches are alike
SPARE, TIMES = 4, 2  # a place for so many more clients, or so many times as many, is not too large for a group
QUARTERS = 4  # a recorded step is of a quarter of the clients, of two, three, or all
FEW_CLIENTS = 8  # of so few, a step is recorded for each choice of them that comes again
AGAIN = 2  # times that it came
CHOICES = 16  # of more clients, choices that come in one group after another and of which a step is recorded, too


class StackedTraining:
    """`core.training.fit` for many clients of a worker, equal up to rounding. On a GPU it returns before the work is
    done, and random numbers are drawn for all clients at once; elsewhere each draws its own (`own_draws`)."""

    def __init__(self, worker: Worker, make_recorder: Callable[[], Recorder] | None, own_draws: bool) -> None:
        self._worker, self._make_recorder, self._own_draws = worker, make_recorder, own_draws
        self._kinds: dict[Hashable, tuple[Kind, Agreement] | CannotStack] = {}
        self._places: OrderedDict[tuple[Hashable, int], Place] = OrderedDict()  # by kind and size
        self._stream = torch.cuda.Stream(worker.device) if worker.device.type == "cuda" else None

    @cached_property
    def ground(self) -> Ground:
        return ground_of(self._worker)

    def check(self, ask: Ask) -> None:
        """Raise `CannotStack` unless this client's steps can be stacked; tried out on the first of their kind. Where
        the ask does not say with which model, the worker's is set up as the client begins."""
        key = ask.kind, _looks(ask.examples)
        if key not in self._kinds:
            self._kinds[key] = self._tried_out(ask)
        found = self._kinds[key]
        if isinstance(found, CannotStack):
            raise found

    def _tried_out(self, ask: Ask) -> tuple[Kind, Agreement] | CannotStack:
        worker = self._worker
        if ask.start is None:
            worker.enter(ask.client, worker.weights)
        mixed = worker.config.precision == "bf16" and worker.device.type == "cuda"
        kind = Kind(worker.model, worker.task, worker.config, ask.terms, ask.adjust, mixed)
        batch = next(iter(ask.examples.batches(worker.config.batch_size)))
        try:
            return kind, agreement(worker, kind, ask, batch, self._own_draws)
        except CannotStack as reason:
            return reason

    def fit(self, asks: Sequence[Ask]) -> Trained:
        """Train clients that ask for the same. Those with batches of equal form take a step together. Those with fewer
        batches begin later, so that all end an epoch, with their shorter batches, at the same time."""
        return self.fit_runs([asks])[0]

    def fit_runs(self, runs: Sequence[Sequence[Ask]]) -> list[Trained]:
        """Train clients of several runs that ask for the same, the first of them this worker's; those of each apart."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._worker.device))
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            order = sorted((-len(ask.examples), run, i) for run, asks in enumerate(runs) for i, ask in enumerate(asks))
            asks = [runs[run][i] for _, run, i in order]
            place, counts, watch = self._fit(asks, runs[0][0])
            rows = [[0] * len(asks) for asks in runs]
            for row, (_, run, i) in enumerate(order):
                rows[run][i] = row
            effort = Effort(watch, len(asks))
            trained = [Trained(place, own, at, counts, effort) for own, at in zip(runs, rows)]
            effort.begun(place.held.totals.is_cuda)
            return trained

    def forget(self) -> None:
        """Give back all memory that is kept for later groups."""
        if self._stream is not None:
            self._stream.synchronize()
        self._places.clear()

    def _fit(self, asks: Sequence[Ask], like: Ask) -> tuple[Place, list[int], Stopwatch]:
        """Where clients have been trained, in how many steps each, and how long; `like` is one of this worker's."""
        worker, epochs = self._worker, like.epochs
        size = worker.config.batch_size
        worker.model.train()
        place = self._place(like, len(asks), by_rate=len({ask.lr for ask in asks}) > 1)
        place.enter(asks, self._own_draws)
        steps = [steps_of(ask.examples, size) for ask in asks]
        made = Replayed(place.step, epochs * max(steps), place.recorder, (place,)) if place.recorder else None
        counts, shared = [0] * len(asks), _Shared(steps)
        watch, in_memory = Stopwatch(worker.device), all(resident(ask.examples) for ask in asks)
        for _ in range(epochs):
            fed = feed([a.examples for a in asks], [a.order for a in asks], steps, size, worker.device, place.inputs)
            for members, batch in watch.counted(fed, in_memory):
                place.make(made, members, batch)
                shared.saw(members, counts[members[0]])
                for member in members:
                    counts[member] += 1
                if len(asks) >= FEW and shared.seldom:
                    raise CannotStack(f"batches of different clients have different shapes ({shared})")
        return place, counts, watch

    def _place(self, like: Ask, clients: int, by_rate: bool) -> Place:
        """One for as many clients, or for more if that has recordings: no group is as large as the one before where
        clients come and go, or where some begin with what they kept and others do not. Of a kind whose groups vary so,
        places are for 2, 4, 8, ... clients: a few serve all."""
        kind = like.kind, by_rate
        sizes, most = [size for k, size in self._places if k == kind], max(clients + SPARE, TIMES * clients)
        size = clients
        if self._make_recorder is not None and sizes:
            anew = 1 << (clients - 1).bit_length()
            size = min((size for size in sizes if clients <= size <= most), default=anew)
        key = kind, size
        if key not in self._places:
            found = self._kinds[like.kind, _looks(like.examples)]
            assert not isinstance(found, CannotStack)
            recorder = self._make_recorder() if self._make_recorder is not None else None
            self._places[key] = Place(self._worker, *found, like, size, recorder, by_rate)
            while len(self._places) > PLACES:
                if self._stream is not None:
                    self._stream.synchronize()  # it may still work there
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        return self._places[key]


class Place:
    """Where a group of clients is trained: memory that stays for all groups of this kind and up to this size, so that
    a recorded step serves them all. What lies in the last rows, if a group is smaller, is nobody's."""

    def __init__(
        self,
        worker: Worker,
        kind: Kind,
        seen: Agreement,
        ask: Ask,
        clients: int,
        recorder: Recorder | None,
        by_rate: bool,
    ) -> None:
        """`ask` is like those of all clients that will be trained here, up to so many; `by_rate` if not all of them are
        at the same rate."""
        self.recorder, self._random, self._columns = recorder, seen.random, seen.columns
        rows = Rows.empty(worker.weights.layout.moving, clients, worker.device)
        self.layout, self.clients = rows.layout, clients
        names, params = trained_names(worker, ask), ask.optimizer.params
        moved = [i for i, reached in enumerate(seen.reached) if reached or worker.config.optimizer == "sgd"]
        self.optimizer = make_row_optimizer([params[i] for i in moved], moved, worker.config, by_rate)
        trained = [names[i] for i in moved]
        given = {n: t.expand(clients, *t.shape).clone() for n, t in ask.given.items()}
        slots = self.optimizer.slots([*rows.stacked(trained).values()])
        self.held = held_rows(rows, trained, given, slots, worker.device)
        self._models = {**self.held.trained, **self.held.fixed}
        self.step = StackedStep(kind, self.held, self.optimizer, seen.changing, seen.columns)
        self.draws: OwnDraws | None = None
        self.taken = clients  # rows
        self._of: dict[tuple[int, ...], Replayed] = {}  # steps of clients that are not the first ones
        self._usual: set[tuple[int, ...]] = set()  # clients that take a step together in one group after another
        self._now: set[tuple[int, ...]] = set()  # those that do so in this group
        self._before: set[tuple[int, ...]] = set()  # and that did in the last

    def enter(self, asks: Sequence[Ask], own_draws: bool) -> None:
        """Set everything up as these clients begin."""
        self.taken, device = len(asks), self.held.totals.device
        self._before, self._now = self._now, set()
        self._begin(asks)
        for name, tensor in self.held.given.items():
            torch.stack([ask.given[name] for ask in asks], out=tensor[: self.taken])
        for tensor in (*self.held.slots.values(), self.held.totals):
            tensor.zero_()
        for row, ask in enumerate(asks):
            if ask.kept:
                self.optimizer.restore(self.held.slots, row, ask.kept)
        self.optimizer.begin(self.held.slots, [ask.lr for ask in asks])
        self.draws = self.step.draws = None
        if self._random and own_draws:
            self.draws = self.step.draws = OwnDraws([ask.random for ask in asks], device)
        elif self._random:
            generator_of(device).set_state(asks[0].random)

    def inputs(self, form: Form) -> tuple[Tensor, ...] | None:
        """Where a recorded step reads batches of this form. What is put there need not be copied for a replay."""
        kept = self.recorder.kept.values() if self.recorder is not None else ()
        own = (r.inputs for r in kept if r.step is self.step)
        return next((found for found in own if tuple((t.shape, t.dtype) for t in found) == form), None)

    def trained(self, rows: Part, clients: int) -> Rows:
        """The models of these clients, as they are now."""
        found = Rows.zeros(self.layout, clients, self.held.totals.device)
        torch._foreach_copy_([*found.stacked([*self._models]).values()], [t[rows] for t in self._models.values()])
        return found

    def make(self, replayed: Replayed | None, members: Sequence[int], batch: tuple[Tensor, ...]) -> None:
        """A step of these clients, whose batches are stacked."""
        clients, last = self.clients, members[-1] + 1
        exactly = clients <= FEW_CLIENTS or (replayed is not None and self._come_again(tuple(members)))
        quarter = 1 if exactly else -(-clients // QUARTERS)
        width = last if replayed is None else min(clients, -(-last // quarter) * quarter)
        step = self.step if replayed is None else replayed
        if len(members) == min(width, self.taken):
            nobody = width - len(members)
            self._draw_for([*members, *[None] * nobody])
            step(tuple(torch.cat([c, c[:1].expand(nobody, *c.shape[1:])]) for c in batch) if nobody else batch)
        elif self.recorder is not None and exactly:
            self._draw_for(members)
            self._step_of(tuple(members), self.recorder)(batch)
        elif replayed is not None and 2 * len(members) >= width:
            whose = {member: i for i, member in enumerate(members)}
            self._draw_for([row if row in whose else None for row in range(width)])
            rows = sent(torch.tensor([whose.get(row, 0) for row in range(width)]), batch[0].device)
            active = sent(torch.tensor([row in whose for row in range(width)]), batch[0].device)
            step((*(column[rows] for column in batch), active))
        else:
            self._draw_for(members)
            self.step.of(members)(batch)

    def _come_again(self, members: tuple[int, ...]) -> bool:
        """Whether these clients take steps together in one group after another, as they do where the same clients are
        trained in every round: then a step is of them and of nobody else."""
        self._now.add(members)
        if members in self._before and len(self._usual) < CHOICES:
            self._usual.add(members)
        return members in self._usual

    def _step_of(self, members: tuple[int, ...], recorder: Recorder) -> Replayed:
        if members not in self._of:
            step = self.step.of(members)
            self._of[members] = Replayed(step, 0, recorder, (step,), AGAIN)
        return self._of[members]

    def _draw_for(self, members: Sequence[int | None]) -> None:
        if self.draws is not None:
            self.draws.members = members

    def _begin(self, asks: Sequence[Ask]) -> None:
        """Set up the clients' models."""
        models = [next(iter(ask.client.models.values())) for ask in asks]
        same = all(m is models[0] for m in models) and models[0].layout == self.layout
        if same and all(ask.start is None for ask in asks):
            received = asks[0].client.received
            torch._foreach_copy_([*self._models.values()], [received[n].expand_as(t) for n, t in self._models.items()])
            return
        rows = Rows.empty(self.layout, self.taken, self.held.totals.device)
        for row, ask in enumerate(asks):
            if ask.start is None:
                ask.client._worker.enter(ask.client, rows[row])
            else:
                rows[row].put(ask.start)
        own = [t[: self.taken] for t in self._models.values()]
        torch._foreach_copy_(own, [*rows.stacked([*self._models]).values()])


class Trained:
    """How clients of a run ended. It has memory of its own: the place is for the next group."""

    def __init__(
        self, place: Place, asks: Sequence[Ask], rows: Sequence[int], counts: Sequence[int], effort: Effort
    ) -> None:
        """They had these rows of the place, in which so many steps were made of each."""
        worker, device = asks[0].client._worker, place.held.totals.device
        self.asks, self._effort, self._counts = asks, effort, [counts[row] for row in rows]
        first = [*rows] == [*range(len(rows))]
        part: Part = slice(0, len(rows)) if first else sent(torch.tensor(rows), device)
        self.rows = place.trained(part, len(rows))
        self.travelling = self.rows.take(worker.travelling)
        self._measure()
        slots, optimizer = place.held.slots, place.optimizer
        keeps = worker.config.keep_optimizer
        self._kept = [optimizer.state(slots, row) for row in rows] if keeps else [{} for _ in asks]
        self._random = None if place.draws is None else [place.draws.states[row] for row in rows]
        self._totals = place.held.totals[part].to("cpu", copy=True, non_blocking=True)

    def _measure(self) -> None:
        """Have it found out how far clients went from the model that all were sent, as whoever admits them will want
        to know: it then waits for nothing but the training."""
        models = [next(iter(ask.client.models.values())) for ask in self.asks]
        here = {t.device for t in (*self.travelling.flat.values(), *models[0].flat.values())}
        known = all(m is models[0] for m in models) and models[0].layout == self.travelling.layout and len(here) == 1
        if known and self.travelling.compared_at_once:
            self.travelling.measure(models[0])

    def fitted(self, row: int) -> Fitted:
        times, total = self._effort.times, self._losses[row]
        seen = self.asks[row].epochs * len(self.asks[row].examples)
        loss = total / seen if seen else math.nan
        return Fitted(loss, seen, self._counts[row], self.asks[row].lr, times)

    @cached_property
    def _losses(self) -> list[float]:
        """Sums, when the device is done."""
        self._effort.wait()
        return [float(total) for total in self._totals.tolist()]

    def kept(self, row: int) -> Named:
        """What the client's optimizer goes on from."""
        return self._kept[row]

    def random(self, row: int) -> Tensor | None:
        """Where the client's random numbers are, if it drew its own."""
        return None if self._random is None else self._random[row]


class Effort:
    """What a group's training took, of however many runs its clients are."""

    def __init__(self, watch: Stopwatch, clients: int) -> None:
        self._watch, self._clients = watch, clients
        self._until: torch.cuda.Event | None = None

    def begun(self, on_gpu: bool) -> None:
        """All of it is done, or on a GPU ordered."""
        self._until = torch.cuda.current_stream().record_event() if on_gpu else None
        self._watch.rest()

    def wait(self) -> None:
        """Until the device has done it."""
        if self._until is not None:
            self._until.synchronize()

    @cached_property
    def times(self) -> Times:
        """Of each client, when the device is done. Since the last step was begun other work may have been done here."""
        self._watch.go_on()
        self.wait()
        return self._watch.stop() / self._clients


def _looks(examples: Examples) -> Hashable:
    """Equal for examples whose batches are alike but for their sizes."""
    if isinstance(examples, Tensors):
        return tuple((t.dim(), t.dtype) for t in examples.tensors)
    return type(examples)


class _Shared:
    """Of the steps at times when several clients have batches, how many clients take one together. Those at which only
    the client with the most batches has any say nothing about their shapes."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps, self._most = steps, max(steps)
        self._clients = self._made = 0

    def saw(self, members: Sequence[int], before: int) -> None:
        """A step of these clients, the first of whom has taken so many before."""
        own = self._steps[members[0]]
        time = self._most - own + before % own  # those with fewer begin later
        if sum(n >= self._most - time for n in self._steps) > 1:
            self._clients, self._made = self._clients + len(members), self._made + 1

    @property
    def seldom(self) -> bool:
        """Whether that is seen by now to be hardly more than one."""
        return self._made >= ENOUGH and 2 * self._clients < 3 * self._made

    def __str__(self) -> str:
        return f"{self._clients / self._made:.2g} clients take a step together where several have a batch"
