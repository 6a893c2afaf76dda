"""What a client wants when its method calls `client.fit`: all that a training depends on, kept for later."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedreel.core.client import Client
from fedreel.core.optim import Optimizer
from fedreel.core.task import Examples
from fedreel.core.terms import OfJob
from fedreel.core.training import learning_rate
from fedreel.core.weights import Weights
from fedreel.engines.stacked.added import Added, tensors_of
from fedreel.engines.stacked.draws import generator_of
from fedreel.engines.stacked.rows import Named


class CannotStack(Exception):
    """Why clients are trained one by one."""


@dataclass(frozen=True)
class Ask:
    """The arguments of `core.training.fit`, copied where another client's work would change them."""

    client: Client
    examples: Examples
    optimizer: Optimizer
    terms: tuple[Added, ...]
    adjust: Added | None
    epochs: int
    lr: float
    start: Weights | None  # the model to begin with; None: as the client received it, its private part as it was kept
    given: Named  # the tensors of terms and adjustment
    kept: Named  # what the optimizer goes on from
    order: torch.Generator | None  # of the batches; None: as they lie
    seed: int | Tensor  # of everything else that is drawn, or the state of a generator of the device

    @property
    def random(self) -> Tensor:
        """The state of a generator of the device, before anything is drawn."""
        if isinstance(self.seed, Tensor):
            return self.seed
        return torch.Generator(self.client._worker.device).manual_seed(self.seed).get_state()

    @cached_property
    def kind(self) -> Hashable:
        """Equal for clients whose steps are the same but for their tensors."""
        return id(self.optimizer), tuple(term.key for term in self.terms), self.adjust and self.adjust.key

    @property
    def together(self) -> Hashable:
        """Equal for clients that can be trained together."""
        return self.kind, self.epochs


def plain_ask(client: Client, seed: int) -> Ask:
    """Of a method whose clients do no more than train: what `client.fit()` would ask, without doing anything yet."""
    worker, config = client._worker, client.config
    optimizer = worker.optimizers.of(None)
    return Ask(
        client,
        client.data.train,
        optimizer,
        (),
        None,
        config.epochs,
        learning_rate(config, client.round, worker.rounds),
        None,
        {},
        client.state.group(worker.optimizers.group(optimizer)) if config.keep_optimizer else {},
        torch.Generator().manual_seed(seed) if config.shuffle else None,
        seed,
    )


def asked_with_terms(client: Client, terms: Sequence[Any]) -> Ask:
    """Of a method whose clients do no more than train with terms: what `client.fit(terms)` would ask of a client that
    has begun, its model set up."""
    worker = client._worker
    plain, added = plain_ask(client, 0), _of_jobs(terms)
    received = {id(flat) for flat in client.received.flat.values()}
    given = given_tensors(added, worker.weights.layout.frozen.place)
    return replace(
        plain,
        terms=added,
        start=worker.weights.take(worker.weights.layout.moving) if len(worker.private.tensors) else None,
        given={name: t if id(t) in received else t.detach().clone() for name, t in given.items()},
        order=None if plain.order is None else plain.order.set_state(worker.generator.get_state()),
        seed=generator_of(worker.device).get_state(),
    )


def full_ask(client: Client, arguments: Sequence[Any], settings: dict[str, Any], random: Tensor) -> Ask:
    """Of any method, from what its `client.fit` hands on to the training loop."""
    _, _, examples, optimizer, config = arguments
    terms, adjust, worker = tuple(settings["terms"]), settings["adjust"], client._worker
    added = _of_jobs((*terms, *(() if adjust is None else (adjust,))))
    given = given_tensors(added, worker.weights.layout.frozen.place)
    generator = settings["generator"]
    return Ask(
        client,
        examples,
        optimizer,
        terms,
        adjust,
        settings["epochs"],
        optimizer.lr,
        worker.weights.take(worker.weights.layout.moving),
        {name: tensor.detach().clone() for name, tensor in given.items()},
        optimizer.state() if config.keep_optimizer else {},
        torch.Generator().set_state(generator.get_state()) if config.shuffle else None,
        random,
    )


def _of_jobs(added: Sequence[Any]) -> tuple[Added, ...]:
    if not all(isinstance(f, OfJob) for f in added):
        raise CannotStack("the method adds a plain function to the step; @term or @adjustment would say what is whose")
    return tuple(added)


def given_tensors(added: Sequence[Added], shared: Collection[str]) -> Named:
    """Of all that a job adds to a step."""
    return {name: t for place, f in enumerate(added) for name, t in tensors_of(f, place, shared).items()}
