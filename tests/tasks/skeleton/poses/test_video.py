"""Poses of whole videos: files that are read back, pages, and a video given to a model of skeletons. The networks
themselves are asked only where the extra and the weights are."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedreel.errors import DataError, FedreelError
from fedreel.tasks.skeleton.motions import read_motion, read_set
from fedreel.tasks.skeleton.poses import find, folder
from fedreel.tasks.skeleton.poses.command import poses
from fedreel.tasks.skeleton.poses.detector import Detection
from fedreel.tasks.skeleton.poses.estimate import as_npz, estimate, guessed
from fedreel.tasks.skeleton.poses.landmarks import Pose
from fedreel.tasks.skeleton.poses.layout import JOINTS
from fedreel.tasks.skeleton.poses.networks import BlazePose
from fedreel.tasks.skeleton.poses.regions import Region
from fedreel.tasks.skeleton.poses.weights import Weights, find_weights
from fedreel.tasks.use.recognize import recognize
from support.films import film
from support.moves import make_sets, train
from support.shared import SHARED

BODY = np.random.default_rng(0).normal(0, 0.3, (33, 3))


class Puppet:
    """Stands for the networks: a white square in the picture is a body, and nothing else is."""

    def __init__(self, *_: object) -> None: ...

    def detect(self, picture: Image.Image) -> list[Detection]:
        at = _middle(picture)
        if at is None:
            return []
        points = np.array([at, at - [0, 10]]) / max(picture.size)
        return [Detection(0.9, np.zeros(4), np.tile(points, (2, 1)) + np.array([0, 0.25]))]  # 64 x 32: black below

    def place(self, picture: Image.Image, region: Region) -> Pose:
        at = _middle(picture)
        if at is None:
            return Pose(0.0, np.zeros((33, 2)), np.zeros((33, 3)), np.zeros(33), np.ones((2, 2)))
        return Pose(0.9, at + 20 * BODY[:, :2], BODY, np.ones(33), np.array([at, at - [0, 10]]))


def _middle(picture: Image.Image) -> np.ndarray | None:
    bright = np.argwhere(np.asarray(picture)[..., 0] > 128)
    return bright.mean(axis=0)[::-1] if len(bright) else None


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """A white square that moves to the right; two frames without it in the middle."""
    frames = np.zeros((12, 32, 64, 3), np.uint8)
    for t in range(12):
        if t not in (5, 6):
            frames[t, 12:20, 8 + 3 * t : 16 + 3 * t] = 255
    return film(tmp_path / "square.mp4", list(frames), fps=10)


def test_a_body_is_there_where_it_is_seen_and_its_file_can_be_read(video: Path, tmp_path: Path) -> None:
    found = estimate(video, Puppet(), 2)  # type: ignore[arg-type]
    assert (found.people, len(found.scores)) == (1, 12)
    assert found.there[:, 0].tolist() == [t not in (5, 6) for t in range(12)]
    assert found.places[-1, 0].mean() > found.places[0, 0].mean()
    (tmp_path / "a.npz").write_bytes(as_npz(found, "square"))
    frames, names = read_motion(tmp_path / "a.npz")
    assert names == JOINTS
    np.testing.assert_allclose(frames, found.joints, atol=1e-6)
    assert (frames[5:7] == 0).all()


def test_legs_outside_the_picture_are_said_to_be_guessed(video: Path) -> None:
    found = estimate(video, Puppet(), 1)  # type: ignore[arg-type]
    places = found.places.copy()
    places[...] = 10
    assert guessed(replace(found, places=places)) == []
    places[:6, :, 25:29, 1] = 33  # knees and ankles below the picture of 32 rows, in 5 of the 10 frames with a body
    assert guessed(replace(found, places=places)) == []
    places[7, :, 25:29, 0] = -1
    (note,) = guessed(replace(found, places=places))
    assert note == "the legs of person 1 are guessed: in 60 % of the frames they are outside the picture"


def test_nobody_in_any_frame_is_an_error(tmp_path: Path) -> None:
    empty = film(tmp_path / "e.mp4", [np.zeros((32, 32, 3), np.uint8)] * 4)
    with pytest.raises(DataError, match="nobody is seen"):
        estimate(empty, Puppet(), 1)  # type: ignore[arg-type]


def test_the_page_shows_the_bodies_over_the_frames(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "BlazePose", Puppet)
    monkeypatch.setattr(find, "find_weights", lambda *_: Weights(b"", b"", tmp_path))
    result = poses(video, out=tmp_path / "a.npz", page=tmp_path / "a.html", people=1)
    page = (tmp_path / "a.html").read_text()
    assert page.count("<image ") == 12  # a picture for each frame
    assert page.count('class="bones b0"') == 2  # over the video, and as recorded
    assert result.lines() == ["1 person in 12 frames", "  1  in 83 % of the frames, 90 % sure"]
    assert result.files == [tmp_path / "a.npz", tmp_path / "a.html"]
    with pytest.raises(DataError, match="npz"):
        poses(video, out=tmp_path / "a.txt")


def test_a_video_is_what_its_own_skeletons_are(video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer as for the file of `poses`, whose joints beyond the sensor's are the model's for nothing."""
    torch.set_num_threads(1)
    (tmp_path / "sets").mkdir()
    run = train(tmp_path / "run", make_sets(tmp_path / "sets"))
    monkeypatch.setattr(find, "BlazePose", Puppet)
    monkeypatch.setattr(find, "find_weights", lambda *_: Weights(b"", b"", tmp_path))
    (tmp_path / "a.npz").write_bytes(as_npz(estimate(video, Puppet(), 1), "square"))  # type: ignore[arg-type]
    by_file = recognize(tmp_path / "a.npz", run, client="left")
    by_video = recognize(video, run, client="left", page=tmp_path / "p.html")
    assert [label for label, _ in by_video.ranking] == [label for label, _ in by_file.ranking]
    assert dict(by_video.ranking) == pytest.approx(dict(by_file.ranking), abs=1e-5)
    assert by_video.fps == by_file.fps == 10
    assert any("BlazePose" in note for note in by_video.notes)
    assert "<image " in (tmp_path / "p.html").read_text()


