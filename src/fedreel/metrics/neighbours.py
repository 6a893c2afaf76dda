"""How well features tell classes apart without training: accuracy and retrieval by nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.errors import DataError

Labels = Tensor | Sequence[int]

CHUNK = 256  # queries at once: with 100,000 in the gallery, similarities take 400 MB
PLACE_BITS = 22  # of a key, for the place in the gallery; the other 42 hold a similarity in steps of 2^-40


def knn_accuracy(
    gallery: Tensor,
    gallery_labels: Labels,
    queries: Tensor,
    query_labels: Labels,
    k: int | Sequence[int] = 1,
    chunk: int = CHUNK,
) -> dict[int, float]:
    """For each k, the share of queries (Q, D) whose class has most votes among the k nearest of the gallery (G, D).
    Votes count the same; of classes with equally many, the one with the nearest neighbour wins."""
    ks = _counts(k)
    theirs, own = _labels(gallery_labels, gallery), _labels(query_labels, queries).to(gallery.device)
    classes, theirs = theirs.unique(return_inverse=True)
    near = theirs[nearest_neighbours(gallery, queries, max(ks), chunk)]
    return {one: _share(classes[_majority(near[:, :one], len(classes))] == own) for one in ks}


def recall_at(
    gallery: Tensor,
    gallery_labels: Labels,
    queries: Tensor,
    query_labels: Labels,
    ks: int | Sequence[int] = (1, 5, 10, 20, 50),
    chunk: int = CHUNK,
) -> dict[int, float]:
    """R@k: for each k, the share of queries with at least one of their class among the k nearest of the gallery."""
    counts = _counts(ks)
    theirs, own = _labels(gallery_labels, gallery), _labels(query_labels, queries).to(gallery.device)
    same = theirs[nearest_neighbours(gallery, queries, max(counts), chunk)] == own[:, None]
    return {one: _share(same[:, :one].any(dim=1)) for one in counts}


def nearest_neighbours(gallery: Tensor, queries: Tensor, k: int, chunk: int = CHUNK) -> Tensor:
    """Places in the gallery (Q, k) by falling cosine similarity; of equally near ones the first comes first. At most
    as many as the gallery holds. A feature of zeros has similarity 0 to all."""
    _check(gallery, queries)
    ahead = torch.arange(len(gallery) - 1, -1, -1, device=gallery.device)
    found = []
    for some in queries.to(gallery.device).split(chunk):
        asked = _unit(some)
        similar = torch.cat([asked @ _unit(part).T for part in gallery.split(1024)], dim=1)
        # Rounding differs with the size of a product, and topk may take any of equals: keys make the order certain.
        keys = similar.mul_(2.0**40).round_().long().mul_(2**PLACE_BITS).add_(ahead)
        found.append(keys.topk(min(k, len(gallery)), dim=1).indices)
    return torch.cat(found)


def _majority(near: Tensor, classes: int) -> Tensor:
    """The class with most votes in each row; argmax takes the first, thus the nearest, of equals."""
    votes = torch.zeros(len(near), classes, device=near.device, dtype=torch.long)
    votes.scatter_add_(1, near, torch.ones_like(near))
    return near.gather(1, votes.gather(1, near).argmax(dim=1, keepdim=True))[:, 0]


def _unit(features: Tensor) -> Tensor:
    return F.normalize(features.double(), dim=1)


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)


def _counts(k: int | Sequence[int]) -> list[int]:
    ks = [k] if isinstance(k, int) else list(k)
    if not ks or min(ks) < 1:
        raise DataError("no neighbours to ask", expected="k of 1 or more", found=str(k))
    return ks


def _labels(labels: Labels, features: Tensor) -> Tensor:
    found = torch.as_tensor(labels, device=features.device)
    if found.shape != features.shape[:1]:
        expected = f"a label for each of {len(features)} features"
        raise DataError("labels and features do not match", expected=expected, found=f"shape {tuple(found.shape)}")
    return found


def _check(gallery: Tensor, queries: Tensor) -> None:
    for name, features in (("gallery", gallery), ("queries", queries)):
        if features.ndim != 2 or not features.numel() or not features.isfinite().all():
            strange = int((~features.isfinite()).sum())
            raise DataError(
                f"these features have no neighbours: {name}",
                expected="(items, features) of finite numbers, at least one item",
                found=f"shape {tuple(features.shape)}, {strange} not finite",
            )
    if gallery.shape[1] != queries.shape[1] or len(gallery) > 2**PLACE_BITS:
        raise DataError(
            "gallery and queries do not fit",
            expected=f"features of one size, at most {2**PLACE_BITS} items in the gallery",
            found=f"gallery {tuple(gallery.shape)}, queries {tuple(queries.shape)}",
        )
