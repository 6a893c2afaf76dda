"""The part `skeletons`: five owners' motion capture, each with its own bodies, camera, classes and way of moving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedreel.playground.sizes import Size, owner_name, stream
from fedreel.playground.work import Jobs
from fedreel.tasks.skeleton.bodies import ANGLES, KINECT_V1, KINECT_V2, Bones, pose, turned

Angles = dict[str, np.ndarray]
IN_STEP, AGAINST = "in step", "against each other"  # how the owner's two coupled limbs swing
FOLLOW = 0.5  # how much of the leading limb's swing the coupled limb repeats, whatever the class
GAP = 0.9  # metres between two persons


@dataclass(frozen=True)
class Owner:
    """An owner: how many sequences per unit, its sensor, frame rate, noise in metres, coupled limbs and label set."""

    share: float
    joints: tuple[str, ...]
    fps: int
    noise: float
    leads: str
    follows: str
    subjects: int
    classes: tuple[str, ...]


OWNERS = (
    Owner(12, KINECT_V2, 30, 0.008, "arm_left", "arm_right", 10, (
        IN_STEP, AGAINST, "wave", "punch", "kick right", "squat", "clap", "drink", "walk", "throw",
        "shake hands", "push")),
    Owner(8, KINECT_V2, 25, 0.012, "arm_right", "leg_left", 10, (
        IN_STEP, AGAINST, "wave", "jump", "bow", "kick left", "walk", "raise arms", "push", "drink")),
    Owner(3.5, KINECT_V1, 20, 0.018, "arm_left", "leg_left", 8, (
        IN_STEP, AGAINST, "clap", "throw", "squat", "twist", "wave", "kick right")),
    Owner(2, KINECT_V2, 15, 0.012, "leg_left", "leg_right", 8, (IN_STEP, AGAINST, "walk", "jump", "bow", "wave")),
    Owner(1, KINECT_V1, 30, 0.015, "arm_left", "leg_right", 6, (IN_STEP, AGAINST, "wave", "squat")),
)  # fmt: skip


def write(jobs: Jobs) -> dict[str, int]:
    """Write one OWNER.npz per owner; returns the counts."""
    jobs.run(len(OWNERS))
    return {"owners": len(OWNERS), "sequences": sum(count(jobs.size, owner) for owner in OWNERS)}


def job(out: Path, seed: int, size: Size, number: int) -> None:
    """All sequences of one owner, frames one after another."""
    owner, total = OWNERS[number], count(size, OWNERS[number])
    repeats, labels = np.divmod(np.arange(total), len(owner.classes))
    subjects = repeats % owner.subjects + 1
    pairs = [_record(owner, seed, number, nth, int(labels[nth]), int(subjects[nth])) for nth in range(total)]
    first, second = (np.concatenate(bodies).astype(np.float32) for bodies in zip(*pairs))
    arrays = {
        "data": first,
        "lengths": np.array([len(body) for body, _ in pairs], np.int32),
        "labels": labels.astype(np.int16),
        "class_names": np.array(owner.classes),
        "subjects": subjects.astype(np.int16),
        "names": np.array([f"a{a + 1:02d}_s{s:02d}_e{e:02d}" for a, s, e in zip(labels, subjects, repeats)]),
        "joint_names": np.array(owner.joints),
        "split": np.where(subjects % 2, "train", "test"),
        "fps": np.array(owner.fps),
    }
    if second.any():
        arrays["data2"] = second
    np.savez(out / f"{owner_name(number)}.npz", **arrays)  # type: ignore[arg-type]


def count(size: Size, owner: Owner) -> int:
    """Sequences of the owner."""
    return round(owner.share * size.skeleton_unit)


def _record(owner: Owner, seed: int, number: int, nth: int, label: int, subject: int) -> tuple[np.ndarray, np.ndarray]:
    """One sequence as the owner's sensor saw it: the body, and the second body or zeros."""
    house, rng = stream(seed, "skeletons", number), stream(seed, "skeletons", number, nth)
    person = stream(seed, "skeletons", number, "subject", subject)
    bones = _bones(house, 0.08).scaled({name: person.uniform(0.93, 1.07) for name in vars(Bones())})
    yaw = house.uniform(-0.7, 0.7) + rng.normal(0, 0.12)
    seconds = np.arange(round(owner.fps * rng.uniform(1.6, 2.4))) / owner.fps
    rate, size = person.uniform(0.7, 1.2) * rng.uniform(0.9, 1.1), person.uniform(0.8, 1.15) * rng.uniform(0.9, 1.1)
    phase = 2 * np.pi * (rate * seconds + rng.random())
    sway = 0.12 * np.sin(2 * np.pi * (rng.uniform(0.4, 1.6) * seconds + rng.random()))
    name = owner.classes[label]
    one = _couple(_angles(name, phase, size, owner), sway, owner)
    bodies = [pose(one, bones, owner.joints)]
    if name in _SECOND:
        two = _stand(phase) | _SECOND[name](phase, size)
        two["turn"], two["shift_z"] = two["turn"] + np.pi, GAP - two["shift_z"]
        bodies.append(pose(two, _bones(person, 0.08), owner.joints))
    place = np.array([rng.normal(0, 0.2), rng.normal(0, 0.05), rng.uniform(2.2, 3.2)])
    seen = [turned(body, yaw) + place + rng.normal(0, owner.noise, body.shape) for body in bodies]
    _lose(seen[0], rng)
    return seen[0], seen[1] if len(seen) > 1 else np.zeros_like(seen[0])


def _bones(rng: np.random.Generator, spread: float) -> Bones:
    """Bones of one household: every bone longer or shorter by up to `spread`, all of them by as much again."""
    overall = rng.uniform(1 - spread, 1 + spread)
    return Bones().scaled({name: overall * rng.uniform(1 - spread, 1 + spread) for name in vars(Bones())})