def test_a_folder_of_videos_becomes_a_set_for_every_owner(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "BlazePose", Puppet)
    monkeypatch.setattr(find, "find_weights", lambda *_: Weights(b"", b"", tmp_path))
    videos = tmp_path / "videos"
    for place in ("ann/jump/1.mp4", "ann/run/1.mp4", "ben/run/2.mp4"):
        (videos / place).parent.mkdir(parents=True)
        (videos / place).write_bytes(video.read_bytes())
    film(videos / "ben" / "run" / "empty.mp4", [np.zeros((32, 32, 3), np.uint8)] * 4)
    result = poses(videos, out=tmp_path / "sets", page=tmp_path / "a.html", people=1)
    assert [file.name for file in result.files] == ["ann.npz", "ben.npz", "a.html"]
    assert result.lines() == [
        f"{place:14}  1 person in 12 frames" for place in ("ann/jump/1.mp4", "ann/run/1.mp4", "ben/run/2.mp4")
    ]
    assert result.remarks() == ["skipped ben/run/empty.mp4: nobody is seen in this video"]
    ann, ben = (read_set(tmp_path / "sets" / name) for name in ("ann.npz", "ben.npz"))
    assert [(m.name, ann.classes[m.label], m.subject) for m in ann.motions] == [
        ("ann/jump/1", "jump", "ann"),
        ("ann/run/1", "run", "ann"),
    ]
    assert (ben.classes, len(ben.motions)) == (("run",), 1)
    np.testing.assert_allclose(ben.motions[0].frames, estimate(video, Puppet(), 1).joints, atol=1e-6)  # type: ignore[arg-type]
    page = (tmp_path / "a.html").read_text()
    assert "with people in them, 1 skipped" in page
    assert "empty.mp4" in page
    poses(videos, out=tmp_path / "all.npz")
    assert len(read_set(tmp_path / "all.npz").motions) == 3
    with pytest.raises(DataError, match="would lie in the folder"):
        poses(videos, out=videos / "sets")


def _weights() -> Weights | None:
    try:
        return find_weights("lite")
    except FedreelError:
        return None


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="the extra `pose` is not installed")
@pytest.mark.skipif(_weights() is None, reason="BlazePose's weights are not here: npm pack @mediapipe/pose")
@pytest.mark.skipif(not (SHARED / "video" / "wild").is_dir(), reason="the small real data sets are not here")
def test_a_person_in_a_real_video_stands_upright_with_limbs_of_a_length() -> None:
    weights = _weights()
    assert weights is not None
    clip = next((SHARED / "video" / "wild").glob("SchoolRules*"))
    found = estimate(clip, BlazePose(weights, 1), 1)
    body = dict(zip(JOINTS, np.moveaxis(found.joints[:, 0], 1, 0)))
    assert found.there[:, 0].mean() > 0.9
    assert (body["head"][:, 1] > body["spine_base"][:, 1]).all()
    assert (body["spine_base"][:, 1] > body["ankle_left"][:, 1]).all()
    thigh = np.linalg.norm(body["hip_left"] - body["knee_left"], axis=1)
    assert 0.25 < thigh.mean() < 0.6
    assert thigh.std() / thigh.mean() < 0.15


@pytest.mark.skipif(find_spec("ai_edge_litert") is not None, reason="the extra `pose` is installed")
def test_without_the_extra_its_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(FedreelError, match=r"fedreel\[pose\]"):
        BlazePose(Weights(b"", b"", tmp_path))
