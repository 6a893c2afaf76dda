"""Transformers of Hugging Face's library as backbones: what they have in common, whatever they look at."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from fedreel.config import check_ranges
from fedreel.data.hugging_face import find_folder, library, load_model, read_config, read_scale
from fedreel.data.input_scale import InputScale
from fedreel.data.weights_file import SUFFIXES
from fedreel.errors import RecipeError
from fedreel.fields import ModelName
from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Images
from fedreel.models.pretrained import load_pretrained

SECTION = "task.backbone"
SIZES = {
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "patch": "patch_size",
    "eps": "layer_norm_eps",
}


@dataclass(frozen=True)
class TransformerConfig(BackboneConfig):
    """What is left at 0 or empty comes from the folder that `init` names, or else is that of a published size. All of
    it is written to a run's recipe, so that a finished model needs no folder."""

    kinds: ClassVar[tuple[str, ...]]  # `model_type` in config.json, that which fedreel makes first
    usual: ClassVar[Mapping[str, Any]]  # a published size
    sizes: ClassVar[Mapping[str, str]] = SIZES  # what its fields are called in config.json
    apart: ClassVar[tuple[str, ...]] = ()  # keys of config.json that say nothing about these weights

    init: ModelName = ""  # a folder that save_pretrained wrote, a name on the hub, or a file of weights; empty: random
    width: int = 0  # of a token's vector
    depth: int = 0  # layers
    heads: int = 0
    patch: int = 0  # pixels of the sides of a token's square
    mlp: int = 0  # width of the layers between those of attention
    eps: float = 0.0  # of layer norms
    mean: tuple[float, ...] = ()  # of colours from 0 to 1, and their deviation: what the network is given is brought to
    std: tuple[float, ...] = ()  # mean 0 and deviation 1 by them

    def __post_init__(self) -> None:
        given: Mapping[str, Any] = self.usual
        if folder := self.folder:
            given = self.read(read_config(folder, self.kinds)) | _of_scale(read_scale(folder))
        for field in (f.name for f in fields(self) if f.name in given):
            self._settle(field, given[field], folder)
        least = {"width": 1, "depth": 1, "heads": 1, "patch": 1, "mlp": 1}
        check_ranges(self, SECTION, **{name: (low, math.inf) for name, low in least.items()})
        check_ranges(self, SECTION, mean=(-math.inf, math.inf), std=(1e-9, math.inf), eps=(0, 1))
        if self.width % self.heads:
            self._refuse("heads", f"a divisor of the width {self.width}", self.heads)
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                self._refuse(name, "three numbers: red, green and blue", getattr(self, name))

    @property
    def folder(self) -> Path | None:
        """Where the weights to begin with lie, if `init` does not name a file of them."""
        return find_folder(self.init) if self.init and Path(self.init).suffix not in SUFFIXES else None

    @property
    def input_scale(self) -> InputScale:
        """As the model's preprocessor says."""
        return InputScale(self.mean, self.std)  # type: ignore[arg-type]

    def network(self, sample: Any) -> Backbone:
        """With random weights or, where `init` names some, these."""
        self.check_sample(sample, read_config(self.folder, self.kinds) if self.folder else None)
        config = self.config(sample)
        if self.folder is None:
            return load_pretrained(self.around(self.made(config), sample), self.init)
        self._check_same(config, self.folder)
        return self.around(self.loaded(config, self.folder), sample)

    def read(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that a config.json gives, defaults of `transformers` included."""
        config = self.library_config(told)
        return {field: getattr(config, key) for field, key in self.sizes.items()}

    def library_config(self, told: Mapping[str, Any]) -> Any:
        """A config.json as an object of `transformers`."""
        try:
            return self.config_class().from_dict({**told})
        except (ValueError, TypeError, AttributeError) as error:
            raise RecipeError(
                "this config.json cannot be used", where=str(self.folder), found=str(error).splitlines()[0][:300]
            ) from None

    def written(self) -> dict[str, Any]:
        """The fields under the names of config.json."""
        return {key: getattr(self, field) for field, key in self.sizes.items()}

    @abstractmethod
    def config_class(self) -> Any:
        """The class of configs of `transformers`."""

    @abstractmethod
    def config(self, sample: Any) -> Any:
        """A config of `transformers` for this input."""

    @abstractmethod
    def known_class(self) -> Any:
        """The class of models of `transformers`."""

    def made(self, config: Any) -> nn.Module:
        """A fresh model of `transformers`."""
        return self.known_class()(config)

    def loaded(self, config: Any, folder: Path) -> nn.Module:
        """The same with the weights of a folder."""
        return load_model(self.known_class(), folder, config)

    @abstractmethod
    def around(self, model: nn.Module, sample: Any) -> Backbone:
        """The backbone that a model of `transformers` becomes."""

    def check_sample(self, sample: Any, told: Mapping[str, Any] | None) -> None:
        """Raise unless inputs of this size can be cut into tokens, and have places that the loaded model knows."""
        if sample.size % self.patch or not sample.size:
            fits = f"a multiple of {self.patch}, the side of a token"
            self._misfit("size", sample.size, fits, f"[task] size, or [{SECTION}] patch")

    def _check_same(self, config: Any, folder: Path) -> None:
        """Raise if config.json says what the fields cannot say: the weights would mean something else."""
        theirs = self.library_config(read_config(folder, self.kinds)).to_dict()
        ours, known = config.to_dict(), {f.name for f in fields(type(config))}
        plain = {f.name for f in fields(library("configuration_utils").PreTrainedConfig)}
        other = [
            f"{key} = {theirs.get(key)}, not {ours.get(key)}"
            for key in sorted(known - plain - {*self.apart})
            if ours.get(key) != theirs.get(key)
        ]
        if other:
            raise RecipeError(
                "fedreel cannot make this variant of the model",
                where=str(folder / "config.json"),
                found="; ".join(other),
            )

    def _settle(self, field: str, known: Any, folder: Path | None) -> None:
        """A field that was left open takes the known value; one that was not may not contradict a folder."""
        known = tuple(known) if isinstance(known, list) else known
        value = getattr(self, field)
        if not value:
            object.__setattr__(self, field, known)
        elif folder is not None and value != known:
            raise RecipeError(
                f"the model that is loaded has another {field}",
                where=f"[{SECTION}] {field}",
                expected=f"{known}, as in {folder}, or none given",
                found=str(value),
            )

    def _misfit(self, what: str, found: Any, fits: str, where: str = "") -> None:
        raise RecipeError(
            f"this {what} does not fit the backbone", where=where or f"[task] {what}", expected=fits, found=str(found)
        )

    def _refuse(self, field: str, expected: str, found: Any) -> None:
        raise RecipeError(
            f"this {field} cannot be used", where=f"[{SECTION}] {field}", expected=expected, found=str(found)
        )


@dataclass(frozen=True)
class TubeletConfig(TransformerConfig):
    """Of clips: a token is a square over a few frames."""

    takes: ClassVar = "clips"
    sizes: ClassVar = {**SIZES, "tubelet": "tubelet_size"}

    tubelet: int = 0  # frames of a token

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, SECTION, tubelet=(1, math.inf))

    def check_sample(self, sample: Clips, told: Mapping[str, Any] | None) -> None:
        super().check_sample(sample, told)
        if sample.frames % self.tubelet:
            fits = f"a multiple of {self.tubelet}, the frames of a token"
            self._misfit("number of frames", sample.frames, fits, f"[task] frames, or [{SECTION}] tubelet")

    def grid(self, sample: Clips) -> tuple[int, int, int]:
        """Tokens in time, down and across."""
        side = sample.size // self.patch
        return sample.frames // self.tubelet, side, side


@dataclass(frozen=True)
class PatchConfig(TransformerConfig):
    """Of images: a token is a square."""

    takes: ClassVar = "images"

    def check_sample(self, sample: Images, told: Mapping[str, Any] | None) -> None:
        super().check_sample(sample, told)
        if told is not None and sample.size != (size := self.library_config(told).image_size):
            self._misfit("size", sample.size, f"{size}: the model has learned a vector for each of its places")


def _of_scale(scale: InputScale) -> dict[str, Any]:
    return {"mean": scale.mean, "std": scale.std}
