"""How one data set becomes many clients': seeded, disjoint and complete splits, named as in flwr-datasets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedreel.errors import DataError, RecipeError, nearest

Parts = dict[str, np.ndarray]
"""Client name -> its sample indices, sorted. Names sort in client order; each sample has one client (but see
`paper_released` of PairedClassesPartitioner)."""

DRAWS = 1000
MODES = ("random", "deterministic", "first-deterministic")


class Partitioner(Protocol):
    """Equal labels, owners and seed give equal parts. Only NaturalIdPartitioner looks at the owners."""

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts: ...


@dataclass(frozen=True)
class IidPartitioner:
    """Shuffle and cut into slices whose sizes differ by one at most."""

    num_partitions: int

    def __post_init__(self) -> None:
        _at_least("num_partitions", self.num_partitions, 1)

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts:
        n = _checked(labels, self.num_partitions).size
        return _named(np.array_split(np.random.default_rng(seed).permutation(n), self.num_partitions))


@dataclass(frozen=True)
class DirichletPartitioner:
    """Each class is shared out by its own p ~ Dir(alpha); redrawn until every client has min_partition_size.

    The plain split of Yurochkin et al. 2019; `self_balancing` adds MOON's rule that a client which already
    holds its fair share, 1/num_partitions of all samples, gets nothing of the classes that follow. The two
    limits are exact, not drawn: alpha=inf cuts every class evenly, alpha=0 gives whole classes to clients
    (or, where there are more clients than classes, one class to each).
    """

    num_partitions: int
    alpha: float
    min_partition_size: int = 10
    self_balancing: bool = False

    def __post_init__(self) -> None:
        _at_least("num_partitions", self.num_partitions, 1)
        _at_least("min_partition_size", self.min_partition_size, 1)
        if not self.alpha >= 0:
            raise RecipeError("alpha of a Dirichlet split is out of range", expected="0 to inf", found=str(self.alpha))

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts:
        labels = _checked(labels, self.num_partitions, self.min_partition_size)
        rng = np.random.default_rng(seed)
        _, sizes = np.unique(labels, return_counts=True)
        exact = {0.0: _whole_classes, math.inf: _even_classes}.get(self.alpha)
        tables = (self._draw(sizes, rng) for _ in range(DRAWS))
        smallest = 0
        for table in [exact(sizes, self.num_partitions)] if exact else tables:
            least = int(table.sum(axis=1).min())
            if least >= self.min_partition_size:
                return _filled(table, labels, rng)
            smallest = max(smallest, least)
        raise RecipeError(
            f"no Dirichlet split with alpha {self.alpha:g} leaves every client enough samples",
            expected=f"{self.num_partitions} clients of {self.min_partition_size} samples or more",
            found=f"{labels.size} samples; the smallest client has {smallest} at best",
            hint="raise alpha, set self_balancing, or lower num_partitions or min_partition_size",
        )

    def _draw(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One draw of the table client x class -> number of samples."""
        table = np.zeros((self.num_partitions, len(sizes)), dtype=np.int64)
        fair = sizes.sum() / self.num_partitions
        for c, size in enumerate(sizes):
            takes = np.flatnonzero((table.sum(axis=1) < fair) | (not self.self_balancing))
            # A Dirichlet vector with entries set to 0 and renormalised is a Dirichlet vector of the others.
            p = rng.dirichlet(np.full(len(takes), self.alpha))
            # Rounded at a random offset, so that a client expects p * size: else the samples of small classes
            # would always end at the same clients.
            cuts = np.minimum(np.floor(np.cumsum(p)[:-1] * size + rng.random()), size)
            table[takes, c] = np.diff(cuts, prepend=0, append=size)
        return table


