"""Images as a federation: who trains on which, test images that are common to all, and the server's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE, ClientData, Population, Tensors
from fedreel.data.division import (
    NO_OWNERS,
    check_training,
    class_names,
    first_of_each,
    make_partitioner,
    nested_share,
)
from fedreel.data.partition import NaturalIdPartitioner
from fedreel.errors import DataError
from fedreel.tasks.image.pictures import Pictures, open_pictures


@dataclass(frozen=True)
class Answers:
    """What was said of each of some images: 1 if it was right, else 0; and the loss. By whom: the model with its
    tensors as they were, and the task."""

    model: nn.Module
    tensors: tuple[Tensor, ...]
    training: bool
    task: object
    right: Tensor
    losses: Tensor

    def by(self, model: nn.Module, task: object) -> bool:
        """Whether they would say the same."""
        if self.model is not model or self.training != model.training or self.task is not task:
            return False
        return all(map(torch.equal, self.tensors, model.state_dict().values()))


@dataclass(frozen=True)
class TestPictures:
    """Test images that several clients share, once on each device. A batch is (images, labels), or what a frozen
    network made of the images, labels, and what the images look like. The mean of a client's `weights` times what is
    right is its accuracy if classes were as common as among its training images."""

    images: Tensor  # (N, side, side, 3) uint8
    labels: Tensor  # (N,) int64
    weights: Tensor  # (N,) float32
    turn: tuple[int, int] = (0, 1)  # a client's number among those who share them, and how many these are
    beside: tuple[Tensor, ...] = ()  # rows of the images: what they look like, where a network has seen them
    kind: str = "pixels"  # what `images` are, by which they are known again among those in `placed`
    placed: dict[tuple[str, str], tuple[Tensor, ...]] = field(default_factory=dict, repr=False, compare=False)
    """(Kind, device) -> images, labels and what is beside. Who shares the images shares this too, so that no device
    has them twice."""
    answers: dict[tuple[str, str, int, int], Answers] = field(default_factory=dict, repr=False, compare=False)
    """The last model's, likewise shared: clients that test one model give the same answers."""

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def nbytes(self) -> int:
        """Of what is the client's own: the images stay with all the others."""
        return self.weights.nbytes

    def to(self, device: torch.device) -> TestPictures:
        if self.images.device == device:
            return self
        key = self.kind, str(device)
        if key not in self.placed:
            self.placed[key] = tuple(rows.to(device) for rows in self._rows)
        return self._with(self.placed[key], self.kind, self.weights.to(device))

    def seen(self, kind: str, look: Callable[[Tensor], tuple[Tensor, Tensor]]) -> TestPictures:
        """What a network makes of the images, and what these look like: `look` is asked once for all who share them."""
        key = kind, str(self.images.device)
        if key not in self.placed:
            made, looks = look(self.images)
            self.placed[key] = made, self.labels, looks
        return self._with(self.placed[key], kind, self.weights)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, ...]]:
        return Tensors(self._rows).batches(size, generator)

    def answered(
        self, model: nn.Module, task: object, size: int, answer: Callable[[], tuple[Tensor, Tensor]]
    ) -> Answers:
        """What is said of all images, in batches of this size: `answer` is asked unless the last who was asked about
        them had the same model."""
        device = self.images.device
        # What was said on another stream may not be ready.
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = self.kind, str(device), stream, size
        if key not in self.answers or not self.answers[key].by(model, task):
            tensors = tuple(tensor.clone() for tensor in model.state_dict().values())
            self.answers[key] = Answers(model, tensors, model.training, task, *answer())
        return self.answers[key]

    @property
    def own(self) -> Tensors:
        """Images that no other client answers for, so that all clients together count each once."""
        first, step = self.turn
        return Tensors(tuple(rows[first::step] for rows in self._rows))

    @property
    def _rows(self) -> tuple[Tensor, ...]:
        return self.images, self.labels, *self.beside

    def _with(self, rows: tuple[Tensor, ...], kind: str, weights: Tensor) -> TestPictures:
        images, labels, *beside = rows
        return replace(self, images=images, labels=labels, beside=tuple(beside), kind=kind, weights=weights)


