"""Action recognition from skeletons: a moving body in, a class of the client's own list out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Accountable, Blocks
from fedreel.core.batchnorm import settling, statistics_kept
from fedreel.core.task import Examples, Outputs, Tensors
from fedreel.core.weights import TensorInfo
from fedreel.errors import DataError, RecipeError
from fedreel.fields import DividingWord, Text
from fedreel.models.backbone import BackboneConfig
from fedreel.models.classifier import Classifier
from fedreel.registry import BACKBONES
from fedreel.tasks.classification import Classification
from fedreel.tasks.skeleton.bearing import bearing
from fedreel.tasks.skeleton.joints import BUILT_IN, find_joints
from fedreel.tasks.skeleton.network import BLOCKS, Skeleton, SkeletonBackbone, SkeletonConfig
from fedreel.tasks.skeleton.population import SkeletonPopulation, open_sets
from fedreel.tasks.skeleton.stgcn import STGCNConfig

if TYPE_CHECKING:
    from typing import Self

Batch = tuple[Tensor, Tensor, Tensor]  # bodies (N, 3, T, V, M), labels, how many classes the client's list has
NOT_LISTED = -1e4  # logit of a class beyond the client's list: probability 0 in float32


@dataclass(frozen=True)
class SkeletonRecognition(Classification, Blocks, Accountable):
    """A graph network on `length` frames of `bodies` bodies. Clients have class lists of their own, so classifiers stay
    home, and so do batch-norm statistics. `joints` is kinect-v1, kinect-v2 or a TOML file of names and bones: every
    set's joints are brought to it. The paper's backbone is stgcn of width 16 with 128 features; the authors' code has
    256 features and a neck of 512."""

    sends: ClassVar = {"frames": "count"}
    augments_each: ClassVar = True

    backbone: BackboneConfig = field(default_factory=STGCNConfig)
    joints: Annotated[str, Text("file", tuple(BUILT_IN))] = "kinect-v2"
    classes: int = 0  # of the longest list; 0: as the data have them
    length: int = 50
    bodies: int = 2
    align: bool = True  # turn every frame so that the shoulders are parallel to x
    augmentation: Literal["none", "shear-crop", "move"] = "shear-crop"
    projection: int = 0  # > 0: two layers of this output before the classifier, where MOON contrasts
    leave_out: DividingWord = ""  # a set that takes no part in training
    sets: tuple[DividingWord, ...] = ()  # those of the source that take part; none named: all
    most: int = 0  # sequences of a set's training part, and of its test part: spread over all; 0: all
    own_classifier: bool = True
    own_statistics: bool = True
    settle: bool = False  # before a test, take batch-norm statistics anew from the client's training part

    def __post_init__(self) -> None:
        self.backbone.check_takes("skeletons")
        check_ranges(self, "task", length=(1, math.inf), bodies=(1, math.inf))
        check_ranges(self, "task", projection=(0, math.inf), most=(0, math.inf))
        if self.classes:
            check_ranges(self, "task", classes=(2, math.inf))

    def model(self) -> Classifier:
        self.check_counted()
        joints = find_joints(self.joints)
        backbone = self.backbone.built(Skeleton(len(joints.names), joints.bones, joints.centre))
        return Classifier(backbone, self.classes, projection=self.projection)

    def population(self, data: DataConfig, seed: int) -> SkeletonPopulation:
        joints = find_joints(self.joints)
        found = SkeletonPopulation(
            open_sets(data),
            data,
            joints,
            self.length,
            self.bodies,
            self.align,
            seed,
            self.leave_out,
            self.sets,
            self.most,
        )
        if self.classes and found.class_count > self.classes:
            raise DataError(
                "a set has more classes than the task",
                expected=f"{self.classes} or fewer",
                found=str(found.class_count),
                where=data.source,
                hint=f"set task.classes={found.class_count}",
            )
        return found

    def for_data(self, data: DataConfig, here: bool) -> Self:
        if self.classes:
            return self
        if not here:
            raise RecipeError(
                "the recipe does not say how many classes the longest list of any site has",
                where="[task] classes",
                expected="a number such as 60",
            )
        return self.counted(self.population(data, data.seed).class_count, data.source)

    def own(self, tensor: TensorInfo) -> bool:
        if tensor.name.startswith("head.fc."):
            return self.own_classifier
        return tensor.role == "statistics" and self.own_statistics

    def augment(self, batch: Batch) -> Batch:
        if self.augmentation == "none":
            return batch
        x, *rest = batch
        x = moved(x) if self.augmentation == "move" else sheared(cropped(x))
        return x, *rest  # type: ignore[return-value]

    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        return self._outputs(model, model.backbone(batch[0]), batch)  # type: ignore[operator]

    def streams(self, lower: nn.Module, upper: nn.Module, batch: Batch, blocks: int) -> list[Outputs]:
        below, above = cast(SkeletonBackbone, lower.backbone), cast(SkeletonBackbone, upper.backbone)
        found = []
        with statistics_kept(lower), statistics_kept(upper):
            with torch.no_grad():
                h = below.enter(batch[0])
            for m in range(blocks):
                with torch.no_grad():
                    h = below.block(m, h)
                g = h
                for further in range(m + 1, BLOCKS):
                    g = above.block(further, g)
                found.append(self._outputs(upper, above.leave(g, batch[0].shape[4]), batch))
        return found

    def before_test(self, model: nn.Module, train: Examples, batch_size: int) -> None:
        if self.settle:
            with settling(model):
                for batch in train.batches(batch_size):
                    self.forward(model, batch)

    def listed(self, examples: Tensors) -> Tensor:
        return examples.tensors[2]

    def guesses(self, batch: Batch) -> Tensor:
        return 1 / batch[2].double().cpu()

    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        for batch in examples.batches(batch_size, generator):
            yield bearing(batch[0])

    def check_blocks(self) -> None:
        if not isinstance(self.backbone, SkeletonConfig):
            raise RecipeError(
                "this backbone is not split into blocks",
                where="[task.backbone] name",
                expected="one whose settings inherit SkeletonConfig, such as stgcn",
                found=BACKBONES.name_of(type(self.backbone)),
            )

    def card(self) -> dict[str, Any]:
        joints = find_joints(self.joints)
        names = {"joints": list(joints.names), "bones": [list(b) for b in joints.bones]}
        return {"input": {**names, "length": self.length, "bodies": self.bodies, "aligned": self.align}}

    def _outputs(self, model: nn.Module, features: Tensor, batch: Batch) -> Outputs:
        features, logits = model.classify(features)  # type: ignore[operator]
        beyond = torch.arange(self.classes, device=logits.device) >= batch[2][:, None]
        return Outputs(features, logits.masked_fill(beyond, NOT_LISTED))


def cropped(x: Tensor) -> Tensor:
    """A random stretch of as many frames, out of the sequence with a sixth of it mirrored at either end."""
    n, _, length = x.shape[:3]
    spare = length // 6
    start = torch.randint(-spare, spare + 1, (n, 1), device=x.device)
    frames = torch.arange(length, device=x.device) + start
    frames = torch.where(frames < 0, -1 - frames, frames)
    frames = torch.where(frames >= length, 2 * length - 1 - frames, frames)
    return x.transpose(1, 2)[torch.arange(n, device=x.device)[:, None], frames].transpose(1, 2)


def sheared(x: Tensor, most: float = 0.5) -> Tensor:
    """Every sequence sheared by a matrix of its own, ones on the diagonal and up to `most` beside it."""
    beside = torch.empty(len(x), 3, 3, device=x.device).uniform_(-most, most)
    one = torch.eye(3, device=x.device)
    return torch.einsum("ndc,nctvm->ndtvm", beside * (1 - one) + one, x)


def moved(x: Tensor) -> Tensor:
    """ST-GCN's: in the picture plane turned by up to 10 degrees, scaled by 0.9 to 1.1 and shifted by up to 0.2, all of
    it changing steadily from the first frame to the last. Bodies that are not there stay away."""
    n, _, length = x.shape[:3]
    along = torch.linspace(0, 1, length, device=x.device)
    low = torch.tensor([-math.pi / 18, 0.9, -0.2, -0.2], device=x.device)[:, None]
    ends = (
        low
        + torch.rand(n, 2, 4, 1, device=x.device) * torch.tensor([math.pi / 9, 0.2, 0.4, 0.4], device=x.device)[:, None]
    )
    angle, scale, right, up = (ends[:, 0] * (1 - along) + ends[:, 1] * along)[:, :, :, None, None].unbind(1)
    there = (x != 0).any(dim=3, keepdim=True).any(dim=1, keepdim=True)[:, 0]
    cos, sin = scale * angle.cos(), scale * angle.sin()
    a, b = x[:, 0], x[:, 1]
    plane = torch.stack([cos * a - sin * b + right * there, sin * a + cos * b + up * there], dim=1)
    return torch.cat([plane, x[:, 2:]], dim=1)
