"""The part of a run's model that is not trained: kept once beside the models, or found again where it came from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from fedreel.core.blueprint import Blueprint
from fedreel.core.frozen import digest
from fedreel.core.task import Task
from fedreel.errors import RunError

_log = logging.getLogger(__name__)
FILE = "frozen.safetensors"


def warn_of_random(task: Task) -> None:
    """Random weights that nobody trains are rarely what is wanted."""
    if task.tune != "all" and getattr(getattr(task, "backbone", None), "init", "given") == "":
        _log.warning(
            "the frozen part of the backbone has random weights: task.backbone.init names a file of better ones"
        )


def frozen_card(made: Blueprint, task: Task) -> dict[str, Any]:
    """What a model's card says of it: a digest, the names of its tensors, what was tuned beside it, where the weights
    came from, and the folder or hub that still has them, if the run does not."""
    return {
        "digest": made.digest,
        "tensors": list(made.frozen.place),
        "bytes": made.frozen.nbytes,
        "tune": task.tune,
        "init": str(getattr(getattr(task, "backbone", None), "init", "")),
        "elsewhere": task.elsewhere,
    }


def save_frozen(made: Blueprint, task: Task, folder: Path) -> None:
    """Write it beside a run's models, unless others have it."""
    if made.digest and not task.elsewhere:
        save_file({n: made.weights[n].detach().cpu().clone() for n in made.frozen.place}, folder / FILE)


def load_frozen(model: nn.Module, card: Mapping[str, Any], folder: Path) -> list[str]:
    """Fill in a freshly built model; the names of the tensors. Raises unless they are those of the run."""
    told = card.get("frozen", {})
    names: list[str] = told.get("tensors", [])
    if not names:
        return []
    if not told["elsewhere"]:
        model.load_state_dict(load_file(folder / FILE), strict=False)
    state = model.state_dict()
    found = digest({name: state[name] for name in names})
    if found != told["digest"]:
        raise RunError(
            "the part of this model that was not trained has other weights than in training",
            where=told["elsewhere"] or str(folder / FILE),
            expected=f"weights with the digest {told['digest'][:16]}",
            found=found[:16],
            hint="get the weights again that the model was trained on",
        )
    return names
