"""Skeletons as a federation: every set is a client with classes of its own, or one set is divided among clients."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE, ClientData, Population, Tensors
from fedreel.data.division import check_training, make_partitioner
from fedreel.data.partition import NaturalIdPartitioner, histogram
from fedreel.errors import DataError, RecipeError, nearest
from fedreel.tasks.skeleton.joints import Joints
from fedreel.tasks.skeleton.motions import find_sets
from fedreel.tasks.skeleton.prepare import Prepared, load_set
from fedreel.tasks.skeleton.recordings import Unusable, set_name

TOLD = 100  # recordings that were left out and are named in the run's records


class SkeletonPopulation(Population):
    """Clients that hold skeletons, of all sets or of those named, at most so many of each part. `leave_out` names a set
    that is no client's, to see what a model makes of it."""

    def __init__(
        self,
        source: Sequence[Path],
        config: DataConfig,
        joints: Joints,
        length: int,
        bodies: int,
        align: bool,
        seed: int,
        leave_out: str = "",
        sets: Sequence[str] = (),
        most: int = 0,
    ) -> None:
        self.config, self.joints, self.seed, self.most = config, joints, seed, most
        self.form = (length, bodies, align)
        paths = _by_name(source)
        for name in sets:
            if name not in paths:
                raise RecipeError(f"there is no set '{name}'", where="[task] sets", hint=nearest(name, paths))
        paths = {name: path for name, path in paths.items() if name in sets} if sets else paths
        if leave_out and leave_out not in paths:
            raise RecipeError(f"there is no set '{leave_out}' to leave out", hint=nearest(leave_out, paths))
        self._left_out = paths.pop(leave_out) if leave_out else None
        if not paths:
            raise RecipeError("no set is left to train on", where=config.source, found=f"only {leave_out}")
        partitioner = make_partitioner(config.partition)
        self._of_sets = isinstance(partitioner, NaturalIdPartitioner)
        if len(paths) > 1 and not self._of_sets:
            raise RecipeError(
                "several sets cannot be divided anew: their labels mean different things",
                where="[data.partition] name",
                expected="by-owner, which makes every set a client",
                found=f"{config.partition.get('name')} of {', '.join(paths)}",
                hint="set data.source to one of them, or data.partition={name='by-owner'}",
            )
        self._sets = {name: self._load(path) for name, path in paths.items()}
        self._parts: dict[str, tuple[str, np.ndarray, np.ndarray]] = {}  # client -> set, rows for training, for testing
        for name, found in self._sets.items():
            parts = {name: np.arange(len(found.labels))}
            if not self._of_sets:
                parts = partitioner.split(found.labels, found.subjects, seed)
            test = found.splits == "test"
            self._parts |= {client: (name, rows[~test[rows]], rows[test[rows]]) for client, rows in parts.items()}
        rows = {client: (train, test) for client, (_, train, test) in self._parts.items()}
        check_training(rows, config, "or a lower data.test_share")
        self.clients = tuple(self._parts)

    @property
    def class_count(self) -> int:
        """How many classes the set with most of them has."""
        return max(len(found.classes) for found in self._sets.values())

    @cached_property
    def unseen(self) -> Prepared | None:
        """The set that was left out."""
        return self._load(self._left_out) if self._left_out else None

    def set_of(self, client: str) -> Prepared:
        """All that a client holds."""
        name, train, test = self._parts[client]
        found = self._sets[name]
        if self._of_sets:
            return found
        return _taken(found, np.sort(np.concatenate([train, test])))

    def data(self, client: str) -> ClientData:
        if client == EVERYONE:
            name, train, test = self._everyone()
        else:
            name, train, test = self._parts[client]
        found = self._sets[name]
        frames = {"frames": float(len(train) * self.form[0])}
        return ClientData(_tensors(found, train), _tensors(found, test), frames)

    def agreement(self) -> dict[str, Any]:
        return {"joints": list(self.joints.names)}

    def describe(self) -> dict[str, Any]:
        lists = {client: list(self._sets[name].classes) for client, (name, _, _) in self._parts.items()}
        classes, *others = lists.values()
        if any(other != classes for other in others):
            classes = [f"class {n}" for n in range(1, self.class_count + 1)]
        train: dict[str, list[int]] = {}
        test: dict[str, list[int]] = {}
        for client, (name, *sides) in self._parts.items():
            for told, rows in zip((train, test), sides):
                told |= histogram({client: rows}, self._sets[name].labels, len(classes))
        return {
            "classes": classes,
            "train": train,
            "test": test,
            "broken": sum(len(found.dropped) for found in self._sets.values()),
            "left_out": [_told(one) for found in self._sets.values() for one in found.dropped][:TOLD],
            "sets": {
                client: {"classes": names, "joints": list(self._sets[self._parts[client][0]].sensor)}
                for client, names in lists.items()
            },
        }

    def _everyone(self) -> tuple[str, np.ndarray, np.ndarray]:
        if len(self._sets) > 1:
            raise DataError(
                "several sets cannot be joined: each has a label list of its own",
                where=self.config.source,
                found=", ".join(self._sets),
                hint="set data.source to one of them",
            )
        names, train, test = zip(*self._parts.values())
        return names[0], np.concatenate(train), np.concatenate(test)

    def _load(self, path: Path) -> Prepared:
        found, name = load_set(path, self.joints, *self.form), set_name(path)
        found = _with_test(found, name, self.config.test_share, self.seed)
        if self.config.validate:
            trained_on = _taken(found, np.flatnonzero(found.splits != "test"))
            found = _with_test(trained_on, f"{name}, validation", self.config.test_share, self.seed)
        found = _thinned(found, self.most) if self.most else found
        return _in_order(found) if self._of_sets else found  # of one set, clients are drawn by the order it has


