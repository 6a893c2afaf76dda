"""Poses without weights: anchors, boxes, squares, heatmaps, the filter, joints and tracking, by closed forms."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedreel.errors import DataError, RecipeError
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2, mapping, shared
from fedreel.tasks.skeleton.poses import detector, landmarks
from fedreel.tasks.skeleton.poses.detector import Detection, anchors, decoded, detections, merged
from fedreel.tasks.skeleton.poses.landmarks import NAMES, Pose, refined
from fedreel.tasks.skeleton.poses.layout import FOCAL, JOINTS, distance, kinect_body, kinect_matrix
from fedreel.tasks.skeleton.poses.regions import MARGIN, Region, around, crop, overlap
from fedreel.tasks.skeleton.poses.smooth import OneEuro, weight
from fedreel.tasks.skeleton.poses.track import Tracker
from fedreel.tasks.skeleton.poses.weights import DETECTOR, find_weights


def test_there_is_an_anchor_for_each_row_of_the_network() -> None:
    found = anchors()
    assert found.shape == (28 * 28 * 2 + 14 * 14 * 2 + 7 * 7 * 6, 2) == (2254, 2)
    assert found[0].tolist() == found[1].tolist() == [0.5 / 28, 0.5 / 28]
    assert found[2].tolist() == [1.5 / 28, 0.5 / 28]
    assert found[-1].tolist() == [6.5 / 7, 6.5 / 7]


def test_a_row_is_centre_size_and_keypoints_in_pixels_from_its_anchor() -> None:
    row = np.array([[22.4, 0, 44.8, 22.4, 0, 0, 0, -112, 22.4, 22.4, 0, 0]])
    boxes, points = decoded(row, np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(boxes, [[0.5, 0.45, 0.7, 0.55]])
    np.testing.assert_allclose(points[0], [[0.5, 0.5], [0.5, 0.0], [0.6, 0.6], [0.5, 0.5]])


def test_overlapping_detections_become_their_weighted_mean() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 0.8], [2, 2, 3, 3]], float)
    points = np.zeros((3, 4, 2)) + np.array([0.0, 1.0, 5.0])[:, None, None]
    first, second = merged(np.array([0.9, 0.6, 0.7]), boxes, points)
    assert (first.score, second.score) == (0.9, 0.7)
    np.testing.assert_allclose(first.box, [0, 0, 1, (0.9 * 1 + 0.6 * 0.8) / 1.5])
    np.testing.assert_allclose(first.points, np.full((4, 2), 0.4))
    np.testing.assert_allclose(second.points, np.full((4, 2), 5.0))


def test_only_sure_rows_are_detections() -> None:
    rows, logits = np.zeros((2254, 12), np.float32), np.full(2254, -5.0)
    rows[:, 2:4] = 20
    assert detections(rows, logits) == []
    logits[100] = 3.0
    (found,) = detections(rows, logits)
    assert found.score == pytest.approx(1 / (1 + math.exp(-3)))
    np.testing.assert_allclose(found.points, np.broadcast_to(anchors()[100], (4, 2)))


def test_shares_of_boxes_by_hand() -> None:
    box = np.array([0.0, 0, 2, 2])
    others = np.array([[0.0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6]])
    np.testing.assert_allclose(overlap(box, others), [1, 1 / 7, 0])


@pytest.mark.parametrize(("top", "angle"), [((50, 10), 0.0), ((90, 50), math.pi / 2), ((10, 50), -math.pi / 2)])
def test_the_square_of_a_body_stands_on_its_axis(top: tuple[int, int], angle: float) -> None:
    region = around(np.array([50.0, 50.0]), np.array(top, float))
    assert region.side == pytest.approx(2 * MARGIN * 40)
    assert region.angle == pytest.approx(angle)
    # straight up inside the square is towards the top of the body
    up = region.outward(np.array([[0.5, 0.0]]))[0] - region.outward(np.array([[0.5, 0.5]]))[0]
    np.testing.assert_allclose(up / np.linalg.norm(up), (np.array(top) - 50) / 40, atol=1e-9)


def test_a_crop_is_the_square_turned_upright() -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[18:22, 30:34] = 255  # to the right of the middle
    found = crop(Image.fromarray(pixels), Region(20, 20, 40, math.pi / 2), 40)
    assert found[6:10, 18:22].min() == 255  # the body's axis points right, so this is above
    assert found.sum() == pixels.sum()


def test_beyond_the_edge_a_crop_is_black_or_what_the_edge_has() -> None:
    picture = Image.fromarray(np.full((10, 10, 3), 200, np.uint8))
    region = Region(0, 5, 10)
    assert crop(picture, region, 10)[:, :4].max() == 0
    assert crop(picture, region, 10, stretched=True).min() == 200


def test_a_heatmap_moves_a_landmark_to_its_mean() -> None:
    maps = np.full((64, 64, 2), -50.0)
    maps[33, 34, 0] = maps[33, 36, 0] = 50.0
    points = refined(np.array([[35.2 / 64, 33.5 / 64], [0.3, 1.4]]), maps)
    np.testing.assert_allclose(points, [[35 / 64, 33 / 64], [0.3, 1.4]], atol=1e-12)
    assert refined(np.array([[0.1, 0.1], [0.1, 0.1]]), maps).tolist() == [[0.1, 0.1]] * 2  # nothing clear there


def test_the_landmark_network_is_read_as_it_is_written() -> None:
    rows = np.zeros((39, 5))
    rows[:, :2] = 128
    rows[33, :2], rows[34, :2] = (128, 128), (128, 64)
    metres = np.tile([1.0, 0, 2.0], (39, 1))
    outputs = [rows.ravel(), np.array([0.9]), np.zeros(1), np.full((64, 64, 39), -50.0), metres.ravel()]
    pose = landmarks.pose(outputs, Region(100, 200, 80, math.pi / 2))
    np.testing.assert_allclose(pose.places, np.broadcast_to([100, 200], (33, 2)), atol=1e-9)
    np.testing.assert_allclose(pose.metres, np.broadcast_to([0, 1, 2], (33, 3)), atol=1e-9)
    np.testing.assert_allclose(pose.visible, 0.5)
    assert pose.region().side == pytest.approx(2 * MARGIN * 20)  # a quarter of 80 pixels
    assert pose.region().angle == pytest.approx(math.pi / 2)


def test_the_filter_by_hand() -> None:
    """At rest its share is that of the floor; a step of 1 in 0.1 s smooths the speed first."""
    smooth = OneEuro(1.0, 2.0, 1.0)
    assert smooth(np.array([0.0]), 0.0).tolist() == [0.0]
    share = weight(1.0, 0.1)
    assert share == pytest.approx(2 * math.pi * 0.1 / (1 + 2 * math.pi * 0.1))
    speed = share * 10.0
    assert smooth(np.array([1.0]), 0.1)[0] == pytest.approx(weight(1.0 + 2.0 * speed, 0.1))


def test_the_filter_leaves_what_does_not_move_and_follows_what_moves_fast() -> None:
    still, slow, fast = OneEuro(0.05, 80), OneEuro(0.05, 0), OneEuro(0.05, 80)
    for t in range(30):
        assert still(np.ones(3), t / 30).tolist() == [1, 1, 1]
        behind, near = (abs(f(np.array([float(t)]), t / 30)[0] - t) for f in (slow, fast))
    assert near < 0.1 < 10 < behind


def test_joints_of_a_moved_body_move_with_it() -> None:
    matrix = kinect_matrix()
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert matrix.shape == (25, 33)
    body = np.random.default_rng(0).normal(size=(33, 3))
    np.testing.assert_allclose(matrix @ (body + np.array([1, 2, 3])), matrix @ body + np.array([1, 2, 3]))
    at = dict(zip(NAMES, body))
    joint = dict(zip(JOINTS, matrix @ body))
    np.testing.assert_allclose(joint["spine_base"], (at["hip_left"] + at["hip_right"]) / 2)
    np.testing.assert_allclose(joint["foot_right"], at["toe_right"])
    np.testing.assert_allclose(joint["hand_left"], (at["wrist_left"] + at["index_left"] + at["pinky_left"]) / 3)


def test_every_kinect_has_its_joints_among_them() -> None:
    for joints in (KINECT_V1, KINECT_V2):
        assert len({*mapping(JOINTS, joints).tolist()}) == len(joints.names)  # no stand-ins
    assert [JOINTS[i] for i in shared(JOINTS, KINECT_V1.names)] == [
        name for name in JOINTS if not name.startswith(("neck", "hand_tip", "thumb"))
    ]
    assert len(shared(JOINTS, ())) == 25


def test_a_body_is_where_its_picture_puts_it() -> None:
    rng = np.random.default_rng(1)
    metres, where, size = rng.normal(0, 0.4, (33, 3)), np.array([0.3, -0.2, 3.0]), (480, 640)
    seen = metres + where
    places = seen[:, :2] / seen[:, 2:] * FOCAL * 640 + [320, 240]
    np.testing.assert_allclose(distance(metres, places, np.ones(33), size), where)
    body = kinect_body(metres, places, np.ones(33), size)
    np.testing.assert_allclose(body, kinect_matrix() @ seen * [-1, -1, 1], atol=1e-9)


def test_left_is_where_a_kinect_has_it() -> None:
    """Who faces the camera has the left shoulder on the right of the picture; a Kinect's x is then negative."""
    metres = np.zeros((33, 3))
    metres[NAMES.index("shoulder_left")], metres[NAMES.index("shoulder_right")] = [0.2, -0.5, 0], [-0.2, -0.5, 0]
    places = metres[:, :2] / 3 * 640 + [320, 240]
    body = dict(zip(JOINTS, kinect_body(metres, places, np.ones(33), (480, 640))))
    assert body["shoulder_left"][0] < 0 < body["shoulder_right"][0]
    assert body["shoulder_left"][1] > body["spine_base"][1]


