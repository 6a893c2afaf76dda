"""Whether a stacked step gives what a step of one client gives; tried out on a batch before clients are stacked."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedreel.core.client import Worker
from fedreel.core.task import Batch
from fedreel.engines.stacked.alone import step_alone
from fedreel.engines.stacked.ask import Ask, CannotStack, given_tensors
from fedreel.engines.stacked.doubled import Pairs, compared_in_double
from fedreel.engines.stacked.draws import NoDraws, OwnDraws, generator_of
from fedreel.engines.stacked.rows import Held, Named, Rows
from fedreel.engines.stacked.step import Gradients, Kind
from fedreel.machine.device import full_precision

IN_DOUBLE = 1e-6  # of a tensor: by more two ways to make the same step do not differ in double precision
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreement:
    """What was seen of a step when it was tried out."""

    reached: tuple[bool, ...]  # which parameters the loss reaches
    changing: frozenset[str]  # tensors that a step changes, beside the trained ones
    random: bool  # whether it draws random numbers
    columns: int  # tensors of a batch


def agreement(worker: Worker, kind: Kind, ask: Ask, batch: Batch, own_draws: bool) -> Agreement:
    """Make a step as one client's, whose model the worker's is set to, and as that of two clients who are both this
    one. Raises `CannotStack` if the two differ. Where clients do not draw their own random numbers, none are drawn.
    Everything is left as it was.

    Both are made in full precision: what TF32 and bf16 leave of a deep network's gradients depends on the order in
    which a GPU multiplies. Where float32 leaves too little of them, both are made again in double precision. In bf16
    it is seen whether the step can be made, and whether its loss is about the same."""
    if not isinstance(batch, tuple) or not batch or not all(isinstance(t, Tensor) for t in batch):
        raise CannotStack("its batches are no tuples of tensors")
    exact = replace(kind, mixed=False, config=replace(kind.config, precision="fp32")) if kind.mixed else kind
    with full_precision():
        alone = _alone(worker, exact, ask, batch, own_draws)
        held, stacked, losses = _stacked(worker, exact, ask, batch, own_draws, alone)
    moves = [(torch.zeros_like(t[0]) if (g := alone.grads[n]) is None else g, t) for n, t in stacked.items()]
    others = [(alone.after[n], {**held.fixed, **held.given}[n]) for n in alone.changing if n not in held.trained]
    reason = _differ([(alone.loss, losses)], moves, others)
    if reason and not _is_rounding(worker, exact, ask, batch, own_draws, alone):
        raise CannotStack(reason)
    if kind.mixed and not _near([(alone.loss, _stacked(worker, kind, ask, batch, own_draws, alone)[2])], 0.05):
        raise CannotStack("a stacked step in bf16 gives another loss")
    return Agreement(tuple(g is not None for g in alone.grads.values()), alone.changing, alone.random, len(batch))


def _differ(losses: Pairs, moves: Pairs, others: Pairs, share: float = 0.0) -> str:
    """In what one client's step and a stacked one differ, if they do."""
    if not _near(losses, share) or not _near(moves, share):
        return "a stacked step gives other gradients"
    return "" if all(_near([pair], share) for pair in others) else "a stacked step leaves other statistics"


def _is_rounding(worker: Worker, kind: Kind, ask: Ask, batch: Batch, own_draws: bool, alone: _Alone) -> bool:
    """Whether the two agree in double precision; not if they cannot be made in it."""
    layout, random = worker.weights.layout, ask.random if own_draws else None
    names = trained_names(worker, ask)
    try:
        with _by_rules():
            (loss, *moves), others = compared_in_double(
                kind, names, layout.moving.place, layout.frozen.place, alone.changing, batch, random
            )
    except Exception as error:  # an operation, or a constant of the task, is of float32 only
        _log.debug("a step cannot be made in double precision: %s", error)
        return False
    return not _differ([loss], moves, others, IN_DOUBLE)


@dataclass(frozen=True)
class _Alone:
    """A step of one client: what it began with, and what it came to."""

    given: Named
    grads: dict[str, Tensor | None]
    loss: Tensor
    after: Named  # all tensors that a step may change
    changing: frozenset[str]
    random: bool


