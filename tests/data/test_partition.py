"""Partitioners: every split is disjoint, complete and seeded, and has the shape its name promises."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.data.partition import (
    PARTITIONERS,
    DirichletPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
    PairedClassesPartitioner,
    Partitioner,
    Parts,
    PathologicalPartitioner,
    ShardPartitioner,
    histogram,
)
from fedreel.errors import DataError, RecipeError

CIFAR100 = np.repeat(np.arange(100), 500)  # as many samples and classes as its training part
MODES = ("random", "deterministic", "first-deterministic")

labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(np.array)
seeds = st.integers(0, 2**32 - 1)


def table(parts: Parts, labels: np.ndarray) -> np.ndarray:
    """Client x class -> number of samples."""
    return np.array(list(histogram(parts, labels, int(labels.max()) + 1).values()))


def assert_partition(parts: Parts, samples: int) -> None:
    everything = np.concatenate(list(parts.values()))
    assert np.array_equal(np.sort(everything), np.arange(samples))
    assert all(np.all(np.diff(part) > 0) for part in parts.values())
    assert all(part.size for part in parts.values())
    assert list(parts) == sorted(parts)


def same(a: Parts, b: Parts) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


@given(labels=labels_of, clients=st.integers(1, 12), seed=seeds)
def test_iid_is_a_partition_into_equal_slices(labels: np.ndarray, clients: int, seed: int) -> None:
    split = IidPartitioner(clients).split
    if clients > labels.size:
        with pytest.raises(RecipeError, match="too few samples"):
            split(labels, seed=seed)
        return
    parts = split(labels, seed=seed)
    assert_partition(parts, labels.size)
    assert len(parts) == clients
    sizes = [part.size for part in parts.values()]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(
    labels=labels_of,
    clients=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 1e6, math.inf]),
    least=st.integers(1, 3),
    balanced=st.booleans(),
    seed=seeds,
)
def test_dirichlet_is_a_partition_of_large_enough_clients(
    labels: np.ndarray, clients: int, alpha: float, least: int, balanced: bool, seed: int
) -> None:
    split = DirichletPartitioner(clients, alpha, least, balanced).split
    if clients * least > labels.size:
        with pytest.raises(RecipeError, match="too few samples"):
            split(labels, seed=seed)
        return
    try:
        parts = split(labels, seed=seed)
    except RecipeError:
        assert alpha <= 1 or (alpha < math.inf and labels.size < 2 * clients * least), "an even split exists"
        return
    assert_partition(parts, labels.size)
    assert len(parts) == clients
    assert min(part.size for part in parts.values()) >= least


@given(
    labels=labels_of,
    clients=st.integers(1, 8),
    each=st.integers(1, 6),
    mode=st.sampled_from(MODES),
    seed=seeds,
)
def test_pathological_clients_hold_exactly_c_classes(
    labels: np.ndarray, clients: int, each: int, mode: str, seed: int
) -> None:
    try:
        parts = PathologicalPartitioner(clients, each, mode).split(labels, seed=seed)
    except RecipeError:
        # Refused only for a reason: too few samples, too few or many classes, a class too small to share.
        _, sizes = np.unique(labels, return_counts=True)
        holders = math.ceil(clients * each / len(sizes)) + (mode == "first-deterministic")
        assert clients > labels.size or not each <= len(sizes) <= clients * each or sizes.min() < holders
        return
    assert_partition(parts, labels.size)
    counts = table(parts, labels)
    assert np.all((counts > 0).sum(axis=1) == each)
    for column in counts.T:
        held = column[column > 0]
        assert held.size == 0 or held.max() - held.min() <= 1


@given(labels=labels_of, clients=st.integers(1, 6), shards=st.integers(1, 4), seed=seeds)
def test_shards_are_equal_and_touch_few_classes(labels: np.ndarray, clients: int, shards: int, seed: int) -> None:
    split = ShardPartitioner(clients, shards).split
    if clients * shards > labels.size:
        with pytest.raises(RecipeError, match="too few samples"):
            split(labels, seed=seed)
        return
    parts = split(labels, seed=seed)
    assert_partition(parts, labels.size)
    sizes = [part.size for part in parts.values()]
    assert max(sizes) - min(sizes) <= shards


@given(owners=st.lists(st.sampled_from(["ann", "bo", "café"]), min_size=1, max_size=30), seed=seeds)
def test_by_owner_follows_the_owner_column_whatever_the_seed(owners: list[str], seed: int) -> None:
    parts = NaturalIdPartitioner().split(np.zeros(len(owners), dtype=int), np.array(owners), seed)
    assert_partition(parts, len(owners))
    assert {name: part.tolist() for name, part in parts.items()} == {
        name: [i for i, owner in enumerate(owners) if owner == name] for name in sorted(set(owners))
    }


@pytest.mark.parametrize(
    "partitioner",
    [
        IidPartitioner(7),
        DirichletPartitioner(7, 0.5),
        DirichletPartitioner(7, 0.5, self_balancing=True),
        DirichletPartitioner(7, math.inf),
        PathologicalPartitioner(7, 3),
        PathologicalPartitioner(7, 3, "first-deterministic"),
        ShardPartitioner(7, 2),
    ],
)
def test_a_seed_fixes_the_split_and_another_changes_it(partitioner: Partitioner) -> None:
    labels = np.arange(400) % 10
    first = partitioner.split(labels, seed=1)
    assert same(first, partitioner.split(labels, seed=1))
    assert not same(first, partitioner.split(labels, seed=2))


def test_client_names_sort_in_client_order() -> None:
    assert list(IidPartitioner(11).split(np.zeros(11)))[::5] == ["client-00", "client-05", "client-10"]


# Dirichlet


def test_dirichlet_shares_have_the_mean_and_variance_of_the_law() -> None:
    clients, alpha = 10, 0.5
    labels = np.repeat(np.arange(400), 1000)
    shares = table(DirichletPartitioner(clients, alpha).split(labels, seed=0), labels) / 1000
    # One share of Dir_K(alpha) has mean 1/K and variance (1/K)(1 - 1/K)/(K alpha + 1).
    variance = 0.1 * 0.9 / (clients * alpha + 1)
    assert shares.var() == pytest.approx(variance, rel=0.05)
    assert shares.mean(axis=1) == pytest.approx(np.full(clients, 0.1), abs=5 * (variance / 400) ** 0.5)


def test_fewer_classes_per_client_as_alpha_falls() -> None:
    tables = [table(DirichletPartitioner(10, a).split(CIFAR100, seed=3), CIFAR100) for a in (10, 1, 0.5, 0.1, 0.01)]
    classes = [(t > 0).sum(axis=1).mean() for t in tables]
    assert all(more > fewer for more, fewer in pairwise(classes))


def test_large_alpha_comes_near_equal_class_counts() -> None:
    counts = table(DirichletPartitioner(10, 1e7).split(CIFAR100), CIFAR100)
    assert np.abs(counts - 50).max() <= 2


def test_small_classes_are_not_always_rounded_to_the_same_clients() -> None:
    labels = np.arange(3000)  # as many classes as samples, shares near a third: each sample goes by lot
    sizes = [part.size for part in DirichletPartitioner(3, 1e6).split(labels, seed=0).values()]
    assert sizes == pytest.approx([1000] * 3, abs=5 * (3000 * 2 / 9) ** 0.5)


def test_alpha_infinity_is_exactly_even_within_one_sample() -> None:
    labels = np.repeat(np.arange(4), [10, 11, 13, 7])  # 41 samples, no class divisible by 3
    counts = table(DirichletPartitioner(3, math.inf).split(labels), labels)
    assert np.ptp(counts, axis=0).max() <= 1
    assert sorted(counts.sum(axis=1)) == [13, 14, 14]


def test_alpha_zero_gives_each_class_to_its_client() -> None:
    labels = np.array([2, 0, 1, 1, 0, 2, 2])
    parts = DirichletPartitioner(3, 0, min_partition_size=1).split(labels)
    assert [part.tolist() for part in parts.values()] == [[1, 4], [2, 3], [0, 5, 6]]


def test_alpha_zero_with_more_clients_than_classes_shares_classes_evenly() -> None:
    labels = np.repeat([0, 1], [9, 8])
    counts = table(DirichletPartitioner(5, 0, min_partition_size=1).split(labels), labels)
    assert counts.tolist() == [[3, 0], [0, 4], [3, 0], [0, 4], [3, 0]]


def test_alpha_zero_with_fewer_clients_than_classes_gives_whole_classes() -> None:
    labels = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    counts = table(DirichletPartitioner(2, 0, min_partition_size=1).split(labels), labels)
    assert counts.tolist() == [[1, 0, 3, 0, 5], [0, 2, 0, 4, 0]]


def test_self_balancing_closes_a_client_that_has_its_fair_share() -> None:
    for seed in range(5):
        plain = table(DirichletPartitioner(10, 0.1).split(CIFAR100, seed=seed), CIFAR100)
        counts = table(DirichletPartitioner(10, 0.1, self_balancing=True).split(CIFAR100, seed=seed), CIFAR100)
        before = np.cumsum(counts, axis=1) - counts  # what a client held when each class was shared out
        assert not counts[before >= 5000].any()
        assert counts.sum(axis=1).max() < 5000 + 500
        assert counts.sum(axis=1).std() < plain.sum(axis=1).std()


def test_dirichlet_redraws_until_every_client_has_enough() -> None:
    labels = np.repeat(np.arange(3), 30)
    drawn = [DirichletPartitioner(4, 0.3, 1).split(labels, seed=seed) for seed in range(30)]
    assert min(part.size for parts in drawn for part in parts.values()) < 10, "else nothing needs redrawing"
    for seed in range(30):
        parts = DirichletPartitioner(4, 0.3, 10).split(labels, seed=seed)
        assert min(part.size for part in parts.values()) >= 10


def test_fedlid_split_of_cifar100_over_ten_clients() -> None:
    """FedLID: alpha 1 (called IID there) and 0.5; 10 samples or more each, about 5,000 on average."""
    classes_held = []
    for alpha in (1.0, 0.5):
        parts = DirichletPartitioner(10, alpha).split(CIFAR100, seed=0)
        assert_partition(parts, 50_000)
        sizes = np.array([part.size for part in parts.values()])
        # sd of a size: sqrt(100 classes * 500^2 * .09 / (10 alpha + 1)); nobody strays five of them.
        assert np.abs(sizes - 5000).max() < 5 * (100 * 500**2 * 0.09 / (10 * alpha + 1)) ** 0.5
        classes_held.append((table(parts, CIFAR100) > 0).sum())
    assert classes_held[0] > classes_held[1]
    equal = IidPartitioner(10).split(CIFAR100, seed=0)
    assert {part.size for part in equal.values()} == {5000}


# Pathological and shards


def test_deterministic_assignment_by_hand() -> None:
    labels = np.repeat(np.arange(3), [4, 4, 6])
    counts = table(PathologicalPartitioner(3, 2, "deterministic").split(labels), labels)
    # Clients hold classes 01, 20, 12: each class twice, cut in halves.
    assert counts.tolist() == [[2, 2, 0], [2, 0, 3], [0, 2, 3]]


def test_first_deterministic_gives_client_i_class_i() -> None:
    labels = np.arange(200) % 5
    for seed in range(5):
        counts = table(PathologicalPartitioner(8, 2, "first-deterministic").split(labels, seed=seed), labels)
        assert all(counts[i, i % 5] > 0 for i in range(8))


def test_every_class_is_used_even_if_there_is_just_room_for_it() -> None:
    labels = np.arange(60) % 6
    for mode in MODES:
        for seed in range(20):
            counts = table(PathologicalPartitioner(3, 2, mode).split(labels, seed=seed), labels)
            assert np.all((counts > 0).sum(axis=0) == 1)


def test_fedvssl_clients_of_eight_classes_come_in_pairs_that_halve_their_classes() -> None:
    labels = np.repeat(np.arange(400), 10)
    counts = table(PathologicalPartitioner(100, 8, "deterministic").split(labels), labels)
    assert np.array_equal(counts[:50], counts[50:])
    assert set(np.unique(counts)) == {0, 5}
    whole = table(PathologicalPartitioner(100, 4).split(labels), labels)
    assert np.all((whole == 10).sum(axis=1) == 4)


def kinetics(seed: int = 0) -> np.ndarray:
    """400 classes of 250 to 999 samples, as Kinetics-400 has; in no order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(rng.permutation(400), rng.permutation(np.arange(250, 1000))[:400]))


