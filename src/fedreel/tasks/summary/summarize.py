"""Any video in, its summary out: scores by a trained model, shots by where the picture changes, the best that fit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from av.video.reformatter import VideoReformatter

from fedreel.config import make_recipe
from fedreel.core.job import make_method
from fedreel.core.server import GLOBAL
from fedreel.data.features import STEPS_AT_ONCE, Features, checked, make_features, same_features
from fedreel.data.shards import spaced
from fedreel.errors import DataError, FedreelError, RecipeError, RunError
from fedreel.kernels.dtw import dtw
from fedreel.kernels.knapsack import knapsack
from fedreel.kernels.kts import frame_segments, kts
from fedreel.machine.device import pick_device
from fedreel.machine.files import write_atomic
from fedreel.media.cut import cut
from fedreel.media.frames import Film, Span, Tell, Timeline, some
from fedreel.media.video import rgb
from fedreel.runs.run import Loaded, load
from fedreel.tasks.summary.metrics import RATIO, shot_scores
from fedreel.tasks.summary.page import Thumbnails, write_storyboard
from fedreel.tasks.summary.task import Summary as SummaryTask
from fedreel.tasks.use.checks import check_places, check_task

AUTO = "auto"
BLOCK = 2048  # steps that are scored and segmented at a time: what both need grows with the square of it
CELLS = 200_000_000  # of the knapsack's table, a byte each
SUFFIXES = (".mp4", ".m4v", ".mov")


@dataclass(frozen=True)
class Shot:
    """A stretch of the video: first and last frame, seconds from the video's beginning, mean score."""

    first: int
    last: int
    start: float
    end: float
    score: float
    chosen: bool


