"""Models as `transformers` saves them: config.json and safetensors in a folder, or under a name on Hugging Face's hub.
Only architectures that fedreel names are made of them; nothing that such a folder brings along is run."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedreel.data.input_scale import IMAGENET, InputScale
from fedreel.errors import DataError, FedreelError
from fedreel.machine.records import parse_json

CONFIG = "config.json"
PREPROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")
WANTED = ("*.json", "*.safetensors", "merges.txt", "vocab.txt")  # of what lies on the hub under a name
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def library(module: str = "") -> Any:
    """`transformers`, or a module of it."""
    if find_spec("transformers") is None:
        raise FedreelError(
            "models of Hugging Face need one more package", expected="transformers", hint="pip install 'fedreel[hf]'"
        )
    found = import_module("transformers")
    found.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)  # what is wrong with a folder we say ourselves
    return import_module(f"transformers.{module}") if module else found


def is_folder(name: str | Path) -> bool:
    """Whether a model in the format of `transformers` lies here."""
    return (Path(name).expanduser() / CONFIG).is_file()


@cache
def find_folder(name: str, fetch: bool = True) -> Path:
    """The folder of a model: the one of this name or, of a name on the hub, that which it was fetched into.
    Unless it may be fetched now, it must lie here."""
    folder = Path(name).expanduser()
    if is_folder(folder):
        return folder.resolve()
    if folder.exists() or not HUB_NAME.fullmatch(name):
        raise DataError(
            "there is no model in the format of transformers here",
            where=name,
            expected="a folder with config.json and model.safetensors, as save_pretrained writes it,"
            " or a name on the hub: OWNER/MODEL",
            found=f"no {CONFIG} in it" if folder.is_dir() else "no such folder",
        )
    library()
    hub = import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=[*WANTED], local_files_only=not fetch))
    except (OSError, ValueError, RuntimeError, hub.errors.HfHubHTTPError) as error:
        raise DataError(
            "this model is not here, and could not be fetched" if fetch else "this model is not here",
            where=name,
            expected="a folder on this machine"
            + (", or a name on the hub" if fetch else ", or a hub model in its cache"),
            found=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__,
            hint="where there is a network: hf download NAME --local-dir FOLDER; then name the folder",
        ) from None


def read_config(folder: Path, kinds: Sequence[str]) -> dict[str, Any]:
    """The config of a model of one of these kinds (`model_type`)."""
    found = read_table(folder / CONFIG)
    if found.get("model_type") not in kinds:
        raise DataError(
            "this model is of another architecture",
            where=str(folder / CONFIG),
            expected=f"model_type {' or '.join(kinds)}",
            found=str(found.get("model_type")),
            hint="fedreel list backbones names those that can be loaded",
        )
    return found


def read_table(path: Path) -> dict[str, Any]:
    """A JSON file of a model's folder."""
    try:
        found = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError("this file cannot be read", where=str(path), found=str(error)) from None
    if not isinstance(found, dict):
        raise DataError("this file cannot be read", where=str(path), expected="a table", found=type(found).__name__)
    return found


def read_scale(folder: Path) -> InputScale:
    """The scale of colours that the model was trained on, as its preprocessor says; ImageNet's where nothing does."""
    for name in PREPROCESSORS:
        if (folder / name).is_file():
            told = read_table(folder / name)
            mean, std = (told.get(key) for key in ("image_mean", "image_std"))
            if mean is None and std is None:
                continue
            if not (_three(mean) and _three(std) and min(std or [0]) > 0):
                raise DataError(
                    "this preprocessor does not say what colours are brought to",
                    where=str(folder / name),
                    expected="three numbers each as image_mean and image_std, the latter above 0",
                    found=f"{mean} and {std}",
                )
            return InputScale(*(tuple(map(float, three)) for three in (mean, std)))  # type: ignore[arg-type]
    return IMAGENET


def load_model(cls: Any, folder: Path, config: Any, part: str = "", **settings: Any) -> nn.Module:
    """A model of this class of `transformers` with the weights in a folder, all of them (of `part`, the beginning of
    names, if only that is used). Weights come from safetensors alone, and no random numbers are drawn."""
    try:
        with torch.random.fork_rng(devices=[]):
            model, told = cls.from_pretrained(
                str(folder),
                config=config,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation="sdpa",
                dtype=torch.float32,
                output_loading_info=True,
                **settings,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            "the weights of this model cannot be read",
            where=str(folder),
            expected="model.safetensors, as save_pretrained writes it",
            found=str(error).splitlines()[0][:300] if str(error) else type(error).__name__,
        ) from None
    missing = sorted(name for name in told["missing_keys"] if name.startswith(part))
    reshaped = sorted(str(entry[0]) for entry in told["mismatched_keys"] if str(entry[0]).startswith(part))
    if missing or reshaped:
        wrong = {"missing": missing, "of another shape": reshaped}
        raise DataError(
            "these weights are not those of the model that config.json describes",
            where=str(folder),
            found="; ".join(f"{len(names)} {kind}, such as {names[0]}" for kind, names in wrong.items() if names),
        )
    return model.train()


def _three(values: Any) -> bool:
    """Three numbers of colours, which are small."""
    numbers = isinstance(values, list) and len(values) == 3 and all(isinstance(v, int | float) for v in values)
    return numbers and all(-1e6 < v < 1e6 for v in values)