class PicturePopulation(Population):
    """Clients that hold images, `label_share` of them labelled; all test on the same images. They train on the labelled
    ones, or, where `all_images`, on all."""

    def __init__(
        self, pictures: Pictures, config: DataConfig, label_share: float, seed: int, all_images: bool = False
    ) -> None:
        self.pictures = pictures
        self.classes = class_names(list(pictures.classes), config)
        places = np.array([*(self.classes.index(name) for name in pictures.classes), -1])
        self.labels = places[pictures.labels]  # -1 stays -1
        train, self._test = _divided(pictures.splits, self.labels, config, seed)
        _check_known(self.labels[np.concatenate([train, self._test])] >= 0, config, "class", "CLASS/*.png")
        check_training({"all clients": (train, self._test)}, config, "or mark images as `train`")
        self._parts = self._shared_out(train, config, seed)
        shares = {c: nested_share(self.labels[rows], label_share, seed) for c, rows in self._parts.items()}
        self._labelled = {c: rows[shares[c]] for c, rows in self._parts.items()}
        self._used = self._parts if all_images else self._labelled
        self.clients = tuple(self._parts)

    def data(self, client: str) -> ClientData:
        part = self._rows(self._parts, client)
        # The weights are those of the whole part, so that a smaller label_share changes nothing but the training.
        weights = _weights(self.labels[part], self.labels[self._test], len(self.classes))
        turn = (0, 1) if client == EVERYONE else (self.clients.index(client), len(self.clients))
        test = replace(self._common, weights=torch.from_numpy(weights), turn=turn)
        return ClientData(self._pairs(self._rows(self._used, client)), test, {})

    def labelled(self) -> Tensors:
        """All clients' labelled images."""
        return self._pairs(self._rows(self._labelled, EVERYONE))

    def agreement(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def describe(self) -> dict[str, Any]:
        return {
            "classes": self.classes,
            "train": {client: self._counts(rows) for client, rows in self._used.items()},
            "test": {client: self._counts(self._test) for client in self.clients},
            "broken": len(self.pictures.broken),
        }

    @cached_property
    def _common(self) -> TestPictures:
        images, labels = (torch.from_numpy(values[self._test]) for values in (self.pictures.images, self.labels))
        return TestPictures(images, labels, torch.ones(len(labels)))

    def _shared_out(self, train: np.ndarray, config: DataConfig, seed: int) -> dict[str, np.ndarray]:
        """The training images of each client."""
        partitioner = make_partitioner(config.partition)
        owners = np.where(self.pictures.owners == "", config.owner, self.pictures.owners)
        if isinstance(partitioner, NaturalIdPartitioner):
            _check_known(owners[train] != "", config, "owner", "OWNER/train/CLASS/*.png", NO_OWNERS)
            untrained = set(owners[self._test]) - set(owners[train]) - {""}
            check_training({str(o): (train[:0], self._test) for o in sorted(untrained)}, config, "or mark some `train`")
        parts = partitioner.split(self.labels[train], owners[train], seed)
        return {client: train[rows] for client, rows in parts.items()}

    def _rows(self, parts: dict[str, np.ndarray], client: str) -> np.ndarray:
        return np.concatenate([*parts.values()]) if client == EVERYONE else parts[client]

    def _pairs(self, rows: np.ndarray) -> Tensors:
        return Tensors((torch.from_numpy(self.pictures.images[rows]), torch.from_numpy(self.labels[rows])))

    def _counts(self, rows: np.ndarray) -> list[int]:
        return np.bincount(self.labels[rows], minlength=len(self.classes)).tolist()


def open_public(config: DataConfig, side: int) -> Pictures:
    """The server's own images: those of data.public or of the playground's server; what is marked as test or val is
    left out."""
    source = config.public or ("playground" if config.source == "playground" else "")
    if not source:
        raise DataError(
            "the server has no images of its own",
            where="data.public",
            expected="a folder of images, or a zip or tar of one; labels are not needed",
            hint="set data.public (with data.source=playground there are some without it)",
        )
    if source == "playground":
        source = str(playground.cached(config.seed, config.size, ("images",)) / "images" / "server")
    found = open_pictures(source, side)
    held = np.isin(found.splits, ("test", "val"))
    if held.all():
        raise DataError("all of the server's own images are for testing", where=source, hint="set data.public")
    return found.take(np.flatnonzero(~held)) if held.any() else found


def _divided(splits: np.ndarray, labels: np.ndarray, config: DataConfig, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and for testing, as they are marked; where none is, `test_share` of each class is drawn. To
    validate, the test rows are left out; where none is marked as val, `test_share` of the others are drawn."""
    marked = np.isin(splits, ("test", "val"))
    held = "test" if (splits == "test").any() else "val"  # beside test images, validation images are left alone
    if marked.any():
        train, test = np.flatnonzero(~marked), np.flatnonzero(splits == held)
    else:
        train, test = _drawn(labels, config.test_share, seed)
    if not config.validate:
        return train, test
    if held == "test" and (splits == "val").any():
        return train, np.flatnonzero(splits == "val")
    rest, drawn = _drawn(labels[train], config.test_share, seed + 1)
    return train[rest], train[drawn]


def _drawn(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All rows but a share of each class, and that share."""
    passed = 0

    def count(size: int) -> int:
        """What rounding owes passes to the next class; one image of a class is always left for training."""
        nonlocal passed
        passed += size
        return min(size - 1, round(share * passed) - round(share * (passed - size)))

    test = first_of_each(labels, np.random.default_rng(seed).permutation(len(labels)), count)
    return np.setdiff1d(np.arange(len(labels)), test), test


def _weights(trained: np.ndarray, tested: np.ndarray, classes: int) -> np.ndarray:
    """For each test image the share of its class in training over that in testing: the mean is 1. Classes that are
    trained on but not tested are left out of the shares."""
    here = np.bincount(tested, minlength=classes)
    own = np.where(here > 0, np.bincount(trained, minlength=classes), 0)
    ratio = own / max(1, own.sum()) * len(tested) / np.maximum(1, here)
    return ratio[tested].astype(np.float32)


def _check_known(known: np.ndarray, config: DataConfig, what: str, expected: str, hint: str = "") -> None:
    if not known.all():
        raise DataError(
            f"some images have no {what}",
            where=config.source,
            expected=expected,
            found=f"{(~known).sum()} of {len(known)}",
            hint=hint,
        )
