"""Clips as a federation: where they come from, who holds which, and each client's share as tensors."""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE, ClientData, Examples, Population, Tensors
from fedreel.data import clip_index, shards
from fedreel.data.division import NO_OWNERS, check_training, class_names, make_partitioner
from fedreel.data.partition import IidPartitioner, NaturalIdPartitioner, histogram
from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder

LEFT_OUT = "left out"
_log = logging.getLogger(__name__)


class Division:
    """Who holds which of these clips, and which of them are for testing; no file is read. Where labels are not
    `needed`, only partitions that look at them ask for any."""

    def __init__(
        self, listed: Sequence[clip_index.Clip], names: list[str], config: DataConfig, seed: int, needed: bool
    ) -> None:
        partitioner = make_partitioner(config.partition)
        if needed or not isinstance(partitioner, IidPartitioner | NaturalIdPartitioner):
            _check_known(listed, config, "label")
        self.classes = class_names(names, config) if needed else names
        clips = [replace(c, owner=c.owner or config.owner) for c in _with_split(listed, config, seed)]
        self.labels = np.array([self.classes.index(c.label) for c in clips])
        held = "test" if any(c.split == "test" for c in clips) else "val"
        train = np.array([c.split not in ("test", "val", LEFT_OUT) for c in clips])
        test = np.array([c.split == held for c in clips])  # beside test clips, validation clips are left alone
        if isinstance(partitioner, NaturalIdPartitioner):
            _check_known(clips, config, "owner", NO_OWNERS)
            parts = _by_owners(partitioner, clips, self.labels)
        else:
            parts = partitioner.split(self.labels, np.array([c.owner for c in clips]), seed)
        self.parts = {client: (rows[train[rows]], rows[test[rows]]) for client, rows in parts.items()}
        check_training(self.parts, config, "or mark clips as `train` in index.csv")

    def describe(self) -> dict[str, Any]:
        n = len(self.classes)
        train, test = ({c: rows[i] for c, rows in self.parts.items()} for i in (0, 1))
        return {
            "classes": [name or "no label" for name in self.classes],
            "train": histogram(train, self.labels, n),
            "test": histogram(test, self.labels, n),
        }


class HeldClips(Population):
    """Clips of clients. Subclasses say what a client makes of its own."""

    def __init__(self, source: shards.Shards, config: DataConfig, seed: int, needed: bool = True) -> None:
        self.source = source
        self._division = Division(source.clips, source.labels, config, seed, needed)
        self.classes, self.labels, self._parts = self._division.classes, self._division.labels, self._division.parts
        self.clients = tuple(self._parts)

    @abstractmethod
    def examples(self, rows: np.ndarray) -> Examples:
        """These clips as a client works with them."""

    @abstractmethod
    def frame_count(self, rows: np.ndarray) -> int:
        """How many frames of these clips a client works with."""

    def data(self, client: str) -> ClientData:
        if client == EVERYONE:
            train, test = (_once(np.concatenate(rows)) for rows in zip(*self._parts.values()))
        else:
            train, test = self._parts[client]
        numbers = {"frames": float(self.frame_count(train))}
        return ClientData(partial(self.examples, train), partial(self.examples, test), numbers)

    def describe(self) -> dict[str, Any]:
        return {
            **self._division.describe(),
            "broken": len(self.source.broken),
            "missing": self.source.gaps.missing,
            "unnamed": self.source.gaps.unnamed,
        }


class ClipPopulation(HeldClips):
    """Clients that hold labelled clips, `frames` evenly spaced frames of each, as uint8."""

    def __init__(self, source: shards.Shards, config: DataConfig, frames: int, seed: int) -> None:
        super().__init__(source, config, seed)
        self.frames = frames

    def examples(self, rows: np.ndarray) -> Tensors:
        frames = torch.from_numpy(self.source.stack([int(i) for i in rows], self.frames))
        return Tensors((frames, torch.from_numpy(self.labels[rows])))

    def frame_count(self, rows: np.ndarray) -> int:
        return len(rows) * self.frames

    def agreement(self) -> dict[str, Any]:
        return {"classes": self.classes}


def divided(clips: Sequence[clip_index.Clip], config: DataConfig) -> dict[str, Any]:
    """Who would hold which of these clips, as a run notes it before its first round."""
    names = sorted({clip.label for clip in clips})
    return Division(clips, names, config, config.seed, needed=False).describe()


