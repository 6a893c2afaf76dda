"""Training at the server, on data of its own: the backbone that travels, with a head that stays there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedreel.config import TrainConfig
from fedreel.core.abilities import ServerObjective
from fedreel.core.capture import Recorder
from fedreel.core.fused import Fuser
from fedreel.core.optim import make_optimizer
from fedreel.core.task import Batch, Examples
from fedreel.core.training import check_finite, fit, learning_rate
from fedreel.core.weights import Layout, Weights, bind
from fedreel.machine.device import seeded


@dataclass(frozen=True)
class Kept:
    """What stays at the server from one training to the next: the head, and the optimizer's state if it is kept."""

    head: Weights
    optimizer: dict[str, Tensor] = field(default_factory=dict)


class ServerTraining:
    """One model and one optimizer for all rounds. The optimizer starts afresh in each unless `keep_optimizer`."""

    def __init__(
        self, setup: ServerObjective, config: TrainConfig, rounds: int, seed: int, device: torch.device
    ) -> None:
        self.objective, self.config, self.rounds, self.seed = setup.objective, config, rounds, seed
        with seeded(seed, device):
            self.model = setup.model().to(device)
        self.examples = setup.examples.to(device)
        self.weights = bind(self.model)
        whole = self.weights.layout
        self._body = whole.moving.only(lambda t: t.part != "head")
        self._first_head = self.weights.take(Layout(t for t in whole.moving.tensors if t.name not in self._body.place))
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self._recorder = Recorder() if device.type == "cuda" and config.cuda_graph else None
        self._fuser = Fuser() if config.fuse else None
        self._device = device

    def train(
        self, given: Weights, kept: Kept | None, round: int, keep_head: bool = True
    ) -> tuple[Weights, Kept, float]:
        """What becomes of `given`, all but its backbone as it was; what is to be kept; and the mean loss. The head is a
        fresh one the first time, and each time unless `keep_head`; a fresh head has no optimizer's state."""
        self.weights.put(given.take(given.layout.only(lambda t: t.name in self._body.place)))
        self.weights.put(kept.head if kept and keep_head else self._first_head)
        self.optimizer.reset(learning_rate(self.config, round, self.rounds))
        if kept and self.config.keep_optimizer:
            self.optimizer.restore(kept.optimizer if keep_head else self._of_body(kept.optimizer))
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
                fuser=self._fuser,
            )
        check_finite(fitted.loss, "the server")
        learned = given.clone()
        learned.put(self.weights.take(self._body))
        state = self.optimizer.state() if self.config.keep_optimizer else {}
        return learned, Kept(self.weights.take(self._first_head.layout), state), fitted.loss

    def _of_body(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What of an optimizer's state belongs to the backbone."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        body = {str(i) for i, p in enumerate(self.optimizer.params) if names[id(p)] in self._body.place}
        return {key: value for key, value in state.items() if key.partition("/")[0] in body}


@dataclass(frozen=True)
class FullBatches:
    """Examples whose last batch is left out if it is smaller than the others: a contrast has as many negatives as its
    batch. A single small batch is kept."""

    inner: Examples

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def to(self, device: torch.device) -> FullBatches:
        return FullBatches(self.inner.to(device))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        most = max(1, len(self) // size)
        for number, batch in enumerate(self.inner.batches(size, generator)):
            if number == most:
                return
            yield batch if len(batch[0]) <= size else tuple(part[:size] for part in batch)
