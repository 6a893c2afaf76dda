"""What a task may be able to do for methods and verbs that ask for it: each ability is a class to inherit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from fedreel.core.task import Batch, ClientData, Examples, Objective, Outputs, Task
from fedreel.errors import RecipeError

Supervision = Literal["views", "labels"]
Pooling = Literal["mean", "grid"]  # what vectors are made of maps by


class Ability(ABC):
    """`says` completes the sentence "this method needs a task that ..."."""

    says: ClassVar[str]


class Embeds(Ability):
    """For search and retrieval: a clip as a vector."""

    says = "turns clips into vectors"
    frames: int  # of a clip

    @property
    @abstractmethod
    def side(self) -> int:
        """Of the square in the middle of every frame, whose shorter side is scaled to it, as in training."""

    @abstractmethod
    def embed(self, model: nn.Module, clips: Tensor, pooling: Pooling = "mean") -> Tensor:
        """Vectors (N, D) of clips (N, frames, side, side, 3), uint8. `mean` pools the backbone's last map over time and
        space; `grid` keeps both, at half the resolution in space (maxima of 2 x 2)."""

    def embeds(self, model: nn.Module, clips: Tensor, poolings: Sequence[Pooling]) -> list[Tensor]:
        """`embed` by each of these; a task may look at the clips once for all of them."""
        return [self.embed(model, clips, pooling) for pooling in poolings]

    spaced: ClassVar[bool] = False  # whether a clip is evenly spaced frames of a whole video, or frames in a row

    def look(self, model: nn.Module, samples: Tensor) -> Tensor | None:
        """What clients said that their clips look like (see `Accountable`), of clips that `embed` takes; None where
        they are not asked."""
        return None

    @property
    def crops(self) -> tuple[int, tuple[float, ...]]:
        """How clips are cropped when a backbone is fine-tuned: the side of the square that is cut out, and the sides
        that frames are brought to before, in multiples of it."""
        return self.side, (1.0,)


@dataclass(frozen=True)
class Trials:
    """Answers to held-out samples. `scores` (N,) are what they are worth, `guesses` what one who has learned nothing
    would get on average. Of answers that are classes, a score is 1 or 0, and there are logits (N, C) and labels."""

    scores: Tensor
    guesses: Tensor
    logits: Tensor | None = None
    labels: Tensor | None = None


class Accountable(Ability):
    """For answers that come with how far they can be trusted."""

    says = "can tell how far its answers are to be trusted"

    @abstractmethod
    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        """What the model answers to a client's held-out samples, in their order; nothing where no answer is right."""

    @abstractmethod
    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """What samples look like, (N, D), in their order or as a generator draws them. It tells those apart that are
        unlike all that was learned from; what the model has learned to see does not, being no more than its answer
        needs."""


class Flippable(Ability):
    """For simulated attacks by wrong labels."""

    says = "has labels that can be turned round"

    @abstractmethod
    def flipped(self, examples: Examples) -> Examples:
        """The examples with every label turned round: of K classes, y becomes K - 1 - y."""


class Temporal(Ability):
    """For methods that look at where moments lie in time (FedVMR, FedCMR)."""

    says = "finds moments in time"

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


class Sequences(Ability):
    """For methods that compare whole videos (CFed-VS)."""

    says = "has videos as sequences of features"

    @abstractmethod
    def sequences(self, examples: Examples) -> list[Tensor]:
        """The features of each video, (steps, width)."""

    @abstractmethod
    def topics(self, examples: Examples) -> Tensor:
        """How many of the videos are about each of the topics that the data know of."""


class Blocks(Ability):
    """For distillation by grains (FSAR)."""

    says = "has a model made of blocks that run one after the other"

    @abstractmethod
    def streams(self, lower: nn.Module, upper: nn.Module, batch: Batch, blocks: int) -> list[Outputs]:
        """Forward passes through the first 1, 2, ... `blocks` blocks of one model and the rest of another. The running
        statistics of neither change."""

    @abstractmethod
    def check_blocks(self) -> None:
        """Raise unless the backbone that was chosen can be run block by block."""


@dataclass(frozen=True)
class ServerObjective:
    """What a server can learn from data of its own: a fresh model whose child `backbone` is that of the task's model,
    how it is trained, and on what."""

    model: Callable[[], nn.Module]
    objective: Objective
    examples: Examples


class Contrastable(Ability):
    """For methods that train at the server, or contrast views of unlabelled samples (FedLID, FedSimCLR, FedCA)."""

    says = "can tell views of its samples apart"
    temperature: float  # of contrasts

    @abstractmethod
    def server_objective(self, what: Supervision, examples: Examples, share: float) -> ServerObjective:
        """To tell views of the server's own samples apart, or to learn their labels, of a share of them (a smaller
        share lies within a larger one)."""

    @abstractmethod
    def vectors(self, model: nn.Module, samples: Tensor) -> Tensor:
        """What the backbone makes of samples as they are: (N, D)."""

    @abstractmethod
    def check_views(self) -> None:
        """Raise unless clients learn from views, so that outputs are projections of them."""


A = TypeVar("A", bound=Ability)


def able(task: Task, ability: type[A]) -> A:
    """The task, if it has this ability."""
    if not isinstance(task, ability):
        raise RecipeError(
            f"what is asked for needs a task that {ability.says}",
            where="[task] name",
            found=f"{type(task).__name__}, which does not",
        )
    return task