@dataclass(frozen=True)
class Summary:
    """What was found of a video, and which shots of it make the summary."""

    video: Path
    run: Path
    community: str  # the model that gave the scores; `global` is everybody's
    features: str
    ratio: float
    fps: float  # frames a second, on average
    n_frames: int
    picks: list[int]  # the middle frame of each step
    scores: list[float]  # of the steps
    shots: list[Shot]
    notes: list[str]  # what a user should know

    @property
    def chosen(self) -> list[Shot]:
        return [shot for shot in self.shots if shot.chosen]

    @property
    def spans(self) -> list[Span]:
        """First and last frames of the chosen shots."""
        return [(shot.first, shot.last) for shot in self.chosen]

    @property
    def seconds(self) -> float:
        """How long the summary is."""
        return sum(shot.end - shot.start for shot in self.chosen)

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values; `chosen` are the numbers of the chosen shots."""
        shots = [asdict(shot) for shot in self.shots]
        numbers = [i for i, shot in enumerate(self.shots) if shot.chosen]
        return {**vars(self), "video": str(self.video), "run": str(self.run), "shots": shots, "chosen": numbers}


def summarize(
    video: Path | str,
    run: Path | str,
    out: Path | str | None = None,
    storyboard: Path | str | None = None,
    ratio: float = RATIO,
    community: str = AUTO,
    device: str = "cpu",
    *,
    scores: Path | str | None = None,
    features: Features | None = None,
    tell: Tell | None = None,
) -> Summary:
    """Choose the shots of a video that a run's model finds most important, as many as `ratio` of its frames can hold.

    `out` gets them as an mp4, `storyboard` as a page, `scores` everything as JSON. `community` is the name of one, of
    a client whose community it shall be, `global`, or `auto`: the community whose videos are as far from the run's
    public video as this one is. `features` are needed only for models whose features cannot be made from their name.
    """
    video, run = Path(video), Path(run)
    _check(video, ratio, {"the summary": out, "the storyboard": storyboard, "the file of scores": scores})
    loaded = _load(run, GLOBAL, device)
    wanted = loaded.card.get("communities", {}).get(community, community)
    if wanted not in (AUTO, GLOBAL):
        loaded = _load(run, wanted, device)
    maker, card = _features(loaded.card, features), loaded.card["input"]["features"]
    steps = look(video, maker, float(card["fps"]), tell)
    notes = [f"{steps.line.fault}; the summary is of what comes before"] if steps.line.fault else []
    if card.get("standardised"):
        steps = steps._replace(rows=_standardised(steps.rows))
        notes.append("the model wants standardised features; they were standardised over this video alone")
    if wanted == AUTO:
        wanted, note = _nearest_community(loaded, steps.rows)
        loaded = loaded if wanted == GLOBAL else _load(run, wanted, device)
        notes += note
    importance = _scores(loaded, steps.rows, pick_device(device))
    shots, more = choose(importance, steps, ratio)
    summary = Summary(
        video, run, wanted, maker.name, ratio, steps.line.fps, steps.line.n_frames,
        steps.picks.tolist(), importance.tolist(), shots, notes + more,
    )  # fmt: skip
    _write(summary, steps.line, out, storyboard, tell)
    if scores is not None:
        Path(scores).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(Path(scores), json.dumps(summary.as_json(), indent=1) + "\n")
    return summary


class Steps(NamedTuple):
    """Features (steps, width) of a video, the frame at which each step starts, and when frames are shown."""

    rows: np.ndarray
    starts: np.ndarray
    line: Timeline

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts, append=self.line.n_frames)

    @property
    def picks(self) -> np.ndarray:
        return self.starts + self.lengths // 2


def choose(scores: np.ndarray, steps: Steps, ratio: float) -> tuple[list[Shot], list[str]]:
    """All shots of a video, those of the summary marked, and what there is to note."""
    n_frames, notes = steps.line.n_frames, []
    room = math.floor(ratio * n_frames + 1e-9)  # .29 of 100 frames are 29, though .29 * 100 < 29
    if room == 0:
        room = 1
        notes.append(f"{ratio:.0%} of {n_frames} frames are less than one; the summary is one frame")
    if len(steps.rows) > BLOCK:
        notes.append(f"the video is long: it was scored in parts of up to {BLOCK} steps")
    found = _segments(steps)
    segments = np.concatenate([_parts(first, last, room) for first, last in found.tolist()])
    if len(segments) > len(found):
        notes.append(
            f"{sum(last - first >= room for first, last in found.tolist())} of {len(found)} shots were longer than "
            f"the whole summary may be, and were cut into equal parts"
        )
    values = shot_scores(np.repeat(scores, steps.lengths), segments)
    kept = {*_best(values, segments[:, 1] - segments[:, 0] + 1, room)}
    shots = [
        Shot(first, last, steps.line.seconds(first), steps.line.seconds(last + 1), float(value), i in kept)
        for i, ((first, last), value) in enumerate(zip(segments.tolist(), values))
    ]
    return shots, notes


def _check(video: Path, ratio: float, places: dict[str, Path | str | None]) -> None:
    """Nothing is begun that could not be finished."""
    if not 0 < ratio <= 1:
        raise RecipeError("the ratio of a summary is out of range", expected="more than 0, up to 1", found=str(ratio))
    summary = places.get("the summary")
    if summary is not None and Path(summary).suffix.lower() not in SUFFIXES and not Path(summary).is_dir():
        expected = f"a name that ends with {', '.join(SUFFIXES)}"
        raise DataError("a summary is written as mp4", where=str(summary), expected=expected)
    check_places(video, "video", places)


def _load(run: Path, model: str, device: str) -> Loaded:
    loaded = load(run, model=model, device=str(pick_device(device)))
    check_task(loaded, SummaryTask, "summary", "summarise videos", run)
    return loaded


def _features(card: dict[str, Any], given: Features | None) -> Features:
    """What makes the features that the model was trained on."""
    wanted = card["input"]["features"]
    try:
        found = given or make_features(card["recipe"]["task"].get("features", wanted["name"]))
    except FedreelError as error:
        raise RunError(
            "the features that the model was trained on cannot be made here",
            expected=f"{wanted['name']}, {wanted['width']} numbers a step",
            found=" ".join(text for text in (error.problem, error.found) if text),
            hint=error.hint or "fedreel.tasks.summary.summarize.summarize takes features of your own: features=",
        ) from error
    own = found.card()
    if not same_features(wanted, own):
        differ = [k for k in own if wanted.get(k) not in ("", None, own[k]) and own[k] not in ("", None)]
        raise RunError(
            "the features are not those that the model was trained on",
            expected=", ".join(f"{key} {wanted[key]}" for key in differ),
            found=", ".join(f"{key} {own[key]}" for key in differ),
            hint="the same package, or the same run, must make the features as in training",
        )
    return found


def look(video: Path, features: Features, fps: float, tell: Tell | None) -> Steps:
    """The one pass over all frames: features at `fps` steps a second, as `video_features` makes them. Steps go by the
    times of frames, so that a second is a second in videos of variable frame rate too."""
    film, scaler = Film(video, tell), VideoReformatter()
    rows: list[np.ndarray] = []
    window: list[np.ndarray] = []
    windows: list[np.ndarray] = []
    starts, count, end = [0], 1, 0
    for number, frame in enumerate(film):
        length = max(film.fps / fps, 1.0)  # of a step, in frames
        place = math.floor(film.time * film.fps + 0.1)  # stamps in milliseconds may come a little early
        if number and place >= end:
            windows.append(_seen(window, features))
            starts.append(number)
            window = []
        while place >= end:
            end, count = round(count * length), count + 1
        window.append(rgb(frame, features.size, scaler))
        if len(windows) == STEPS_AT_ONCE:
            rows.append(checked(features, windows, video))
            windows = []
    rows.append(checked(features, [*windows, _seen(window, features)], video))
    return Steps(np.concatenate(rows), np.array(starts, np.int64), film.timeline)


def _seen(window: list[np.ndarray], features: Features) -> np.ndarray:
    return np.stack([window[i] for i in spaced(len(window), features.frames)])


def _standardised(rows: np.ndarray) -> np.ndarray:
    deviation = rows.std(axis=0, dtype=np.float64)
    return ((rows - rows.mean(axis=0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)).astype(np.float32)


def _nearest_community(loaded: Loaded, rows: np.ndarray) -> tuple[str, list[str]]:
    """As a newcomer finds its community (see methods/cfedvs.py), and a note where it cannot be found."""
    card = loaded.card
    if not card.get("communities"):
        return GLOBAL, []
    means = {name: d for name, d in card.get("distances", {}).items() if name in card["models"]}
    try:
        if not means:
            raise RunError("the run did not keep how far its communities are from public video")
        recipe = make_recipe(card["recipe"], "card.json")
        method: Any = make_method(recipe)
        public: Any = loaded.task.public(recipe.data, recipe.data.seed)
        if public is None:
            raise RunError("there is no public video")
        proxy = public.sequences[0].cpu().numpy()
        distance = dtw(rows, proxy, cost=method.cost, normalize=method.normalize)
    except FedreelError as error:
        why = " ".join(text for text in (error.problem, error.where) if text)
        known = ", ".join(sorted({*card["models"]} - {GLOBAL}))
        return GLOBAL, [f"the model `global` was taken, since no community could be found: {why}. There are: {known}"]
    return min(means, key=lambda name: abs(means[name] - distance)), []


def _scores(loaded: Loaded, rows: np.ndarray, device: torch.device) -> np.ndarray:
    found = []
    for part in _blocks(len(rows)):
        x = torch.from_numpy(rows[part])[None].to(device)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=device)
        with torch.inference_mode():
            found.append(loaded.task.forward(loaded.model, (x, mask)).logits[0].double().cpu().numpy())
    return np.concatenate(found)


def _blocks(steps: int) -> list[slice]:
    bounds = np.linspace(0, steps, math.ceil(steps / BLOCK) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(bounds)]


def _segments(steps: Steps) -> np.ndarray:
    """Shots (n, 2), first and last frames."""
    starts: list[int] = []
    for part in _blocks(len(steps.rows)):
        rows = steps.rows[part]
        starts += [part.start, *(part.start + kts(rows, (len(rows) - 1) // 2)).tolist()]
    return frame_segments(starts[1:], steps.starts, steps.line.n_frames)


def _parts(first: int, last: int, most: int) -> np.ndarray:
    """A stretch as equal parts of at most so many frames."""
    count = math.ceil((last + 1 - first) / most)
    bounds = first + (last + 1 - first) * np.arange(count + 1) // count
    return np.stack([bounds[:-1], bounds[1:] - 1], axis=1)


def _best(values: np.ndarray, lengths: np.ndarray, room: int) -> list[int]:
    """Which shots to keep. In very long videos lengths are counted in units of several frames, rounded up."""
    if lengths.sum() <= room:
        return list(range(len(values)))
    unit = math.ceil(len(values) * room / CELLS)
    chosen = knapsack(values, -(-lengths // unit), room // unit).tolist()
    fitting = np.flatnonzero(lengths <= room)
    return chosen or [int(fitting[np.argmax(values[fitting])])]  # scores of 0 add nothing, but a summary is wanted


def _write(
    summary: Summary, line: Timeline, out: Path | str | None, storyboard: Path | str | None, tell: Tell | None
) -> None:
    thumbnails = Thumbnails({(shot.first + shot.last) // 2 for shot in summary.chosen}, line)
    middles: Sequence[Span] = [(number, number) for number in sorted(thumbnails.wanted)]
    if out is not None:
        written = cut(
            summary.video, summary.spans, Path(out), timeline=line, watch=thumbnails if storyboard else None, tell=tell
        )
        lost = sum(last - first + 1 for first, last in summary.spans) - written
        if lost:
            summary.notes.append(f"{lost} frames could not be decoded a second time and are missing")
    elif storyboard is not None:
        for number, frame in some(summary.video, line, middles):
            thumbnails(number, frame)
    if storyboard is not None:
        write_storyboard(Path(storyboard), summary, line, thumbnails.pictures, None if out is None else Path(out))
