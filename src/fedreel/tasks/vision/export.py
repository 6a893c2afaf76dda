"""The backbone of a trained model as a file of weights under the names of torchvision or transformers, or its LoRA as
`peft` has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save

from fedreel.data.feature_networks import own_model
from fedreel.data.weights_file import SUFFIXES
from fedreel.errors import DataError, RunError
from fedreel.machine.files import write_atomic
from fedreel.models.backbone import Backbone, BackboneConfig
from fedreel.models.classifier import export_torchvision
from fedreel.models.lora import peft_files
from fedreel.models.r3d import R3D
from fedreel.models.resnet import ResNet
from fedreel.models.transformer import TransformerConfig
from fedreel.runs.run import load
from fedreel.zoo import find_model


def export(model: Path | str, out: Path | str, *, client: str = "") -> list[str]:
    """Write the backbone of a run directory to a safetensors file that torchvision's r3d_18 or resnet reads, if width
    and blocks are theirs, or the model of transformers that it was made of; the names of its tensors. What LoRA has
    trained is added to the layers; the classifier is not in it."""
    run, out = find_model(model), Path(out)
    if out.is_dir():
        raise DataError("the weights would be a folder", where=str(out), expected="the name of a file")
    loaded = load(run)
    backbone = getattr(loaded.model, "backbone", None)
    if not isinstance(backbone, R3D | ResNet) and not isinstance(
        getattr(loaded.task, "backbone", None), TransformerConfig
    ):
        raise RunError(
            "this run's backbone is none of torchvision's or transformers'",
            where=str(run),
            expected="a run whose model has the backbone R3D, ResNet or one of transformers, such as VideoMAE",
            found=f"task {loaded.card.get('task')}, {type(backbone).__name__ if backbone else 'no backbone'}",
        )
    tensors = export_torchvision(own_model(loaded, run, client).model.backbone)  # type: ignore[arg-type]
    _write({out: save(tensors, metadata={"format": "pt"})})
    return [*tensors]


def export_lora(model: Path | str, out: Path | str, *, client: str = "") -> list[str]:
    """Write what LoRA has trained of a run's backbone to the folder `out`, for `peft.PeftModel.from_pretrained` on the
    backbone as it was before; the names of its tensors. The head is not in it."""
    run, out = find_model(model), Path(out)
    loaded = load(run)
    config = getattr(loaded.task, "backbone", None)
    if not isinstance(config, BackboneConfig) or config.tune != "lora":
        raise RunError(
            "this run has trained no LoRA",
            where=str(run),
            expected='a run with task.backbone.tune = "lora"',
            found=f"task {loaded.card.get('task')}, tune = {loaded.task.tune}",
            hint="without --peft, the whole backbone is written",
        )
    backbone = own_model(loaded, run, client).model.backbone
    assert isinstance(backbone, Backbone)
    base = str(loaded.card["frozen"]["init"])
    folder = "" if base == "imagenet" or Path(base).suffix in SUFFIXES else base
    about, tensors = peft_files(backbone.known(), config.lora, config.elsewhere or folder, config.known_class())
    _write(
        {
            out / "adapter_config.json": json.dumps(about, indent=1).encode() + b"\n",
            out / "adapter_model.safetensors": save(tensors, metadata={"format": "pt"}),
        }
    )
    return [*tensors]


def _write(files: Mapping[Path, bytes]) -> None:
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
        except OSError as error:
            raise DataError("this cannot be written", where=str(path), found=error.strerror or str(error)) from error
