"""Updates in few bytes: a client writes its change in the recipe's code, the server reads the model out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from fedreel.config import TransferConfig
from fedreel.core.state import State
from fedreel.core.transfer.codes import Code, Damaged, join, make_code, split
from fedreel.core.update import Named, Order
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.errors import Diverged

BASE = "transfer/base"  # which of several models that came with an order the change is against
_REMEMBERED = 2
_RESIDUAL = "transfer"  # the group of a client's private tensors


def make_coded(config: TransferConfig | None, travelling: Layout) -> Coded | None:
    """How updates travel by a recipe; None: as they are."""
    code = make_code(config)
    return Coded(code, travelling, config.feedback) if config and code and travelling.trained.tensors else None


class Coded:
    """Trained tensors travel as changes in a code; statistics, buffers and counters as they are. What a method sends in
    the shape of what is trained is coded in the same way."""

    def __init__(self, code: Code, travelling: Layout, feedback: bool) -> None:
        self.code, self.travelling, self.feedback = code, travelling, feedback
        self._read_last: list[tuple[Weights, Weights, Weights]] = []  # coded, sent, read: a site's mean comes often

    def layout(self, models: int = 1) -> Layout:
        """The tensors of an update to an order with so many models."""
        return self._several if models > 1 else self._one

    @cached_property
    def beside(self) -> Layout:
        """The tensors of what travels beside the model in the shape of what is trained."""
        return Layout(self.code.layout(self.travelling.trained))

    # at the client

    def write_all(
        self, order: Order, weights: Weights, tensors: Mapping[str, Named], state: State
    ) -> tuple[Weights, dict[str, Named]]:
        """A client's update as it leaves: its model, and what is beside it."""
        return self.write(order, weights, state), self.write_beside(order, tensors, state)

    def write(self, order: Order, weights: Weights, state: State, by: str = "") -> Weights:
        """The update that leaves. What it loses is kept in the client's state, and goes with the next one; of several
        means of a site, apart for what they are weighed `by`."""
        sent = _nearest(weights, order.models)
        base = order.models[sent].to(_device(weights))
        change = join(weights, self.travelling.trained) - join(base, self.travelling.trained)
        coded = Weights.zeros(self.layout(len(order.models)), _device(weights))
        self._write(change, coded, state, f"model/{sent}/{by}" if by else f"model/{sent}", order.client)
        for name in self._rest.place:
            coded[name].copy_(weights[name])
        if len(order.models) > 1:
            coded[BASE].fill_(list(order.models).index(sent))
        return coded

    def write_beside(self, order: Order, tensors: Mapping[str, Named], state: State) -> dict[str, Named]:
        """What leaves beside the model: what is in its shape is coded."""
        found = dict(tensors)
        for name, tensor in tensors.items():
            if isinstance(tensor, Weights) and tensor.layout == self.travelling.trained:
                found[name] = coded = Weights.zeros(self.beside, _device(tensor))
                self._write(join(tensor, tensor.layout), coded, state, f"beside/{name}", order.client)
        return found

    def _write(self, change: Tensor, coded: Weights, state: State, name: str, client: str) -> None:
        kept = f"{_RESIDUAL}/{name}"
        if self.feedback and kept in state.tensors:
            change += state.tensors[kept].to(change.device)
        if not bool(change.isfinite().all()):
            raise Diverged(f"client '{client}' diverged: its model holds NaN or infinity")
        self.code.write(change, self.travelling.trained, coded)
        if self.feedback:
            state.tensors[kept] = change - self.code.read(coded, self.travelling.trained)

    # at the server

    def read(self, order: Order, coded: Weights, differ: Callable[[Layout, Layout], tuple[str, str]]) -> Weights:
        """The model that an update stands for; raises Damaged if it is none. `differ` says how two layouts do."""
        expected = self.layout(len(order.models))
        if coded.layout != expected:
            raise Damaged(*differ(expected, coded.layout))
        at = int(coded[BASE]) if len(order.models) > 1 else 0
        if not 0 <= at < len(order.models):
            raise Damaged("range", f"a change of model {at}, and {len(order.models)} were sent")
        sent = list(order.models.values())[at]
        for known, base, model in self._read_last:
            if known is coded and base is sent:
                return model
        model = self._read(coded, sent.to(_device(coded)))
        self._read_last = [*self._read_last[1 - _REMEMBERED :], (coded, sent, model)]
        return model

    def _read(self, coded: Weights, sent: Weights) -> Weights:
        trained, model = self.travelling.trained, sent.clone()
        change = self.code.read(coded, trained)
        parts = change.split([t.size for t in trained.tensors]) if trained.tensors else ()
        for t, part in zip(trained.tensors, parts):
            model[t.name].add_(part.view(t.shape))
        for name in self._rest.place:
            model[name].copy_(coded[name])
        return model

    def read_beside(self, coded: Weights, differ: Callable[[Layout, Layout], tuple[str, str]]) -> Weights:
        """What came beside the model in the shape of what is trained."""
        if coded.layout != self.beside:
            raise Damaged(*differ(self.beside, coded.layout))
        tensors = Weights.zeros(self.travelling.trained, _device(coded))
        split(self.code.read(coded, self.travelling.trained), self.travelling.trained, tensors)
        return tensors

    # both

    @cached_property
    def _rest(self) -> Layout:
        return self.travelling.only(lambda t: not t.trained)

    @cached_property
    def _one(self) -> Layout:
        return Layout((*self.code.layout(self.travelling.trained), *self._rest.tensors))

    @cached_property
    def _several(self) -> Layout:
        return Layout((*self._one.tensors, TensorInfo(BASE, (1,), torch.int64, "buffer")))


def _nearest(weights: Weights, models: Mapping[str, Weights]) -> str:
    """The name of the model that was sent from which these weights have gone least far."""
    if len(models) == 1:
        return next(iter(models))
    return min(models, key=lambda name: weights.distance(models[name].to(_device(weights))))


def _device(weights: Weights) -> torch.device:
    return next((flat.device for flat in weights.flat.values()), torch.device("cpu"))
