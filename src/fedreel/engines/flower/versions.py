"""Models down as what is new in them: which models a site has, at the server and at the site.

After an answered message the site has the models that came with it; the next one may refer to them. Nothing of this is
kept on disk: a site that has started anew says that it lacks a model, and gets it whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedreel.core.transfer.difference import apply, difference, digest
from fedreel.core.update import Order
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Bytes


class Lacking(Exception):
    """A site does not have what a message refers to."""


@dataclass
class Versions:
    """What the server knows to be at each node, and how a model is told to it. `begin` before a stage's messages."""

    _at: dict[str, dict[str, Weights]] = field(default_factory=dict)  # node -> digest -> model
    _digests: dict[int, tuple[Weights, str]] = field(default_factory=dict)  # of this stage's models
    _made: dict[tuple[str, str], Mapping[torch.dtype, bytes]] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget what was computed: a model may have been changed in place since."""
        self._digests.clear()
        self._made.clear()

    def told(self, node: str, weights: Weights) -> tuple[dict[str, str], Mapping[torch.dtype, Bytes] | None]:
        """A model for a node: its digest, the digest of what it is new against, if anything, and the bytes that go with
        them; None: all of it."""
        mine, held = self._digest(weights), self._at.get(node, {})
        if mine in held:
            return {"digest": mine, "base": mine}, {}
        for base, old in held.items():
            if old.layout == weights.layout:
                if (base, mine) not in self._made:
                    self._made[base, mine] = difference(weights, old)
                return {"digest": mine, "base": base}, self._made[base, mine]
        return {"digest": mine}, None

    def answered(self, node: str, orders: Sequence[Order]) -> None:
        """The node has carried these orders out, so it has their models."""
        models = [w for order in orders for w in order.models.values()]
        if models:
            self._at[node] = {self._digest(w): w for w in models}

    def forget(self, node: str) -> None:
        """The node has said that it lacks something."""
        self._at.pop(node, None)

    def _digest(self, weights: Weights) -> str:
        if id(weights) not in self._digests:
            self._digests[id(weights)] = (weights, digest(weights))
        return self._digests[id(weights)][1]


@dataclass
class Held:
    """The models that a site has: those of the last message that brought any, and those of the one before that brought
    others. Several messages may be under way to it, and the server knows of none that is not answered yet."""

    models: dict[str, Weights] = field(default_factory=dict)
    _before: dict[str, Weights] = field(default_factory=dict)

    def keep(self, models: Mapping[str, Weights]) -> None:
        if {*models} != {*self.models}:
            self._before = self.models
        self.models = dict(models)

    def model(self, told: Mapping[str, Any], arrays: Mapping[torch.dtype, Bytes]) -> Weights:
        """The model that a message tells of; raises Lacking if it cannot be made of what is here."""
        base = {**self._before, **self.models}.get(str(told["base"]))
        if base is None:
            raise Lacking
        if told["base"] == told["digest"]:
            return base
        made = apply(base, dict(arrays))
        if digest(made) != told["digest"]:
            raise Lacking
        return made
