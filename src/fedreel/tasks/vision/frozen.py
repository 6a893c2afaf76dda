"""What a frozen backbone sees of clips and pictures, computed once and kept on the owner's disk: by the pixels, the
weights and the transform, so that anything else of these is another file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedreel.core.task import Examples, Tensors
from fedreel.data.feature_networks import fingerprint
from fedreel.data.kept_arrays import keep, kept
from fedreel.machine.cache import cache_folder
from fedreel.machine.device import seeded
from fedreel.models.classifier import Classifier
from fedreel.tasks.vision.appearance import VERSION as LOOKS
from fedreel.tasks.vision.appearance import appearance

_log = logging.getLogger(__name__)
_LOOKED_AT = 8  # tensors by which another network is told
_states: WeakKeyDictionary[nn.Module, tuple[str, list[float], str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Look:
    """How a clip (1, T, H, W, 3) is seen: its random view, how it goes into the network, and both in words. Other words
    are another transform."""

    view: Callable[[Tensor], Tensor]
    network_input: Callable[[Tensor], Tensor]
    words: str
    view_words: str


def frozen_examples(model: Classifier, examples: Tensors, look: Look, views: int) -> Examples:
    """Clips and labels as what the model's head is given of them; behind the labels is what the clips look like. Of
    `views`, the first is the clip as it is and the others are random; which of them an epoch sees is drawn anew."""
    clips, labels = examples.tensors
    seen, looks = frozen_views(model, clips, look, views), _looks(clips)
    return Tensors((seen[:, 0], labels, looks)) if views == 1 else AnyView(seen, (labels, looks))


def frozen_views(model: Classifier, clips: Tensor, look: Look, views: int) -> Tensor:
    """(N, views, C, T, P) of clips (N, T, H, W, 3); those that were seen before are read."""
    model.backbone.eval()  # as it always is, frozen; of a model just made nobody has said so yet
    folder = cache_folder() / "features" / "clips" / state_of(model, look.words)
    names = [_name(clip) for clip in clips]
    found = [[kept(_file(folder, name, look, view)) for view in range(views)] for name in names]
    missing = sum(array is None for row in found for array in row)
    if missing:
        _log.info("a frozen backbone looks at %d views of clips once; %s keeps what it saw", missing, folder)
    rows = []
    for clip, name, row in zip(clips, names, found):
        for view, array in enumerate(row):
            if array is None:
                array = _seen(model, clip, look, view, name).numpy()
                keep(_file(folder, name, look, view), array)
            rows.append(torch.from_numpy(array))
    return torch.stack(rows).unflatten(0, (len(clips), views)) if rows else torch.zeros(0, views, 1, 1, 1)


def state_of(model: Classifier, words: str) -> str:
    """By which a network and a transform are known. All weights are read, but not again for every client: a frozen
    network stays as it is, and one that was loaded into its place begins with other numbers."""
    backbone, extra = model.backbone, f"{type(model.head['pool']).__name__ == 'Mean'} {words}"
    tensors = backbone.state_dict()
    first = [float(t.reshape(-1)[0]) for t in islice(tensors.values(), _LOOKED_AT)]
    if backbone not in _states or _states[backbone][:2] != (extra, first):
        _states[backbone] = extra, first, fingerprint(tensors, extra)
    return _states[backbone][2]


@dataclass(frozen=True)
class AnyView:
    """Of each sample one of its views (samples, views, ...), drawn anew in every epoch; the first where nothing is
    drawn."""

    resident: ClassVar = True
    views: Tensor
    beside: tuple[Tensor, ...]  # rows of the samples: their labels, what they look like

    def __len__(self) -> int:
        return len(self.views)

    @property
    def nbytes(self) -> int:
        return self.views.nbytes + sum(rows.nbytes for rows in self.beside)

    def to(self, device: torch.device) -> AnyView:
        return AnyView(self.views.to(device), tuple(rows.to(device) for rows in self.beside))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, ...]]:
        samples, views = self.views.shape[:2]
        which = torch.zeros(samples, dtype=torch.long)
        if generator is not None:
            which = torch.randint(views, (samples,), generator=generator)
        seen = self.views[torch.arange(samples), which.to(self.views.device)]
        yield from Tensors((seen, *self.beside)).batches(size, generator)


def _looks(clips: Tensor) -> Tensor:
    """Of the pixels alone, so that they are kept whatever the network."""
    folder = cache_folder() / "features" / "looks" / f"v{LOOKS}"
    rows = []
    for clip in clips:
        file = folder / (name := _name(clip))[:2] / f"{name}.npy"
        array = kept(file)
        if array is None:
            array = appearance(clip[None])[0].numpy()
            keep(file, array)
        rows.append(torch.from_numpy(array))
    return torch.stack(rows) if rows else torch.zeros(0, 1)


def _seen(model: Classifier, clip: Tensor, look: Look, view: int, name: str) -> Tensor:
    """One clip at a time: what a network makes of it would else depend, in its last bits, on its neighbours."""
    device = next(model.backbone.parameters()).device
    one = clip[None].to(device)
    with torch.no_grad(), seeded(int(name[:12], 16) + view, device):
        shown = look.view(one) if view else one
        return model.seen(look.network_input(shown))[0].float().cpu()


def _name(clip: Tensor) -> str:
    """Of a clip's pixels."""
    digest = hashlib.blake2b(f"{tuple(clip.shape)} ".encode(), digest_size=16)
    digest.update(clip.contiguous().numpy().data)
    return digest.hexdigest()


def _file(folder: Path, name: str, look: Look, view: int) -> Path:
    drawn = hashlib.sha256(f"{look.view_words} {view}".encode()).hexdigest()[:12] if view else "plain"
    return folder / name[:2] / f"{name}-{drawn}.npy"
