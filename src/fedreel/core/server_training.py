"""Training at the server, on data of its own: the backbone that travels, with a head that stays there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedreel.config import TrainConfig
from fedreel.core.abilities import ServerObjective
from fedreel.core.capture import Recorder
from fedreel.core.optim import make_optimizer
from fedreel.core.task import Batch, Examples
from fedreel.core.training import check_finite, fit, learning_rate
from fedreel.core.weights import Layout, Weights, bind
from fedreel.machine.device import seeded


class ServerTraining:
    """One model and one optimizer for all rounds; the optimizer starts afresh in each."""

    def __init__(
        self, setup: ServerObjective, config: TrainConfig, rounds: int, seed: int, device: torch.device
    ) -> None:
        self.objective, self.config, self.rounds, self.seed = setup.objective, config, rounds, seed
        with seeded(seed, device):
            self.model = setup.model().to(device)
        self.examples = setup.examples.to(device)
        self.weights = bind(self.model)
        whole = self.weights.layout
        self._body = whole.only(lambda t: t.part != "head")
        self._first_head = self.weights.take(Layout(t for t in whole.tensors if t.name not in self._body.place))
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self._recorder = Recorder() if device.type == "cuda" and config.cuda_graph else None
        self._device = device

    def train(self, given: Weights, head: Weights | None, round: int) -> tuple[Weights, Weights, float]:
        """What becomes of `given`, all but its backbone as it was; the head (the first time, a fresh one) as it is now;
        and the mean loss."""
        self.weights.put(given.take(given.layout.only(lambda t: t.name in self._body.place)))
        self.weights.put(self._first_head if head is None else head)
        self.optimizer.reset(learning_rate(self.config, round, self.rounds))
        seed = int.from_bytes(hashlib.blake2b(f"{self.seed}/{round}/study".encode(), digest_size=7).digest(), "big")
        with seeded(seed, self._device):
            fitted = fit(
                self.model,
                self.objective,
                self.examples,
                self.optimizer,
                self.config,
                epochs=self.config.epochs,
                generator=torch.Generator().manual_seed(seed),
                recorder=self._recorder,
            )
        check_finite(fitted.loss, "the server")
        learned = given.clone()
        learned.put(self.weights.take(self._body))
        return learned, self.weights.take(self._first_head.layout), fitted.loss


@dataclass(frozen=True)
class FullBatches:
    """Examples whose last batch is left out if it is smaller than the others: a contrast has as many negatives as its
    batch. A single small batch is kept."""

    inner: Examples

    def __len__(self) -> int:
        return len(self.inner)

    def to(self, device: torch.device) -> FullBatches:
        return FullBatches(self.inner.to(device))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        most = max(1, len(self) // size)
        for number, batch in enumerate(self.inner.batches(size, generator)):
            if number == most:
                return
            yield batch if len(batch[0]) <= size else tuple(part[:size] for part in batch)
