"""How much of the world is made: one frozen record per size, and the random streams everything is drawn from."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

VERSION = 5  # raised whenever the same seed would give other bytes or labels


@dataclass(frozen=True)
class Size:
    """The counts that make up a world; `small` is made and learned in minutes, `tiny` is enough to see that a job runs,
    `medium` is several times as much as `small`."""

    name: str
    action_owners: int
    action_train: int  # clips per owner, in the owner's own class mix
    action_test: int  # clips per owner, the same number of every class
    moment_owners: int
    moment_videos: int  # per owner
    summary_owners: int
    summary_videos: int  # per owner
    skeleton_unit: int  # sequences of the smallest owner; the others have 2, 3.5, 8 and 12 times as many
    image_owners: int
    image_shapes: int
    image_textures: int
    image_train: int  # per owner, in the owner's own class mix
    image_test: int  # per owner and class
    image_server: int


SMALL = Size(
    name="small",
    action_owners=8,
    action_train=50,
    action_test=16,
    moment_owners=8,
    moment_videos=12,
    summary_owners=9,
    summary_videos=6,
    skeleton_unit=24,
    image_owners=10,
    image_shapes=4,
    image_textures=2,
    image_train=240,
    image_test=3,
    image_server=1500,
)

TINY = Size(
    name="tiny",
    action_owners=3,
    action_train=16,
    action_test=8,
    moment_owners=3,
    moment_videos=4,
    summary_owners=3,
    summary_videos=3,
    skeleton_unit=8,
    image_owners=3,
    image_shapes=4,
    image_textures=2,
    image_train=48,
    image_test=2,
    image_server=96,
)

MEDIUM = Size(
    name="medium",
    action_owners=14,
    action_train=120,
    action_test=40,
    moment_owners=12,
    moment_videos=32,
    summary_owners=12,
    summary_videos=12,
    skeleton_unit=60,
    image_owners=10,
    image_shapes=6,
    image_textures=5,
    image_train=400,
    image_test=4,
    image_server=6000,
)

DEMO = replace(SMALL, name="demo", moment_videos=20)  # fewer videos are learned by heart, more take minutes to draw

SIZES = {size.name: size for size in (TINY, SMALL, MEDIUM, DEMO)}


def stream(seed: int, *key: int | str) -> np.random.Generator:
    """The random stream of one thing in the world: a function of the seed and the thing's name alone."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.default_rng([seed, *words])


def owner_name(owner: int) -> str:
    """The folder name of an owner."""
    return f"owner-{owner + 1:02d}"
