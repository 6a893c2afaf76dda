"""The part `images`: small pictures whose class is shape and texture; colour, place and background mean nothing."""

from __future__ import annotations

import functools
import itertools
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedreel.playground.actions import dress
from fedreel.playground.draw import COLOURS, SHAPES, TEXTURES, paint
from fedreel.playground.motion import Track
from fedreel.playground.scenes import MARGIN, SCENES, scene
from fedreel.playground.sizes import Size, owner_name, stream
from fedreel.playground.work import Jobs

SIDE = 32
BATCH = 100  # pictures drawn by one job


@dataclass(frozen=True)
class Picture:
    """All that is decided about one picture before it is drawn."""

    path: str
    shape: str
    texture: str
    colour: str
    scene: str


def write(jobs: Jobs) -> dict[str, int]:
    """Write clients/OWNER/{train,test}/CLASS/*.png and server/CLASS/*.png; returns the counts."""
    size = jobs.size
    total = _clients(size) + size.image_server
    jobs.run(-(-total // BATCH))
    return {
        "owners": size.image_owners,
        "classes": len(classes(size)),
        "client_images": _clients(size),
        "server_images": size.image_server,
    }


def job(out: Path, seed: int, size: Size, number: int) -> None:
    """Draw one batch of pictures."""
    total = _clients(size) + size.image_server
    for index in range(number * BATCH, min((number + 1) * BATCH, total)):
        what = plan(seed, size, index)
        path = out / what.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(render(what, seed, index)))


def classes(size: Size) -> list[tuple[str, str]]:
    """The clients' classes: the first shapes times the first textures."""
    return list(itertools.product(list(SHAPES)[: size.image_shapes], list(TEXTURES)[: size.image_textures]))


def plan(seed: int, size: Size, index: int) -> Picture:
    """The picture with this number: the clients' come first; the server's have any shape, texture, colour and place."""
    rng = stream(seed, "images", "look", index)
    if index >= _clients(size):
        shape, texture = str(rng.choice(list(SHAPES))), str(rng.choice(list(TEXTURES)))
        return Picture(
            path=f"server/{shape}-{texture}/{index - _clients(size):05d}.png",
            shape=shape,
            texture=texture,
            colour=str(rng.choice(list(COLOURS))),
            scene=str(rng.choice(SCENES)),
        )
    whose, nth = divmod(index, _per_owner(size))
    labels, colours, scenes = _owner(seed, size, whose)
    split = "test" if nth < size.image_test * len(classes(size)) else "train"
    shape, texture = classes(size)[labels[nth]]
    return Picture(
        path=f"clients/{owner_name(whose)}/{split}/{shape}-{texture}/{nth:04d}.png",
        shape=shape,
        texture=texture,
        colour=str(rng.choice(colours)),
        scene=str(rng.choice(scenes)),
    )


def render(what: Picture, seed: int, index: int) -> np.ndarray:
    """The picture (32, 32, 3), uint8."""
    rng = stream(seed, "images", "pixels", index)
    frame = scene(what.scene, SIDE, rng)[None, MARGIN:-MARGIN, MARGIN:-MARGIN]
    x, y = rng.uniform(13, 19, (2, 1))
    pose = Track(x, y, rng.uniform(9, 13, 1), rng.uniform(0, 2 * np.pi, 1), np.zeros(1))
    paint(frame, dress(what.shape, what.texture, what.colour, rng), pose)
    noisy = frame[0] * rng.uniform(0.75, 1.1) + rng.normal(0, 5, frame[0].shape)
    return np.clip(noisy + 0.5, 0, 255).astype(np.uint8)


def png(picture: np.ndarray) -> bytes:
    """The picture as a PNG file: true colour, 8 bits, no filter."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = picture.shape
    lines = np.pad(picture.reshape(height, width * 3), ((0, 0), (1, 0)))  # each line starts with its filter, 0
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _per_owner(size: Size) -> int:
    return size.image_train + size.image_test * len(classes(size))


def _clients(size: Size) -> int:
    return size.image_owners * _per_owner(size)


@functools.lru_cache
def _owner(seed: int, size: Size, whose: int) -> tuple[np.ndarray, list[str], list[str]]:
    """An owner's labels (test first: every class alike; then train: its own Dirichlet mix), colours and places."""
    rng, count = stream(seed, "images", "owner", whose), len(classes(size))
    test = np.repeat(np.arange(count), size.image_test)
    train = rng.choice(count, size.image_train, p=rng.dirichlet([0.5] * count))
    colours = rng.choice(list(COLOURS)[:6], 4, replace=False)
    scenes = rng.choice(SCENES[:6], 3, replace=False)
    return np.concatenate([test, train]), [str(c) for c in colours], [str(s) for s in scenes]
