"""Time warping against all paths on tiny inputs, worked examples, and what must not change the distance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.errors import DataError, RecipeError
from fedreel.kernels.dtw import COSTS, NORMALIZATIONS, distances_to, dtw, pairwise

OPTIONS = [{"cost": cost, "normalize": normalize} for cost, normalize in itertools.product(COSTS, NORMALIZATIONS)]
WHOLE = st.lists(st.integers(-3, 3), min_size=1, max_size=5)


def step_cost(x: np.ndarray, y: np.ndarray, cost: str) -> float:
    if cost == "euclidean":
        return math.sqrt(sum((p - q) ** 2 for p, q in zip(x.tolist(), y.tolist())))
    return 1 - float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))


def paths(n: int, m: int) -> Iterator[list[tuple[int, int]]]:
    """All warping paths from (0, 0) to (n-1, m-1)."""
    if n == m == 1:
        yield [(0, 0)]
    for i, j in ((n - 1, m - 1), (n - 1, m), (n, m - 1)):
        if i >= 1 and j >= 1:
            yield from ([*path, (n - 1, m - 1)] for path in paths(i, j))


def by_all_paths(a: np.ndarray, b: np.ndarray, cost: str, normalize: str) -> float:
    def total(path: list[tuple[int, int]]) -> tuple[float, int]:
        return sum(step_cost(a[i], b[j], cost) for i, j in path), len(path)

    best, cells = min(map(total, paths(len(a), len(b))))
    return best / {"none": 1, "path": cells, "length": len(a) + len(b)}[normalize]


def by_recursion(a: np.ndarray, b: np.ndarray) -> float:
    table = np.full((len(a) + 1, len(b) + 1), np.inf)
    table[0, 0] = 0
    for i, j in itertools.product(range(len(a)), range(len(b))):
        least = min(table[i, j], table[i, j + 1], table[i + 1, j])
        table[i + 1, j + 1] = least + step_cost(a[i], b[j], "euclidean")
    return float(table[-1, -1])


def walk(steps: int, d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, d)).cumsum(axis=0)


def test_a_worked_example() -> None:
    # cost:  0 2     D:  0 2     The path (0,0) (1,0) (2,1) has three cells.
    #        1 1         1 1
    #        2 0         3 1
    a, b = [0, 1, 2], [0, 2]
    assert dtw(a, b) == 1
    assert dtw(a, b, normalize="path") == pytest.approx(1 / 3)
    assert dtw(a, b, normalize="length") == pytest.approx(1 / 5)


def test_the_shortest_of_equally_cheap_paths_counts_in_both_directions() -> None:
    a, b = [0, 0, 1], [0, 0, 0]  # costs 1 in three cells, and also in four and five
    assert dtw(a, b, normalize="path") == dtw(b, a, normalize="path") == pytest.approx(1 / 3)


@given(WHOLE, WHOLE, st.sampled_from(NORMALIZATIONS))
@settings(max_examples=150, deadline=None)
def test_scalar_sequences_equal_the_best_of_all_paths(a: list[int], b: list[int], normalize: str) -> None:
    x, y = np.array(a, float)[:, None], np.array(b, float)[:, None]
    assert dtw(a, b, normalize=normalize) == pytest.approx(by_all_paths(x, y, "euclidean", normalize), abs=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("d", [1, 2, 3, 17])
def test_vector_sequences_equal_the_best_of_all_paths(options: dict[str, str], d: int) -> None:
    rng = np.random.default_rng(d)
    for n, m in itertools.product((1, 2, 4, 5), (1, 3, 5)):
        a, b = rng.normal(size=(n, d)), rng.normal(size=(m, d))
        assert dtw(a, b, **options) == pytest.approx(by_all_paths(a, b, **options), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "m", "d"), [(257, 40, 1), (40, 257, 1), (600, 30, 3), (31, 300, 3), (256, 20, 2)])
def test_long_sequences_equal_the_plain_recursion(n: int, m: int, d: int) -> None:
    a, b = walk(n, d, 1), walk(m, d, 2)
    assert dtw(a, b) == pytest.approx(by_recursion(a, b), rel=1e-11)
    path = dtw(a, b) / dtw(a, b, normalize="path")
    assert path == pytest.approx(round(path))
    assert max(n, m) <= round(path) < n + m


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("d", [1, 5, 1024])
def test_identical_sequences_are_at_distance_zero_exactly(options: dict[str, str], d: int) -> None:
    a = walk(70, d, 3) + 100
    assert dtw(a, a.copy(), **options) == 0
    assert dtw(np.repeat(a, 3, axis=0), a, **options) == 0


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("d", [1, 40])
def test_the_distance_is_symmetric(options: dict[str, str], d: int) -> None:
    a, b = walk(60, d, 4), walk(33, d, 5)
    assert dtw(a, b, **options) == pytest.approx(dtw(b, a, **options), rel=1e-12)


def test_one_step_costs_its_distances_to_all_steps_of_the_other() -> None:
    a, b = walk(1, 6, 6), walk(9, 6, 7)
    assert dtw(a, b) == pytest.approx(np.linalg.norm(a - b, axis=1).sum())
    assert dtw([2.0], [5.0]) == 3


@pytest.mark.parametrize("d", [2, 512])
def test_a_large_common_offset_does_not_drown_the_distance(d: int) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.integers(-9, 9, (30, d)).astype(float), rng.integers(-9, 9, (25, d)).astype(float)
    assert dtw(a + 1e8, b + 1e8) == pytest.approx(dtw(a, b), rel=1e-12)


def test_nearly_equal_sequences_keep_their_tiny_distance() -> None:
    a = walk(20, 256, 9)
    shift = np.zeros(256)
    shift[0] = 2.0**-20
    assert dtw(a, a + shift) == pytest.approx(20 * 2.0**-20, rel=1e-6)
    tilt = np.array([[1.0, 1e-7]])
    assert dtw([[1.0, 0.0]], tilt, cost="cosine") == pytest.approx(0.5e-14, rel=1e-6)  # 1 - cos(t) = t^2 / 2


def test_cosine_ignores_length_and_euclidean_scales_with_it() -> None:
    a, b = walk(20, 7, 10), walk(15, 7, 11)
    assert dtw(a * 1e200, b * 1e-200, cost="cosine") == pytest.approx(dtw(a, b, cost="cosine"), rel=1e-12)
    assert dtw(4 * a, 4 * b) == pytest.approx(4 * dtw(a, b), rel=1e-12)


def test_cosine_of_right_angles_opposites_and_zero_vectors() -> None:
    assert dtw([[1.0, 0.0]], [[0.0, 5.0]], cost="cosine") == 1
    assert dtw([[1.0, 0.0]], [[-3.0, 0.0]], cost="cosine") == 2
    assert dtw([[0.0, 0.0]], [[3.0, 4.0]], cost="cosine") == 1
    assert dtw([[0.0, 0.0]], [[0.0, 0.0]], cost="cosine") == 0
    assert dtw([2.0], [-7.0], cost="cosine") == 2


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("d", [1, 12])
def test_many_pairs_equal_one_pair_at_a_time(options: dict[str, str], d: int) -> None:
    sequences = [walk(1 + 7 * k % 23, d, k) for k in range(14)]
    matrix = pairwise(sequences, **options)
    for i, j in itertools.combinations(range(14), 2):
        assert matrix[i, j] == matrix[j, i] == dtw(sequences[i], sequences[j], **options)
    assert not matrix.diagonal().any()
    to_first = distances_to(sequences, sequences[0], **options)
    assert to_first.tolist() == [dtw(x, sequences[0], **options) for x in sequences]


def test_no_sequences_give_no_distances() -> None:
    assert distances_to([], [1.0, 2.0]).shape == (0,)
    assert pairwise([]).shape == (0, 0)
    assert pairwise([[1.0, 2.0]]).tolist() == [[0.0]]


def test_other_number_formats_and_layouts_give_the_same_distance() -> None:
    a, b = np.arange(24).reshape(6, 4) % 7, np.arange(20).reshape(5, 4) % 3
    expected = dtw(a, b)
    locked = a.astype(float)
    locked.setflags(write=False)
    for other in (a.astype(np.float32), a.tolist(), np.asfortranarray(a), np.repeat(a, 2, axis=0)[::2], locked):
        assert dtw(other, b) == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [([], [1.0]), ([[1.0, 2.0]], [[1.0]]), (np.zeros((2, 2, 2)), [[1.0, 1.0]]), ([1.0, math.nan], [1.0]),
     ([math.inf], [1.0])],
)  # fmt: skip
def test_sequences_that_cannot_be_compared_are_refused(a: object, b: object) -> None:
    with pytest.raises(DataError, match="sequence"):
        dtw(a, b)  # type: ignore[arg-type]


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(RecipeError, match="did you mean 'euclidean'"):
        dtw([1.0], [1.0], cost="euclidian")
    with pytest.raises(RecipeError, match="normalize"):
        pairwise([[1.0], [2.0]], normalize="sum")
