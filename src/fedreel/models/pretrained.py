"""Published weights for a backbone: those that come as a package, or a file of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedreel.data.torch_file import read_tensors
from fedreel.errors import DataError
from fedreel.models.backbone import Backbone
from fedreel.models.classifier import load_torchvision

STEM = "conv1.weight"  # of ResNets
B = TypeVar("B", bound=Backbone)
_log = logging.getLogger(__name__)


def load_pretrained(backbone: B, source: str) -> B:
    """The backbone with the weights of `source` but for its classifier: "imagenet", or a .safetensors, .pth or .pt file
    with torchvision's names (for EfficientNet-Lite0 those of its package). All of it or, with an error, nothing; only a
    ResNet's first convolution stays as it is where the file's has a kernel of another size, as with a small stem.
    Without a source, all stays as it is."""
    if not source:
        return backbone
    given = backbone.imagenet() if source == "imagenet" else _read(Path(source).expanduser())
    given = {name: tensor for name, tensor in given.items() if not name.startswith("_fc.")}
    own = backbone.state_dict()
    if not _other_kernel(own, given):
        load_torchvision(backbone, given)
        return backbone
    load_torchvision(backbone, {**given, STEM: own[STEM]})
    shapes = f"{tuple(given[STEM].shape)} in the weights, {tuple(own[STEM].shape)} here"
    _log.warning("%s stays as initialised: its shape is %s (%s)", STEM, shapes, source)
    return backbone


def _other_kernel(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> bool:
    if STEM not in own or STEM not in given:
        return False
    mine, theirs = own[STEM].shape, given[STEM].shape
    return mine != theirs and mine[:2] == theirs[:2]


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file() or path.suffix not in (".safetensors", ".pth", ".pt"):
        raise DataError(
            "this is no file of weights" if path.exists() else "there is no such file of weights",
            where=str(path),
            expected='"imagenet", or the path of a .safetensors, .pth or .pt file',
        )
    if path.suffix != ".safetensors":
        return read_tensors(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError("this file of weights cannot be read", where=str(path), found=str(error)) from None
