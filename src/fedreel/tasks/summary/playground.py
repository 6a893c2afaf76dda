"""The part `summary`: videos of many shots, scored by annotators whose communities care for different things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from fedreel.media import video
from fedreel.playground import motion
from fedreel.playground.actions import dress
from fedreel.playground.draw import COLOURS, paint
from fedreel.playground.scenes import Camera, develop, film, scene, seen, shaken
from fedreel.playground.sizes import Size, owner_name, stream
from fedreel.playground.work import Jobs

SIDE, FPS, STEP = 64, 8, 8  # one score per STEP frames
USERS = 8
BUDGET = 0.15  # share of the frames a summary may keep
SHAPES = ("circle", "square", "triangle", "star", "heart", "hexagon")
TEXTURES = ("half", "stripes", "spot", "solid")


@dataclass(frozen=True)
class Community:
    """What a group of owners films, for how long, and how much speed, warm colours and crowds matter to it."""

    name: str
    taste: tuple[float, float, float]
    scenes: tuple[str, ...]
    seconds: float  # median length of a video
    shot: float  # median length of a shot


COMMUNITIES = (
    Community("speed", (1.6, 0.0, 0.0), ("meadow", "sea", "snow"), 32.0, 2.5),
    Community("colour", (0.0, 1.6, 0.0), ("forest", "paper", "desert"), 52.0, 4.0),
    Community("crowd", (0.0, 0.0, 1.6), ("city", "night", "desert"), 80.0, 6.0),
)
WARM = ("red", "orange", "yellow")


@dataclass(frozen=True)
class Shot:
    """A stretch of the video, in frames (end not included), and the three things an annotator can care for."""

    start: int
    end: int
    scene: str
    speed: float
    colours: tuple[str, ...]

    @property
    def features(self) -> np.ndarray:
        """Speed, warmth and crowd, each about -1 to 1."""
        warm = sum(colour in WARM for colour in self.colours) / len(self.colours)
        return np.array([self.speed, 2 * warm - 1, (len(self.colours) - 3) / 2])


@dataclass(frozen=True)
class Video:
    """All that is decided about one video before it is drawn."""

    name: str
    owner: str
    community: Community
    category: str
    split: str
    shots: tuple[Shot, ...]

    @property
    def frames(self) -> int:
        return self.shots[-1].end


def write(jobs: Jobs) -> dict[str, int]:
    """Write OWNER/NAME.mp4 and annotations.h5; returns the counts."""
    total = jobs.size.summary_owners * jobs.size.summary_videos
    jobs.run(total)
    with h5py.File(jobs.out / "annotations.h5", "w", track_order=True) as file:
        for number in range(total):
            _annotate(file, plan(jobs.seed, jobs.size, number), jobs.seed, number)
    return {"videos": total, "owners": jobs.size.summary_owners, "communities": len(COMMUNITIES), "users": USERS}


def job(out: Path, seed: int, size: Size, number: int) -> None:
    """Draw and encode one video."""
    film = plan(seed, size, number)
    video.write(out / film.owner / f"{film.name}.mp4", render(seed, size, number), FPS)


def plan(seed: int, size: Size, number: int) -> Video:
    """The video with this number; owners belong to the communities in turn, lengths are log-normal."""
    whose, nth = divmod(number, size.summary_videos)
    community = COMMUNITIES[whose % len(COMMUNITIES)]
    habit = float(stream(seed, "summary", "owner", whose).normal(0, 0.15))  # some owners are long-winded
    rng = stream(seed, "summary", "plan", number)
    seconds = float(np.clip(community.seconds * np.exp(habit + rng.normal(0, 0.45)), 15, 240))
    category = str(rng.choice(community.scenes))
    shots: list[Shot] = []
    while not shots or shots[-1].end < seconds * FPS:
        start = shots[-1].end if shots else 0
        length = round(FPS * float(np.clip(community.shot * np.exp(rng.normal(0, 0.6)), 1, 20)))
        place = category if rng.random() < 0.7 else str(rng.choice(community.scenes))
        colours = rng.choice(list(COLOURS), int(rng.integers(1, 6)))
        if rng.random() < 0.3:
            colours = rng.choice(WARM, len(colours))
        shots.append(Shot(start, start + length, place, float(rng.uniform(-1, 1)), tuple(map(str, colours))))
    test = stream(seed, "summary", "split", whose).permutation(size.summary_videos)[: max(1, size.summary_videos // 5)]
    return Video(
        name=f"S{whose + 1:02d}{nth:03d}",
        owner=owner_name(whose),
        community=community,
        category=category,
        split="test" if nth in test else "train",
        shots=tuple(shots),
    )


def render(seed: int, size: Size, number: int) -> np.ndarray:
    """The video's frames (T, 64, 64, 3), uint8."""
    plot, rng = plan(seed, size, number), stream(seed, "summary", "frames", number)
    taste = stream(seed, "summary", "camera", number // size.summary_videos)
    camera = Camera(taste.uniform(0, 0.4), 1.0, taste.uniform(-12, 12), 1.0, taste.uniform(0.85, 1.0))
    parts = []
    for shot in plot.shots:
        count = shot.end - shot.start
        offset = shaken(count, camera, rng)
        frames = film(scene(shot.scene, SIDE, rng), offset)
        for colour in shot.colours:
            pace = 0.03 + 0.3 * (shot.speed + 1) * rng.uniform(0.8, 1.2)
            action = str(rng.choice(motion.ACTIONS))
            track = motion.track(action, np.arange(count) / FPS, SIDE, (5.0, 9.5), pace, motion.phases(rng), rng)
            look = dress(str(rng.choice(SHAPES)), str(rng.choice(TEXTURES)), colour, rng)
            paint(frames, look, seen(track, camera, offset))
        parts.append(frames)
    return develop(np.concatenate(parts), camera, rng)


def scores(plot: Video, seed: int, number: int) -> np.ndarray:
    """What the annotators say of every step, 1 to 5: the community's taste, each with an own taste, mood and noise."""
    steps = (np.arange(-(-plot.frames // STEP)) * STEP + STEP // 2).clip(max=plot.frames - 1)
    shot = np.searchsorted([s.end for s in plot.shots], steps, side="right")
    features = np.array([s.features for s in plot.shots])
    given = np.empty((USERS, len(steps)), np.uint8)
    for user in range(USERS):
        person = stream(seed, "summary", "user", plot.community.name, user)
        taste = np.array(plot.community.taste) + person.normal(0, 0.3, 3)
        mildness, noise = person.normal(0, 0.35), person.uniform(0.35, 0.8)
        rng = stream(seed, "summary", "scores", number, user)
        liking = features @ taste + rng.normal(0, noise, len(features))
        heard = 2.7 + mildness + liking[shot] + rng.normal(0, 0.25, len(steps))
        given[user] = np.clip(np.round(heard), 1, 5)
    return given


def _annotate(file: h5py.File, plot: Video, seed: int, number: int) -> None:
    from fedreel.kernels.knapsack import knapsack  # a compiler, which processes that only draw need not load

    user_scores = scores(plot, seed, number)
    n_steps = user_scores.shape[1]
    mean = user_scores.mean(axis=0)
    spread = float(np.ptp(mean))
    starts, ends = np.array([(s.start, s.end) for s in plot.shots]).T
    group = file.create_group(plot.name, track_order=True)
    group["user_scores"] = user_scores
    group["gtscore"] = ((mean - mean.min()) / (spread or 1.0)).astype(np.float32)
    group["picks"] = np.arange(n_steps, dtype=np.int32) * STEP  # where steps begin
    group["n_frames"], group["n_steps"], group["fps"] = plot.frames, n_steps, float(FPS)
    group["change_points"] = np.stack([starts, ends - 1], axis=1).astype(np.int32)
    group["n_frame_per_seg"] = (ends - starts).astype(np.int32)
    group["video_name"] = plot.name
    by_frame = user_scores[:, np.arange(plot.frames) // STEP].astype(np.float64)
    kept = np.zeros((USERS, plot.frames), np.uint8)
    for user, marks in enumerate(by_frame):
        values = np.array([marks[s.start : s.end].mean() for s in plot.shots])
        for which in knapsack(values, ends - starts, int(BUDGET * plot.frames)):
            kept[user, starts[which] : ends[which]] = 1
    group.create_dataset("user_summary", data=kept, compression="gzip", compression_opts=1)
    group.attrs.update(owner=plot.owner, community=plot.community.name, category=plot.category, split=plot.split)
