"""The part `actions`: short clips in which the class is the motion and never the look."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedreel.media import video
from fedreel.playground import motion
from fedreel.playground.draw import COLOURS, Look, paint, shade
from fedreel.playground.scenes import SCENES, Camera, develop, film, scene, seen, shaken
from fedreel.playground.sizes import Size, owner_name, stream
from fedreel.playground.work import Jobs, write_csv

CLASSES = motion.ACTIONS[:8]
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
TEXTURES = ("half", "stripes", "spot", "wedge")  # none looks the same at every angle, so turning always shows
SIDE, FRAMES, FPS = 64, 24, 12
RADIUS = (7.0, 15.0)
SPRITES = (2, 4)  # fewest and most in a clip; all do the same


@dataclass(frozen=True)
class Owner:
    """An owner's taste: its places, colours and camera, and how often it films each class."""

    name: str
    scenes: tuple[str, ...]
    colours: tuple[str, ...]
    camera: Camera
    labels: tuple[int, ...]  # of all its clips, the test clips first


@dataclass(frozen=True)
class Clip:
    """All that is decided about one clip before it is drawn."""

    path: str
    owner: str
    split: str
    label: int
    scene: str
    looks: tuple[tuple[str, str, str], ...]  # shape, texture and colour of every sprite
    pace: float


def write(jobs: Jobs) -> dict[str, int]:
    """Write OWNER/NAME.mp4 and index.csv; returns the counts."""
    seed, size = jobs.seed, jobs.size
    total = size.action_owners * (size.action_train + size.action_test)
    clips = [plan(seed, size, number) for number in range(total)]
    jobs.run(total)
    rows = [(clip.path, CLASSES[clip.label], clip.owner, clip.split) for clip in clips]
    write_csv(jobs.out / "index.csv", ("path", "label", "owner", "split"), rows)
    return {"clips": total, "owners": size.action_owners, "classes": len(CLASSES)}


def job(out: Path, seed: int, size: Size, number: int) -> None:
    """Draw and encode one clip."""
    video.write(out / plan(seed, size, number).path, render(seed, size, number), FPS)


def plan(seed: int, size: Size, number: int) -> Clip:
    """The clip with this number; its look and speed are drawn without regard to its label."""
    whose, nth = divmod(number, size.action_train + size.action_test)
    who, rng = owner(seed, size, whose), stream(seed, "actions", "look", number)
    return Clip(
        path=f"{who.name}/{nth:03d}.mp4",
        owner=who.name,
        split="test" if nth < size.action_test else "train",
        label=who.labels[nth],
        scene=str(rng.choice(who.scenes)),
        looks=tuple(_look(who, rng) for _ in range(rng.integers(*SPRITES, endpoint=True))),
        pace=motion.pace(rng),
    )


@functools.lru_cache
def owner(seed: int, size: Size, number: int) -> Owner:
    """The owner with this number: train clips in its own class mix above a floor, test clips of every class alike."""
    rng = stream(seed, "actions", "owner", number)
    first = int(rng.integers(len(SCENES)))
    camera = Camera(
        shake=rng.uniform(0, 0.7),
        zoom=rng.uniform(0.9, 1.1),
        brightness=rng.uniform(-18, 18),
        flicker=rng.uniform(0, 3),
        contrast=rng.uniform(0.8, 1.05),
    )
    floor = min(3, size.action_train // len(CLASSES))
    mix = rng.dirichlet([1.5] * len(CLASSES))
    drawn = rng.multinomial(size.action_train - floor * len(CLASSES), mix) + floor
    train = rng.permutation(np.repeat(np.arange(len(CLASSES)), drawn))
    test = rng.permutation(np.arange(size.action_test) % len(CLASSES))
    return Owner(
        name=owner_name(number),
        scenes=(SCENES[number % len(SCENES)], SCENES[(number + 1 + first % (len(SCENES) - 1)) % len(SCENES)]),
        colours=tuple(str(c) for c in rng.choice(list(COLOURS), 4, replace=False)),
        camera=camera,
        labels=tuple(int(label) for label in np.concatenate([test, train])),
    )


def render(seed: int, size: Size, number: int) -> np.ndarray:
    """The clip's frames (24, 64, 64, 3), uint8."""
    clip, who = plan(seed, size, number), owner(seed, size, number // (size.action_train + size.action_test))
    rng = stream(seed, "actions", "frames", number)
    offset = shaken(FRAMES, who.camera, rng)
    frames = film(scene(clip.scene, SIDE, rng), offset)
    action, seconds, phases = CLASSES[clip.label], motion.slowing(FRAMES, FPS), motion.phases(rng)
    for shape, texture, colour in clip.looks:
        track = motion.track(action, seconds, SIDE, RADIUS, clip.pace, phases, rng)
        paint(frames, dress(shape, texture, colour, rng), seen(track, who.camera, offset))
    return develop(frames, who.camera, rng)


def dress(shape: str, texture: str, colour: str, rng: np.random.Generator) -> Look:
    """The look with its colour a little off the name's, and a lighter or darker second colour."""
    r, g, b = (float(c) for c in np.clip(np.array(COLOURS[colour]) + rng.normal(0, 8, 3), 0, 255))
    return Look(shape, texture, (r, g, b), shade((r, g, b), float(rng.choice([0.72, -0.5]))))


def _look(who: Owner, rng: np.random.Generator) -> tuple[str, str, str]:
    return str(rng.choice(SHAPES)), str(rng.choice(TEXTURES)), str(rng.choice(who.colours))