def test_fedvssl_pairs_take_small_and_large_classes_and_share_each() -> None:
    labels = kinetics()
    parts = PairedClassesPartitioner().split(labels, seed=3)
    assert_partition(parts, labels.size)
    counts = table(parts, labels)
    assert counts.shape == (100, 400)
    assert np.all((counts > 0).sum(axis=1) == 8)
    assert np.all(np.abs(counts[:50] - counts[50:]) <= 1)  # client i and client i + 50 have halves of the same classes
    sizes = counts.sum(axis=0)
    rank = np.argsort(np.argsort(sizes, kind="stable"))
    held = [sorted(rank[row > 0].tolist()) for row in counts[:50]]
    assert held == [[*range(4 * i, 4 * i + 4), *range(396 - 4 * i, 400 - 4 * i)] for i in range(50)]
    spread, pairs = counts.sum(axis=1), np.ptp(np.sort(sizes).reshape(-1, 8).sum(axis=1))
    assert np.ptp(spread) < pairs / 10  # far more alike than clients of neighbouring sizes would be


def test_fedvssl_split_as_released_slides_by_one_class_and_repeats_most_samples() -> None:
    labels = kinetics()
    sizes = np.sort(np.bincount(labels))
    parts = PairedClassesPartitioner(paper_released=True).split(labels, seed=3)
    counts = table(parts, labels)
    assert counts.shape == (100, 400)
    assert np.all((counts > 0).sum(axis=1) == 8)
    times = np.bincount(np.concatenate(list(parts.values())), minlength=labels.size)
    # windows of 4 at 50 places cover 53 classes at each end; 47 of them lie in 4 windows; the largest class in none
    assert (times > 0).sum() == sizes[:53].sum() + sizes[-54:-1].sum()
    assert (times == 4).sum() == sizes[3:50].sum() + sizes[-51:-4].sum()
    assert times.max() == 4


