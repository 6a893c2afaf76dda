"""Training steps by PyTorch's compiler: each kind of step is compiled once, for all clients and rounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedreel.core.task import Batch, batch_length
from fedreel.core.terms import OfJob
from fedreel.core.weights import Weights
from fedreel.core.work import Grads, OutOfTime, Work
from fedreel.kernels.fusing import Function, compiled
from fedreel.machine.device import full_precision, random_kept

MOST = 8  # kinds of steps compiled in a run: a method has one or two
NEAR, NEAR_MIXED = 0.005, 0.05  # shares by which a loss may differ that is rounded in other ways, in bf16 too
STEEP = 10  # times as much gradients may: where a value is next to zero, a rectifier lets it pass or not
_log = logging.getLogger(__name__)


class Fuser:
    """Compiles steps on full batches; the shorter ones at the end of an epoch are made as they come, for every size
    would be a compilation. A compiled step is compared with one that is not before it is believed. What cannot be
    compiled is made as it comes, and the log says why."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _Compiled | None] = {}
        self._said: set[str] = set()

    def of(self, work: Work, size: int) -> Work | FusedWork:
        """The work by the compiler, for batches of `size` examples."""
        if any(not isinstance(f, OfJob) for f in (*work.terms, work.adjust) if f is not None):
            self.say("the method adds a plain function to the step; @term or @adjustment would say what is whose")
            return work
        return FusedWork(self, work, size)

    def compiled(self, key: Hashable, held: Held, batch: tuple[Tensor, ...]) -> _Compiled | None:
        """What was made for this key, or is made now."""
        if key not in self._made:
            if len(self._made) >= MOST:
                self.say(f"{MOST} kinds of steps were compiled before this one, no more are")
                return None
            self._made[key] = self._compile(held, batch)
        return self._made[key]

    def _compile(self, held: Held, batch: tuple[Tensor, ...]) -> _Compiled | None:
        began = time.perf_counter()
        try:
            with random_kept(batch[0].device):
                made = _Compiled.of(held, batch)
            difference = _difference(held, made, batch)
        except OutOfTime:  # the next client tries again
            raise
        except Exception as error:  # whatever a compiler may raise
            reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
            self.say(f"this step cannot be compiled ({type(error).__name__}: {reason.strip()[:200]})")
            _log.debug("why a step cannot be compiled", exc_info=True)
            return None
        if difference:
            self.say(f"a compiled step gives {difference}")
            return None
        _log.info("a training step was compiled in %.1f s", time.perf_counter() - began)
        return made

    def say(self, reason: str) -> None:
        """Why training goes on unfused, once."""
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("training goes on unfused: %s", reason)


class FusedWork:
    """`Work` for one training: batches of the right size by what was compiled for their form."""

    def __init__(self, fuser: Fuser, work: Work, size: int) -> None:
        self._fuser, self._work, self._size = fuser, work, size
        self._held = Held(work)
        self._key = self._held.key()
        self._known: dict[Hashable, _Compiled | None] = {}

    def __call__(self, batch: Batch) -> tuple[Tensor, Grads]:
        tensors = isinstance(batch, tuple) and all(isinstance(t, Tensor) for t in batch)
        if not tensors or batch_length(batch) != self._size:
            return self._work(batch)
        form = tuple((t.shape, t.dtype, t.stride()) for t in batch)
        if form not in self._known:
            self._known[form] = self._fuser.compiled((self._key, form), self._held, batch)
        made = self._known[form]
        return self._work(batch) if made is None else made(self._held, batch)