def _alone(worker: Worker, kind: Kind, ask: Ask, batch: Batch, own_draws: bool) -> _Alone:
    whole = given_tensors(kind.added, worker.weights.layout.frozen.place)
    before = {name: t.clone() for name, t in whole.items()}
    model = {name: t.clone() for name, t in worker.weights.items() if name in worker.weights.layout.moving.place}
    generator = generator_of(worker.device)
    drawn = generator.get_state()
    try:
        generator.set_state(ask.random)
        with nullcontext() if own_draws else NoDraws():
            found, loss = step_alone(
                kind.model, kind.task, ask.optimizer.params, kind.config, batch, kind.terms, kind.adjust
            )
        random = not torch.equal(generator.get_state(), ask.random)
        after = {**{n: worker.weights[n].clone() for n in model}, **{n: t.clone() for n, t in whole.items()}}
    finally:
        generator.set_state(drawn)
        for name, tensor in (*model.items(), *before.items()):
            (whole[name] if name in whole else worker.weights[name]).copy_(tensor)
    changing = frozenset(n for n, t in after.items() if not torch.equal(t, {**model, **before}[n]))
    return _Alone(before, dict(zip(trained_names(worker, ask), found)), loss, after, changing, random)


def _stacked(
    worker: Worker, kind: Kind, ask: Ask, batch: Batch, own_draws: bool, alone: _Alone
) -> tuple[Held, Named, Tensor]:
    """The same step of two clients: what they have then, gradients and losses."""
    generator = generator_of(worker.device)
    drawn = generator.get_state()
    try:
        held = _twice(worker, ask, alone.given)
        draws = OwnDraws([ask.random, ask.random], worker.device) if alone.random and own_draws else None
        with _by_rules(), nullcontext() if own_draws else NoDraws():
            made = Gradients(kind)(held, tuple(torch.stack([c, c]) for c in batch), draws)
    except Exception as error:  # vmap has no rule for an operation, or the code looks at values
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        raise CannotStack(f"its step cannot be vmapped ({type(error).__name__}: {reason}; {where})") from error
    finally:
        generator.set_state(drawn)
    return held, *made


def trained_names(worker: Worker, ask: Ask) -> list[str]:
    """Of what an ask's optimizer holds."""
    names = {id(p): n for n, p in worker.model.named_parameters()}
    return [names[id(p)] for p in ask.optimizer.params]


def held_rows(rows: Rows, trained: Sequence[str], given: Named, slots: Named, device: torch.device) -> Held:
    """What clients have, with their models as they are in `rows`."""
    fixed = [t.name for t in rows.layout.tensors if t.name not in {*trained}]
    totals = torch.zeros(rows.clients, dtype=torch.float64, device=device)
    own, others = ({n: t.contiguous() for n, t in rows.stacked(names).items()} for names in (trained, fixed))
    return Held(own, others, given, slots, totals)


@contextmanager
def _by_rules() -> Iterator[None]:
    """Within this, vmap refuses operations that it would carry out for one client after another."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def _twice(worker: Worker, ask: Ask, given: Named) -> Held:
    layout = worker.weights.layout.moving
    rows = Rows.empty(layout, 2, worker.device)
    rows.fill(worker.weights.take(layout))
    twice = {name: torch.stack([t, t]) for name, t in given.items()}
    return held_rows(rows, trained_names(worker, ask), twice, {}, worker.device)


def _near(pairs: Sequence[tuple[Tensor, Tensor]], share: float = 0.0) -> bool:
    """Whether each tensor of one client is near those of two: on the scale of itself, or if it is next to nothing (the
    gradient of a bias in front of a batch norm) of all of them. Of a GPU's convolutions some are less exact."""
    share = share or (0.01 if pairs and pairs[0][0].is_cuda else 0.001)
    whole = sum(float(one.double().norm()) ** 2 for one, _ in pairs) ** 0.5
    for one, two in pairs:
        apart = float((one.double() - two.double()).nan_to_num(0.0, 0.0, 0.0).norm(dim=None)) / 2**0.5
        alike = torch.equal(one.isfinite().expand_as(two), two.isfinite())
        if not alike or apart > share * (float(one.double().norm()) + 0.01 * whole) + 1e-7:
            return False
    return True
