"""Writers of the public formats of skeletons, and bodies to put into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def bodies(frames: int, seed: int = 0, joints: int = 25, lively: float = 0.1) -> np.ndarray:
    """A body (T, V, 3) about 3 metres from the camera."""
    rng = np.random.default_rng(seed)
    pose = rng.uniform(-0.8, 0.8, (joints, 3)) + np.array([0, 0, 3])
    return (pose + lively * rng.normal(size=(frames, joints, 3))).astype(np.float32)


def text(values: Any) -> str:
    return " ".join(f"{float(v):.9g}" for v in np.ravel(values))


def ntu(frames: Sequence[Mapping[str, np.ndarray]]) -> str:
    """A .skeleton file: what each frame shows, by the name of the body."""
    lines = [str(len(frames))]
    for frame in frames:
        lines.append(str(len(frame)))
        for body, joints in frame.items():
            lines += [f"{body} 0 1 1 1 1 0 0.02 -0.3 2", str(len(joints))]
            lines += [f"{text(joint)} 277.4 191.8 1036 519 0.2 0.01 0.9 -0.03 2" for joint in joints]
    return "\n".join(lines) + "\n"


def pku(frames: np.ndarray) -> str:
    """Rows of (T, 2, 25, 3)."""
    return "".join(f"{text(frame)}\n" for frame in frames)


def uestc(frames: np.ndarray) -> str:
    """Frames of (T, 25, 3), with places in the pictures that nobody wants."""
    lines = []
    for number, frame in enumerate(frames):
        lines.append(f"#{number}")
        for joint in frame:
            lines += [f"{text(joint)} 0", "960.5 540.25 0 1", "256.5 212.25 0 2"]
    return "\n".join(lines) + "\n"


def pku_set(root: Path, videos: Mapping[str, tuple[np.ndarray, str]], split: str = "") -> Path:
    """A folder with skeletons and labels of each video, and a split file if its text is given."""
    for folder in ("skeleton", "label"):
        (root / folder).mkdir(parents=True)
    for name, (frames, labels) in videos.items():
        (root / "skeleton" / f"{name}.txt").write_text(pku(frames))
        (root / "label" / f"{name}.txt").write_text(labels)
    if split:
        (root / "cross-subject.txt").write_text(split)
    return root


def arrays(subjects: Sequence[Any] = (1, 2, 3, 4), frames: int = 6, joints: Sequence[str] = (), **other: Any) -> dict:
    """What an .npz file of one sequence for each subject holds; two classes take turns."""
    n = len(subjects)
    joints = joints or [f"j{k}" for k in range(20)]
    found = {
        "data": np.concatenate([bodies(frames, seed, len(joints)) for seed in range(n)]),
        "lengths": np.full(n, frames),
        "labels": np.arange(n) % 2,
        "class_names": np.array(["run", "jump"]),
        "subjects": np.array(subjects),
        "names": np.array([f"s{k}" for k in range(n)]),
        "joint_names": np.array(joints),
    }
    return {**found, **other}


def npz(path: Path, content: Mapping[str, Any]) -> Path:
    np.savez(path, **{key: np.asarray(value) for key, value in content.items()})
    return path
