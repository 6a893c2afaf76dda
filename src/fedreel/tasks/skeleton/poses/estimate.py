"""The people of a video as moving skeletons."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from av.video.reformatter import VideoReformatter
from PIL import Image

from fedreel.errors import DataError, RecipeError
from fedreel.machine.progress import Tell
from fedreel.media.frames import Film, Timeline
from fedreel.media.thumbnails import fitted
from fedreel.media.video import rgb, shape
from fedreel.tasks.skeleton.poses.landmarks import NAMES, Pose
from fedreel.tasks.skeleton.poses.layout import JOINTS, kinect_body
from fedreel.tasks.skeleton.poses.networks import BlazePose
from fedreel.tasks.skeleton.poses.track import Tracker

LEGS = [i for i, name in enumerate(NAMES) if name.startswith(("knee", "ankle"))]
LARGEST = 1280  # pixels of a picture's longer side that are looked at: larger ones are scaled down


@dataclass(frozen=True)
class Poses:
    """Everybody who was followed, the one who was seen most and most surely first. A body that is not there in a frame
    is all zero in it."""

    joints: np.ndarray  # (T, M, 25, 3) metres, as a Kinect v2 gives them
    places: np.ndarray  # (T, M, 33, 2) pixels of a picture of `size`
    metres: np.ndarray  # (T, M, 33, 3) BlazePose's own, the middle of the hips at 0
    visible: np.ndarray  # (T, M, 33)
    scores: np.ndarray  # (T, M)
    size: tuple[int, int]  # height and width
    line: Timeline

    @property
    def there(self) -> np.ndarray:
        """Which bodies (T, M) are there in which frames."""
        return self.scores > 0

    @property
    def people(self) -> int:
        return self.scores.shape[1]


def estimate(video: Path, network: BlazePose, people: int, tell: Tell | None = None) -> Poses:
    """Follow up to so many people through a video, every frame of it."""
    if people < 1:
        raise RecipeError("there is nobody to follow", where="people", expected="1 or more", found=str(people))
    film, scaler = Film(video, tell), VideoReformatter()
    tracker = Tracker(network.detect, network.place, people)
    found: list[list[Pose | None]] = []
    size = (0, 0)
    for frame in film:
        shown = shape(frame, film.pixel)
        size = size if found else fitted(shown, *(min(LARGEST, max(map(round, shown))),) * 2)
        found.append(tracker.step(Image.fromarray(rgb(frame, size, scaler)), film.time))
    return gathered(found, size, film.timeline, video)


def gathered(found: list[list[Pose | None]], size: tuple[int, int], line: Timeline, video: Path) -> Poses:
    """Frames of slots as arrays; slots in which nobody ever was are left out."""
    scores = np.array([[pose.score if pose else 0.0 for pose in frame] for frame in found])
    order = [m for m in np.argsort(-scores.sum(axis=0), kind="stable") if scores[:, m].any()]
    if not order:
        raise DataError("nobody is seen in this video", where=str(video), found=f"{len(found)} frames without a person")
    length, people = len(found), len(order)
    places, metres = np.zeros((length, people, len(NAMES), 2)), np.zeros((length, people, len(NAMES), 3))
    visible, joints = np.zeros((length, people, len(NAMES))), np.zeros((length, people, len(JOINTS), 3))
    for t, frame in enumerate(found):
        for m, slot in enumerate(order):
            if pose := frame[slot]:
                places[t, m], metres[t, m], visible[t, m] = pose.places, pose.metres, pose.visible
                joints[t, m] = kinect_body(pose.metres, pose.places, pose.visible, size)
    return Poses(joints, places, metres, visible, scores[:, order], size, line)


def guessed(poses: Poses) -> list[str]:
    """What a user must know of people whose knees and ankles are mostly outside the picture."""
    legs, picture = poses.places[:, :, LEGS], np.array(poses.size[::-1])
    outside = np.all(np.any((legs < 0) | (legs > picture), axis=3), axis=2)
    share = (outside & poses.there).sum(axis=0) / poses.there.sum(axis=0)
    return [
        f"the legs of person {m} are guessed: in {100 * part:.0f} % of the frames they are outside the picture"
        for m, part in enumerate(share, 1)
        if part > 0.5
    ]


def as_npz(poses: Poses, name: str) -> bytes:
    """A file of one recording, as the task `skeleton` reads it, with BlazePose's own numbers beside it."""
    more = {f"data{m + 1}": poses.joints[:, m].astype(np.float32) for m in range(1, poses.people)}
    file = io.BytesIO()
    np.savez_compressed(
        file,
        data=poses.joints[:, 0].astype(np.float32),
        **more,  # type: ignore[arg-type]
        lengths=np.array([len(poses.joints)]),
        labels=np.zeros(1, np.int64),
        class_names=np.array(["unknown"]),
        subjects=np.array(["unknown"]),
        names=np.array([name]),
        joint_names=np.array(JOINTS),
        fps=np.array(poses.line.fps),
        landmark_names=np.array(NAMES),
        landmarks=poses.metres.astype(np.float32),
        places=poses.places.astype(np.float32),
        visible=poses.visible.astype(np.float32),
        scores=poses.scores.astype(np.float32),
        picture=np.array(poses.size),
    )
    return file.getvalue()
