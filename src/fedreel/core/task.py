"""The seam of a task: what one client learns. Model, batches, loss, metrics; nothing of other clients."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedreel.core.weights import TensorInfo
from fedreel.machine.device import sent

Batch = Any


class Examples(Protocol):
    """A client's samples. Those with a true `resident` are never waited for: their batches are cut from memory. Others
    may be `Streamable`."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """How much memory they take. What they share with all other clients' examples does not count."""
        ...

    def to(self, device: torch.device) -> Examples: ...

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Batches of at most `size`; shuffled by `generator`, in order without one."""
        ...


@dataclass(frozen=True)
class Tensors:
    """Examples that are rows of tensors: a batch is a tuple of row selections."""

    resident: ClassVar = True
    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def to(self, device: torch.device) -> Tensors:
        return self if self.tensors[0].device == device else Tensors(tuple(t.to(device) for t in self.tensors))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, ...]]:
        starts = self.starts(size)
        n = len(self)
        ends = [*starts[1:], n]
        if generator is None:
            for start, end in zip(starts, ends):
                yield tuple([t[start:end] for t in self.tensors])
            return
        order = sent(torch.randperm(n, generator=generator), self.tensors[0].device)
        for start, end in zip(starts, ends):
            yield tuple([t[order[start:end]] for t in self.tensors])

    def starts(self, size: int) -> range:
        """Where batches begin. A single sample left over joins the batch before it: batch norm cannot train on one."""
        n = len(self)
        return range(0, n - 1 if n % size == 1 and n > size > 1 else n, size)

    @staticmethod
    def join(parts: Sequence[Tensors]) -> Tensors:
        return Tensors(tuple(torch.cat(columns) for columns in zip(*(p.tensors for p in parts))))


class Streamable(ABC):
    """Examples that need not lie in memory: they can be read when their turn comes, and then give the same batches."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How much memory they would take."""

    @abstractmethod
    def to(self, device: torch.device) -> Examples:
        """These, in the device's memory."""

    @abstractmethod
    def streamed(self, device: torch.device) -> Examples:
        """These, whose batches are read when their turn comes and brought to the device."""


class ClientData:
    """What one client holds: examples, or functions that make them when they are first wanted, so that testing needs no
    training data in memory and training no test data."""

    def __init__(
        self,
        train: Examples | Callable[[], Examples],
        test: Examples | Callable[[], Examples],
        numbers: Mapping[str, float] = {},
    ) -> None:
        self._train, self._test = train, test
        self.numbers = numbers  # what it may tell about its training data, e.g. frames
        self.loading = 0.0  # seconds that it took to make the training data

    @cached_property
    def train(self) -> Examples:
        began = time.perf_counter()
        found = self._train() if callable(self._train) else self._train
        self.loading = time.perf_counter() - began
        return found

    @cached_property
    def test(self) -> Examples:
        return self._test() if callable(self._test) else self._test


EVERYONE = "everyone"  # the pseudo-client that holds all training data; only where the data lie in one place


class Population(ABC):
    """The clients that can be reached from here, and their data. Where there are very many, `core.pool` has sequences
    and tables that need no list of them."""

    clients: Sequence[str]
    _named: tuple[Sequence[str], Container[str]] = ((), frozenset())

    @property
    def names(self) -> Container[str]:
        """The clients, for quick questions whether somebody is one of them: there may be a million."""
        if self._named[0] is not self.clients:
            listed = isinstance(self.clients, tuple | list)
            self._named = (self.clients, frozenset(self.clients) if listed else self.clients)
        return self._named[1]

    @abstractmethod
    def data(self, client: str) -> ClientData:
        """One client's data; `EVERYONE` joins them all."""

    def agreement(self) -> dict[str, Any]:
        """What must be the same wherever clients of one run are, such as the class names and their order."""
        return {}

    def describe(self) -> dict[str, Any]:
        """What the report shows of the partition: classes, and label counts of each client's train and test part."""
        return {}


class OneClient(Population):
    """All that lies here as one client's."""

    def __init__(self, here: Population, name: str) -> None:
        self.here, self.clients = here, (name,)

    def data(self, client: str) -> ClientData:
        return self.here.data(EVERYONE)

    def agreement(self) -> dict[str, Any]:
        return self.here.agreement()


@dataclass(frozen=True)
class Outputs:
    """What a forward pass gives to the loss and to the methods' extra terms."""

    features: Tensor
    logits: Tensor


class Objective(Protocol):
    """What training itself needs of a task: how a batch is seen, what the model makes of it, how wrong that is."""

    def augment(self, batch: Batch) -> Batch: ...

    def forward(self, model: nn.Module, batch: Batch) -> Outputs: ...

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor: ...


class Task(ABC):
    """Subclasses are frozen dataclasses; their fields are the recipe's [task] section."""

    sends: ClassVar[Mapping[str, str]] = {}  # numbers beyond samples and loss that clients send: name -> kind
    metrics: ClassVar[tuple[str, ...]] = ("loss", "top1")  # all that `evaluate` may tell, beside `n`
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"top1": (0.0, 1.0)}  # of metrics that have one
    augments_each: ClassVar[bool] = False  # whether `augment` looks at every example by itself, however many come
    from_data: ClassVar[tuple[str, ...]] = ()  # settings that `for_data` fills in where they are 0

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model with children `backbone` and `head`; see `core.weights.bind` for other parts."""

    @abstractmethod
    def population(self, data: Any, seed: int) -> Population:
        """The clients and their data, from the recipe's [data] section."""

    def for_data(self, data: Any, here: bool) -> Task:
        """This task with what its settings leave to the data filled in, such as the number of classes. Where the data
        lie at real sites (not `here`), there is only the [data] section to go by."""
        return self

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        """One forward pass."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Mean loss of a batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        """Mean metrics over the examples, plus their number as `n`."""

    def prepared(self, model: nn.Module, examples: Examples, training: bool) -> Examples:
        """A client's examples as this model works with them in every epoch: where a part of it is never trained, what
        that part makes of them. It must give the same for every client's and every round's model."""
        return examples

    def before_test(self, model: nn.Module, train: Examples, batch_size: int) -> None:  # noqa: B027
        """Make a client's model ready for its test, with the client's own training data. It is thrown away after."""

    def public(self, data: Any, seed: int) -> Examples | None:
        """Data of the server's own that nobody has to protect, from the recipe's data.public; None if the task has
        no use for any."""
        return None

    def own(self, tensor: TensorInfo) -> bool:
        """Whether a tensor of the model makes sense only at its client (a classifier over the client's own classes):
        no method lets it travel."""
        return False

    @property
    def tune(self) -> str:
        """What of its backbone is trained, where a recipe can choose that: all, norm, lora or head (nothing)."""
        return str(getattr(getattr(self, "backbone", None), "tune", "all"))

    @property
    def elsewhere(self) -> str:
        """Where users of a finished model find its frozen weights, if a run need not keep them."""
        return str(getattr(getattr(self, "backbone", None), "elsewhere", ""))

    def augment(self, batch: Batch) -> Batch:
        """A training batch as it goes into the forward pass, changed on the device (crops, flips, ...)."""
        return batch

    def card(self) -> dict[str, Any]:
        """What a user of the trained model must know beyond the recipe (class names, input size, ...)."""
        return {}


def batch_length(batch: Batch) -> int:
    return batch[0].shape[0]