def test_pairs_are_seeded_and_refuse_what_they_cannot_cut() -> None:
    labels = np.repeat(np.arange(8), [2, 3, 4, 5, 6, 7, 8, 9])
    split = PairedClassesPartitioner(4).split
    assert same(split(labels, seed=1), split(labels, seed=1))
    assert not same(split(labels, seed=1), split(labels, seed=2))
    assert_partition(split(labels), labels.size)
    assert len(split(labels)) == 4
    with pytest.raises(RecipeError, match="left without a client"):
        PairedClassesPartitioner(6).split(labels)
    with pytest.raises(RecipeError, match="class 0 cannot be cut in half"):
        split(labels[1:])


def test_cfedvs_one_category_per_client() -> None:
    """TVSum: ten categories of 15 fragments, so a client is one; SumMe: three over ten clients, 3-4 each."""
    tvsum = np.repeat(np.arange(10), 15)
    assert sorted(table(PathologicalPartitioner(10, 1).split(tvsum), tvsum).max(axis=1)) == [15] * 10
    summe = np.repeat(np.arange(3), [36, 32, 32])
    assert sorted((table(PathologicalPartitioner(10, 1).split(summe), summe) > 0).sum(axis=0)) == [3, 3, 4]


def test_shards_by_hand() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1])  # sorted: four of each; four shards of two
    parts = ShardPartitioner(2, 2).split(labels, seed=0)
    assert all(part.size == 4 for part in parts.values())
    assert set(table(parts, labels).ravel()) <= {0, 2, 4}


