"""One form for all recordings: what is removed, filled in, centred, stretched and turned, and kept in the cache."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder
from fedreel.tasks.skeleton import prepare as module
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2, Joints
from fedreel.tasks.skeleton.motions import Motion, MotionSet, read_set
from fedreel.tasks.skeleton.prepare import Prepared, load_set, prepare, prepare_set
from support import skeleton_files as make

LEFT, RIGHT = KINECT_V2.shoulders
CENTRE = KINECT_V2.centre
HAND, THUMB = KINECT_V2.names.index("hand_left"), KINECT_V2.names.index("thumb_left")
SIMPLE = Joints("simple", ("middle", "left", "right"), ((0, 1), (0, 2)), 0, (1, 2))


def pair(frames: int = 9, seed: int = 0) -> np.ndarray:
    return np.stack([make.bodies(frames, seed), make.bodies(frames, seed + 50)], axis=1)


def back(x: np.ndarray) -> np.ndarray:
    """(3, T, V, M) as (T, M, V, 3)."""
    return x.transpose(1, 3, 2, 0)


def test_the_form_is_what_networks_take() -> None:
    for bodies in (1, 2, 3):
        x = prepare(pair(), KINECT_V2, 50, bodies)
        assert x.shape == (3, 50, 25, bodies)
        assert x.dtype == np.float32
        assert np.isfinite(x).all()
    one = prepare(pair()[:, :1], KINECT_V2, 50, 2)
    np.testing.assert_array_equal(one[..., 0], prepare(pair(), KINECT_V2, 50, 1)[..., 0])
    assert not one[..., 1].any()


def test_the_recording_itself_is_left_alone() -> None:
    frames = pair()
    frames[3, 0, 5] = np.nan
    before = frames.copy()
    prepare(frames, KINECT_V2)
    np.testing.assert_array_equal(frames, before)


@pytest.mark.parametrize("frames", [2, 7, 50, 83])
def test_a_linear_motion_stays_linear(frames: int) -> None:
    start, end = make.bodies(2, 3)
    share = np.linspace(0, 1, frames)[:, None, None]
    x = back(prepare(((1 - share) * start + share * end)[:, None], KINECT_V2, 50, 1, align=False))
    start, end = start - start[CENTRE], end - end[CENTRE]
    share = np.linspace(0, 1, 50)[:, None, None]
    np.testing.assert_allclose(x[:, 0], (1 - share) * start + share * end, atol=1e-5)


def test_frames_of_the_wanted_number_are_not_changed() -> None:
    body = make.bodies(50)
    x = back(prepare(body[:, None], KINECT_V2, 50, 1, align=False))
    np.testing.assert_allclose(x[:, 0], body - body[:, [CENTRE]], atol=1e-6)


def test_one_frame_is_repeated() -> None:
    x = prepare(pair(1), KINECT_V2, 50, 2)
    np.testing.assert_array_equal(x, np.repeat(x[:, :1], 50, axis=1))
    assert x.any()
    assert prepare(pair(5), KINECT_V2, 1, 2).shape[1] == 1


def test_every_body_is_centred_in_every_frame() -> None:
    x = back(prepare(pair(), KINECT_V2, 20, 2))
    np.testing.assert_allclose(x[:, :, CENTRE], 0, atol=1e-6)


def test_the_place_of_a_body_does_not_matter() -> None:
    frames = pair()
    moved = frames + np.array([0.5, -0.25, 1], np.float32)
    np.testing.assert_allclose(prepare(moved, KINECT_V2), prepare(frames, KINECT_V2), atol=1e-5)


def test_shoulders_are_parallel_to_x_from_left_to_right() -> None:
    for seed in range(5):
        x = back(prepare(make.bodies(30, seed, lively=0.5)[:, None], KINECT_V2, 40, 1))
        across = x[:, 0, RIGHT] - x[:, 0, LEFT]
        np.testing.assert_allclose(across[:, 2], 0, atol=1e-6)
        assert (across[:, 0] > 0).all()


def test_turning_keeps_distances_heights_and_how_the_bodies_stand_to_each_other() -> None:
    straight, turned = (back(prepare(pair(), KINECT_V2, 20, 2, align=align)) for align in (False, True))
    np.testing.assert_allclose(turned[..., 1], straight[..., 1], atol=1e-6)

    def distances(x: np.ndarray) -> np.ndarray:
        joints = x.reshape(20, 50, 3)
        return np.linalg.norm(joints[:, :, None] - joints[:, None], axis=-1)  # within and between the bodies

    np.testing.assert_allclose(distances(turned), distances(straight), atol=1e-5)


def test_the_side_from_which_a_body_is_seen_does_not_matter() -> None:
    frames = pair()
    angle = 2.0
    turn = np.array([[np.cos(angle), 0, -np.sin(angle)], [0, 1, 0], [np.sin(angle), 0, np.cos(angle)]])
    np.testing.assert_allclose(prepare(frames @ turn, KINECT_V2), prepare(frames, KINECT_V2), atol=1e-5)


def test_shoulders_in_one_place_turn_nothing() -> None:
    body = make.bodies(4)
    body[:, RIGHT] = body[:, LEFT] + np.array([0, 0.5, 0], np.float32)
    straight, turned = (prepare(body[:, None], KINECT_V2, align=align) for align in (False, True))
    np.testing.assert_array_equal(straight, turned)


def test_a_body_that_is_zero_stays_zero_exactly() -> None:
    frames = pair(12)
    frames[:, 1] = 0
    assert not prepare(frames, KINECT_V2, 50, 2)[..., 1].any()
    frames = pair(50)
    frames[:20, 1] = 0
    frames[20:30, 1] = np.nan
    second = prepare(frames, KINECT_V2, 50, 2)[..., 1]
    assert not second[:, :30].any()
    assert second[:, 30:].any(axis=(0, 2)).all()


def test_frames_without_the_first_body_are_removed() -> None:
    frames = pair(12)
    frames[[0, 4]] = 0
    frames[7, 0] = np.nan  # the second body alone is not enough
    frames[8, 0] = 0
    kept = np.delete(frames, [0, 4, 7, 8], axis=0)
    np.testing.assert_array_equal(prepare(frames, KINECT_V2), prepare(kept, KINECT_V2))


@pytest.mark.parametrize("empty", [0.0, np.nan])
def test_a_recording_without_a_body_is_refused(empty: float) -> None:
    frames = pair(4)
    frames[:, 0] = empty
    with pytest.raises(DataError, match="no body in any frame"):
        prepare(frames, KINECT_V2)
    with pytest.raises(DataError, match="no body in any frame"):
        prepare(frames[:0], KINECT_V2)


def test_a_recording_of_other_joints_is_refused() -> None:
    with pytest.raises(DataError, match="20 joints"):
        prepare(pair(), KINECT_V1)


def simple(points: list[float]) -> np.ndarray:
    """A body of three joints at z = 2 whose left hand is at these x."""
    body = np.zeros((len(points), 1, 3, 3))
    body[..., 2] = 2
    body[:, 0, 2] = 1
    body[:, 0, 1, 0] = points
    return body


def hand(frames: np.ndarray) -> list[float]:
    return prepare(frames, SIMPLE, len(frames), 1, align=False)[0, :, 1, 0].tolist()


def test_what_is_not_a_number_is_interpolated_over_time() -> None:
    nan = np.nan
    assert hand(simple([-1, nan, nan, -4, -8])) == [-1, -2, -3, -4, -8]
    assert hand(simple([nan, nan, -3, -4, nan])) == [-3, -3, -3, -4, -4]


def test_time_goes_on_in_frames_that_are_removed() -> None:
    frames = simple([-1, np.nan, np.nan, np.nan, -5])
    frames[2] = 0
    x = prepare(frames, SIMPLE, 4, 1, align=False)[0, :, 1, 0]
    assert x.tolist() == [-1, -2, -4, -5]


def test_a_joint_that_is_never_there_is_where_its_neighbour_is() -> None:
    frames = pair()
    whole = back(prepare(frames, KINECT_V2, 9, 2))
    for missing in (np.nan, 0.0):
        frames[:, 0, THUMB] = missing
        x = back(prepare(frames, KINECT_V2, 9, 2))
        at = KINECT_V2.names.index("hand_tip_left")
        np.testing.assert_array_equal(x[:, 0, THUMB], whole[:, 0, HAND])  # hand and tip are as near; the hand is first
        np.testing.assert_array_equal(x[:, 0, at], whole[:, 0, at])
        np.testing.assert_array_equal(x[:, 1], whole[:, 1])


def test_a_joint_that_is_at_the_camera_for_a_while_was_lost() -> None:
    frames = simple([-1, 9, -3, -4, -8])
    frames[1, 0, 1] = 0
    assert hand(frames) == [-1, -2, -3, -4, -8]


def test_a_recording_that_was_centred_before_keeps_its_centre() -> None:
    body = make.bodies(9)
    centred = body - body[:, [CENTRE]]
    np.testing.assert_allclose(prepare(centred[:, None], KINECT_V2), prepare(body[:, None], KINECT_V2), atol=1e-5)


def test_a_body_whose_joints_all_lack_something_is_refused() -> None:
    frames = pair()
    frames[:, 0, :, 1] = np.nan
    with pytest.raises(DataError, match="no joint"):
        prepare(frames, KINECT_V2)


# sets


def test_a_set_is_brought_to_the_wanted_joints() -> None:
    body = make.bodies(9, joints=20)
    order = np.random.default_rng(0).permutation(20)
    given = tuple(KINECT_V1.names[i] for i in order)
    motions = [Motion("a", 1, "1", "train", body[:, None, order])]
    found = prepare_set(MotionSet("x", given, ("run", "jump"), motions, []), KINECT_V1, 9, 1, True)
    np.testing.assert_array_equal(found.x[0], prepare(body[:, None], KINECT_V1, 9, 1))
    assert found.x.shape == (1, 3, 9, 20, 1)
    assert (found.labels.dtype, found.labels.tolist(), found.splits.tolist()) == (np.int64, [1], ["train"])


def test_a_motion_that_cannot_be_prepared_is_listed() -> None:
    lame = pair()
    lame[:, :, :, 1] = np.nan
    motions = [Motion(name, 0, "1", "", frames) for name, frames in (("bad", lame), ("good", pair()))]
    found = prepare_set(MotionSet("x", KINECT_V2.names, ("run",), motions, []), KINECT_V2, 9, 2, True)
    assert found.names.tolist() == ["good"]
    assert [u.where for u in found.dropped] == ["bad"]
    with pytest.raises(DataError, match="no recording"):
        prepare_set(MotionSet("x", KINECT_V2.names, ("run",), motions[:1], []), KINECT_V2, 9, 2, True)


def own(folder: Path) -> Path:
    content = make.arrays((1, 2, 3, 4), joints=KINECT_V1.names)
    content["data"][:6] = 0
    return make.npz(folder / "own.npz", content)


def same(one: Prepared, other: Prepared) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def test_what_was_prepared_before_is_not_prepared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(tmp_path)
    first = load_set(path, KINECT_V1, 9, 2, True)
    assert same(first, prepare_set(read_set(path), KINECT_V1, 9, 2, True))
    assert len(first.dropped) == 1

    def never(*_: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(module, "read_set", never)
        again = load_set(path, KINECT_V1, 9, 2, True)
        assert same(first, again)
        assert again.x.dtype == first.x.dtype
        for settings in ((KINECT_V2, 9, 2, True), (KINECT_V1, 8, 2, True), (KINECT_V1, 9, 1, True)):
            with pytest.raises(AssertionError):
                load_set(path, *settings)
        with pytest.raises(AssertionError):
            load_set(path, KINECT_V1, 9, 2, False)


def test_a_file_that_has_changed_is_prepared_again(tmp_path: Path) -> None:
    path = own(tmp_path)
    first = load_set(path, KINECT_V1, 9, 2, True)
    make.npz(path, make.arrays((1, 2, 3, 4), joints=KINECT_V1.names))
    os.utime(path, ns=(1, 1))
    assert len(load_set(path, KINECT_V1, 9, 2, True).labels) == len(first.labels) + 1


def test_a_damaged_file_in_the_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    path = own(tmp_path)
    first = load_set(path, KINECT_V1, 9, 2, True)
    (kept,) = (cache_folder() / "skeletons").iterdir()
    for content in (b"", b"rubbish", kept.read_bytes()[:-100]):
        kept.write_bytes(content)
        assert same(load_set(path, KINECT_V1, 9, 2, True), first)
    assert [*(cache_folder() / "skeletons").iterdir()] == [kept]


def test_a_set_without_the_joints_is_refused_by_name(tmp_path: Path) -> None:
    path = make.npz(tmp_path / "own.npz", make.arrays())
    with pytest.raises(DataError, match="too few of the joints") as caught:
        load_set(path, KINECT_V1, 9, 2, True)
    assert caught.value.where == str(path)
