"""BlazePose's landmarks as the joints of a Kinect, in metres before a camera."""

from __future__ import annotations

import numpy as np

from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.poses.landmarks import NAMES

JOINTS = KINECT_V2.names  # those of a Kinect v1 are among them, under names that mean the same
FOCAL = 1.0  # of the camera, in longer sides of its picture: about 53 degrees from edge to edge, as phones have
SEEN = 0.5  # a landmark less visible than that does not say how far away the body is

# Each joint is a sum of landmarks. Palms are the middle of wrist and knuckles; finger tips lie beyond the knuckles by
# as much as these beyond the palm; the neck is halfway between shoulders and ears.
_SIDES = ("left", "right")
_HIPS, _SHOULDERS, _EARS = ({f"{part}_{side}": 0.5 for side in _SIDES} for part in ("hip", "shoulder", "ear"))
_SAME = ("shoulder", "elbow", "wrist", "hip", "knee", "ankle", "thumb")


def kinect_matrix() -> np.ndarray:
    """(25, 33): what each joint has of each landmark. Rows sum to 1, so that a moved body's joints move with it."""
    parts: dict[str, dict[str, float]] = {
        "spine_base": _HIPS,
        "spine_shoulder": _SHOULDERS,
        "spine_mid": _sum((0.5, _HIPS), (0.5, _SHOULDERS)),
        "head": _EARS,
        "neck": _sum((0.5, _SHOULDERS), (0.5, _EARS)),
    }
    for side in _SIDES:
        knuckles = {f"index_{side}": 0.5, f"pinky_{side}": 0.5}
        palm = {f"{part}_{side}": 1 / 3 for part in ("wrist", "index", "pinky")}
        parts |= {f"{name}_{side}": {f"{name}_{side}": 1.0} for name in _SAME}
        parts |= {f"hand_{side}": palm, f"hand_tip_{side}": _sum((2, knuckles), (-1, palm))}
        parts[f"foot_{side}"] = {f"toe_{side}": 1.0}
    return np.array([[parts[joint].get(name, 0.0) for name in NAMES] for joint in JOINTS])


def kinect_body(metres: np.ndarray, places: np.ndarray, visible: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Joints (25, 3) as a Kinect gives them: x to the camera's left, y up, z away from it, the camera at 0."""
    body = kinect_matrix() @ (metres + distance(metres, places, visible, size))
    return body * [-1.0, -1.0, 1.0]


def distance(metres: np.ndarray, places: np.ndarray, visible: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Where the body is, (3,): moved so, its landmarks fall on their places in a picture of this height and width, by
    least squares over those that are visible."""
    high, wide = size
    rays = (places - [wide / 2, high / 2]) / (FOCAL * max(size))
    clear = visible >= SEEN
    clear = clear if clear.sum() >= 4 else np.ones_like(clear)
    weight = np.sqrt(visible[clear])[:, None]
    x, y, z = metres[clear].T
    u, v = rays[clear].T
    one, none = np.ones_like(u), np.zeros_like(u)
    left = np.concatenate([np.stack([one, none, -u], 1) * weight, np.stack([none, one, -v], 1) * weight])
    right = np.concatenate([(u * z - x) * weight[:, 0], (v * z - y) * weight[:, 0]])
    found = np.linalg.lstsq(left, right, rcond=None)[0]
    return np.array([found[0], found[1], max(found[2], 0.1)])  # nobody is behind the camera


def _sum(*terms: tuple[float, dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for factor, parts in terms:
        for name, share in parts.items():
            total[name] = total.get(name, 0.0) + factor * share
    return total
