"""The seam of a backbone: what a recipe's [task.backbone] says, and the network that is made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from fedreel.data.input_scale import IMAGENET, KINETICS, InputScale
from fedreel.errors import RecipeError
from fedreel.registry import BACKBONES, Registry

if TYPE_CHECKING:
    from typing import Self

Tune = Literal["all", "head"]


@dataclass(frozen=True)
class Published:
    """What the tensors of a network are called in files of others. `renamed` are pairs of a regular expression and what
    stands here instead, applied one after the other to each name; `elsewhere` are beginnings of names, as they are
    after that, of tensors that have no place in a backbone, such as a classifier's; `optional` is a regular expression
    of names that a file need not have: these tensors stay as initialised. A fixed tensor that is no part of a model's
    weights, such as a graph, is compared with that of the file where the names agree. `hint` is what to do about a
    file that does not fit."""

    renamed: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[str, ...] = ("fc.", "_fc.")
    optional: str = ""
    hint: str = "take the file of the same architecture, or set width, blocks and stem to those of the file"


class Backbone(nn.Module, ABC):
    """A network without its last layer: `features` gives (N, C, ...), a vector of C = `out_channels` numbers for every
    place or token, and calling it their mean (N, C)."""

    published: ClassVar[Published] = Published()
    out_channels: int
    tuned: Tune = "all"  # what of it is trained; `BackboneConfig.built` sets it

    @abstractmethod
    def features(self, x: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).flatten(2).mean(2)

    @property
    def frozen_encoder(self) -> bool:
        """Whether nothing of it changes in training: then it gives the same of a sample every time."""
        return self.tuned == "head"

    def train(self, mode: bool = True) -> Self:
        """What is frozen stays as in tests: batch norms go by their running statistics and do not change them."""
        return super().train(mode and not self.frozen_encoder)

    def imagenet(self) -> dict[str, Tensor]:
        """Weights learned on ImageNet, of networks for which a package holds them."""
        raise RecipeError(
            f"no package holds ImageNet weights of {type(self).__name__}",
            expected="EfficientNetLite0, or a file of weights",
            hint="give the path of a file that torchvision publishes, such as resnet18-f37072fd.pth",
        )

    def init_weights(self) -> None:
        """Kaiming for convolutions; batch norms, a block's last too, keep PyTorch's weight 1 and bias 0."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(ABC):
    """Subclasses are frozen dataclasses; their fields are the recipe's [task.backbone] section. A field `init` is where
    the first weights come from; it is emptied when a finished model is loaded. `tune` is what of it is trained beside
    the task's head: all, or (`head`) nothing."""

    registry: ClassVar[Registry] = BACKBONES
    takes: ClassVar[str]  # clips (N, 3, T, H, W), images (N, 3, H, W) or skeletons (N, 3, T, V, M)

    @property
    def input_scale(self) -> InputScale:
        """The scale of colours that its published weights were trained on."""
        return IMAGENET if self.takes == "images" else KINETICS

    tune: Tune = "all"

    def built(self, sample: Any) -> Backbone:
        """A fresh network of which so much is trained as `tune` says."""
        network = self.network(sample)
        network.tuned = self.tune
        return network.requires_grad_(False).eval() if self.tune == "head" else network

    @abstractmethod
    def network(self, sample: Any) -> Backbone:
        """A fresh network. `sample` is what the task knows of its input: `Clips`, `Images`, or a `Skeleton`."""

    def check_takes(self, kind: str) -> None:
        """Raise unless it takes input of this kind."""
        if self.takes != kind:
            name = BACKBONES.name_of(type(self))
            fit = [other for other in BACKBONES.names() if getattr(BACKBONES.lookup(other), "takes", "") == kind]
            raise RecipeError(
                f"the backbone {name} takes {self.takes}, but this task has {kind}: choose {' or '.join(fit)}",
                where="[task.backbone] name",
            )


@dataclass(frozen=True)
class Clips:
    """Clips as a network sees them: so many frames, square."""

    frames: int
    size: int


@dataclass(frozen=True)
class Images:
    """Images as a network sees them: square."""

    size: int