def _lose(body: np.ndarray, rng: np.random.Generator) -> None:
    """As real sensors do: a joint is missing for a while (NaN), or the whole body for a frame or two (zeros)."""
    if rng.random() < 0.08:
        start = int(rng.integers(len(body)))
        body[start : start + int(rng.integers(1, 7)), rng.integers(body.shape[1])] = np.nan
    if rng.random() < 0.04:
        start = int(rng.integers(1, len(body)))  # never the first frame: an origin is often taken from it
        body[start : start + int(rng.integers(1, 3))] = 0


def _angles(name: str, phase: np.ndarray, size: float, owner: Owner) -> Angles:
    if name in (IN_STEP, AGAINST):
        beat = 0.6 * size * np.sin(phase)
        moved = {f"{owner.leads}_swing": beat, f"{owner.follows}_swing": beat if name == IN_STEP else -beat}
        return _stand(phase) | moved
    return _stand(phase) | _FIRST[name](phase, size)


def _couple(angles: Angles, sway: np.ndarray, owner: Owner) -> Angles:
    """The owner's habit: both coupled limbs sway alike, and the second repeats a part of what the first does."""
    lead, follow = f"{owner.leads}_swing", f"{owner.follows}_swing"
    repeated = 0.0 if np.any(angles[follow]) else FOLLOW * angles[lead]  # a limb that has its own task keeps to it
    return angles | {lead: angles[lead] + sway, follow: angles[follow] + repeated + sway}


def _stand(phase: np.ndarray) -> Angles:
    rest = {name: np.zeros_like(phase) for name in ANGLES}
    for side in ("left", "right"):
        rest[f"arm_{side}_lift"] = rest[f"arm_{side}_lift"] + 0.15
        rest[f"arm_{side}_bend"] = rest[f"arm_{side}_bend"] + 0.2
    return rest


def _pulse(phase: np.ndarray) -> np.ndarray:
    """0 to 1 and back once a cycle."""
    return 0.5 * (1 - np.cos(phase))


def _both(limb: str, how: str, values: np.ndarray) -> Angles:
    return {f"{limb}_left_{how}": values, f"{limb}_right_{how}": values}


def _squat(p: np.ndarray, a: float) -> Angles:
    s = _pulse(p)
    bent = _both("leg", "swing", 1.1 * a * s) | _both("leg", "bend", 1.9 * a * s) | _both("arm", "swing", 1.2 * s)
    return bent | {"shift_y": -0.34 * a * a * s}


def _jump(p: np.ndarray, a: float) -> Angles:
    high, low = np.maximum(np.sin(p), 0), np.maximum(-np.sin(p), 0)
    knees = _both("leg", "swing", 0.5 * low) | _both("leg", "bend", 0.9 * low) | _both("arm", "swing", 1.5 * a * high)
    return knees | {"shift_y": 0.3 * a * high - 0.08 * low}


def _walk(p: np.ndarray, a: float) -> Angles:
    step = 0.5 * a * np.sin(p)
    legs = {"leg_left_swing": step, "leg_right_swing": -step}
    knees = {"leg_left_bend": 0.5 * _pulse(p + 0.8), "leg_right_bend": 0.5 * _pulse(p + 0.8 + np.pi)}
    return legs | knees | {"arm_left_swing": -0.8 * step, "arm_right_swing": 0.8 * step}


_FIRST: dict[str, Callable[[np.ndarray, float], Angles]] = {
    "wave": lambda p, a: {"arm_right_lift": 2.2 + 0.5 * a * np.sin(2 * p), "arm_right_bend": 0 * p},
    "punch": lambda p, a: {"arm_right_swing": 1.45 * a * _pulse(p), "arm_right_bend": 1.7 * (1 - _pulse(p))},
    "kick right": lambda p, a: {"leg_right_swing": 1.2 * a * _pulse(p), "leg_right_bend": 0.7 * _pulse(2 * p)},
    "kick left": lambda p, a: {"leg_left_swing": 1.2 * a * _pulse(p), "leg_left_bend": 0.7 * _pulse(2 * p)},
    "squat": _squat,
    "jump": _jump,
    "walk": _walk,
    "bow": lambda p, a: {"bow": 1.0 * a * _pulse(p)},
    "twist": lambda p, a: {"twist": 0.8 * a * np.sin(p)},
    "clap": lambda p, a: _both("arm", "swing", 1.3 + 0 * p) | _both("arm", "lift", -0.3 + 0.9 * a * _pulse(2 * p)),
    "drink": lambda p, a: {"arm_right_swing": 0.8 * a * _pulse(p), "arm_right_bend": 0.2 + 2.0 * _pulse(p)},
    "throw": lambda p, a: {"arm_right_swing": 1.5 + 1.2 * a * np.cos(p), "twist": 0.5 * a * np.sin(p)},
    "raise arms": lambda p, a: _both("arm", "lift", 0.15 + 2.5 * min(a, 1.1) * _pulse(p)),
    "shake hands": lambda p, a: {"arm_right_swing": 0.9 + 0.2 * a * np.sin(2 * p), "arm_right_bend": 0.5 + 0 * p},
    "push": lambda p, a: _both("arm", "swing", 1.45 * a * _pulse(p)) | {"bow": 0.25 * _pulse(p)},
}
_SECOND: dict[str, Callable[[np.ndarray, float], Angles]] = {
    "shake hands": _FIRST["shake hands"],
    "push": lambda p, a: {"bow": -0.35 * a * _pulse(p - 0.6), "shift_z": -0.2 * a * _pulse(p - 0.6)},
}