def open_sets(config: DataConfig) -> list[Path]:
    """The sets of the recipe's source: the playground's, a set, or a folder of sets."""
    return find_sets(playground.place_of(config, "skeletons", "a set, or a folder of sets"))


def _told(one: Unusable) -> str:
    return f"{one.where}{f', line {one.line}' if one.line else ''}: {one.reason}"


def _by_name(source: Sequence[Path]) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for path in source:
        name = set_name(path)
        if name in paths:
            raise DataError("two sets have the same name", found=f"{paths[name]} and {path}", hint="rename one of them")
        paths[name] = path
    if not paths:
        raise DataError("there are no skeletons", expected="at least one set")
    return paths


def _with_test(found: Prepared, name: str, share: float, seed: int) -> Prepared:
    """The set as it is marked; where nothing is for testing, `share` of its subjects are drawn for it, at least one
    and never all, or of its sequences if there is one subject only."""
    if (found.splits == "test").any() or not share:
        return found
    units = found.subjects if len({*found.subjects.tolist()}) > 1 else np.arange(len(found.subjects))
    own = np.unique(units)
    wanted = min(max(1, round(share * len(own))), len(own) - 1)
    drawn = np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(own)[:wanted]
    return replace(found, splits=np.where(np.isin(units, drawn), "test", "train"))


def _thinned(found: Prepared, most: int) -> Prepared:
    """At most so many sequences for training, and for testing, spread evenly over those there are."""
    rows = []
    for test in (False, True):
        own = np.flatnonzero((found.splits == "test") == test)
        rows.append(own[np.linspace(0, len(own) - 1, min(most, len(own))).round().astype(int)])
    return _taken(found, np.sort(np.concatenate(rows)))


def _taken(found: Prepared, rows: np.ndarray) -> Prepared:
    """Some of its sequences."""
    arrays: dict[str, Any] = {key: value[rows] for key, value in vars(found).items() if isinstance(value, np.ndarray)}
    return replace(found, **arrays)


def _in_order(found: Prepared) -> Prepared:
    """What is for training first, then what is for testing: each is a stretch of memory."""
    order = np.argsort(found.splits == "test", kind="stable")
    return _taken(found, order) if (np.diff(order) != 1).any() else found


def _tensors(found: Prepared, rows: np.ndarray) -> Tensors:
    """Of rows that follow each other, the set's own memory."""
    counts = torch.full((len(rows),), len(found.classes), dtype=torch.int64)
    part = rows if len(rows) == 0 or (np.diff(rows) != 1).any() else slice(rows[0], rows[-1] + 1)
    return Tensors((torch.from_numpy(found.x[part]), torch.from_numpy(found.labels[part]), counts))
