"""What tasks share whose answer is a class: cross entropy, and how many were right."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.core.task import Examples, Outputs, Task


class Classification(Task):
    """Batches whose second part is the labels."""

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