class Held:
    """All tensors that a piece of work looks at, beside its batches: of the model, of others that its terms have, and
    what these were given. They are the same objects as long as the work is."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.added = [f for f in (*work.terms, work.adjust) if isinstance(f, OfJob)]
        others = (value for f in self.added for value in f.given if isinstance(value, nn.Module))
        self.models = nn.ModuleList({id(m): m for m in (work.model, *others)}.values())
        self.named = {**dict(self.models.named_parameters()), **dict(self.models.named_buffers())}
        self.given = [tensor for f in self.added for tensor in _loose(f)]
        self.tensors: list[Tensor] = [t.detach() for t in (*self.named.values(), *self.given)]
        places = {id(t): i for i, t in enumerate(self.named.values())}
        self.trained = [places[id(p)] for p in work.params]

    def key(self) -> Hashable:
        """Equal for work that is the same but for the values of these tensors: of another model of the task, say."""
        work = self.work
        added = tuple((f.function, *(self._value(v) for v in f.given)) for f in self.added)
        modes = tuple((type(m), m.training, getattr(m, "track_running_stats", None)) for m in self.models.modules())
        tensors = tuple((n, t.shape, t.dtype, t.device, t.requires_grad) for n, t in self.named.items())
        return _Itself(work.task), work.mixed, work.adjust is None, tuple(self.trained), added, modes, tensors

    def _value(self, value: Any) -> Hashable:
        """Of what a term was given: models are looked at as a whole."""
        if isinstance(value, nn.Module):
            return next(i for i, model in enumerate(self.models) if model is value)
        if isinstance(value, Tensor):
            return value.shape, value.dtype
        if isinstance(value, Weights):
            return value.layout.id
        return value if value is None or isinstance(value, bool | int | float | str) else _Itself(value)

    def counters(self) -> tuple[int, ...]:
        """Places of tensors that nobody looks at while they count the batches a norm has seen: a kernel for each would
        be as many as there are norms."""
        norms = [m for m in self.models.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        idle = {id(m.num_batches_tracked) for m in norms if m.momentum is not None}
        return tuple(i for i, t in enumerate(self.named.values()) if id(t) in idle)

    def with_tensors(self, tensors: Sequence[Tensor], batch: Batch) -> tuple[Tensor, Grads]:
        """The work with other tensors in the places of these."""
        named = dict(zip(self.named, tensors))
        loose = iter(tensors[len(named) :])
        added = [OfJob(f.function, tuple(_put(v, loose) for v in f.given), f.slope) for f in self.added]
        count = len(self.work.terms)
        terms, adjust = added[:count], added[count] if len(added) > count else None
        trained = [tensors[i] for i in self.trained]
        one = torch.ones((), device=self.work.one.device)
        work = replace(self.work, params=trained, terms=terms, adjust=adjust, one=one)
        found: tuple[Tensor, Grads] = functional_call(_Within(self.models, work), _prefixed(named), (batch,))
        return found


class _Itself:
    """Equal to what is the same object."""

    def __init__(self, it: object) -> None:
        self._it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._it is self._it

    def __hash__(self) -> int:
        return id(self._it)


class _Within(nn.Module):
    """Work as a module, so that functional_call can replace every tensor of its models."""

    def __init__(self, models: nn.ModuleList, work: Work) -> None:
        super().__init__()
        self.models, self._work = models, (work,)

    def forward(self, batch: Batch) -> tuple[Tensor, Grads]:
        return self._work[0](batch)


@dataclass(frozen=True)
class _Compiled:
    """A function of all tensors: loss, by how much counters go up, gradients, and what those tensors become that a step
    changes."""

    function: Function
    reached: tuple[bool, ...]  # which parameters have a gradient
    changing: tuple[int, ...]  # which tensors a step changes
    counters: tuple[int, ...]  # and which it only adds to

    def __call__(self, held: Held, batch: tuple[Tensor, ...]) -> tuple[Tensor, Grads]:
        loss, counted, *found = self.function(*held.tensors, *batch)
        given = iter(found)
        if self.counters:
            torch._foreach_add_([held.tensors[i] for i in self.counters], list(counted.unbind()))
        grads = tuple(next(given) if reached else None for reached in self.reached)
        changed: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for place, now in zip(self.changing, given):
            mine, new = changed.setdefault(now.dtype, ([], []))
            mine.append(held.tensors[place])
            new.append(now)
        for mine, new in changed.values():
            torch._foreach_copy_(mine, new)  # on a GPU one kernel for many
        return loss, grads

    @staticmethod
    def of(held: Held, batch: tuple[Tensor, ...]) -> _Compiled:
        count = len(held.tensors)
        counters = held.counters()
        asked = [getattr(t, "requires_grad", False) for t in (*held.named.values(), *held.given)]
        reached: tuple[bool, ...] = ()
        changing: tuple[int, ...] = ()

        def function(*tensors: Tensor) -> list[Tensor]:
            """Tensors of which gradients are asked do not change, the others may."""
            nonlocal reached, changing
            own = [t.detach().requires_grad_() if leaf else t.clone() for t, leaf in zip(tensors, asked)]
            counted = torch.zeros(len(counters), dtype=torch.int64, device=held.work.one.device)
            for place, counter in zip(counters, counted.unbind()):
                own[place] = counter
            before = [t._version for t in own]
            loss, grads = held.with_tensors(own, tensors[count:])
            reached = tuple(g is not None for g in grads)
            others = [i for i in range(len(own)) if i not in counters]
            changing = tuple(i for i in others if own[i]._version != before[i])
            return [loss, counted, *_apart(grads), *(own[i].detach() for i in changing)]

        made = compiled(function, [*held.tensors, *batch])
        return _Compiled(made, reached, changing, counters)


def _apart(grads: Grads) -> Iterator[Tensor]:
    """Each in memory of its own, laid out as parameters are: they may be changed in place."""
    seen: set[int] = set()
    for g in grads:
        if g is not None:
            yield g.clone(memory_format=torch.contiguous_format) if id(g) in seen else g.contiguous()
            seen.add(id(g))


def _difference(held: Held, made: _Compiled, batch: tuple[Tensor, ...]) -> str:
    """In what the compiled step differs from the work itself, if it does. Everything is left as it was."""
    device, work = batch[0].device, held.work
    near = NEAR_MIXED if work.mixed else NEAR
    found = []
    with full_precision():
        for step in (work, lambda b: made(held, b)):
            before = [t.clone() for t in held.tensors]
            with random_kept(device):
                loss, grads = step(batch)
                reached = [torch.zeros(()) if g is None else g.clone() for g in grads]
                drawn = _state(device)
            after = [t.clone() for t in held.tensors]
            torch._foreach_copy_(held.tensors, before)
            found.append((loss.clone(), reached, after, drawn))
    mine, other = found
    if _share([mine[0]], [other[0]]) > near or _share(mine[1], other[1]) > STEEP * near:
        return "other gradients"
    if any(_share([a], [b]) > near for a, b in zip(mine[2], other[2])):
        return "other statistics"
    return "" if torch.equal(mine[3], other[3]) else "other random numbers"


def _share(mine: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """How far apart they are, as a share of their length; values that are not finite count as equal where both are."""
    apart = length = 0.0
    for a, b in zip(mine, others):
        a, b = a.double().nan_to_num(0.0, 1e30, -1e30), b.double().nan_to_num(0.0, 1e30, -1e30)
        apart, length = apart + float((a - b).square().sum()), length + float(a.square().sum())
    return (apart / max(length, 1e-20)) ** 0.5


def _state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _loose(added: OfJob[Any]) -> Iterator[Tensor]:
    """The tensors that a job gave beside its models."""
    for value in added.given:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Weights):
            yield from value.flat.values()


def _put(value: Any, loose: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(loose)
    if isinstance(value, Weights):
        return Weights(value.layout, {dtype: next(loose) for dtype in value.flat})
    return value


def _prefixed(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"models.{name}": tensor for name, tensor in named.items()}
