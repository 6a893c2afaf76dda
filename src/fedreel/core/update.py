"""What passes between server and clients: orders one way, updates, answers or failures the other. Data only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from fedreel.core.timing import Times
from fedreel.core.weights import Weights
from fedreel.errors import FedreelError

Value = bool | int | float | str | Tensor | Weights
Named = Tensor | Weights  # a tensor beside the model, or several in the shape of what is trained of it

TRAIN, ASK, EVALUATE, SECURE = "train", "ask", "evaluate", "secure"


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
    together: tuple[str, ...] = ()  # by what a site weighs its clients into means; empty: each update leaves by itself
    awaited: bool = False  # whether another order cannot begin before this one's answer is there

    @property
    def key(self) -> tuple[int, int]:
        return (self.round, self.step)

    @property
    def trains(self) -> bool:
        """Whether its client is to train; under secure sums its model comes back masked."""
        return self.kind == TRAIN or (self.kind, self.question) == (SECURE, "masked")

    @property
    def nbytes(self) -> int:
        """Bytes that go down to the client."""
        return sum(w.nbytes for w in self.models.values()) + sum(_size(v) for v in self.args.values())


@dataclass(slots=True)
class Answer:
    """What a client says to a question or a test: declared numbers and named tensors, nothing else."""

    round: int
    step: int
    client: str
    numbers: dict[str, float]
    tensors: dict[str, Named] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def tensor(self, name: str) -> Tensor:
        return expect(self.tensors[name], Tensor, f"'{name}' of an answer")

    @property
    def nbytes(self) -> int:
        return sum(map(_size, self.tensors.values())) + 8 * len(self.numbers)


@dataclass(frozen=True, slots=True)
class Moved:
    """How far these weights are from one of their order's models, all of them and what is trained."""

    weights: Weights
    model: str
    change: float
    trained: float


@dataclass(slots=True)
class Update:
    """What a client sends back after training: the model's travelling tensors, and what an answer may hold."""

    round: int
    step: int
    client: str
    weights: Weights
    numbers: dict[str, float]
    tensors: dict[str, Named] = field(default_factory=dict)
    means: dict[str, Weights] = field(default_factory=dict)  # of a site's clients, weighed by others than `weights`
    carried: int | None = None  # bytes of its tensors on their way, where these are not as many as they have here
    times: Times | None = None  # how long the client took, where it says so; no part of what is counted in bytes
    moved: Moved | None = None  # what an engine's own worker has measured; never what came from another machine

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def tensor(self, name: str) -> Tensor:
        return expect(self.tensors[name], Tensor, f"'{name}' of an update")

    @property
    def samples(self) -> float:
        return self.numbers["samples"]

    @property
    def loss(self) -> float:
        return self.numbers["loss"]

    @property
    def nbytes(self) -> int:
        carried = self.carried
        if carried is None:
            carried = self.weights.layout.nbytes
            if self.means or self.tensors:
                carried += sum(map(_size, (*self.means.values(), *self.tensors.values())))
        return carried + 8 * len(self.numbers)


@dataclass(slots=True)
class Failure:
    """An order that brought no usable answer. Reasons: error, diverged, timeout, not-finite, names, shape, dtype, norm,
    range, stale, duplicate, policy; at real sites also offline, rubbish."""

    round: int
    step: int
    client: str
    reason: str
    detail: str


Reply = Update | Answer
Result = Reply | Failure
T = TypeVar("T")


def expect(value: object, kind: type[T], what: str) -> T:
    """The value, which must be of this kind."""
    if not isinstance(value, kind):
        raise FedreelError(f"{what} is not what was meant", expected=kind.__name__, found=type(value).__name__)
    return value


def buffers(reply: Reply) -> Iterator[Tensor]:
    """Every piece of memory that tensors of a reply lie in."""
    for value in ((reply.weights,) if isinstance(reply, Update) else ()) + tuple(reply.tensors.values()):
        yield from value.flat.values() if isinstance(value, Weights) else [value]


def content_of(order: Order) -> str:
    """A digest of all that an order says: of two that differ in anything, it differs."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in (*sorted(order.models.items()), *sorted(order.args.items())):
        found.update(f"{name}:{value if isinstance(value, bool | int | float | str) else ''};".encode())
        tensors = value.flat.values() if isinstance(value, Weights) else [value] if isinstance(value, Tensor) else []
        for tensor in tensors:
            found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return f"{order.round}.{order.step}.{order.question}.{found.hexdigest()}"


def _size(value: Value) -> int:
    if isinstance(value, Weights):
        return value.nbytes
    return value.nbytes if isinstance(value, Tensor) else len(value) if isinstance(value, str) else 8
