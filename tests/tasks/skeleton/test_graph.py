"""Graphs of skeletons: the counts of NTU's, brute force on random trees, and what the matrices promise."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

from fedreel.tasks.skeleton.graph import Partition, adjacency, hops, scales, subsets

# Pairs of joints as the published code for NTU's skeleton lists them, from 1; joint 21 is the centre.
NTU = (
    *((1, 2), (2, 21), (3, 21), (4, 3), (5, 21), (6, 5), (7, 6), (8, 7), (9, 21), (10, 9), (11, 10), (12, 11)),
    *((13, 1), (14, 13), (15, 14), (16, 15), (17, 1), (18, 17), (19, 18), (20, 19), (22, 23), (23, 8), (24, 25)),
    (25, 12),
)
BONES = [(a - 1, b - 1) for a, b in NTU]
CENTRE = 20


def random_tree(joints: int, seed: int) -> list[tuple[int, int]]:
    draw = np.random.default_rng(seed)
    name = draw.permutation(joints)
    return [(int(name[v]), int(name[draw.integers(v)])) for v in range(1, joints)]


def walked(joints: int, bones: list[tuple[int, int]], start: int) -> np.ndarray:
    """Distances by breadth-first search."""
    distance = np.full(joints, np.inf)
    distance[start] = 0
    waiting = deque([start])
    while waiting:
        at = waiting.popleft()
        for a, b in (*bones, *((b, a) for a, b in bones)):
            if a == at and np.isinf(distance[b]):
                distance[b] = distance[at] + 1
                waiting.append(b)
    return distance


@pytest.mark.parametrize(("partition", "counts"), [("official", [25, 40, 8]), ("true_spatial", [25, 24, 24])])
def test_subsets_of_ntus_skeleton_have_as_many_entries_as_published(partition: Partition, counts: list[int]) -> None:
    matrices = subsets(25, BONES, CENTRE, partition)
    assert [(matrix > 0).sum().item() for matrix in matrices] == counts


@pytest.mark.parametrize("partition", ["official", "true_spatial"])
def test_subsets_share_out_a_column_normalised_graph(partition: Partition) -> None:
    matrices = subsets(25, BONES, CENTRE, partition)
    torch.testing.assert_close(matrices.sum(dim=(0, 1)), torch.ones(25))
    assert ((matrices > 0).sum(dim=0) <= 1).all()
    assert np.array_equal(matrices.sum(dim=0) > 0, adjacency(25, BONES) + np.eye(25) > 0)


def test_subsets_of_a_chain_by_hand() -> None:
    """Joints 0 - 1 - 2 - 3 with centre 0: what a joint gets from further out, then what it gets from further in."""
    itself, outer, inner = subsets(4, [(0, 1), (1, 2), (2, 3)], 0, "true_spatial")
    torch.testing.assert_close(itself, torch.diag(torch.tensor([1 / 2, 1 / 3, 1 / 3, 1 / 2])))
    torch.testing.assert_close(outer, torch.diag(torch.tensor([1 / 2, 1 / 3, 1 / 3]), -1))
    torch.testing.assert_close(inner, torch.diag(torch.tensor([1 / 3, 1 / 3, 1 / 2]), 1))
    # Distances beyond 1 count as equal, so 2 and 3 are neighbours of the second kind to each other.
    _, outer, inner = subsets(4, [(0, 1), (1, 2), (2, 3)], 0, "official")
    assert outer[2, 3] == 0.5
    assert inner[2, 3] == 0


@pytest.mark.parametrize("seed", range(5))
def test_hops_are_those_of_a_breadth_first_search(seed: int) -> None:
    joints = 3 + 5 * seed
    bones = random_tree(joints, seed)
    found = hops(joints, bones)
    for start in range(joints):
        assert np.array_equal(found[start], walked(joints, bones, start))


def test_joints_that_no_way_joins_are_infinitely_far_apart() -> None:
    assert hops(4, [(0, 1), (2, 3)]).tolist() == [
        [0, 1, np.inf, np.inf],
        [1, 0, np.inf, np.inf],
        [np.inf, np.inf, 0, 1],
        [np.inf, np.inf, 1, 0],
    ]


@pytest.mark.parametrize("seed", range(3))
def test_scales_are_symmetric_and_have_each_pair_of_joints_in_one_of_them(seed: int) -> None:
    joints = 12
    matrices = scales(joints, random_tree(joints, seed), joints)
    torch.testing.assert_close(matrices, matrices.transpose(1, 2))
    away = ~torch.eye(joints, dtype=torch.bool)
    assert ((matrices > 0).sum(dim=0)[away] == 1).all()
    assert (matrices.diagonal(dim1=1, dim2=2) > 0).all()
    assert np.array_equal(matrices[0], np.eye(joints))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_scales_are_the_published_differences_of_matrix_powers(count: int) -> None:
    """MS-G3D: those reached in k steps less those reached in k - 1, with self loops, D^-1/2 A D^-1/2."""
    near = adjacency(25, BONES) + np.eye(25)
    reached = [np.minimum(np.linalg.matrix_power(near, k), 1) for k in range(count)]
    for k, found in enumerate(scales(25, BONES, count)):
        binary = np.eye(25) + (reached[k] - reached[k - 1] if k else 0)
        root = np.diag(binary.sum(axis=1) ** -0.5)
        np.testing.assert_allclose(found, root @ binary @ root, atol=1e-6)