def open_clips(config: DataConfig, side: int, setting: str = "task.size", most: int = 0) -> shards.Shards:
    """Shards of the recipe's source: the playground's actions, a folder of videos, or a folder of shards. `side` is the
    shorter side of every clip, that of the squares that are seen; `setting` is what to change it by, if any. With
    `most`, so many clips of each part of an owner's; the others are not even decoded."""
    if config.source == "playground":
        _check_listless(config)
        return _playground_clips(config, side, most)
    root = playground.place_of(config, "actions", "a folder of videos, or a folder of shards")
    if (root / shards.INDEX).exists():
        _check_listless(config)
        return _of_side(shards.Shards.open(root, most), side, setting)
    found = clip_index.look_up(root, lists=config.lists, fold=config.fold)
    for line in found.gaps.lines():
        _tell(f"{line} ({root})")
    folder = cache_folder() / "shards" / _fingerprint(root, side, config.quality, found, most)
    clips = clip_index.thinned(found.clips, most)
    return shards.build(clips, root, folder, side=side, quality=config.quality, gaps=found.gaps)


def _playground_clips(config: DataConfig, side: int, most: int) -> shards.Shards:
    """The shards are named after the world: a copy of the cache serves on a machine that can decode no video."""
    name = f"{playground.name(config.seed, config.size)}-v{shards.VERSION}-{side}"
    folder = cache_folder() / "shards" / (f"{name}-q{config.quality}" if config.quality else name)
    if not (folder / shards.INDEX).is_file():
        root = playground.cached(config.seed, config.size, ("actions",)) / "actions"
        shards.build(clip_index.find(root), root, folder, side=side, quality=config.quality)
    return shards.Shards.open(folder, most)


def _by_owners(
    partitioner: NaturalIdPartitioner, clips: Sequence[clip_index.Clip], labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Each owner's clips; one that several own is among those of each."""
    rows = np.array([row for row, clip in enumerate(clips) for _ in clip.owners])
    parts = partitioner.split(labels[rows], np.array([owner for clip in clips for owner in clip.owners]))
    return {owner: rows[members] for owner, members in parts.items()}


def _once(rows: np.ndarray) -> np.ndarray:
    """In the same order, each row where it first occurs."""
    return rows[np.sort(np.unique(rows, return_index=True)[1])]


def _check_listless(config: DataConfig) -> None:
    if config.lists or config.fold != 1:
        raise DataError(
            "lists are for folders of videos",
            where="[data] lists and fold",
            expected="a folder of videos as data.source",
            found=config.source,
            hint="make the shards with fedreel data shard VIDEOS --lists LISTS --fold 1",
        )


@cache
def _tell(text: str) -> None:
    """A warning, once: a run opens its data several times."""
    _log.warning("%s", text)


def _check_known(clips: Sequence[clip_index.Clip], config: DataConfig, field: str, hint: str = "") -> None:
    without = [clip.path for clip in clips if not getattr(clip, field)]
    if without:
        raise DataError(
            f"some clips have no {field}",
            where=config.source,
            expected=f"OWNER/CLASS/clip.mp4, or a column `{field}` in index.csv",
            found=f"{len(without)} of {len(clips)}, the first is {without[0]}",
            hint=hint,
        )


def _of_side(found: shards.Shards, side: int, setting: str) -> shards.Shards:
    if found.side != side:
        raise DataError(
            "the shards have another size than the task",
            where=str(found.folder),
            expected=f"a shorter side of {side} pixels",
            found=f"{found.side} pixels",
            hint=(f"set {setting}={found.side}, or " if setting else "") + f"build shards with --size {side}",
        )
    return found


def _with_split(clips: Sequence[clip_index.Clip], config: DataConfig, seed: int) -> list[clip_index.Clip]:
    """Clips as they are marked; where none is marked as test, `test_share` of them are drawn for it, or the last of
    each owner's and class's taken. To validate, test clips are left out; where none is marked as val, `test_share` of
    the others are drawn or taken."""
    by = "last" if config.hold_out == "last" else "clip"
    marked = any(c.split in ("test", "val") for c in clips)
    found = list(clips) if marked else clip_index.split_by(clips, config.test_share, seed, by=by)
    if not config.validate:
        return found
    both = {"test", "val"} <= {c.split for c in found}
    kept = ("test",) if both else ("test", "val")
    found = [replace(c, split=LEFT_OUT if c.split in kept else c.split if both else "") for c in found]
    return clip_index.split_by(found, config.test_share, seed + 1, by=by)


def _fingerprint(root: Path, side: int, quality: int, found: clip_index.Found, most: int) -> str:
    """A folder name for shards of these files at this size; other files, times or lists give another name."""
    some = f" {most}" if most else ""
    state = hashlib.sha256(f"{root.resolve()} {side} {quality} {shards.VERSION}{some}".encode())
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        stat = path.stat()
        state.update(f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    if found.listed:
        state.update(repr((found.clips, found.gaps)).encode())
    return state.hexdigest()[:20]