def test_two_shards_of_mnist_hold_two_digits_at_most() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    counts = table(ShardPartitioner(100, 2).split(labels, seed=4), labels)
    assert np.all(counts.sum(axis=1) == 60)
    assert (counts > 0).sum(axis=1).max() == 2


# What cannot be done


@pytest.mark.parametrize(
    ("partitioner", "problem"),
    [
        (IidPartitioner(7), "too few samples"),
        (DirichletPartitioner(2, 1.0, min_partition_size=4), "too few samples"),
        (DirichletPartitioner(2, 0, min_partition_size=3), "no Dirichlet split with alpha 0"),
        (DirichletPartitioner(3, 1e-9, min_partition_size=2), "no Dirichlet split with alpha 1e-09"),
        (PathologicalPartitioner(2, 3), "more classes than there are"),
        (PathologicalPartitioner(1, 1), "without a client"),
        (PathologicalPartitioner(5, 1), "fewer samples than clients"),
        (ShardPartitioner(2, 4), "too few samples"),
    ],
)
def test_impossible_splits_are_refused_with_a_way_out(partitioner: Partitioner, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as error:
        partitioner.split(np.array([0, 0, 0, 0, 1, 1]))
    assert error.value.found
    assert "num_partitions" in error.value.hint or "num_classes_per_partition" in error.value.hint


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iid", {"num_partitions": 0}),
        ("dirichlet", {"num_partitions": 2, "alpha": -1.0}),
        ("dirichlet", {"num_partitions": 2, "alpha": math.nan}),
        ("dirichlet", {"num_partitions": 2, "alpha": 1.0, "min_partition_size": 0}),
        ("pathological", {"num_partitions": 2, "num_classes_per_partition": 0}),
        (
            "pathological",
            {"num_partitions": 2, "num_classes_per_partition": 1, "class_assignment_mode": "rand"},
        ),
        ("shards", {"num_partitions": 2, "num_shards_per_partition": 0}),
        ("paired-classes", {"classes_per_client": 0}),
        ("paired-classes", {"classes_per_client": 3}),
    ],
)
def test_meaningless_options_are_refused_at_once(name: str, options: dict[str, object]) -> None:
    with pytest.raises(RecipeError):
        PARTITIONERS[name](**options)


