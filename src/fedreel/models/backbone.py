"""The seam of a backbone: what a recipe's [task.backbone] says, and the network that is made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from fedreel.core.frozen import is_resting
from fedreel.data.input_scale import IMAGENET, KINETICS, InputScale
from fedreel.errors import RecipeError
from fedreel.models.lora import Lora
from fedreel.models.tune import Tune, tune
from fedreel.registry import BACKBONES, Registry

if TYPE_CHECKING:
    from typing import Self


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

    published: Published = Published()
    fresh: ClassVar[tuple[str, ...]] = ()  # submodules that no file of weights has, such as a pooling over time: they
    # are trained however the rest is tuned
    out_channels: int
    places: int = 0  # of its maps, where these do not depend on an input's size; 0: they do
    tuned: Tune = "all"  # what of it is trained; `BackboneConfig.built` sets it

    @abstractmethod
    def features(self, x: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).flatten(2).mean(2)

    @property
    def frozen_encoder(self) -> bool:
        """Whether nothing of it changes in training but what is `fresh`: then the rest gives the same of a sample
        every time, in training too."""
        return self.tuned == "head"

    def known(self) -> nn.Module:
        """The module that others know, whose tensors a LoRA file names: that of another library, if this one is made
        around it."""
        return self

    def train(self, mode: bool = True) -> Self:
        """What is frozen stays as in tests: batch norms go by their running statistics and do not change them. Modules
        that are in the right mode are left alone: nn.Module.train would set all, which takes longer than a small step.
        """
        for module in self.modules():
            wanted = mode and not is_resting(module)
            if module.training != wanted:
                module.training = wanted
        return self

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
    the first weights come from; it is emptied when a finished model is loaded.

    `tune` is what of it is trained beside the task's head: `all`; `norm`, the norms; `lora`, a product of low rank
    beside each layer, as [task.backbone.lora] says; `head`, nothing. What is frozen does not travel: every site builds
    it from the same seed or file."""

    registry: ClassVar[Registry] = BACKBONES
    takes: ClassVar[str]  # clips (N, 3, T, H, W), images (N, 3, H, W) or skeletons (N, 3, T, V, M)

    @property
    def input_scale(self) -> InputScale:
        """The scale of colours that its published weights were trained on."""
        return IMAGENET if self.takes == "images" else KINETICS

    tune: Tune = "all"
    lora: Lora = field(default_factory=Lora)

    @property
    def elsewhere(self) -> str:
        """Where the weights lie if users of a finished model have them too: fedreel itself, a folder, a hub. A run then
        does not keep the frozen ones itself, only what they are like."""
        return ""

    def known_class(self) -> type[nn.Module] | None:
        """The class of another library whose models have the names of this network's tensors, if there is one."""
        return None

    def built(self, sample: Any) -> Backbone:
        """A fresh network of which so much is trained as `tune` says."""
        network = self.network(sample)
        tune(network, self.tune, self.lora, network.fresh)
        network.tuned = self.tune
        return network

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


def untaught(purpose: str) -> RecipeError:
    """For tasks whose head is thrown away in the end."""
    return RecipeError(
        f"{purpose}, and nothing of it would be trained",
        where="[task.backbone] tune",
        expected="all, norm or lora",
        found="head",
    )
