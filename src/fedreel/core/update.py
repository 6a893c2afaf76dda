"""What passes between server and clients: orders one way, updates (or failures) the other. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedreel.core.weights import Weights

Value = bool | int | float | str | Tensor | Weights

TRAIN, ASK, EVALUATE = "train", "ask", "evaluate"


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of work for one client. (round, step) numbers the orders of a run; a repetition has the same pair."""

    round: int
    step: int
    client: str
    kind: str
    models: Mapping[str, Weights]
    args: Mapping[str, Value] = field(default_factory=dict)
    question: str = ""
    limit: float | None = None

    @property
    def key(self) -> tuple[int, int]:
        return (self.round, self.step)

    @property
    def nbytes(self) -> int:
        """Bytes that go down to the client."""
        return sum(w.nbytes for w in self.models.values()) + sum(_size(v) for v in self.args.values())


@dataclass(slots=True)
class Update:
    """What a client sends back: named tensors and declared numbers, nothing else."""

    round: int
    step: int
    client: str
    weights: Weights | None
    numbers: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    @property
    def samples(self) -> float:
        return self.numbers["samples"]

    @property
    def loss(self) -> float:
        return self.numbers["loss"]

    @property
    def nbytes(self) -> int:
        return (self.weights.nbytes if self.weights is not None else 0) + 8 * len(self.numbers)


@dataclass(slots=True)
class Failure:
    """An order that brought no usable update. Reasons: error, timeout, not-finite, names, shape, dtype, norm, range,
    stale, duplicate, policy; at real sites also offline, rubbish."""

    round: int
    step: int
    client: str
    reason: str
    detail: str


def _size(value: Value) -> int:
    if isinstance(value, Weights):
        return value.nbytes
    return value.nbytes if isinstance(value, Tensor) else len(value) if isinstance(value, str) else 8
