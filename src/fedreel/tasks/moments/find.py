"""Any video and a sentence in, when it happens out: by a trained model, as times, clips and a page."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedreel.core.server import GLOBAL
from fedreel.core.state import PrivateStore
from fedreel.data.features import Features, make_features, same_features
from fedreel.errors import DataError, FedreelError, RecipeError, RunError, nearest
from fedreel.machine.device import pick_device
from fedreel.machine.files import write_atomic
from fedreel.media.cut import cut
from fedreel.media.frames import Span, Tell, Timeline
from fedreel.runs.run import Loaded, load
from fedreel.runs.rundir import read_metrics
from fedreel.tasks.moments.features import pooled
from fedreel.tasks.moments.grounding import Grounder
from fedreel.tasks.moments.page import draw_page, thumbnails
from fedreel.tasks.moments.task import MomentRetrieval
from fedreel.tasks.moments.text import Words, tokens
from fedreel.tasks.summary.summarize import Steps, look
from fedreel.tasks.use.checks import check_places, check_task, only_client


@dataclass(frozen=True)
class Moment:
    """A stretch of a video, in seconds from its beginning, and how likely the model finds it."""

    start: float
    end: float
    score: float  # 0 to 1, what the model orders spans by: see docs/find.md
    rank: int  # from 1, the best
    first: int  # frames of the clip
    last: int

    @property
    def clip(self) -> str:
        """The name of its file."""
        return f"{self.rank:02d}_{self.start:.1f}-{self.end:.1f}s.mp4"


@dataclass(frozen=True)
class Found:
    """Where in a video a model finds what a sentence says."""

    video: Path
    sentence: str
    run: Path
    client: str  # the one whose model it is, where clients have their own
    features: str
    seconds: float  # of the video
    moments: list[Moment]  # the likeliest first
    inside: list[float]  # over equal windows of the video, the probability to be inside the moment
    unknown: list[str]  # words of the sentence that the model does not know
    notes: list[str]  # what a user should know

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        moments = [asdict(moment) for moment in self.moments]
        return {**vars(self), "video": str(self.video), "run": str(self.run), "moments": moments}


def find(
    video: Path | str,
    sentence: str,
    model: Path | str,
    *,
    top: int = 3,
    out: Path | str | None = None,
    page: Path | str | None = None,
    json: Path | str | None = None,
    client: str = "",
    device: str = "cpu",
    tell: Tell | None = None,
) -> Found:
    """Say when in a video a sentence comes true, with the model of a run directory of the task moments.

    The folder `out` gets the `top` likeliest moments as mp4 files, `page` the time line with them, `json` the numbers.
    `client` is the one whose private part of the model is used, in runs in which encoders stay with the clients.
    """
    video = Path(video)
    run = Path(model).parent if Path(model).name == "model" and (Path(model) / "card.json").is_file() else Path(model)
    _check_wishes(video, sentence, top, out, {"the page": page, "the JSON file": json})
    loaded, client, words = _load(run, client, device)
    task = loaded.task
    assert isinstance(task, MomentRetrieval)
    question = _asked(sentence, words, task.most_words)
    maker, card = _features(loaded.card, run), loaded.card["input"]["features"]
    steps = look(video, maker, float(card["fps"]), tell)
    moments, inside = _answer(loaded, steps, question.indices, top, pick_device(device))
    seconds = steps.line.seconds(steps.line.n_frames)
    notes = [*question.notes, *_notes(steps.line, len(moments), top)]
    made = Found(video, sentence, run, client, maker.name, seconds, moments, inside, question.unknown, notes)
    _write(made, steps.line, _path(out), _path(page), _path(json), tell)
    return made


def nearest_frames(line: Timeline, start: float, end: float) -> Span:
    """The first and last frame of a stretch in seconds: it begins and ends where a frame does that is nearest, and
    has at least one."""
    starts = (line.ticks - line.ticks[0]) * float(line.base)
    begin, stop = np.searchsorted((starts[1:] + starts[:-1]) / 2, [start, end]).tolist()
    first = min(begin, line.n_frames - 1)
    return first, max(first, stop - 1)


def _check_wishes(
    video: Path, sentence: str, top: int, out: Path | str | None, places: dict[str, Path | str | None]
) -> None:
    """Nothing is begun that could not be finished."""
    if top < 1:
        raise RecipeError("there is nothing to find", where="top", expected="1 or more", found=str(top))
    if not tokens(sentence):
        raise DataError("the sentence has no words", expected="what happens, in words", found=f"'{sentence}'")
    check_places(video, "video", places)
    if out is not None and Path(out).exists() and not Path(out).is_dir():
        raise DataError("clips are written into a folder", where=str(out), found="a file")


def _load(run: Path, client: str, device: str) -> tuple[Loaded, str, Words]:
    """The model, with the private part of the client where there is one; who that is; and the words it knows."""
    device = str(pick_device(device))
    loaded = load(run, device=device)
    card = loaded.card
    task = check_task(loaded, MomentRetrieval, "moments", "find moments", run)
    record = _partition(run)
    clients = [*(record.get("train") or PrivateStore(run / "clients").clients())]
    if card["private"] and not client:
        client = only_client(run, clients, "a part of this model never left the clients, and each has one of its own")
    if client and clients and client not in clients:
        raise RunError(f"this run has no client '{client}'", where=str(run), hint=nearest(client, clients))
    if client:
        group = card.get("communities", {}).get(client, GLOBAL)
        loaded = load(run, model=group, client=client, device=device)
    return loaded, client, _words(run, task.words, record)


def _partition(run: Path) -> dict[str, Any]:
    try:
        return next(read_metrics(run, "partition"), {})
    except OSError:  # a model without its run
        return {}


def _words(run: Path, file: str, record: dict[str, Any]) -> Words:
    if file:
        return Words.read(Path(file).expanduser())
    known = record.get("words")
    if not isinstance(known, list) or not known:
        raise RunError(
            "the words that the model knows are not recorded",
            where=str(run / "metrics.jsonl"),
            expected="the list `words` in the record of the phase partition",
            found="no such list" if record else "no such record",
            hint="keep the model in its run directory; runs at real sites need a list of their own: task.words",
        )
    return Words([str(word) for word in known])


class _Question(NamedTuple):
    indices: np.ndarray
    unknown: list[str]
    notes: list[str]


def _asked(sentence: str, words: Words, most: int) -> _Question:
    """A sentence as the model reads it, and what it does not understand of it."""
    said, listed = tokens(sentence), frozenset(words.words)
    unknown = list(dict.fromkeys(word for word in said[:most] if word not in listed))
    if len(unknown) == len({*said[:most]}):
        raise DataError(
            "the model knows none of these words",
            found=", ".join(unknown),
            expected=f"some of its {len(words.words)} words, such as {', '.join(words.words[:12])}",
            hint="a model knows the words of its training sentences, or those of its file task.words",
        )
    notes = [f"the model does not know: {', '.join(unknown)}"] if unknown else []
    if len(said) > most:
        notes.append(f"the model reads {most} words; left out: {' '.join(said[most:])}")
    return _Question(words.encode(sentence, most), unknown, notes)


def _features(card: dict[str, Any], run: Path) -> Features:
    """What makes the features that the model was trained on."""
    wanted = card["input"]["features"]
    needed = f"{wanted['name']}, {wanted['width']} numbers a row"
    try:
        made = make_features(card["recipe"]["task"]["features"])
    except FedreelError as error:
        came = isinstance(error, RecipeError)
        raise DataError(
            "the features that the model was trained on cannot be made from a video here",
            where=str(run),
            expected=needed,
            found=" ".join(text for text in (error.problem, error.found) if text),
            hint="they came with the training data: train on the videos themselves, with task.features = plain, "
            "efficientnet-lite0 or run:FOLDER"
            if came
            else error.hint,
        ) from error
    own = made.card()
    if not same_features(wanted, own):
        raise DataError(
            "the features are not those that the model was trained on",
            where=str(run),
            expected=needed,
            found=f"{own['name']}, {own['width']} numbers a row" + (", other weights" if own["weights"] else ""),
            hint="train on the videos themselves, with the features that can be made here",
        )
    return made


def _answer(
    loaded: Loaded, steps: Steps, words: np.ndarray, top: int, device: torch.device
) -> tuple[list[Moment], list[float]]:
    """The likeliest moments, and over the windows of the video the probability to be inside."""
    net, task = loaded.model, loaded.task
    assert isinstance(net, Grounder)
    assert isinstance(task, MomentRetrieval)
    rows = torch.from_numpy(pooled(steps.rows, task.length))[None].to(device)
    most = task.length * (task.length + 1) // 2  # there are no more spans
    with torch.inference_mode():
        located = net(rows, torch.from_numpy(words)[None].to(device))
        shares, scores = (found[0].double().cpu() for found in net.decode(located, min(top, most)))
    inside = located.scores[0].double().sigmoid().cpu()
    if not inside.isfinite().all() or scores.isnan().any():
        raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
    return _moments(shares, scores, steps.line), inside.tolist()


def _moments(shares: Tensor, scores: Tensor, line: Timeline) -> list[Moment]:
    """Each has frames that no better one has: in a video of few frames, several spans may be the same to a viewer."""
    whole = line.seconds(line.n_frames)
    moments: list[Moment] = []
    seen: set[Span] = set()
    for (start, end), score in zip((shares * whole).tolist(), scores.tolist()):
        span = nearest_frames(line, start, end)
        if score > -math.inf and span not in seen:
            moments.append(Moment(start, end, math.exp(score), len(moments) + 1, *span))
            seen.add(span)
    return moments


def _notes(line: Timeline, found: int, top: int) -> list[str]:
    notes = [f"{line.fault}; only what comes before was looked at"] if line.fault else []
    if line.n_frames == 1:
        notes.append("the video has one frame only")
    if found < top:
        notes.append(f"{top} moments were asked for, but the model finds only {found} that differ")
    return notes


def _write(
    made: Found, line: Timeline, out: Path | None, page: Path | None, json: Path | None, tell: Tell | None
) -> None:
    clips = [] if out is None else [out / moment.clip for moment in made.moments]
    for place in clips:
        if place.exists() and place.samefile(made.video):
            raise DataError("a clip would overwrite the video itself", where=str(place), hint="give another folder")
    try:
        with nullcontext() if out is None else _staged(out) as folder:
            lost = 0 if folder is None else _cut(made, line, folder, tell)
            if lost:
                made.notes.append(f"{lost} frames could not be decoded a second time and are missing")
            if page is not None:
                pictures = thumbnails(made, line)
                _put(page, draw_page(made, pictures, clips, page.parent))
            if json is not None:
                _put(json, dumps(made.as_json(), indent=1) + "\n")
    except OSError as error:
        place = Path(error.filename or out or page or json or "")
        raise DataError("this cannot be written", where=str(place), found=error.strerror or str(error)) from error


def _cut(made: Found, line: Timeline, folder: Path, tell: Tell | None) -> int:
    """Write all clips; how many frames are missing in them."""
    lost = 0
    for moment in made.moments:
        span = moment.first, moment.last
        lost += span[1] - span[0] + 1 - cut(made.video, [span], folder / moment.clip, timeline=line, tell=tell)
    return lost


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder inside `out` to write to; its files become those of `out` if all goes well, and are gone if not."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=out))
    try:
        yield temporary
        for file in sorted(temporary.iterdir()):
            os.replace(file, out / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in new:
            with suppress(OSError):  # it holds what was wanted
                folder.rmdir()


def _put(place: Path, content: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, content)


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given)
