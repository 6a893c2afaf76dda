"""Any video in, its summary out: scores by a trained model, shots by where the picture changes, the best that fit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fedreel.config import make_recipe
from fedreel.core.job import make_method
from fedreel.core.server import GLOBAL
from fedreel.data.features import Features
from fedreel.data.steps import VideoSteps, look
from fedreel.errors import DataError, FedreelError, RecipeError, RunError
from fedreel.kernels.dtw import dtw
from fedreel.kernels.knapsack import knapsack
from fedreel.kernels.kts import frame_segments, kts_by_variance
from fedreel.machine.device import pick_device
from fedreel.media.cut import cut
from fedreel.media.frames import Timeline
from fedreel.media.thumbnails import Thumbnails, thumbnails
from fedreel.metrics.familiarity import sequence_look
from fedreel.runs.run import Loaded, load
from fedreel.tasks.summary.cuts import CUTS, shot_finder
from fedreel.tasks.summary.metrics import shot_scores
from fedreel.tasks.summary.page import draw_page
from fedreel.tasks.summary.result import Shot, Summary
from fedreel.tasks.use.models import declared_verb, load_for, trained_features
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.trust import read_trust, unlike_note

AUTO = "auto"
BLOCK = 2048  # steps that are scored and segmented at a time: what both need grows with the square of it
CELLS = 200_000_000  # of the knapsack's table, a byte each
SUFFIXES = (".mp4", ".m4v", ".mov")
_WATCHABLE = 1.0  # seconds: a shorter summary is over before one sees it


def summarize_video(
    request: Request, ratio: float, community: str, features: Features | None, shots_by: str = CUTS
) -> Summary:
    """Choose the shots of a video that a run's model finds most important, as many as `ratio` of its frames can hold.

    `community` is the name of one, `global`, or `auto`: that of the client or, where none is named, the community whose
    videos are as far from the run's public video as this one is. `features` are needed only for models whose features
    cannot be made from their name. `shots_by` says how shots are found: as `cuts` between frames, by `kts` in the
    features, or by `transnet` in the frames.
    """
    places = Places.of(request, "the summary")
    _check(request, places, ratio, community)
    finder = shot_finder(shots_by, request.device)
    device = pick_device(request.device)
    loaded, client, community = _load(request, community, str(device))
    maker, card = trained_features(loaded.card, request.run, features), loaded.card["input"]["features"]
    steps = look(request.source, maker, float(card["fps"]), request.tell, finder)
    notes = [f"{steps.line.fault}; the summary is of what comes before"] if steps.line.fault else []
    if card.get("standardised"):
        steps = steps._replace(rows=_standardised(steps.rows))
        notes.append("the model wants standardised features; they were standardised over this video alone")
    if community == AUTO:
        community, reasons = _nearest_community(loaded, steps.rows)
        loaded = loaded if community == GLOBAL else load(request.run, model=community, device=str(device))
        notes += reasons
    importance = _scores(loaded, steps.rows, device)
    record = read_trust(request.run, loaded, client, community)
    trust = record.of(sequence_look(torch.from_numpy(steps.rows)[None]))
    shots, remarks = choose(importance, steps, ratio, finder.segments() if finder else None)
    summary = Summary(
        source=request.source,
        run=request.run,
        client=client,
        trust=trust,
        notes=[*request.notes, *record.notes, *unlike_note(trust, "this video"), *notes, *remarks],
        community=community,
        features=maker.name,
        shots_by=shots_by,
        ratio=ratio,
        fps=steps.line.fps,
        n_frames=steps.line.n_frames,
        picks=steps.picks.tolist(),
        scores=importance.tolist(),
        shots=shots,
    )
    return _write(summary, steps.line, places, request)


def choose(
    scores: np.ndarray, steps: VideoSteps, ratio: float, found: np.ndarray | None = None
) -> tuple[list[Shot], list[str]]:
    """All shots of a video, those of the summary marked, and what there is to note. Shots are those `found`, (n, 2)
    first and last frames, or else those of the features' own change points. They are chosen as by the task's own test,
    which leaves out shots that are longer than the whole summary; but if the others would fill less than half of it,
    these are divided."""
    n_frames, notes = steps.line.n_frames, []
    room = math.floor(ratio * n_frames + 1e-9)  # .29 of 100 frames are 29, though .29 * 100 < 29
    if room == 0:
        room = 1
        notes.append(f"{ratio:.0%} of {n_frames} frames are less than one; the summary is one frame")
    elif room < min(_WATCHABLE * steps.line.fps, n_frames):
        seconds = [frames / steps.line.fps for frames in (n_frames, room)]
        notes.append(
            f"{ratio:.0%} of {seconds[0]:.1f} s are {seconds[1]:.1f} s: with a larger --ratio there is more to see"
        )
    if len(steps.rows) > BLOCK:
        notes.append(f"the video is long: it was scored in parts of up to {BLOCK} steps")
    segments = segments_by_kts(steps) if found is None else found
    lengths = segments[:, 1] - segments[:, 0] + 1
    too_long = int((lengths > room).sum())
    if too_long and 2 * lengths[lengths <= room].sum() < room:
        notes.append(f"{too_long} of {len(segments)} shots were longer than the whole summary may be, and were divided")
        segments = np.concatenate([_fitting(first, last, room, steps) for first, last in segments.tolist()])
        lengths = segments[:, 1] - segments[:, 0] + 1
    values = shot_scores(np.repeat(scores, steps.lengths), segments)
    kept = {*_best(values, lengths, room)}
    shots = [
        Shot(first, last, steps.line.seconds(first), steps.line.seconds(last + 1), float(value), i in kept)
        for i, ((first, last), value) in enumerate(zip(segments.tolist(), values))
    ]
    return shots, notes


def _check(request: Request, places: Places, ratio: float, community: str) -> None:
    """Raise before any work if it could not be finished."""
    if not 0 < ratio <= 1:
        raise RecipeError("the ratio of a summary is out of range", expected="more than 0, up to 1", found=str(ratio))
    if request.client and community != AUTO:
        found = f"client {request.client}, community {community}"
        raise RecipeError("a client has the model of its own community", expected="one of the two", found=found)
    if places.out is not None and places.out.suffix.lower() not in SUFFIXES and not places.out.is_dir():
        expected = f"a name that ends with {', '.join(SUFFIXES)}"
        raise DataError("a summary is written as mp4", where=str(places.out), expected=expected)
    places.check(request.source, "video")


def _load(request: Request, community: str, device: str) -> tuple[Loaded, str, str]:
    """The model, whose it is, and its community; `auto` where the video has to tell that."""
    declared_verb(request.run, "summarize", "summarise videos")
    loaded, client = load_for(request.run, request.client, device)
    groups = loaded.card.get("communities", {})
    if client:
        return loaded, client, groups.get(client, GLOBAL)
    if community not in (AUTO, GLOBAL):
        loaded = load(request.run, model=community, device=device)
    return loaded, client, community


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
        proxies = [video.cpu().numpy() for video in public.sequences[: method.proxies]]
        distance = [dtw(rows, proxy, cost=method.cost, normalize=method.normalize) for proxy in proxies]
    except FedreelError as error:
        why = " ".join(text for text in (error.problem, error.where) if text)
        known = ", ".join(sorted({*card["models"]} - {GLOBAL}))
        return GLOBAL, [f"the model `global` was taken, since no community could be found: {why}. There are: {known}"]
    return min(means, key=lambda name: math.dist(means[name], distance)), []


def _scores(loaded: Loaded, rows: np.ndarray, device: torch.device) -> np.ndarray:
    scores = []
    for part in _blocks(len(rows)):
        x = torch.from_numpy(rows[part])[None].to(device)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=device)
        with torch.inference_mode():
            scores.append(loaded.task.forward(loaded.model, (x, mask)).logits[0].double().cpu().numpy())
    return np.concatenate(scores)


def _blocks(steps: int) -> list[slice]:
    bounds = np.linspace(0, steps, math.ceil(steps / BLOCK) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(bounds)]


def segments_by_kts(steps: VideoSteps) -> np.ndarray:
    """Shots (n, 2), first and last frames: where the features change."""
    starts: list[int] = []
    for part in _blocks(len(steps.rows)):
        starts += [part.start, *_changes(steps, part).tolist()]
    return frame_segments(starts[1:], steps.starts, steps.line.n_frames)


def _changes(steps: VideoSteps, part: slice) -> np.ndarray:
    """The steps of a part, its first left out, at which the features change."""
    return part.start + kts_by_variance(steps.rows[part], (part.stop - part.start - 1) // 2)


def _fitting(first: int, last: int, most: int, steps: VideoSteps) -> np.ndarray:
    """A shot as stretches of at most so many frames: itself or, where it is longer, its parts between changes of the
    features, and of these equal parts."""
    bounds = [first, last + 1]
    if last - first >= most:
        begin = int(np.searchsorted(steps.starts, first))  # of the steps that lie in it as a whole
        end = int(np.searchsorted(steps.starts + steps.lengths, last + 1, side="right"))
        for part in _blocks(max(end - begin, 0)):
            bounds += steps.starts[_changes(steps, slice(begin + part.start, begin + part.stop))].tolist()
    return np.concatenate([_parts(a, b - 1, most) for a, b in pairwise(sorted({*bounds}))])


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


def _write(summary: Summary, line: Timeline, places: Places, request: Request) -> Summary:
    middles = {shot.middle for shot in summary.chosen}
    pictures: dict[int, bytes] = {}
    if places.out is not None:
        keep = Thumbnails(middles if places.page else (), line)
        written = cut(summary.source, summary.spans, places.out, timeline=line, watch=keep, tell=request.tell)
        pictures = keep.pictures
        lost = sum(last - first + 1 for first, last in summary.spans) - written
        if lost:
            note = f"{lost} frames could not be decoded a second time and are missing"
            summary = replace(summary, notes=[*summary.notes, note])
    elif places.page is not None:
        pictures = thumbnails(summary.source, line, middles)
    page = "" if places.page is None else draw_page(summary, line, pictures, places.page.parent, places.out)
    return places.write(summary, page, [] if places.out is None else [places.out])
