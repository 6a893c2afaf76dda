"""Nearest neighbours against loops in plain Python, ties worked by hand, and what must not matter."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from fedreel.errors import DataError
from fedreel.metrics.neighbours import knn_accuracy, nearest_neighbours, recall_at


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b))
    return dot / (math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b)))


def ranked(gallery: Tensor, query: list[float]) -> list[int]:
    """Rounded, so that features that are equal but for their length tie; sorted keeps the order of equals."""
    rows = gallery.tolist()
    return sorted(range(len(rows)), key=lambda i: -round(cosine(rows[i], query), 9))


def voted(labels: list[int]) -> int:
    count = Counter(labels)
    return next(label for label in labels if count[label] == max(count.values()))


def drawn(seed: int, few_values: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A gallery of 9 and 7 queries. With few values, many are equally near."""
    generator = torch.Generator().manual_seed(seed)
    if few_values:
        features = torch.randint(0, 2, (16, 3), generator=generator).double()
        features[:, 0] += 1  # none is all zeros
    else:
        features = torch.randn(16, 3, generator=generator)
    labels = torch.randint(5, 8, (16,), generator=generator)
    return features[:9], labels[:9], features[9:], labels[9:]


@pytest.mark.parametrize("few_values", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_accuracy_and_recall_are_those_of_plain_loops(seed: int, few_values: bool) -> None:
    gallery, labels, queries, truth = drawn(seed, few_values)
    ks = [1, 2, 3, 4, 9]
    near = [[int(labels[i]) for i in ranked(gallery, q)] for q in queries.tolist()]
    right = {k: sum(voted(n[:k]) == t for n, t in zip(near, truth.tolist())) / 7 for k in ks}
    hit = {k: sum(t in n[:k] for n, t in zip(near, truth.tolist())) / 7 for k in ks}
    assert knn_accuracy(gallery, labels, queries, truth, ks) == pytest.approx(right)
    assert recall_at(gallery, labels, queries, truth, ks) == pytest.approx(hit)


def test_one_hot_features_are_always_right() -> None:
    labels = torch.arange(40) % 10
    features = torch.eye(10)[labels]
    assert knn_accuracy(features, labels, features, labels, [1, 3, 4]) == {1: 1.0, 3: 1.0, 4: 1.0}
    assert recall_at(features, labels, features, labels) == {1: 1.0, 5: 1.0, 10: 1.0, 20: 1.0, 50: 1.0}


def fan(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_tied_votes_go_to_the_nearest_of_the_tied_classes() -> None:
    gallery, labels = fan(10, 20, 30, 40, 50), torch.tensor([7, 2, 4, 4, 2])
    verdict = {k: [c for c in (2, 4, 7) if knn_accuracy(gallery, labels, fan(0), [c], k)[k]] for k in (1, 2, 4, 5)}
    assert verdict == {1: [7], 2: [7], 4: [4], 5: [2]}  # at 5 the votes are 1 for 7, and 2 each for 2 and 4


def test_recall_counts_any_hit_and_accuracy_the_majority() -> None:
    gallery, labels = fan(10, 20, 30), torch.tensor([0, 1, 0])
    assert recall_at(gallery, labels, fan(0), [1], [1, 2, 3]) == {1: 0.0, 2: 1.0, 3: 1.0}
    assert knn_accuracy(gallery, labels, fan(0), [1], [1, 2, 3]) == {1: 0.0, 2: 0.0, 3: 0.0}


def test_of_equally_near_items_the_first_of_the_gallery_comes_first() -> None:
    gallery = torch.tensor([[0.0, 1.0], [3.0, 3.0], [0.1, 0.1], [7.0, 7.0]])
    assert nearest_neighbours(gallery, torch.tensor([[0.3, 0.3]]), 4).tolist() == [[1, 2, 3, 0]]


def test_features_that_almost_coincide_are_told_apart() -> None:
    """Cosines of 1 - 5e-9 times 9, 4, 1 and 0, which are all 1 in float32."""
    gallery = torch.tensor([[1.0, 3e-4], [1.0, 2e-4], [1.0, 1e-4], [1.0, 0.0]])
    assert nearest_neighbours(gallery, torch.tensor([[1.0, 0.0]]), 4).tolist() == [[3, 2, 1, 0]]


def test_the_length_of_a_feature_does_not_matter() -> None:
    gallery, labels, queries, truth = drawn(3, few_values=False)
    long = gallery.double() * torch.logspace(-5, 5, 9, dtype=torch.double)[:, None]
    short = queries.double() / torch.arange(1, 8)[:, None]
    assert torch.equal(nearest_neighbours(long, short, 9), nearest_neighbours(gallery, queries, 9))
    assert knn_accuracy(long, labels, short, truth, 3) == knn_accuracy(gallery, labels, queries, truth, 3)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_the_size_of_a_chunk_does_not_matter(chunk: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(0, 3, (2400, 6), generator=generator).float()  # most similarities occur more than once
    labels = torch.randint(0, 5, (2400,), generator=generator)
    split = (features[:2300], labels[:2300], features[2300:], labels[2300:])
    assert torch.equal(nearest_neighbours(*split[::2], 9, chunk), nearest_neighbours(*split[::2], 9))
    assert knn_accuracy(*split, [1, 9], chunk=chunk) == knn_accuracy(*split, [1, 9])
    assert recall_at(*split, [1, 9], chunk=chunk) == recall_at(*split, [1, 9])


def test_k_beyond_the_gallery_is_the_whole_gallery() -> None:
    gallery, labels, queries, truth = drawn(5, few_values=False)
    most = Counter(labels.tolist()).most_common(1)[0][0]
    everything = knn_accuracy(gallery, labels, queries, truth, [9, 1000])
    assert everything[1000] == everything[9] == pytest.approx((truth == most).double().mean().item())
    assert recall_at(gallery, labels, queries, truth, [1000])[1000] == 1.0


def test_a_class_the_gallery_does_not_have_is_never_right() -> None:
    assert knn_accuracy(fan(0, 90), [0, 1], fan(5, 85), [0, 2]) == {1: 0.5}
    assert recall_at(fan(0, 90), [0, 1], fan(5, 85), [0, 2], [2]) == {2: 0.5}


@pytest.mark.parametrize(
    ("gallery", "labels", "queries", "truth", "k", "problem"),
    [
        (torch.zeros(0, 2), [], fan(0), [0], 1, "gallery"),
        (fan(0), [0], torch.zeros(0, 2), [], 1, "queries"),
        (fan(0), [0], torch.full((1, 2), math.nan), [0], 1, "2 not finite"),
        (fan(0), [0], torch.ones(1, 3), [0], 1, "do not fit"),
        (fan(0), [0, 1], fan(0), [0], 1, "labels and features"),
        (fan(0), [0], fan(0), [0, 0], 1, "labels and features"),
        (fan(0), [0], fan(0), [0], 0, "k of 1 or more"),
        (fan(0), [0], fan(0), [0], [], "k of 1 or more"),
    ],
)
def test_what_cannot_be_asked_is_refused(gallery, labels, queries, truth, k, problem) -> None:
    for measure in (knn_accuracy, recall_at):
        with pytest.raises(DataError, match=problem):
            measure(gallery, labels, queries, truth, k)
