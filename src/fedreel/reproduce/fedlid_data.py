"""What FedLID's tables take as given images, and what models begin with there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreel.errors import DataError
from fedreel.reproduce.fedlid_paper import LITE0, RESNET18

WEIGHTS = "resnet18*"  # a file beside the images, of torchvision's weights


def adapt(data: Path) -> dict[str, Any]:
    """Given data are a folder with two sources, `clients*` and `server*`: folders, or zips or tars of images; and a
    file of torchvision's weights of ResNet-18, if there is to be a row that begins with them."""
    sources = {}
    for name in ("clients", "server"):
        found = _sources(data, name)
        if len(found) != 1:
            raise DataError(
                f"there is not one source of images for the {name}",
                where=str(data),
                expected=f"{name}/, {name}.zip or {name}.tar.gz",
                found=", ".join(p.name for p in found) or "none",
            )
        sources[name] = str(found[0].resolve())
    return {"data.source": sources["clients"], "data.public": sources["server"]}


def adapt_without_server(data: Path) -> dict[str, Any]:
    """Given data are images as a recipe has them, or a folder for the other tables: then its clients' images."""
    both = all(_sources(data, name) for name in ("clients", "server"))
    return {"data.source": adapt(data)["data.source"]} if both else {}


def _sources(data: Path, name: str) -> list[Path]:
    return sorted(p for p in data.glob(f"{name}*") if not p.name.startswith(".")) if data.is_dir() else []


def _weights(data: Path) -> Path | None:
    found = sorted(p for p in data.glob(WEIGHTS) if p.suffix in (".pth", ".pt", ".safetensors"))
    if len(found) > 1:
        raise DataError(
            "there is more than one file of weights", where=str(data), found=", ".join(p.name for p in found)
        )
    return found[0].resolve() if found else None


def inits(data: Path | None) -> dict[str, Mapping[str, Any]]:
    """What models begin with. Weights of ImageNet are for given data: the playground's pictures are too small a world;
    those of ResNet-18 must be given with them."""
    inits: dict[str, Mapping[str, Any]] = {"random": {}}
    if data is not None:
        inits[LITE0] = {"task.backbone": {"name": "efficientnet-lite0", "init": "imagenet"}}
        if (file := _weights(data)) is not None:
            inits[RESNET18] = {"task.backbone": {"name": "resnet18", "init": str(file)}}
    return inits
