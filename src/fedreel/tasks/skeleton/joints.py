"""Which joints a body has (a Kinect v1's or v2's, or a file's), how bones join them, and one sensor's for another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedreel.config import build, read_toml
from fedreel.errors import DataError, RecipeError, nearest

Bones = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Joints:
    """Joints in the order of a recording; bones are pairs of their numbers. The centre is the origin of a prepared
    body, and the line from the left to the right shoulder its x axis."""

    name: str
    names: tuple[str, ...]
    bones: tuple[tuple[int, int], ...]
    centre: int
    shoulders: tuple[int, int]  # left, right


ALIASES = {"hip_center": "spine_base", "spine": "spine_mid", "shoulder_center": "spine_shoulder"}  # v1 -> v2

_LIMBS = (
    "shoulder_left", "elbow_left", "wrist_left", "hand_left",
    "shoulder_right", "elbow_right", "wrist_right", "hand_right",
    "hip_left", "knee_left", "ankle_left", "foot_left",
    "hip_right", "knee_right", "ankle_right", "foot_right",
)  # fmt: skip
_ALONG_LIMBS = tuple((start + k, start + k + 1) for start in (4, 8, 12, 16) for k in range(3))

KINECT_V1 = Joints(
    "kinect-v1",
    ("hip_center", "spine", "shoulder_center", "head", *_LIMBS),
    ((0, 1), (1, 2), (2, 3), (2, 4), (2, 8), (0, 12), (0, 16), *_ALONG_LIMBS),
    centre=2,
    shoulders=(4, 8),
)
_TO_HANDS = ((0, 1), (1, 20), (2, 20), (3, 2), (4, 20), (8, 20), (12, 0), (16, 0), *_ALONG_LIMBS)
KINECT_V2 = Joints(
    "kinect-v2",
    (
        *("spine_base", "spine_mid", "neck", "head", *_LIMBS),
        *("spine_shoulder", "hand_tip_left", "thumb_left", "hand_tip_right", "thumb_right"),
    ),
    (
        *_TO_HANDS,
        *((21, 22), (22, 7), (23, 24), (24, 11)),  # a thumb hangs on the hand, the tip on the thumb: NTU's usual graph
    ),
    centre=20,
    shoulders=(4, 8),
)
KINECT_V2_PYSKL = replace(  # tip and thumb both hang on the hand
    KINECT_V2, name="kinect-v2-pyskl", bones=(*_TO_HANDS, (21, 7), (22, 7), (23, 11), (24, 11))
)
BUILT_IN = {joints.name: joints for joints in (KINECT_V1, KINECT_V2, KINECT_V2_PYSKL)}


def find_joints(text: str) -> Joints:
    """Joints by name (those of `BUILT_IN`), or from a TOML file with `names`, `bones` (pairs of names), `centre` and
    `shoulders` (left, right)."""
    if text in BUILT_IN:
        return BUILT_IN[text]
    path = Path(text).expanduser()
    if path.suffix != ".toml":
        raise RecipeError(
            f"unknown joints '{text}'", expected=f"{', '.join(BUILT_IN)} or a TOML file", hint=nearest(text, BUILT_IN)
        )
    given = build(_Given, read_toml(path), str(path))
    return given.joints(path)


def mapping(given: Sequence[str], wanted: Joints) -> np.ndarray:
    """For each wanted joint its index in `given`. One that is not there takes the place of the nearest along the bones
    that is, of the first of these if there are several."""
    index = {_plain(name): i for i, name in enumerate(given)}
    if len(index) < len(given):
        plain = [_plain(name) for name in given]
        twice = next(name for name, word in zip(given, plain) if plain.count(word) > 1)
        raise DataError("a joint occurs twice", found=f"{twice} in {', '.join(given)}")
    there = np.array([_plain(name) in index for name in wanted.names])
    if there.sum() < len(there) / 2:
        lacks = [name for name, known in zip(wanted.names, there) if not known]
        raise DataError(
            "too few of the joints are there",
            expected=f"at least half of the {len(there)} joints of {wanted.name}",
            found=f"{there.sum()} of them; missing are {', '.join(lacks)}",
            hint="name the joints as fedreel does, or give a TOML file with these joints",
        )
    return np.array([index[_plain(wanted.names[j])] for j in stand_ins(wanted, there)])


def shared(given: Sequence[str], sensor: Sequence[str]) -> np.ndarray:
    """Which of the given joints a sensor has too, by their places; all of them where nothing is known of the sensor."""
    known = {_plain(name) for name in sensor}
    return np.array([i for i, name in enumerate(given) if not known or _plain(name) in known], np.int64)


def stand_ins(joints: Joints, there: np.ndarray) -> np.ndarray:
    """For each joint itself if it is `there`, else the nearest one along the bones that is, the first of several."""
    away = np.where(there[None], hops(len(joints.names), joints.bones), np.inf)
    return away.argmin(axis=1)


def hops(joints: int, bones: Bones) -> np.ndarray:
    """How many bones lie between two joints (joints x joints); inf where no way leads."""
    away = np.where(adjacency(joints, bones) > 0, 1.0, np.inf)
    away[np.diag_indices(joints)] = 0
    for via in range(joints):
        away = np.minimum(away, away[:, via, None] + away[None, via])
    return away


def adjacency(joints: int, bones: Bones) -> np.ndarray:
    """1 where two joints share a bone, without self loops."""
    near = np.zeros((joints, joints))
    for a, b in bones:
        near[a, b] = near[b, a] = 1
    return near


def _plain(name: str) -> str:
    return ALIASES.get(str(name), str(name))


@dataclass(frozen=True)
class _Given:
    """What a TOML file says."""

    names: tuple[str, ...]
    bones: tuple[tuple[str, str], ...]
    centre: str
    shoulders: tuple[str, str]

    def joints(self, path: Path) -> Joints:
        if len(self.names) < 2:
            raise RecipeError("a body has at least two joints", where=f"{path}, names", found=str(list(self.names)))
        plain = [_plain(name) for name in self.names]
        twice = [name for name, word in zip(self.names, plain) if plain.count(word) > 1]
        if twice:
            raise RecipeError("a joint occurs twice", where=f"{path}, names", found=", ".join(twice))
        bones = tuple((self._index(a, path, "bones"), self._index(b, path, "bones")) for a, b in self.bones)
        left, right = (self._index(name, path, "shoulders") for name in self.shoulders)
        if left == right:
            raise RecipeError("both shoulders are the same joint", where=f"{path}, shoulders", found=self.shoulders[0])
        joints = Joints(path.stem, self.names, bones, self._index(self.centre, path, "centre"), (left, right))
        apart = np.isinf(hops(len(joints.names), joints.bones)[joints.centre])
        if apart.any():
            raise RecipeError(
                "the bones do not join all joints",
                where=f"{path}, bones",
                expected="a way along bones from the centre to every joint",
                found=f"none to {', '.join(name for name, lost in zip(self.names, apart) if lost)}",
            )
        return joints

    def _index(self, name: str, path: Path, key: str) -> int:
        if name not in self.names:
            raise RecipeError(f"there is no joint '{name}'", where=f"{path}, {key}", hint=nearest(name, self.names))
        return self.names.index(name)
