"""People followed from frame to frame: each is looked for where it was last, and newcomers where nobody is yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from fedreel.tasks.skeleton.poses.detector import Detection
from fedreel.tasks.skeleton.poses.landmarks import Pose
from fedreel.tasks.skeleton.poses.regions import Region, overlap, whole
from fedreel.tasks.skeleton.poses.smooth import OneEuro

THERE = 0.5  # how sure the landmark network must be of a body
AGAIN = 0.5  # squares that overlap by more are of one person
ALIKE = 0.08  # bodies whose landmarks are nearer to each other on average, in sides of their square, are one person
LARGEST = 4  # sides of a body's square in longer sides of the picture: what is larger is no body
SEARCH = 0.25  # seconds between looks for newcomers while somebody is followed

Detect = Callable[[Image.Image], list[Detection]]
Place = Callable[[Image.Image, Region], Pose]


class Tracker:
    """At most `people` are followed, each in a slot of its own. One who comes back gets the slot again that was last
    nearest; smoothing then begins anew."""

    def __init__(self, detect: Detect, place: Place, people: int) -> None:
        self.detect, self.place = detect, place
        self.slots = [_Slot() for _ in range(people)]
        self._searched = -float("inf")

    def step(self, picture: Image.Image, time: float) -> list[Pose | None]:
        """Who is where in the next frame, slot by slot."""
        poses: list[Pose | None] = [self._seen(picture, slot.region) for slot in self.slots]
        _one_body_each(poses)
        if self._wants_search(poses, time):
            self._searched = time
            for region in self._newcomers(picture, poses):
                found = self._seen(picture, region)
                if found is None or _is_among(found, poses):
                    continue
                free = [i for i, pose in enumerate(poses) if pose is None]
                if not free:
                    break
                poses[min(free, key=lambda i: self.slots[i].away(region))] = found
        return [slot.follow(pose, time) for slot, pose in zip(self.slots, poses)]

    def _wants_search(self, poses: Sequence[Pose | None], time: float) -> bool:
        """Always while nobody is there, or as soon as somebody is lost; else from time to time while there is room."""
        lost = any(slot.region is not None and pose is None for slot, pose in zip(self.slots, poses))
        alone = not any(poses)
        return alone or lost or (None in poses and time - self._searched >= SEARCH)

    def _seen(self, picture: Image.Image, region: Region | None) -> Pose | None:
        if region is None or not 1 <= region.side <= LARGEST * max(picture.size):
            return None
        found = self.place(picture, region)
        return found if found.score >= THERE and np.isfinite(found.metres).all() else None

    def _newcomers(self, picture: Image.Image, poses: Sequence[Pose | None]) -> list[Region]:
        known = [pose.region().box() for pose in poses if pose is not None]
        found = [detection.region(whole(picture)) for detection in self.detect(picture)]
        return [region for region in found if not known or overlap(region.box(), np.stack(known)).max() < AGAIN]


class _Slot:
    """One person: where to look next, and what smooths the places. Cut-off frequencies are those of MediaPipe."""

    def __init__(self) -> None:
        self.region: Region | None = None
        self.last: Region | None = None

    def away(self, region: Region) -> float:
        """How far a square is from where this person was last; very far where nobody was."""
        if self.last is None:
            return 1e9
        return float(np.hypot(region.x - self.last.x, region.y - self.last.y))

    def follow(self, pose: Pose | None, time: float) -> Pose | None:
        if pose is None:
            self.region = None
            return None
        if self.region is None:
            self.places, self.helpers, self.metres = OneEuro(0.05, 80), OneEuro(0.01, 10), OneEuro(0.1, 40)
        unit = pose.region().side
        smooth = replace(
            pose,
            places=self.places(pose.places, time, unit),
            helpers=self.helpers(pose.helpers, time, unit),
            metres=self.metres(pose.metres, time),
        )
        self.region = self.last = smooth.region()
        return smooth


def _one_body_each(poses: list[Pose | None]) -> None:
    """Where two slots have come to follow the same body, the less sure one lets go."""
    order = sorted((i for i, pose in enumerate(poses) if pose), key=lambda i: -poses[i].score)  # type: ignore[union-attr]
    kept: list[Pose | None] = []
    for i in order:
        pose = poses[i]
        if pose is not None and _is_among(pose, kept):
            poses[i] = None
        else:
            kept.append(pose)


def _is_among(found: Pose, poses: Sequence[Pose | None]) -> bool:
    side = found.region().side
    apart = [np.hypot(*(found.places - pose.places).T).mean() for pose in poses if pose is not None]
    return any(distance < ALIKE * side for distance in apart)
