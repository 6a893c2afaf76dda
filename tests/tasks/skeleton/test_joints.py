"""Joints: the sensors' graphs, one sensor's joints for another's, and graphs of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError, RecipeError
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2, Joints, find_joints, hops, mapping

GOOD = """
names = ["middle", "left", "right", "top"]
bones = [["middle", "left"], ["middle", "right"], ["middle", "top"]]
centre = "middle"
shoulders = ["left", "right"]
"""


@pytest.mark.parametrize(("joints", "n"), [(KINECT_V1, 20), (KINECT_V2, 25)])
def test_the_sensors_graphs_are_trees(joints: Joints, n: int) -> None:
    assert len(joints.names) == len({*joints.names}) == n
    assert len({frozenset(bone) for bone in joints.bones}) == n - 1
    assert np.isfinite(hops(n, joints.bones)).all()


def test_kinect_v2_has_the_edges_of_ntu() -> None:
    told = "1,2 2,21 3,21 4,3 5,21 6,5 7,6 8,7 9,21 10,9 11,10 12,11 13,1 14,13 15,14 16,15 17,1 18,17 19,18 20,19 "
    told += "22,23 23,8 24,25 25,12"
    edges = {frozenset(int(n) - 1 for n in pair.split(",")) for pair in told.split()}
    assert {frozenset(bone) for bone in KINECT_V2.bones} == edges
    assert KINECT_V2.names[KINECT_V2.centre] == "spine_shoulder"
    assert KINECT_V1.names[KINECT_V1.centre] == "shoulder_center"


def test_both_sensors_have_the_same_shoulders() -> None:
    for joints in (KINECT_V1, KINECT_V2):
        assert [joints.names[j] for j in joints.shoulders] == ["shoulder_left", "shoulder_right"]


def test_distances_count_bones() -> None:
    away = hops(25, KINECT_V2.bones)
    at = KINECT_V2.names.index
    assert away[at("hand_left"), at("shoulder_left")] == 3
    assert away[at("hand_left"), at("hand_right")] == 8
    assert away[at("foot_left"), at("head")] == 8


def test_a_v2_body_gives_every_joint_of_a_v1_body() -> None:
    order = mapping(KINECT_V2.names, KINECT_V1)
    found = [KINECT_V2.names[i] for i in order]
    assert found[:4] == ["spine_base", "spine_mid", "spine_shoulder", "head"]
    assert found[4:] == list(KINECT_V1.names[4:])


def test_a_v1_body_lends_its_nearest_joints_to_a_v2_body() -> None:
    order = mapping(KINECT_V1.names, KINECT_V2)
    found = {wanted: KINECT_V1.names[i] for wanted, i in zip(KINECT_V2.names, order)}
    assert found["spine_shoulder"] == "shoulder_center"
    assert found["neck"] == "head"  # as near as shoulder_center, and earlier in the list
    assert found["thumb_left"] == found["hand_tip_left"] == "hand_left"
    assert found["thumb_right"] == found["hand_tip_right"] == "hand_right"
    assert found["knee_left"] == "knee_left"


def test_the_order_of_the_given_joints_does_not_matter() -> None:
    shuffled = np.random.default_rng(0).permutation(KINECT_V1.names)
    assert [*shuffled[mapping(shuffled, KINECT_V1)]] == [*KINECT_V1.names]
    assert [*mapping(KINECT_V2.names, KINECT_V2)] == [*range(25)]


def test_too_few_joints_are_refused_and_the_missing_ones_listed() -> None:
    assert len(mapping(KINECT_V1.names[:10], KINECT_V1)) == 20
    with pytest.raises(DataError, match=r"9 of them; missing are .*foot_right"):
        mapping(KINECT_V1.names[:9], KINECT_V1)


def test_a_joint_that_occurs_twice_is_refused() -> None:
    with pytest.raises(DataError, match="twice"):
        mapping([*KINECT_V1.names, "spine_mid"], KINECT_V1)  # another name of spine


def test_joints_are_found_by_name() -> None:
    assert find_joints("kinect-v1") is KINECT_V1
    assert find_joints("kinect-v2") is KINECT_V2
    with pytest.raises(RecipeError, match="did you mean 'kinect-v2'"):
        find_joints("kinect_v2")


def test_joints_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(GOOD)
    names = ("middle", "left", "right", "top")
    assert find_joints(str(tmp_path / "own.toml")) == Joints("own", names, ((0, 1), (0, 2), (0, 3)), 0, (1, 2))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["middle", "top"]', '["middle", "tip"]', "no joint 'tip'"),
        (', ["middle", "top"]', "", "none to top"),
        ('"top"]\n', '"left"]\n', "twice"),
        ('centre = "middle"', 'centre = "midle"', "did you mean 'middle'"),
        ('centre = "middle"', "", "'centre' is missing"),
        ('centre = "middle"', "centre = 3", "wrong type"),
        ('["left", "right"]\n', '["left", "left"]\n', "same joint"),
        ('["left", "right"]\n', '["left"]\n', "shoulders"),
        ("names", "nmes", "nmes"),
        ('"middle", "left", "right", "top"', '"middle"', "two joints"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    (tmp_path / "own.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(RecipeError, match=words) as caught:
        find_joints(str(tmp_path / "own.toml"))
    assert str(tmp_path / "own.toml") in caught.value.where


def test_a_file_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        find_joints(str(tmp_path / "own.toml"))
