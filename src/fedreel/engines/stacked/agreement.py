"""Whether a stacked step gives what a step of one client gives; tried out on a batch before clients are stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedreel.core.client import Worker
from fedreel.core.task import Batch
from fedreel.engines.stacked.alone import step_alone
from fedreel.engines.stacked.ask import Ask, CannotStack, given_tensors
from fedreel.engines.stacked.draws import NoDraws, OwnDraws, generator_of
from fedreel.engines.stacked.rows import Held, Named, Rows
from fedreel.engines.stacked.step import Gradients, Kind


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
    Everything is left as it was."""
    if not isinstance(batch, tuple) or not batch or not all(isinstance(t, Tensor) for t in batch):
        raise CannotStack("its batches are no tuples of tensors")
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
        draws = OwnDraws([ask.random, ask.random], worker.device) if random and own_draws else None
        with _by_rules(), nullcontext() if own_draws else NoDraws():
            stacked, losses = Gradients(kind, changing)(held, tuple(torch.stack([c, c]) for c in batch), draws)
    except Exception as error:  # vmap has no rule for an operation, or the code looks at values
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise CannotStack(f"its step cannot be vmapped ({type(error).__name__}: {reason})") from error
    finally:
        generator.set_state(drawn)
    moves = [(torch.zeros_like(t[0]) if (g := grads[n]) is None else g, t) for n, t in stacked.items()]
    others = [(after[n], {**held.fixed, **held.given}[n]) for n in changing if n not in held.trained]
    if not _near([(loss, losses)], kind, worker.device) or not _near(moves, kind, worker.device):
        raise CannotStack("a stacked step gives other gradients")
    if not all(_near([pair], kind, worker.device) for pair in others):
        raise CannotStack("a stacked step leaves other statistics")
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
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def _twice(worker: Worker, ask: Ask, given: Named) -> Held:
    layout = worker.weights.layout.moving
    rows = Rows(layout, 2, worker.device)
    rows.fill(worker.weights.take(layout))
    twice = {name: torch.stack([t, t]) for name, t in given.items()}
    return held_rows(rows, trained_names(worker, ask), twice, {}, worker.device)


def _near(pairs: Sequence[tuple[Tensor, Tensor]], kind: Kind, device: torch.device) -> bool:
    """Whether each tensor of one client is near those of two: on the scale of itself, or if it is next to nothing (the
    gradient of a bias in front of a batch norm) of all of them. GPUs multiply in TF32 or bf16."""
    share = 0.05 if kind.mixed else 0.02 if device.type == "cuda" else 0.001
    whole = sum(float(one.double().norm()) ** 2 for one, _ in pairs) ** 0.5
    for one, two in pairs:
        apart = float((one.double() - two.double()).nan_to_num(0.0, 0.0, 0.0).norm(dim=None)) / 2**0.5
        alike = torch.equal(one.isfinite().expand_as(two), two.isfinite())
        if not alike or apart > share * (float(one.double().norm()) + 0.01 * whole) + 1e-7:
            return False
    return True
