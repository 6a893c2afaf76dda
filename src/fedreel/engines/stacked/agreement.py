"""Whether a stacked step gives what a step of one client gives; tried out on a batch before clients are stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fedreel.core.client import Worker
from fedreel.core.task import Batch
from fedreel.engines.stacked.alone import step_alone
from fedreel.engines.stacked.ask import Ask, CannotStack, given_tensors
from fedreel.engines.stacked.draws import OwnDraws, generator_of
from fedreel.engines.stacked.rows import Held, Named, Rows
from fedreel.engines.stacked.step import Gradients, Kind


@dataclass(frozen=True)
class Agreement:
    """What was seen of a step when it was tried out."""

    reached: tuple[bool, ...]  # which parameters the loss reaches
    changing: frozenset[str]  # tensors that a step changes, beside the trained ones
    random: bool  # whether it draws random numbers
    columns: int  # tensors of a batch


def agreement(worker: Worker, kind: Kind, ask: Ask, batch: Batch) -> Agreement:
    """Make a step as one client's, whose model the worker's is set to, and as that of two clients who are both this
    one. Raises `CannotStack` if the two differ. Everything is left as it was but for the worker's weights."""
    if not isinstance(batch, tuple) or not batch or not all(isinstance(t, Tensor) for t in batch):
        raise CannotStack("its batches are no tuples of tensors")
    whole = given_tensors(kind.added, worker.weights.layout.frozen.place)
    before = {name: t.clone() for name, t in whole.items()}
    model = {name: t.clone() for name, t in worker.weights.items() if name in worker.weights.layout.moving.place}
    generator = generator_of(worker.device)
    drawn = generator.get_state()
    try:
        generator.set_state(ask.random)
        found, loss = step_alone(
            kind.model, kind.task, ask.optimizer.params, kind.config, batch, kind.terms, kind.adjust
        )
        grads = dict(zip(trained_names(worker, ask), found))
        random = not torch.equal(generator.get_state(), ask.random)
        after = {**{n: worker.weights[n].clone() for n in model}, **{n: t.clone() for n, t in whole.items()}}
    finally:
        generator.set_state(drawn)
        for name, tensor in (*model.items(), *before.items()):
            (whole[name] if name in whole else worker.weights[name]).copy_(tensor)
    changing = frozenset(n for n, t in after.items() if not torch.equal(t, {**model, **before}[n]))
    try:
        held = _twice(worker, ask, before)
        draws = OwnDraws([ask.random, ask.random], worker.device) if random else None
        with _by_rules():
            stacked, losses = Gradients(kind, changing)(held, tuple(torch.stack([c, c]) for c in batch), draws)
    except Exception as error:  # vmap has no rule for an operation, or the code looks at values
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise CannotStack(f"its step cannot be vmapped ({type(error).__name__}: {reason})") from error
    pairs = [(loss, losses), *((g, stacked[n]) for n, g in grads.items() if g is not None)]
    pairs += [(after[n], ({**held.fixed, **held.given})[n]) for n in changing if n not in held.trained]
    pairs += [(torch.zeros_like(t[0]), t) for n, t in stacked.items() if grads[n] is None]
    if not all(_near(one, two, kind.mixed) for one, two in pairs):
        raise CannotStack("a stacked step gives other gradients")
    return Agreement(tuple(g is not None for g in grads.values()), changing, random, len(batch))


def trained_names(worker: Worker, ask: Ask) -> list[str]:
    """Of what an ask's optimizer holds."""
    names = {id(p): n for n, p in worker.model.named_parameters()}
    return [names[id(p)] for p in ask.optimizer.params]


def held_rows(rows: Rows, trained: Sequence[str], given: Named, slots: Named, device: torch.device) -> Held:
    """What clients have, with their models in `rows`."""
    fixed = [t.name for t in rows.layout.tensors if t.name not in {*trained}]
    totals = torch.zeros(rows.clients, dtype=torch.float64, device=device)
    return Held(rows.stacked(trained), rows.stacked(fixed), given, slots, totals)


@contextmanager
def _by_rules() -> Iterator[None]:
    """Within this, vmap refuses operations that it would carry out for one client after another."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)


def _twice(worker: Worker, ask: Ask, given: Named) -> Held:
    layout = worker.weights.layout.moving
    rows = Rows(layout, 2, worker.device)
    rows.fill(worker.weights.take(layout))
    twice = {name: torch.stack([t, t]) for name, t in given.items()}
    return held_rows(rows, trained_names(worker, ask), twice, {}, worker.device)


def _near(one: Tensor, two: Tensor, rough: bool) -> bool:
    """Equal up to rounding, on the scale of the whole tensor where numbers are as rough as in bf16."""
    if not one.is_floating_point():
        return torch.equal(one.expand_as(two), two)
    one = one.to(two.dtype).expand_as(two)
    if rough:
        return float((one - two).norm()) <= 0.05 * float(one.norm()) + 1e-4
    return torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True)
