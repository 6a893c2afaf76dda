"""Any video and a sentence in, when it happens out: by a trained model, as times, clips and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedreel.data.features import Features
from fedreel.data.steps import VideoSteps, look
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.machine.device import pick_device
from fedreel.machine.progress import Tell
from fedreel.media.cut import cut
from fedreel.media.frames import Span, Timeline
from fedreel.media.thumbnails import thumbnails
from fedreel.runs.run import Loaded
from fedreel.tasks.moments.grounding import Grounder
from fedreel.tasks.moments.page import draw_page
from fedreel.tasks.moments.question import read_question
from fedreel.tasks.moments.result import Finding, Moment
from fedreel.tasks.moments.task import MomentRetrieval
from fedreel.tasks.moments.text import tokens
from fedreel.tasks.moments.windows import Found, answer, looks
from fedreel.tasks.moments.windows import cut as cut_windows
from fedreel.tasks.use.models import load_for, partition_record, trained_features
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.trust import read_trust, unlike_note


def find_moments(request: Request, sentence: str, top: int, features: Features | None) -> Finding:
    """Say when in a video a sentence comes true: the `top` likeliest moments. `features` are needed only for models
    whose features cannot be made from their name."""
    places = Places.of(request, "the clips", folder=True)
    check(request, places, sentence, top)
    device = pick_device(request.device)
    loaded, client = load_for(request.run, request.client, str(device))
    task = loaded.task
    assert isinstance(task, MomentRetrieval)
    question = read_question(sentence, task, request.run, loaded.card)
    maker, card = trained_features(loaded.card, request.run, features), loaded.card["input"]["features"]
    steps = look(request.source, maker, float(card["fps"]), request.tell)
    usual = float(partition_record(request.run).get("seconds", 0.0))
    windows = cut_windows(steps.line.seconds(steps.line.n_frames), usual)
    found = _answer(loaded, steps, question.tokens, top, windows)
    moments = moments_of(found, steps.line)
    record = read_trust(request.run, loaded, client)
    trust = record.of(looks(steps.rows, windows, task.length))
    cuts = [
        f"the model learned from videos of {usual:.0f} s: it looked at {len(windows)} overlapping windows of this"
        " length"
    ]
    finding = Finding(
        source=request.source,
        run=request.run,
        client=client,
        trust=trust,
        notes=[
            *request.notes,
            *record.notes,
            *unlike_note(trust, "this video"),
            *question.notes,
            *(cuts if len(windows) > 1 else []),
            *notes_on(steps.line, len(moments), top),
        ],
        sentence=sentence,
        features=maker.name,
        seconds=steps.line.seconds(steps.line.n_frames),
        moments=moments,
        inside=found.inside.tolist(),
        unknown=question.unknown,
    )
    return write(finding, steps.line, places, request.tell)


def nearest_frames(line: Timeline, start: float, end: float) -> Span:
    """The first and last frame of a stretch in seconds: it begins and ends where a frame does that is nearest, and
    has at least one."""
    starts = (line.ticks - line.ticks[0]) * float(line.base)
    begin, stop = np.searchsorted((starts[1:] + starts[:-1]) / 2, [start, end]).tolist()
    first = min(begin, line.n_frames - 1)
    return first, max(first, stop - 1)


def check(request: Request, places: Places, sentence: str, top: int) -> None:
    """Raise before any work if it could not be finished."""
    if top < 1:
        raise RecipeError("there is nothing to find", where="top", expected="1 or more", found=str(top))
    if not tokens(sentence):
        raise DataError("the sentence has no words", expected="what happens, in words", found=f"'{sentence}'")
    places.check(request.source, "video")


def moments_of(found: Found, line: Timeline) -> list[Moment]:
    """Each has frames that no better one has: in a video of few frames, several spans may be the same to a viewer."""
    moments: list[Moment] = []
    seen: set[Span] = set()
    for (start, end), score in zip(found.spans.tolist(), found.scores.tolist()):
        span = nearest_frames(line, start, end)
        if span not in seen:
            moments.append(Moment(start, end, math.exp(score), len(moments) + 1, *span))
            seen.add(span)
    return moments


def notes_on(line: Timeline, found: int, top: int) -> list[str]:
    notes = [f"{line.fault}; only what comes before was looked at"] if line.fault else []
    if line.n_frames == 1:
        notes.append("the video has one frame only")
    if found < top:
        notes.append(f"{top} moments were asked for, but the model finds only {found} that differ")
    return notes


def write(finding: Finding, line: Timeline, places: Places, tell: Tell | None) -> Finding:
    """All clips appear together with page and JSON, or none does."""
    clips = [] if places.out is None else [places.out / moment.clip for moment in finding.moments]
    for clip in clips:
        if clip.exists() and clip.samefile(finding.source):
            raise DataError("a clip would overwrite the video itself", where=str(clip), hint="give another folder")
    with nullcontext() if places.out is None else places.staged() as folder:
        lost = 0 if folder is None else _cut(finding, line, folder, tell)
        if lost:
            note = f"{lost} frames could not be decoded a second time and are missing"
            finding = replace(finding, notes=[*finding.notes, note])
        page = ""
        if places.page is not None:
            pictures = thumbnails(finding.source, line, {moment.middle for moment in finding.moments})
            page = draw_page(finding, pictures, clips, places.page.parent)
        return places.write(finding, page, clips)


def _answer(
    loaded: Loaded, steps: VideoSteps, tokens: np.ndarray, top: int, windows: Sequence[tuple[float, float]]
) -> Found:
    """What the model finds in these windows."""
    net, task = loaded.model, loaded.task
    assert isinstance(net, Grounder)
    assert isinstance(task, MomentRetrieval)
    found = answer(net, steps.rows, tokens, windows, task.length, top)
    if not np.isfinite(found.inside).all() or np.isnan(found.scores).any():
        raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
    return found


def _cut(finding: Finding, line: Timeline, folder: Path, tell: Tell | None) -> int:
    """Write all clips; how many frames are missing in them."""
    lost = 0
    for moment in finding.moments:
        span = moment.first, moment.last
        lost += span[1] - span[0] + 1 - cut(finding.source, [span], folder / moment.clip, timeline=line, tell=tell)
    return lost
