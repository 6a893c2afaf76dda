"""The part `moments`: long videos of one sprite after another, with sentences that fit one of them only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedreel.media import video
from fedreel.playground import motion
from fedreel.playground.actions import dress
from fedreel.playground.draw import paint
from fedreel.playground.scenes import SCENES, Camera, develop, film, scene, seen, shaken
from fedreel.playground.sizes import Size, owner_name, stream
from fedreel.playground.work import Jobs, write_csv

SIDE, FPS = 64, 8
RADIUS = (9.0, 15.0)
QUERIES = 2  # moments asked for in a video, each in two different sentences
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart")
ACTIONS = motion.ACTIONS
TEXTURES = ("half", "spot", "wedge")
HABITS = {"early": (1.2, 5.0), "middle": (14.0, 14.0), "late": (5.0, 1.2), "anywhere": (1.0, 1.0)}  # beta distributions
WORDS: dict[str, tuple[str, ...]] = {
    "purple": ("purple", "violet"),
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "cross": ("cross", "plus"),
    "moves left": ("moves to the left", "slides left", "travels to the left"),
    "moves right": ("moves to the right", "slides right", "travels to the right"),
    "moves up": ("moves up", "rises", "travels upwards"),
    "moves down": ("moves down", "sinks", "travels downwards"),
    "turns clockwise": ("turns clockwise", "spins clockwise"),
    "turns counterclockwise": ("turns counterclockwise", "spins counterclockwise"),
    "grows": ("grows", "gets larger"),
    "shrinks": ("shrinks", "gets smaller"),
    "bursts": ("bursts", "breaks apart"),
    "zigzags": ("zigzags", "swings from side to side"),
}


@dataclass(frozen=True)
class Segment:
    """A stretch of the video, in frames, with the sprite in it and the sentences that ask for it, if any."""

    start: int
    end: int
    colour: str
    shape: str
    action: str
    sentences: tuple[str, ...]

    @property
    def triple(self) -> tuple[str, str, str]:
        return self.colour, self.shape, self.action


@dataclass(frozen=True)
class Video:
    """All that is decided about one video before it is drawn."""

    id: str
    owner: str
    scene: str
    habit: str
    split: str
    segments: tuple[Segment, ...]

    @property
    def length(self) -> int:
        return self.segments[-1].end


def write(jobs: Jobs) -> dict[str, int]:
    """Write OWNER/NAME.mp4, annotations.txt and videos.csv; returns the counts."""
    total = jobs.size.moment_owners * jobs.size.moment_videos
    videos = [plan(jobs.seed, jobs.size, number) for number in range(total)]
    jobs.run(total)
    asked = [(v.id, s, text) for v in videos for s in v.segments for text in s.sentences]
    lines = [f"{name} {s.start / FPS:.1f} {s.end / FPS:.1f}##{text}\n" for name, s, text in asked]
    (jobs.out / "annotations.txt").write_text("".join(lines), encoding="utf-8")
    rows = [(v.id, v.owner, v.scene, f"{v.length / FPS:.1f}", v.split) for v in videos]
    write_csv(jobs.out / "videos.csv", ("id", "owner", "scene", "length", "split"), rows)
    return {"videos": total, "owners": jobs.size.moment_owners, "sentences": len(lines)}


def job(out: Path, seed: int, size: Size, number: int) -> None:
    """Draw and encode one video."""
    film = plan(seed, size, number)
    video.write(out / film.owner / f"{film.id}.mp4", render(seed, size, number), FPS)


def plan(seed: int, size: Size, number: int) -> Video:
    """The video with this number.

    One sprite is the first answer. Three others share two of (colour, shape, action) with it, one of them asked for as
    well; the rest share at most one. The answers lie where the owner's habit puts them.
    """
    whose, nth = divmod(number, size.moment_videos)
    rng = stream(seed, "moments", "plan", number)
    habit = list(HABITS)[whose % len(HABITS)]
    triples = _triples(int(rng.integers(3, 6)), rng)
    order = _order(len(triples), rng.beta(*HABITS[habit]), rng)
    lengths = 4 * rng.integers(5, 15, len(triples))  # 2.5 to 7 s in steps of half a second
    ends = np.cumsum(lengths)
    segments = tuple(
        Segment(
            int(end - length), int(end), *triples[which], _sentences(triples[which], rng) if which < QUERIES else ()
        )
        for which, length, end in zip(order, lengths, ends)
    )
    test = stream(seed, "moments", "split", whose).permutation(size.moment_videos)[: max(1, size.moment_videos // 4)]
    scene_name = SCENES[(whose + int(stream(seed, "moments", "scenes").integers(len(SCENES)))) % len(SCENES)]
    return Video(
        id=f"M{whose + 1:02d}{nth:03d}",
        owner=owner_name(whose),
        scene=scene_name,
        habit=habit,
        split="test" if nth in test else "train",
        segments=segments,
    )


def render(seed: int, size: Size, number: int) -> np.ndarray:
    """The video's frames (T, 64, 64, 3), uint8."""
    plot, rng = plan(seed, size, number), stream(seed, "moments", "frames", number)
    taste = stream(seed, "moments", "camera", number // size.moment_videos)
    camera = Camera(
        taste.uniform(0, 0.4), taste.uniform(0.9, 1.1), taste.uniform(-12, 12), 1.0, taste.uniform(0.85, 1.0)
    )
    offset = shaken(plot.length, camera, rng)
    frames = film(scene(plot.scene, SIDE, rng), offset)
    for segment in plot.segments:
        stretch = slice(segment.start, segment.end)
        seconds = np.arange(segment.end - segment.start) / FPS
        track = motion.track(segment.action, seconds, SIDE, RADIUS, motion.pace(rng), motion.phases(rng), rng)
        look = dress(segment.shape, str(rng.choice(TEXTURES)), segment.colour, rng)
        paint(frames[stretch], look, seen(track, camera, offset[:, stretch]))
    return develop(frames, camera, rng)


def _triples(fillers: int, rng: np.random.Generator) -> list[tuple[str, str, str]]:
    """The first answer, its three neighbours in random order (the first is the second answer), then the fillers."""
    kinds: tuple[Sequence[str], ...] = (COLOURS, SHAPES, ACTIONS)
    first = [str(rng.choice(kind)) for kind in kinds]
    near = []
    for place in rng.permutation(3):
        other = list(first)
        other[place] = str(rng.choice([word for word in kinds[place] if word != first[place]]))
        near.append(other)
    triples = [tuple(first), *map(tuple, near)]
    while len(triples) < 4 + fillers:
        new = tuple(str(rng.choice(kind)) for kind in kinds)
        if new not in triples and sum(a == b for a, b in zip(new, first)) <= 1:
            triples.append(new)
    return triples  # type: ignore[return-value]


def _order(count: int, where: float, rng: np.random.Generator) -> list[int]:
    """A random order in which the answers (0 and 1) come one after the other, at the share `where` of the video."""
    rest = [int(which) for which in rng.permutation(np.arange(QUERIES, count))]
    at = round(where * len(rest))
    return [*rest[:at], *(int(which) for which in rng.permutation(QUERIES)), *rest[at:]]


def _sentences(triple: tuple[str, str, str], rng: np.random.Generator) -> tuple[str, ...]:
    """Two different sentences that say the same."""
    said: list[str] = []
    while len(said) < 2:
        colour, shape, action = (str(rng.choice(WORDS.get(word, (word,)))) for word in triple)
        article = str(rng.choice(["the", "an" if colour[0] in "aeiou" else "a"]))
        text = f"{article} {colour} {shape} {action}."
        if text not in said:
            said.append(text)
    return tuple(said)
