"""What tasks share whose answer is a class: cross entropy, and how many were right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.core.abilities import Flippable, Trials
from fedreel.core.task import ClientData, Examples, Outputs, Task, Tensors
from fedreel.errors import DataError, RecipeError

if TYPE_CHECKING:
    from typing import Self


class Classification(Task, Flippable):
    """Batches whose second part is the labels."""

    from_data: ClassVar = ("classes",)
    classes: int  # 0: as many as the data have, which `for_data` finds out

    def counted(self, classes: int, where: str) -> Self:
        """This task, for so many classes."""
        if classes < 2:
            raise DataError(
                "there is nothing to tell apart: the data have fewer than two classes",
                where=where,
                expected="a folder for every class, OWNER/CLASS/file or CLASS/file",
                found=f"{classes} class" if classes else "no labels",
            )
        return replace(self, classes=classes)  # type: ignore[type-var]

    def check_counted(self) -> None:
        """Raise where a model is wanted before the number of its classes is known."""
        if not self.classes:
            raise RecipeError(
                "the number of classes is not known yet",
                where="[task] classes",
                hint="set it, or let Task.for_data count them, as `fedreel.run` does",
            )

    def loss(self, outputs: Outputs, batch: Any) -> Tensor:
        return F.cross_entropy(outputs.logits, batch[1])

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        right = loss = n = 0.0
        for batch in examples.batches(batch_size):
            logits = self.forward(model, batch).logits
            right += float((logits.argmax(1) == batch[1]).sum())
            loss += float(F.cross_entropy(logits, batch[1], reduction="sum"))
            n += len(batch[1])
        return {"top1": right / n, "loss": loss / n, "n": n} if n else {"n": 0.0}

    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        """For tasks that are `Accountable`."""
        for batch in self.judged(data.test).batches(batch_size):
            logits = self.forward(model, batch).logits
            yield Trials((logits.argmax(1) == batch[1]).double(), self.guesses(batch), logits, batch[1])

    def flipped(self, examples: Examples) -> Tensors:
        assert isinstance(examples, Tensors)
        samples, labels, *rest = examples.tensors
        return Tensors((samples, self.listed(examples) - 1 - labels, *rest))

    def listed(self, examples: Tensors) -> Tensor | int:
        """How many classes a client's labels are of; where clients have lists of their own, for each sample."""
        return self.classes

    def judged(self, examples: Examples) -> Examples:
        """Those of a client's held-out samples that only this client answers for."""
        return examples

    def guesses(self, batch: Any) -> Tensor:
        """How likely a guess at random is right, for each sample of a batch."""
        return torch.full((len(batch[1]),), 1 / self.classes, dtype=torch.float64)