class Stage:
    """People at known places in a picture, as the networks would see them."""

    def __init__(self, *people: tuple[float, float]) -> None:
        self.people, self.looked = list(people), 0

    def detect(self, picture: Image.Image) -> list[Detection]:
        self.looked += 1
        side = max(picture.size)
        hips = [np.array([[x, y], [x, y - 20]]) / side for x, y in self.people]
        return [Detection(0.9, np.zeros(4), np.concatenate([point, point])) for point in hips]

    def place(self, picture: Image.Image, region: Region) -> Pose:
        near = [p for p in self.people if math.hypot(p[0] - region.x, p[1] - region.y) < 20]
        if not near:
            return Pose(0.1, np.zeros((33, 2)), np.zeros((33, 3)), np.zeros(33), np.ones((2, 2)))
        at = np.array(near[0])
        return Pose(0.9, np.tile(at, (33, 1)), np.ones((33, 3)), np.ones(33), np.array([at, at - [0, 20]]))


def test_people_keep_their_slots_and_get_them_back() -> None:
    stage, picture = Stage((50, 50), (150, 50)), Image.new("RGB", (200, 200))
    tracker = Tracker(stage.detect, stage.place, 2)
    found = tracker.step(picture, 0.0)
    assert [round(pose.places[0, 0]) for pose in found if pose] == [50, 150]
    tracker.step(picture, 0.03)
    assert stage.looked == 1  # both are followed: nobody is searched
    stage.people = [(150, 50)]
    gone = tracker.step(picture, 0.06)
    assert gone[0] is None
    assert gone[1] is not None
    stage.people = [(150, 50), (55, 50)]
    back = tracker.step(picture, 0.5)
    assert [round(pose.places[0, 0]) for pose in back if pose] == [55, 150]


def test_no_more_people_than_wanted_and_nobody_twice() -> None:
    stage, picture = Stage((50, 50), (52, 50), (150, 50)), Image.new("RGB", (200, 200))
    found = Tracker(stage.detect, stage.place, 3).step(picture, 0.0)
    assert [pose is not None for pose in found] == [True, True, False]
    found = Tracker(stage.detect, stage.place, 1).step(picture, 0.0)
    assert len(found) == 1


def test_missing_weights_are_told_with_the_command_that_gets_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="npm pack @mediapipe/pose"):
        find_weights("full", tmp_path)
    (tmp_path / DETECTOR).write_bytes(b"no model")
    with pytest.raises(DataError, match="no TensorFlow Lite model"):
        find_weights("full", tmp_path)
    (tmp_path / "a.tgz").write_bytes(b"no tarball")
    with pytest.raises(DataError, match="a tarball of npm's"):
        find_weights("lite", tmp_path / "a.tgz")
    with pytest.raises(RecipeError, match="lite, full, heavy"):
        find_weights("huge", tmp_path)


def test_the_networks_pictures_have_the_sides_of_their_files() -> None:
    assert (detector.SIDE, landmarks.SIDE, len(NAMES)) == (224, 256, 33)
