"""The five real Kinect v1 sets, with all their faults, where they are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedreel.config import DataConfig
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2
from fedreel.tasks.skeleton.motions import read_set
from fedreel.tasks.skeleton.population import SkeletonPopulation, open_sets
from support.shared import SHARED

DATA = SHARED / "skeleton"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the skeleton sets are not here (set FEDREEL_DATA)")

SIZES = {
    "msr_action3d": (20, 292 - 1, 275),  # a13_s09_e02 is all zero
    "msr_daily6": (6, 60, 60),
    "nw_ucla": (10, 1020, 369),
    "utd_mhad": (27, 431, 430),
    "utkinect": (10, 100, 99),
}


@pytest.mark.parametrize("joints", [KINECT_V1, KINECT_V2])
def test_the_real_sets_are_five_clients_without_a_hole(joints) -> None:
    config = DataConfig(source=str(DATA))
    found = SkeletonPopulation(open_sets(config), config, joints, 50, 2, True, 0)
    sizes = {c: (len(found.set_of(c).classes), len(found.data(c).train), len(found.data(c).test)) for c in SIZES}
    assert found.clients == tuple(SIZES)
    assert sizes == SIZES
    for client in found.clients:
        x = found.set_of(client).x
        assert np.isfinite(x).all()
        assert np.abs(x).max() < 3  # metres from the neck
        assert x[..., 0].any(axis=(1, 2, 3)).all()
        assert not x[..., 1].any()


def test_faults_of_the_real_sets_are_listed() -> None:
    dropped = {name: read_set(DATA / f"{name}.npz").dropped for name in SIZES}
    assert {name: len(found) for name, found in dropped.items() if found} == {
        "msr_action3d": 1,
        "msr_daily6": 2,
        "nw_ucla": 95,
    }
    assert dropped["msr_action3d"][0].where == "msr_action3d.npz#a13_s09_e02"
    assert [u.where for u in dropped["msr_daily6"]] == ["msr_daily6.npz#a08_s07_e01", "msr_daily6.npz#a08_s07_e02"]
    for unusable in dropped["nw_ucla"]:
        name = unusable.where.partition("#")[2]
        assert unusable.reason.startswith(f"a copy of {name[:-1]}2")  # view 3 of a02 and a03 is view 2
    assert Counter(u.where.partition("#")[2][:3] for u in dropped["nw_ucla"]).keys() == {"a02", "a03"}


def test_odd_subjects_of_msr_daily_train_and_its_classes_are_in_the_order_of_the_labels() -> None:
    found = read_set(DATA / "msr_daily6.npz")
    assert found.classes == ("a08", "a10", "a12", "a13", "a15", "a16")
    assert {(int(m.subject) % 2 == 1, m.split) for m in found.motions} == {(True, "train"), (False, "test")}
    assert all(m.name.startswith(found.classes[m.label]) for m in found.motions)
