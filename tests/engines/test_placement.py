"""How a cluster is divided into actors, a round into parts, and parts among actors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedreel.core.update import TRAIN, Order
from fedreel.engines.flower.placement import Shape, parts_of, shape_of, spread
from fedreel.errors import RunError


def orders(n: int, *together: str) -> list[Order]:
    return [Order(1, i, f"c{i}", TRAIN, {}, together=together) for i in range(n)]


@pytest.mark.parametrize(
    ("hosts", "threads", "most", "shape"),
    [
        ([2], 1, 6, Shape(actors=2, cpus=1, workers=1, share=2)),
        ([1, 1], 1, 6, Shape(actors=2, cpus=1, workers=1, share=1)),
        ([16, 16], 1, 20, Shape(actors=16, cpus=2, workers=2, share=16)),
        ([64, 16, 3], 1, 20, Shape(actors=20, cpus=4, workers=4, share=64)),  # three cores are too few for a fourth
        ([16], 1, 1, Shape(actors=1, cpus=16, workers=16, share=16)),
        ([16, 4], 4, 20, Shape(actors=5, cpus=4, workers=1, share=4)),  # a worker of four threads
        ([4, 0], 1, 2, Shape(actors=2, cpus=2, workers=2, share=4)),  # a head that takes no work
        ([1, 1, 1], 1, 2, Shape(actors=3, cpus=1, workers=1, share=1)),  # there is nothing smaller
    ],
)
def test_actors_are_as_small_as_their_number_allows(hosts: list[int], threads: int, most: int, shape: Shape) -> None:
    assert shape_of(hosts, threads, most) == shape


def test_a_worker_that_fits_on_no_host_is_refused() -> None:
    with pytest.raises(RunError, match="no host of the cluster has 5 cores"):
        shape_of([4, 2], 5, 10)


def test_what_leaves_by_itself_is_a_part_of_its_own() -> None:
    assert parts_of(orders(3)) == [[order] for order in orders(3)]
    assert parts_of([]) == []


@pytest.mark.parametrize(("clients", "parts"), [(3, [3]), (10, [4, 4, 2]), (400, [4] * 100), (1000, [10] * 100)])
def test_what_leaves_together_does_so_in_at_most_a_hundred_means(clients: int, parts: list[int]) -> None:
    given = orders(clients, "samples")
    found = parts_of(given)
    assert [len(part) for part in found] == parts
    assert [order for part in found for order in part] == given


def placed(seconds: Sequence[float], places: int) -> list[list[int]]:
    parts = parts_of(orders(len(seconds)))
    return [[part[0].step for part in mine] for mine in spread(parts, lambda order: seconds[order.step], places)]


def test_the_longest_go_first_and_to_whoever_has_least_to_do() -> None:
    """5 | 4, then 3 to the 4, 3 to the 5, 2 to the 7."""
    assert placed([3, 5, 2, 4, 3], 2) == [[1, 4], [0, 2, 3]]


def test_what_takes_no_time_is_dealt_out_evenly() -> None:
    assert [len(mine) for mine in placed([0.0] * 7, 3)] == [3, 2, 2]


def test_a_client_of_whom_nothing_is_known_counts_as_the_longest() -> None:
    assert placed([1, math.inf, 2, 1], 2) == [[0, 1], [2, 3]]
    assert placed([math.inf] * 4, 2) == [[0, 2], [1, 3]]


def test_a_part_takes_as_long_as_its_orders() -> None:
    joint = [replace(order, together=("samples",)) for order in orders(6)]
    mine = spread(parts_of([*joint, Order(1, 6, "c6", TRAIN, {})]), lambda order: 4.5 if order.step == 6 else 1.0, 2)
    assert [[order.step for part in parts for order in part] for parts in mine] == [[6], [0, 1, 2, 3, 4, 5]]