@dataclass(frozen=True)
class PathologicalPartitioner:
    """Exactly num_classes_per_partition classes a client; each class is cut evenly among those who hold it.

    All classes are used, and about equally often (flwr-datasets may leave classes, and so samples, out).
    "random": each client takes the classes used least so far, ties by lot. "first-deterministic": client i
    has class i mod C, the rest likewise. "deterministic": client i has the c classes from i*c on, mod C;
    FedVSSL's 100 clients of 8 out of 400 classes are thus 50 pairs with the same classes.
    """

    num_partitions: int
    num_classes_per_partition: int
    class_assignment_mode: str = "random"

    def __post_init__(self) -> None:
        _at_least("num_partitions", self.num_partitions, 1)
        _at_least("num_classes_per_partition", self.num_classes_per_partition, 1)
        if self.class_assignment_mode not in MODES:
            mode = self.class_assignment_mode
            raise RecipeError(f"unknown class_assignment_mode '{mode}'", hint=nearest(mode, MODES))

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts:
        labels = _checked(labels, self.num_partitions)
        rng = np.random.default_rng(seed)
        classes, sizes = np.unique(labels, return_counts=True)
        clients, each = self.num_partitions, self.num_classes_per_partition
        asked = f"{clients} clients of {each} classes"
        if each > len(classes):
            raise RecipeError(
                "a client cannot hold more classes than there are",
                expected=asked,
                found=f"{len(classes)} classes",
                hint="lower num_classes_per_partition",
            )
        if clients * each < len(classes):
            raise RecipeError(
                "some classes would be left without a client",
                expected=asked,
                found=f"{len(classes)} classes",
                hint="raise num_partitions or num_classes_per_partition",
            )
        holds = self._assign(len(classes), rng)
        short = np.flatnonzero(holds.sum(axis=0) > sizes)
        if short.size:
            c = short[0]
            raise RecipeError(
                f"class {classes[c]} has fewer samples than clients that should hold it",
                expected=f"{asked}, {holds[:, c].sum()} of them with class {classes[c]}",
                found=f"{sizes[c]} samples of it",
                hint="lower num_partitions or num_classes_per_partition",
            )
        return _filled(_shared(sizes, holds), labels, rng)

    def _assign(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """Which client holds which class, as a table client x class of booleans."""
        clients, each = self.num_partitions, self.num_classes_per_partition
        holds = np.zeros((clients, classes), dtype=bool)
        if self.class_assignment_mode == "deterministic":
            for i in range(clients):
                holds[i, np.arange(i * each, (i + 1) * each) % classes] = True
            return holds
        if self.class_assignment_mode == "first-deterministic":
            holds[np.arange(clients), np.arange(clients) % classes] = True
        used = holds.sum(axis=0)
        for row in holds:
            lots = rng.permutation(np.flatnonzero(~row))
            more = lots[np.argsort(used[lots], kind="stable")][: each - row.sum()]
            row[more] = True
            used[more] += 1
        return holds


@dataclass(frozen=True)
class PairedClassesPartitioner:
    """FedVSSL's: of the classes by size, pair after pair of clients takes half of `classes_per_client` from the small
    end and half from the large end; the two cut each of these classes in halves. Thus 400 classes at 8 a client make
    100 clients of about the same size, client i paired with client i + 50.

    `paper_released` is what the files published with the paper hold: windows that slide by one class instead of half of
    `classes_per_client`, and never reach the largest class. Samples then have several clients, or none.
    """

    classes_per_client: int = 8
    paper_released: bool = False

    def __post_init__(self) -> None:
        _at_least("classes_per_client", self.classes_per_client, 2)
        if self.classes_per_client % 2:
            raise RecipeError(
                "classes_per_client is odd", expected="an even number", found=f"{self.classes_per_client}"
            )

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts:
        labels = _checked(labels, 2)
        classes, sizes = np.unique(labels, return_counts=True)
        if len(classes) % self.classes_per_client:
            raise RecipeError(
                "some classes would be left without a client",
                expected=f"a multiple of {self.classes_per_client} classes",
                found=f"{len(classes)} classes",
                hint="choose classes_per_client so that it divides the number of classes",
            )
        if sizes.min() < 2:
            raise RecipeError(
                f"class {classes[sizes.argmin()]} cannot be cut in half",
                expected="two samples or more of each class",
                found=f"{sizes.min()} of it",
            )
        rng = np.random.default_rng(seed)
        halves = [np.array_split(rng.permutation(members), 2) for members in _groups(labels)]
        pairs = [[halves[c] for c in taken] for taken in self._pairs(np.argsort(sizes, kind="stable"))]
        return _named([np.concatenate([both[side] for both in pair]) for side in (0, 1) for pair in pairs])

    def _pairs(self, by_size: np.ndarray) -> list[np.ndarray]:
        """The classes of each pair."""
        half, last = self.classes_per_client // 2, len(by_size)
        starts = np.arange(last // self.classes_per_client)
        if self.paper_released:
            return [
                np.concatenate([by_size[i : i + half], by_size[last - i - half - 1 : last - i - 1]]) for i in starts
            ]
        return [np.concatenate([by_size[i : i + half], by_size[last - i - half : last - i]]) for i in half * starts]


@dataclass(frozen=True)
class ShardPartitioner:
    """McMahan et al. 2017: sort by label, cut into equal shards, deal each client the same number of them."""

    num_partitions: int
    num_shards_per_partition: int

    def __post_init__(self) -> None:
        _at_least("num_partitions", self.num_partitions, 1)
        _at_least("num_shards_per_partition", self.num_shards_per_partition, 1)

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts:
        labels = _checked(labels, self.num_partitions, self.num_shards_per_partition)
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(labels.size)  # which samples of a class share a shard is drawn too
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = np.array_split(by_label, self.num_partitions * self.num_shards_per_partition)
        hands = rng.permutation(len(shards)).reshape(self.num_partitions, -1)
        return _named([np.concatenate([shards[s] for s in hand]) for hand in hands])


@dataclass(frozen=True)
class NaturalIdPartitioner:
    """One client per owner named in the data: a person, a site, or the data set a sample comes from."""

    def split(self, labels: np.ndarray, owners: np.ndarray | None = None, seed: int = 0) -> Parts:
        labels = _checked(labels, 1)
        if owners is None:
            raise DataError(
                "this data does not say who owns its samples",
                expected="an owner for each sample",
                hint="use another partitioner: iid, dirichlet, pathological or shards",
            )
        names = np.asarray(owners).astype(str)
        if names.shape != labels.shape:
            raise DataError(
                "owners and labels differ in length", expected=f"{labels.size} owners", found=str(names.shape)
            )
        if (names == "").any():
            raise DataError("a sample has an empty owner", where=f"sample {np.flatnonzero(names == '')[0]}")
        return {str(name): members for name, members in zip(np.unique(names), _groups(names))}


PARTITIONERS: dict[str, type] = {
    "iid": IidPartitioner,
    "dirichlet": DirichletPartitioner,
    "pathological": PathologicalPartitioner,
    "paired-classes": PairedClassesPartitioner,
    "shards": ShardPartitioner,
    "by-owner": NaturalIdPartitioner,
    "by-dataset": NaturalIdPartitioner,
}
"""Recipe name -> partitioner."""


def histogram(parts: Parts, labels: np.ndarray, num_classes: int) -> dict[str, list[int]]:
    """Client name -> how many samples it has of each class 0 ... num_classes-1."""
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(
            "a label is out of range",
            expected=f"0 to {num_classes - 1}",
            found=f"{labels.min()} to {labels.max()}",
        )
    return {name: np.bincount(labels[indices], minlength=num_classes).tolist() for name, indices in parts.items()}


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise RecipeError(f"{name} is too small", expected=f"{least} or more", found=str(value))


def _checked(labels: np.ndarray, clients: int, each: int = 1) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0:
        raise DataError("a split needs one label for each sample", expected="shape (samples,)", found=str(labels.shape))
    if clients * each > labels.size:
        raise RecipeError(
            "there are too few samples for that many clients",
            expected=f"at least {clients} x {each} = {clients * each} samples",
            found=f"{labels.size} samples",
            hint="lower num_partitions" + (" or what each client must have" if each > 1 else ""),
        )
    return labels


def _whole_classes(sizes: np.ndarray, clients: int) -> np.ndarray:
    """alpha = 0. Class c goes to client c; further clients and further classes start again at the first."""
    k, c = np.arange(clients)[:, None], np.arange(len(sizes))[None, :]
    return _shared(sizes, k % len(sizes) == c % clients)


def _even_classes(sizes: np.ndarray, clients: int) -> np.ndarray:
    """alpha = inf. No two clients differ by more than one sample of any class, nor in all."""
    return _shared(sizes, np.ones((clients, len(sizes)), dtype=bool))


def _shared(sizes: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """Table client x class -> samples, each class cut evenly among its holders."""
    table = np.zeros(holds.shape, dtype=np.int64)
    for c, size in enumerate(sizes):
        holders = np.flatnonzero(holds[:, c])
        table[holders, c] = size // len(holders)
        # What is left over goes to those who have least: the odd samples do not all end at the first client.
        poorest = holders[np.argsort(table[holders].sum(axis=1), kind="stable")]
        table[poorest[: size % len(holders)], c] += 1
    return table


def _filled(table: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Parts:
    """Draw the samples of each class that the table promises to each client."""
    pieces: list[list[np.ndarray]] = [[] for _ in table]
    for members, counts in zip(_groups(labels), table.T):
        for piece, part in zip(pieces, np.split(rng.permutation(members), np.cumsum(counts[:-1]))):
            piece.append(part)
    return _named([np.concatenate(piece) for piece in pieces])


def _groups(values: np.ndarray) -> list[np.ndarray]:
    """The sorted indices of each distinct value, values in order; one sort, however many values there are."""
    _, counts = np.unique(values, return_counts=True)
    return np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1])


def _named(parts: list[np.ndarray]) -> Parts:
    digits = len(str(len(parts) - 1))
    return {f"client-{i:0{digits}d}": np.sort(part) for i, part in enumerate(parts)}
