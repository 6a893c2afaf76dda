"""Weights from elsewhere: for a backbone those that come as a package, or a file; for a whole model a file."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedreel.data.weights_file import read_file
from fedreel.errors import DataError
from fedreel.models.backbone import Backbone
from fedreel.models.group_norm import NormKind, with_group_norms

STEM = "conv1.weight"  # of ResNets
B = TypeVar("B", bound=Backbone)
M = TypeVar("M", bound=nn.Module)
_COUNTER = ".num_batches_tracked"  # not in files of before PyTorch 0.4.1; it plays no part in the output
_log = logging.getLogger(__name__)


def load_pretrained(backbone: B, source: str, norm: NormKind = "batch") -> B:
    """The backbone with the weights of `source`: "imagenet", or a .safetensors, .pth, .pt or .npz file. All of it or,
    with an error, nothing; only what a file need not have stays as it is, and a ResNet's first convolution where the
    file's has a kernel of another size, as with a small stem. That, and what of the file has no place in a backbone,
    is named in warnings. Without a source, all stays as it is. With `norm` "group" the backbone, and so the file, has
    group norms instead of batch norms."""
    if norm == "group":
        with_group_norms(backbone)
    if not source:
        return backbone
    given = backbone.imagenet() if source == "imagenet" else read_file(Path(source).expanduser())
    named, unused = by_order(backbone, given) if isinstance(given, list) else by_name(backbone, given)
    own = backbone.state_dict()
    kept = ""
    if _other_kernel(own, named):
        kept = f"its shape is {tuple(named[STEM].shape)} in the weights, {tuple(own[STEM].shape)} here"
        named[STEM] = own[STEM]
    absent = _load(backbone, named)
    if absent:
        _tell(f"not in {source}, so as initialised: {', '.join(absent)}")
    if kept:
        _tell(f"{STEM} stays as initialised: {kept} ({source})")
    if unused:
        _tell(f"not used of {source}: {', '.join(sorted(unused))}")
    return backbone


def load_weights(backbone: Backbone, given: Mapping[str, Tensor] | Sequence[Tensor]) -> list[str]:
    """Load tensors, by their names or, where they have none, by their order; what was not used. All of the backbone is
    loaded or, with an error, nothing."""
    named, unused = by_name(backbone, given) if isinstance(given, Mapping) else by_order(backbone, given)
    _load(backbone, named)
    return unused


def load_whole(model: M, source: str) -> M:
    """A model, head and all, with the weights of a file: all that it has or, with an error, none; by their names or,
    where a file has none, by their order. What was not used is named in a warning. Without a source it stays as it is.
    """
    if not source:
        return model
    given, own = read_file(Path(source).expanduser()), model.state_dict()
    if isinstance(given, list):
        named = dict(zip(own, given))
        unused = [f"number {i} {tuple(given[i].shape)}" for i in range(len(own), len(given))]
    else:
        named = {name.removeprefix("module."): tensor for name, tensor in given.items()}
        unused = [name for name in named if name not in own]
    missing = [name for name in own if name not in named]
    reshaped = [
        f"{name} {tuple(named[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in named and named[name].shape != own[name].shape
    ]
    if missing or reshaped:
        wrong = {"missing": missing, "of another shape": reshaped}
        raise DataError(
            "these weights do not belong to this network",
            where=source,
            expected=f"the {len(own)} tensors of {type(model).__name__} with the settings of the recipe",
            found="; ".join(f"{kind}: {', '.join(names)}" for kind, names in wrong.items() if names),
            hint="take a model that was trained with the same settings: RUN/model/global.safetensors",
        )
    model.load_state_dict({name: named[name] for name in own})
    if unused:
        _tell(f"not used of {source}: {', '.join(sorted(unused))}")
    return model


def by_name(backbone: Backbone, given: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors under this backbone's names, and the names of those that belong elsewhere. Where some names begin
    with `backbone.`, as in models of this package and of OpenMMLab's, the others are those of a head."""
    prefix = next((p for p in ("module.backbone.", "backbone.", "module.") if any(n.startswith(p) for n in given)), "")
    named, unused = {}, []
    for name, tensor in given.items():
        ours = name.removeprefix(prefix)
        for pattern, instead in backbone.published.renamed:
            ours = re.sub(pattern, instead, ours)
        if not name.startswith(prefix) or ours.startswith(backbone.published.elsewhere):
            unused.append(name)
        else:
            named[ours] = tensor
    return named, unused


def by_order(backbone: Backbone, given: Sequence[Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The first tensors under the names of this backbone's, in its order; those after them, a head's, by their place
    and shape."""
    own = backbone.state_dict()
    if len(given) < len(own):
        raise _foreign(backbone, f"{len(given)} tensors without names")
    unused = [f"number {i} {tuple(given[i].shape)}" for i in range(len(own), len(given))]
    return dict(zip(own, given)), unused


def _load(backbone: Backbone, given: Mapping[str, Tensor]) -> list[str]:
    """What is given; the names of optional tensors that are not, and so stay as they are."""
    own, optional = backbone.state_dict(), backbone.published.optional
    fixed = {name: tensor for name, tensor in backbone.named_buffers() if name not in own}
    absent = [name for name in own if name not in given and not name.endswith(_COUNTER)]
    missing = [name for name in absent if not (optional and re.search(optional, name))]
    unexpected = [name for name in given if name not in own and name not in fixed]
    both = [name for name in (*own, *fixed) if name in given]
    held = {**fixed, **own}
    reshaped = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(held[name].shape)}"
        for name in both
        if _axes(given[name]) != _axes(held[name])
    ]
    other = [name for name in both if name in fixed and not reshaped and not _close(given[name], fixed[name])]
    if missing or unexpected or reshaped or other:
        wrong = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped, "of other values": other}
        raise _foreign(backbone, "; ".join(f"{kind}: {', '.join(names)}" for kind, names in wrong.items() if names))
    taken = {name: given[name].reshape(own[name].shape) for name in both if name in own}
    backbone.load_state_dict({**own, **taken})
    return absent


def _close(given: Tensor, fixed: Tensor) -> bool:
    return torch.allclose(given.reshape(fixed.shape).to(fixed), fixed, atol=1e-5)


def _axes(tensor: Tensor) -> list[int]:
    """The lengths of axes, but for those of length 1: a convolution of one pixel may be written without them."""
    return [length for length in tensor.shape if length != 1]


def _other_kernel(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> bool:
    if STEM not in own or STEM not in given:
        return False
    mine, theirs = own[STEM].shape, given[STEM].shape
    return mine != theirs and mine[:2] == theirs[:2]


def _foreign(backbone: Backbone, found: str) -> DataError:
    return DataError(
        "these weights do not belong to this backbone",
        expected=f"the {len(backbone.state_dict())} tensors of {type(backbone).__name__}, a classifier's aside",
        found=found,
        hint=backbone.published.hint,
    )


@cache
def _tell(text: str) -> None:
    """A warning, once: a run builds its network several times."""
    _log.warning("%s", text)
