"""The seam of a task: what one client learns. Model, batches, loss, metrics; nothing of other clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from fedreel.core.weights import TensorInfo
from fedreel.errors import RecipeError
from fedreel.machine.device import sent

Batch = Any


class Examples(Protocol):
    """A client's samples, resident on its device."""

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> Examples: ...

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Batches of at most `size`; shuffled by `generator`, in order without one."""
        ...


@dataclass(frozen=True)
class Tensors:
    """Examples that are rows of tensors: a batch is a tuple of row selections."""

    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

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


@dataclass(frozen=True)
class ClientData:
    """What one client holds."""

    train: Examples
    test: Examples
    numbers: Mapping[str, float]  # what it may tell about its training data, e.g. frames


EVERYONE = "everyone"  # the pseudo-client that holds all training data; only where the data lie in one place


class Population(ABC):
    """The clients that can be reached from here, and their data."""

    clients: tuple[str, ...]

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


class Lesson(Protocol):
    """What training itself needs of a task: how a batch is seen, what the model makes of it, how wrong that is."""

    def augment(self, batch: Batch) -> Batch: ...

    def forward(self, model: nn.Module, batch: Batch) -> Outputs: ...

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor: ...


class Task(ABC):
    """Subclasses are frozen dataclasses; their fields are the recipe's [task] section."""

    sends: ClassVar[Mapping[str, str]] = {}  # numbers beyond samples and loss that clients tell: name -> kind

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model with children `backbone` and `head`."""

    @abstractmethod
    def population(self, data: Any, seed: int) -> Population:
        """The clients and their data, from the recipe's [data] section."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        """One forward pass."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Mean loss of a batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        """Mean metrics over the examples, plus their number as `n`."""

    def public(self, data: Any, seed: int) -> Examples | None:
        """Data of the server's own that nobody has to protect, from the recipe's data.public; None if the task has
        no use for any."""
        return None

    def own(self, tensor: TensorInfo) -> bool:
        """Whether a tensor of the model makes sense only at its client (a classifier over the client's own classes):
        no method lets it travel."""
        return False

    def streams(self, lower: nn.Module, upper: nn.Module, batch: Batch, blocks: int) -> list[Outputs]:
        """Forward passes through the first 1, 2, ... `blocks` blocks of one model and the rest of another, for
        distillation by grains. The running statistics of neither change."""
        raise RecipeError(
            "this task's model is not split into blocks",
            where="[task] name",
            expected="a task such as skeleton, where blocks of two models can be run one after the other",
            found=type(self).__name__.lower(),
        )

    def augment(self, batch: Batch) -> Batch:
        """A training batch as it goes into the forward pass, changed on the device (crops, flips, ...)."""
        return batch

    def card(self) -> dict[str, Any]:
        """What a user of the trained model must know beyond the recipe (class names, input size, ...)."""
        return {}


class Embeds(ABC):
    """What search and retrieval ask of a task over video: a clip as a vector."""

    frames: int  # of a clip

    @property
    @abstractmethod
    def side(self) -> int:
        """Of the square that every frame is scaled to, whatever its shape, as in training."""

    @abstractmethod
    def embed(self, model: nn.Module, clips: Tensor, pooling: Literal["mean", "grid"] = "mean") -> Tensor:
        """Vectors (N, D) of clips (N, frames, side, side, 3), uint8. `mean` pools the backbone's last map over time and
        space; `grid` keeps both, at half the resolution in space (maxima of 2 x 2)."""


class Temporal(ABC):
    """What methods for moments in time (FedVMR, FedCMR) ask of a task beside the rest."""

    @abstractmethod
    def temporal_distribution(self, outputs: Outputs, bins: int) -> Tensor:
        """Probabilities (N, bins * bins) that an example's predicted moment is of each class, a bin of its start and a
        bin of its end."""

    @abstractmethod
    def temporal_counts(self, examples: Examples, bins: int) -> Tensor:
        """How many examples are truly of each of these classes."""

    @abstractmethod
    def sample(self, examples: Examples, share: float) -> dict[str, Tensor]:
        """All examples of a share of the videos, at least one of them, column by column."""

    @abstractmethod
    def categories(self, examples: Examples) -> int:
        """How many categories of video there are among the examples."""


def temporal(task: Task) -> Temporal:
    """The task, if it is about moments in time."""
    if not isinstance(task, Temporal):
        raise RecipeError(
            "this task has no moments in time",
            where="[task] name",
            expected="a task such as moments, for methods that look at where moments lie",
            found=type(task).__name__.lower(),
        )
    return task


What = Literal["views", "labels"]


@dataclass(frozen=True)
class Subject:
    """What a server can learn from data of its own: a fresh model whose child `backbone` is that of the task's model,
    how it is taught, and from what."""

    model: Callable[[], nn.Module]
    lesson: Lesson
    examples: Examples


class Studied(ABC):
    """What methods that train at the server, or contrast views of unlabelled samples, ask of a task."""

    temperature: float  # of contrasts

    @abstractmethod
    def subject(self, what: What, examples: Examples, share: float) -> Subject:
        """To tell views of the server's own samples apart, or to learn their labels, of a share of them (a smaller
        share lies within a larger one)."""

    @abstractmethod
    def vectors(self, model: nn.Module, samples: Tensor) -> Tensor:
        """What the backbone makes of samples as they lie: (N, D)."""

    @abstractmethod
    def check_views(self) -> None:
        """Raise unless clients learn from views, so that outputs are projections of them."""


def studied(task: Task) -> Studied:
    """The task, if it can be studied so."""
    if not isinstance(task, Studied):
        raise RecipeError(
            "this task has nothing for a server to study",
            where="[task] name",
            expected="a task such as image or recognition, whose samples have views",
            found=type(task).__name__.lower(),
        )
    return task


def batch_length(batch: Batch) -> int:
    return batch[0].shape[0]