def test_bad_columns_are_data_errors() -> None:
    split = PARTITIONERS["by-dataset"]().split
    with pytest.raises(DataError, match="does not say who owns"):
        split(np.zeros(3), None)
    with pytest.raises(DataError, match="differ in length"):
        split(np.zeros(3), np.array(["a", "b"]))
    with pytest.raises(DataError, match="sample 1"):
        split(np.zeros(3), np.array(["a", "", "b"]))
    for labels in (np.zeros((2, 2)), np.array([])):
        with pytest.raises(DataError, match="one label for each sample"):
            IidPartitioner(1).split(labels)


def test_partitioners_are_values() -> None:
    assert DirichletPartitioner(3, 0.5) == DirichletPartitioner(3, 0.5, 10, False)
    with pytest.raises(FrozenInstanceError):
        IidPartitioner(3).num_partitions = 4  # type: ignore[misc]


def test_histogram_counts_absent_classes_as_zero_and_refuses_unknown_ones() -> None:
    parts = {"a": np.array([0, 2]), "b": np.array([1])}
    assert histogram(parts, np.array([1, 0, 1]), 3) == {"a": [0, 2, 0], "b": [1, 0, 0]}
    with pytest.raises(DataError, match="out of range"):
        histogram(parts, np.array([1, 0, 3]), 3)
