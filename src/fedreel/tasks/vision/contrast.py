"""What tasks over pictures and clips share that can be learned without labels: telling views of samples apart."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Accountable, Contrastable, ServerObjective, Supervision, Trials
from fedreel.core.server_training import FullBatches
from fedreel.core.task import ClientData, Examples, Outputs, Tensors
from fedreel.data.division import nested_share
from fedreel.errors import DataError, RecipeError
from fedreel.machine.device import seeded
from fedreel.models.backbone import Backbone, untaught
from fedreel.models.classifier import Classifier
from fedreel.models.projector import Form, Projected
from fedreel.tasks.classification import Classification
from fedreel.tasks.vision.appearance import appearance
from fedreel.tasks.vision.contrast_views import SimCLR
from fedreel.tasks.vision.nt_xent import nt_xent

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class Contrasting(Classification, Contrastable, Accountable):
    """SimCLR's game: two views of each sample find each other among all views of a batch (NT-Xent)."""

    classes: int = 0  # as many as the data have
    objective: Literal["labels", "views"] = "labels"  # what clients learn; views: no label is looked at
    temperature: float = 0.1
    embedding: int = 126  # numbers that a view is made of by the projector
    projector: Form = "two-layers"
    anchor: Literal["view", "raw"] = "view"  # raw: one of the two views is the sample itself
    strength: float = 0.5  # of the changes of colour in views
    crop_scale: float = 0.08  # least share of a sample's area that a view is cut from

    def check_contrast(self) -> None:
        check_ranges(self, "task", temperature=(1e-6, math.inf), embedding=(1, math.inf), strength=(0, 1.25))
        check_ranges(self, "task", crop_scale=(1e-3, 1))
        if self.classes:
            check_ranges(self, "task", classes=(2, math.inf))
        if self.objective == "views" and self.tune == "head":
            raise untaught("views teach the backbone")

    def for_data(self, data: DataConfig, here: bool) -> Self:
        """With as many classes as data.labels names, or as the data have."""
        if self.classes or self.objective == "views":
            return self
        if not data.labels and not here:
            raise RecipeError(
                "the recipe names no classes, and a single site may lack some",
                where="[data] labels",
                expected='the names of all classes in order, such as labels = ["falls", "sits", "walks"]',
                hint='add them to the recipe, or --set \'data.labels=["falls", "sits", "walks"]\'',
            )
        names = data.labels or self.population(data, data.seed).agreement()["classes"]
        return self.counted(len(names), data.source)

    def check_classes(self, found: Sequence[str], where: str) -> None:
        """Raise if labels are learned and the data have another number of them than the task."""
        if self.objective == "labels" and self.classes and len(found) != self.classes:
            raise DataError(
                "the data have another number of classes than the task",
                expected=f"{self.classes}",
                found=f"{len(found)}: {', '.join(found[:12])}",
                where=where,
                hint=f"set task.classes={len(found)}",
            )

    def check_views(self) -> None:
        if self.objective != "views":
            raise RecipeError(
                "this method learns from views of samples, not from labels",
                where="[task] objective",
                expected="views",
                found=self.objective,
            )

    @abstractmethod
    def network(self) -> Backbone:
        """A fresh backbone."""

    @abstractmethod
    def network_input(self, samples: Tensor) -> Tensor:
        """Samples of bytes, or of floats up to 255, as the backbone takes them."""

    @abstractmethod
    def labelled_view(self, samples: Tensor) -> Tensor:
        """A random view of samples whose labels are learned."""

    @property
    @abstractmethod
    def views(self) -> SimCLR: ...

    @abstractmethod
    def classifier(self) -> nn.Module:
        """What clients learn labels with."""

    def model(self) -> nn.Module:
        if self.objective == "views":
            return self._projected()
        self.check_counted()
        return self.classifier()

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.objective == "views":
            return self._contrast.augment(batch)
        return (self.labelled_view(batch[0]), *batch[1:])

    def forward(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Outputs:
        if self.objective == "views":
            return self._contrast.forward(model, batch)
        return Outputs(*model.features_and_logits(self.network_input(batch[0])))  # type: ignore[operator]

    def loss(self, outputs: Outputs, batch: Any) -> Tensor:
        return self._contrast.loss(outputs, batch) if self.objective == "views" else super().loss(outputs, batch)

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        if self.objective == "labels":
            return super().evaluate(model, examples, batch_size)
        total = n = 0.0
        for number, batch in enumerate(FullBatches(examples).batches(batch_size)):
            with seeded(number, batch[0].device):  # the same views every time
                seen = self.augment(batch)
            total += float(self.loss(self.forward(model, seen), seen)) * len(batch[0])
            n += len(batch[0])
        return {"loss": total / n, "n": n} if n else {"n": 0.0}

    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        return super().trials(model, data, batch_size) if self.objective == "labels" else iter(())

    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        for batch in self.judged(examples).batches(batch_size, generator):
            yield self.look_of(batch)

    def look(self, model: nn.Module, samples: Tensor) -> Tensor:
        """What samples look like, (N, D)."""
        return self.look_of(self.ready(model, samples))

    def ready(self, model: nn.Module, samples: Tensor) -> tuple[Tensor, ...]:
        """Samples as a batch such as `prepared` makes."""
        return (samples,)

    def look_of(self, batch: tuple[Tensor, ...]) -> Tensor:
        """What the samples of a batch look like."""
        return appearance(batch[0])

    def vectors(self, model: nn.Module, samples: Tensor) -> Tensor:
        return model.backbone(self.network_input(samples))  # type: ignore[operator]

    def server_objective(self, what: Supervision, examples: Examples, share: float) -> ServerObjective:
        if what == "views":
            return ServerObjective(self._projected, self._contrast, FullBatches(examples))
        samples, labels = labelled(examples)
        rows = torch.from_numpy(nested_share(labels.numpy(), share, seed=0))
        classes = int(labels.max()) + 1
        learned = Tensors((samples[rows], labels[rows]))
        return ServerObjective(lambda: Classifier(self.network(), classes), _Labels(self), learned)

    def _projected(self) -> Projected:
        return Projected(self.network(), self.embedding, self.projector)

    @property
    def _contrast(self) -> Contrast:
        return Contrast(self.network_input, self.views, self.temperature, self.anchor == "raw")


@dataclass(frozen=True)
class Contrast:
    """The lesson: a batch becomes the views (2N, ...) of its samples, the first N of one kind, then the N others."""

    network_input: Callable[[Tensor], Tensor]
    views: SimCLR
    temperature: float
    raw_anchor: bool

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        samples = batch[0]
        if self.raw_anchor:
            return (torch.cat([self.views.whole(samples), self.views.random(samples)]),)
        return (self.views.random(torch.cat([samples, samples])),)

    def forward(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Outputs:
        features = model.backbone(self.network_input(batch[0]))  # type: ignore[operator]
        return Outputs(features, model.head(features))  # type: ignore[operator]

    def loss(self, outputs: Outputs, batch: Any) -> Tensor:
        return nt_xent(outputs.logits, self.temperature)


@dataclass(frozen=True)
class _Labels:
    """Learning the labels of the server's own samples, with a classifier that no client has."""

    task: Contrasting

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.task.labelled_view(batch[0]), batch[1]

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        return Outputs(*model.features_and_logits(self.task.network_input(batch[0])))  # type: ignore[operator]

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs.logits, batch[1])


def labelled(examples: Examples) -> tuple[Tensor, Tensor]:
    """Samples and labels of the server's own data; raises where there are no labels."""
    tensors = examples.tensors if isinstance(examples, Tensors) else ()
    if len(tensors) < 2 or bool((tensors[1] < 0).any()):
        raise DataError(
            "the server's own samples have no labels to learn",
            where="data.public",
            expected="CLASS/*.png, or another source with labels",
            hint="set method.server=views, which looks at no label",
        )
    return tensors[0], tensors[1]
