"""Moments by a model that recognises clips and knows no sentences: where what it sees is named most like the sentence.

What every step of the video shows is compared with the sentence by the names of classes (see vision/named.py); a moment
is where that is high beside the rest of the video."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedreel.data.feature_card import card_of
from fedreel.data.features import Features
from fedreel.data.steps import look
from fedreel.errors import RecipeError, RunError
from fedreel.machine.device import pick_device
from fedreel.runs.run import Loaded
from fedreel.tasks.moments.find import check, moments_of, notes_on, write
from fedreel.tasks.moments.result import Finding
from fedreel.tasks.moments.windows import Found
from fedreel.tasks.use.models import load_for
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.trust import read_trust
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.named import NamedClasses

FPS = 2.0  # steps a second
LIKENESS = "scores say how alike what is seen and the sentence are named, 1 at most; they are no probabilities"


def find_by_classes(request: Request, sentence: str, top: int, features: Features | None = None) -> Finding:
    """Say when in a video something is to be seen that is named like a sentence: the `top` best moments."""
    if features is not None:
        raise RecipeError("a model that recognises clips looks at them itself", where="features", expected="none")
    places = Places.of(request, "the clips", folder=True)
    check(request, places, sentence, top)
    device = pick_device(request.device)
    loaded, client = load_for(request.run, request.client, str(device))
    classes = NamedClasses(loaded, request.run)
    asked = classes.sentence(sentence)
    steps = look(request.source, ClassesSeen(loaded, classes, device), FPS, request.tell)
    likeness = steps.rows @ asked
    bounds = np.array([steps.line.seconds(int(frame)) for frame in [*steps.starts, steps.line.n_frames]])
    moments = moments_of(spans(likeness, bounds, top), steps.line)
    record = read_trust(request.run, loaded, client)
    about = [*record.notes, classes.note(sentence), LIKENESS, *classes.doubt(sentence, float(likeness.max()))]
    finding = Finding(
        source=request.source,
        run=request.run,
        client=client,
        trust=record.trust,
        notes=[*request.notes, *about, *notes_on(steps.line, len(moments), top)],
        sentence=sentence,
        features="names of classes",
        seconds=float(bounds[-1]),
        moments=moments,
        inside=likeness.clip(0, 1).tolist(),
        unknown=[word for word in sentence.split() if classes.words.unknown in classes.words.pieces(word)],
        scale="likeness",
    )
    return write(finding, steps.line, places, request.tell)


class ClassesSeen:
    """A step of a video as the vector of what a classifier sees in it."""

    name = "names of classes"

    def __init__(self, loaded: Loaded, classes: NamedClasses, device: torch.device) -> None:
        assert isinstance(loaded.task, Contrasting)
        self.loaded, self.classes, self.device = loaded, classes, device
        told = loaded.card["input"]
        if "frames" not in told:
            raise RunError("this run's model looks at images", expected="a run of a task over clips")
        self.frames, self.size = int(told["frames"]), (int(told["size"]),) * 2
        self.width = classes.vectors.shape[1]

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            clips = torch.from_numpy(windows).to(self.device)
            return self.classes.seen(self.loaded.task.forward(self.loaded.model, (clips,)).logits)

    def card(self) -> dict[str, Any]:
        return card_of(self)


def spans(likeness: np.ndarray, bounds: np.ndarray, top: int) -> Found:
    """Where likeness (steps,) is high; `bounds` are the steps' limits in seconds. A span has the greatest sum of what
    lies above the middle between mean and maximum; then come the next such spans beside those found. Of all of them the
    best has the greatest mean."""
    rest = likeness - (likeness.mean() + likeness.max()) / 2
    found: list[tuple[float, int, int]] = []
    while rest.max() > 0:
        first, last = _greatest_sum(rest)
        found.append((float(likeness[first : last + 1].mean()), first, last))
        rest[first : last + 1] = -np.inf
    if not found:  # every step is as alike as every other
        found.append((float(likeness.mean()), 0, len(likeness) - 1))
    found = sorted(found, key=lambda one: -one[0])[:top]
    times = np.array([(bounds[first], bounds[last + 1]) for _, first, last in found])
    return Found(times, np.log(np.array([mean for mean, _, _ in found]).clip(1e-6, 1)), likeness)


def _greatest_sum(values: np.ndarray) -> tuple[int, int]:
    """The first and last place of the stretch with the greatest sum (Kadane)."""
    best, where = -np.inf, (0, 0)
    total, start = 0.0, 0
    for place, value in enumerate(values.tolist()):
        if total <= 0:
            total, start = 0.0, place
        total += value
        if total > best:
            best, where = total, (start, place)
    return where
