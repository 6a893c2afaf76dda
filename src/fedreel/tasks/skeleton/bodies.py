"""Stick figures: from joint angles over time to the joints of a Kinect v1 or v2 in metres."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedreel.tasks.skeleton import joints as kinect

KINECT_V1, KINECT_V2 = kinect.KINECT_V1.names, kinect.KINECT_V2.names

# What moves. Swing lifts a limb forwards, lift sideways (radians); the rest of the body bows, twists, turns and shifts.
_LIMBS = tuple(f"{limb}_{side}" for limb in ("arm", "leg") for side in ("left", "right"))
ANGLES = (
    *(f"{limb}_{how}" for limb in _LIMBS for how in ("swing", "lift", "bend")),
    "bow", "twist", "turn", "shift_x", "shift_y", "shift_z",
)  # fmt: skip


@dataclass(frozen=True)
class Bones:
    """Lengths in metres."""

    spine: float = 0.50  # hips to shoulders
    neck: float = 0.10
    head: float = 0.15
    shoulder: float = 0.18  # half the width
    upper_arm: float = 0.28
    forearm: float = 0.25
    hand: float = 0.08
    hip: float = 0.10  # half the width
    thigh: float = 0.42
    shin: float = 0.40
    foot: float = 0.12

    def scaled(self, by: Mapping[str, float]) -> Bones:
        """Every bone times its factor."""
        return Bones(**{name: length * by[name] for name, length in vars(self).items()})


def pose(angles: Mapping[str, np.ndarray], bones: Bones, joints: tuple[str, ...]) -> np.ndarray:
    """Joints (T, V, 3): x to the figure's left, y up, z the way it faces; the hips start at (0, 0, 0)."""
    still = np.zeros_like(angles["bow"])
    at: dict[str, np.ndarray] = {"spine_base": _vector(still, still, still)}
    up = _vector(still, still + 1, still)
    at["spine_mid"] = at["spine_base"] + 0.5 * bones.spine * up
    at["spine_shoulder"] = at["spine_base"] + bones.spine * up
    at["neck"] = at["spine_shoulder"] + bones.neck * up
    at["head"] = at["neck"] + bones.head * up
    for side, sign in (("left", 1.0), ("right", -1.0)):
        _arm(at, side, sign, angles, bones)
    for name in at:  # all so far is above the hips: bow forwards, then twist
        at[name] = _yaw(_bow(at[name], angles["bow"]), angles["twist"])
    for side, sign in (("left", 1.0), ("right", -1.0)):
        _leg(at, side, sign, angles, bones)
    body = np.stack([at[kinect.ALIASES.get(name, name)] for name in joints], axis=1)
    shift = _vector(angles["shift_x"], angles["shift_y"], angles["shift_z"])
    return _yaw(body, angles["turn"]) + shift[:, None]


def turned(body: np.ndarray, yaw: float) -> np.ndarray:
    """The body (T, V, 3) seen from a camera turned by `yaw` about the vertical axis."""
    return _yaw(body, np.full(len(body), yaw))


def _arm(at: dict[str, np.ndarray], side: str, sign: float, angles: Mapping[str, np.ndarray], bones: Bones) -> None:
    swing, lift, bend = (angles[f"arm_{side}_{how}"] for how in ("swing", "lift", "bend"))
    upper, lower = _limb(swing, lift, sign), _limb(swing + bend, lift, sign)
    at[f"shoulder_{side}"] = at["spine_shoulder"] + np.array([sign * bones.shoulder, -0.03, 0.0])
    at[f"elbow_{side}"] = at[f"shoulder_{side}"] + bones.upper_arm * upper
    at[f"wrist_{side}"] = at[f"elbow_{side}"] + bones.forearm * lower
    at[f"hand_{side}"] = at[f"wrist_{side}"] + bones.hand * lower
    at[f"hand_tip_{side}"] = at[f"hand_{side}"] + 0.9 * bones.hand * lower
    at[f"thumb_{side}"] = at[f"wrist_{side}"] + bones.hand * (0.7 * lower + 0.5 * _limb(swing + bend + 1.2, lift, sign))


def _leg(at: dict[str, np.ndarray], side: str, sign: float, angles: Mapping[str, np.ndarray], bones: Bones) -> None:
    swing, lift, bend = (angles[f"leg_{side}_{how}"] for how in ("swing", "lift", "bend"))
    at[f"hip_{side}"] = at["spine_base"] + np.array([sign * bones.hip, -0.05, 0.0])
    at[f"knee_{side}"] = at[f"hip_{side}"] + bones.thigh * _limb(swing, lift, sign)
    at[f"ankle_{side}"] = at[f"knee_{side}"] + bones.shin * _limb(swing - bend, lift, sign)
    at[f"foot_{side}"] = at[f"ankle_{side}"] + bones.foot * _limb(swing - bend + 1.4, lift, sign)


def _limb(swing: np.ndarray, lift: np.ndarray, sign: float) -> np.ndarray:
    """The way a limb points: down at rest."""
    return _vector(sign * np.sin(lift), -np.cos(lift) * np.cos(swing), np.cos(lift) * np.sin(swing))


def _vector(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.stack([x, y, z], axis=-1)


def _bow(points: np.ndarray, angle: np.ndarray) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    x, y, z = np.moveaxis(points, -1, 0)
    return _vector(x, cos * y - sin * z, sin * y + cos * z)


def _yaw(points: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Turn (T, 3) or (T, V, 3) points about the vertical axis, frame by frame."""
    angle = angle.reshape(-1, *[1] * (points.ndim - 2))
    cos, sin = np.cos(angle), np.sin(angle)
    x, y, z = np.moveaxis(points, -1, 0)
    return _vector(cos * x + sin * z, y, cos * z - sin * x)
