"""FedGroup against its definition: directions of updates, the communities' starts, newcomers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedreel.core.update import EVALUATE, TRAIN
from fedreel.core.weights import bind
from fedreel.methods.cluster import adjusted_rand_index, k_means
from fedreel.methods.fedgroup import FedGroup, decomposed_cosines, flat
from support.planted import Planted, close, first_of, mean, members, trained, watched
from support.toy import Toy

CLIENTS = ["c0", "c1", "c2", "c3"]


def test_cosines_of_two_orthogonal_groups_are_one_and_zero() -> None:
    """Directions of the larger group come first; the length of an update does not count, its sign does."""
    a, b = torch.zeros(2, 6, dtype=torch.float64)
    a[:3], b[3:] = 1.0, torch.tensor([1.0, -2.0, 2.0])
    found = decomposed_cosines(torch.stack([3 * a, 0.1 * b, 9 * a, -4 * b, 2 * a]), 2)
    assert np.abs(found) == pytest.approx(np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]]), abs=1e-12)
    assert found[1, 1] == pytest.approx(-found[3, 1])
    assert found[0, 0] == pytest.approx(found[2, 0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_updates_on_a_gpu_have_the_same_cosines() -> None:
    updates = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = decomposed_cosines(updates.cuda(), 2)
    assert np.abs(found) == pytest.approx(np.abs(decomposed_cosines(updates, 2)), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_orthogonal_groups_of_updates_are_separated(seed: int) -> None:
    """In 500 dimensions, with noise, and with lengths that spread over three orders of magnitude."""
    rng = np.random.default_rng(seed)
    planted = rng.permutation(np.repeat([0, 1], 6))
    directions = np.linalg.qr(rng.normal(size=(500, 2)))[0].T
    updates = directions[planted] + 0.01 * rng.normal(size=(12, 500))
    updates *= 10 ** rng.uniform(-1.5, 1.5, size=(12, 1))
    found = k_means(decomposed_cosines(torch.from_numpy(updates), 2), 2, seed)
    assert adjusted_rand_index(found, planted) == 1.0


def test_there_are_never_more_directions_than_updates() -> None:
    assert decomposed_cosines(torch.eye(2, 5, dtype=torch.float64), 3).shape == (2, 2)


def test_an_update_is_its_trained_tensors_in_one_row() -> None:
    model = Toy().model()
    weights = bind(model)
    weights["backbone.1.running_mean"].fill_(99.0)
    assert len(flat(weights)) == sum(p.numel() for p in model.parameters())
    assert float(flat(weights).abs().max()) < 99


def test_clients_that_pull_opposite_ways_part_and_stay_apart(tmp_path: Path) -> None:
    """One training of everybody for the grouping, then each round trains each community's own model."""
    fed, orders, engine = watched(tmp_path, FedGroup(groups=2, share="none"), task=Planted(only=(1, 0, 1, 0)), rounds=3)
    assert members(fed) == [0, 1, 0, 1]
    assert [o.client for o in orders] == CLIENTS + 3 * ["c0", "c2", "c1", "c3"]
    assert all(o.models["global"].equal(engine.blueprint.start) for o in orders[:4])
    for c0, c2, c1, c3 in (orders[4:8], orders[8:12], orders[12:]):
        assert c0.models["global"] is c2.models["global"]
        assert c1.models["global"] is c3.models["global"]
        assert not c0.models["global"].equal(c1.models["global"])
    tested = {o.client: o.models["global"] for o in engine.of(EVALUATE, 3)}
    assert all(tested[c].equal(fed.models[f"community-{g}"]) for c, g in fed.memory["members"].items())


def test_a_community_starts_from_the_mean_of_its_members_first_models(tmp_path: Path) -> None:
    task = Planted(only=(0, 0, 1, 0))
    fed, orders, engine = watched(tmp_path / "a", FedGroup(groups=2), task=task, rounds=1)
    assert members(fed) == [0, 0, 1, 0]
    first = trained(tmp_path / "b", task, dict.fromkeys(CLIENTS, engine.blueprint.start))
    starts = {o.client: o.models["global"] for o in orders[4:]}
    for group in (["c0", "c1", "c3"], ["c2"]):
        expected = mean([first[c] for c in group], lambda u: 1.0)
        assert all(close(starts[c], expected) for c in group)


@pytest.mark.parametrize("late", ["c0", "c3"])
def test_a_newcomer_trains_once_and_joins_by_direction(tmp_path: Path, late: str) -> None:
    """It is lost in the first training; afterwards it trains from where all began, and nobody else does."""
    task = Planted(only=(1, 0, 1, 0))
    fed, orders, engine = watched(tmp_path, FedGroup(groups=2), first_of(late, TRAIN), task=task, rounds=2)
    together = fed.memory["members"]
    assert together[late] == together["c2" if late == "c0" else "c1"]
    assert together["c1"] != together["c2"]
    assert [o.client for o in orders[:5]] == [*CLIENTS, late]
    assert orders[4].models["global"].equal(engine.blueprint.start)
    assert sorted(o.client for o in orders[5:]) == sorted(2 * CLIENTS)


def test_one_community_goes_on_from_the_mean_of_the_first_training(tmp_path: Path) -> None:
    fed, orders, engine = watched(tmp_path / "a", FedGroup(groups=1), rounds=1)
    first = trained(tmp_path / "b", Toy(), dict.fromkeys(CLIENTS, engine.blueprint.start))
    start = orders[4].models["global"]
    assert close(start, mean(list(first.values()), lambda u: 1.0))
    second = trained(tmp_path / "c", Toy(), dict.fromkeys(CLIENTS, start))
    assert close(fed.weights, mean(list(second.values()), lambda u: u.samples))
    assert fed.models["community-0"].equal(fed.weights)
