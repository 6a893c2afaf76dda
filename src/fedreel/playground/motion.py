"""What sprites do: tracks on a picture without edges, made so that no single frame tells the motion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SLOW, FAST = 0.22, 0.5  # sides per second of travel; the other motions are scaled to look as fast
FRICTION = 0.5  # share of its speed a sprite loses in a clip: time has an arrow in every class
WHOLE = 0.5  # share of a burst's cycle in which the sprite is still in one piece
ACTIONS = (
    "moves left",
    "moves right",
    "moves up",
    "moves down",
    "turns clockwise",
    "turns counterclockwise",
    "grows",
    "bursts",
    "shrinks",
    "zigzags",
)
_MOVES = {"moves left": (-1, 0), "moves right": (1, 0), "moves up": (0, -1), "moves down": (0, 1)}
_TURNS = {"turns clockwise": 1, "turns counterclockwise": -1}


@dataclass(frozen=True)
class Track:
    """Where a sprite is in every frame: centre and radius in pixels, angle in radians, how far its pieces are apart."""

    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    angle: np.ndarray
    apart: np.ndarray


def track(
    action: str,
    seconds: np.ndarray,
    side: int,
    radius: tuple[float, float],
    pace: float,
    phases: tuple[float, float],
    rng: np.random.Generator,
) -> Track:
    """A track of the action at `pace` sides per second; size and brokenness start at `phases`, the rest is drawn.

    Everything runs round in circles, so with uniform phases every frame has the same distribution in every action:
    position and angle uniform, log radius uniform, brokenness as along a burst's cycle.
    """
    x, y, turned, slant = rng.random(4)
    way, still = pace * seconds, np.zeros_like(seconds)
    place = np.array([x + still, y + still])
    angle, size, broken = turned + still, phases[0] + still, phases[1] + still
    if action in _MOVES:
        tilt = 0.3 * (slant - 0.5)
        turn = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
        place = place + (turn @ np.array(_MOVES[action]))[:, None] * way
    elif action in _TURNS:
        angle = angle + _TURNS[action] * 1.6 * way
    elif action == "grows":
        size = size + 1.9 * way
    elif action == "shrinks":
        size = size - 1.9 * way
    elif action == "bursts":
        broken = broken + 2.2 * way
    elif action == "zigzags":
        beat = 2.2 * way + slant
        place = place + np.array([0.24 * (4 * np.abs(np.mod(beat, 1) - 0.5) - 1), 0.35 * way])
    else:
        raise ValueError(f"no action {action!r}")
    low, high = radius
    return Track(
        x=np.mod(place[0], 1) * side,
        y=np.mod(place[1], 1) * side,
        radius=low * (high / low) ** np.mod(size, 1),
        angle=2 * np.pi * angle,
        apart=0.55 * np.clip((np.mod(broken, 1) - WHOLE) / (1 - WHOLE), 0, 1),
    )


def phases(rng: np.random.Generator) -> tuple[float, float]:
    """Where size and brokenness start: anywhere."""
    size, broken = rng.random(2)
    return float(size), float(broken)


def slowing(frames: int, fps: int) -> np.ndarray:
    """Seconds of travel at every frame when speed falls linearly by FRICTION over the clip, the mean speed kept."""
    time, end = np.arange(frames) / fps, frames / fps
    return time * (1 - FRICTION / 2 * time / end) / (1 - FRICTION / 2)


def pace(rng: np.random.Generator) -> float:
    """A speed between SLOW and FAST, log-uniform."""
    return float(np.exp(rng.uniform(np.log(SLOW), np.log(FAST))))
