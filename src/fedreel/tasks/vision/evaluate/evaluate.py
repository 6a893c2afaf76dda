"""A backbone put to use on a labelled set, measure by measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedreel.config import DataConfig
from fedreel.errors import DataError, Interrupted, RecipeError, nearest
from fedreel.machine.device import pick_device
from fedreel.machine.progress import Tell
from fedreel.tasks.use.options import Place
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.vision.clips import open_clips
from fedreel.tasks.vision.evaluate.measures import MEASURES, Metrics, Trial
from fedreel.tasks.vision.evaluate.result import Evaluation
from fedreel.tasks.vision.evaluate.retrieval import LabelledSet, labelled_set, settle
from fedreel.tasks.vision.evaluate.subject import Subject, find_subject

PLAYGROUND = Path("playground")  # as the data
FOLDERS = "a folder {train,test}/CLASS/*.mp4, one with an index.csv or published lists, shards of one, or playground"
SETTLED = "batch norms took their statistics anew from the training videos"


@dataclass(frozen=True)
class Question:
    """What is to be measured, of whom, and on what."""

    model: Path
    on: Path
    data: DataConfig  # what is known of these videos before the model is
    measures: tuple[str, ...]  # in the order of MEASURES; none: all that make sense
    places: Places
    client: str
    device: str
    seed: int | None
    epochs: int
    settle: bool

    @classmethod
    def of(
        cls,
        model: Place,
        on: Place,
        *,
        lists: str,
        fold: int,
        only: str,
        json: Place | None,
        client: str,
        device: str,
        seed: int | None,
        epochs: int,
        settle: bool,
    ) -> Question:
        """As a user says it."""
        if epochs < 0:
            raise RecipeError("there is nothing to learn in", where="epochs", expected="0 or more", found=str(epochs))
        told = None if json is None else Path(json)
        places = Places("the numbers", None, None, told)
        who, where = Path(model).expanduser(), Path(on).expanduser()
        data = DataConfig(source=str(where), lists=lists, fold=fold)
        return cls(who, where, data, _measures(only), places, client, str(pick_device(device)), seed, epochs, settle)


def evaluate_on(
    question: Question, recipe: str, settings: Mapping[str, Any] | Sequence[str], tell: Tell | None
) -> Evaluation:
    """Measure a backbone on a labelled set. All of it is measured or, with an error, nothing is written."""
    _check(question)
    found: Metrics = {}
    try:
        who = find_subject(question.model, recipe, settings, question.client, question.seed, question.device)
        labelled = _open(question, who)
        seed = who.recipe.seed if question.seed is None else question.seed
        playground = question.on == PLAYGROUND
        precision = who.recipe.train.precision
        named = (who.classes, who.temperature)
        trial = Trial(who.model, who.task, labelled, seed, precision, playground, question.epochs, *named)
        measures = _sensible(question, trial)
        if question.settle:
            settle(who.model, who.task, labelled)
        for number, name in enumerate(measures):
            if tell:
                tell(name, number / len(measures))
            found |= MEASURES[name](trial)
    except KeyboardInterrupt:
        so_far = ", ".join(f"{name} {100 * share:.2f} %" for name, share in found.items())
        raise Interrupted(f"Nothing was written.{f' Found so far: {so_far}.' if found else ''}") from None
    return question.places.write(
        Evaluation(
            source=question.on,
            run=question.model,
            client=question.client,
            notes=[
                *who.notes,
                *([SETTLED] if question.settle else []),
                *(f"{cut.path}: {cut.reason}; the rest is missing" for cut in labelled.source.cut),
            ],
            skipped=labelled.source.broken,
            name=labelled.name,
            classes=len(labelled.classes),
            train=len(labelled.train),
            test=len(labelled.test),
            seed=seed,
            metrics=found,
        )
    )


def _measures(only: str) -> tuple[str, ...]:
    wanted = [name.strip() for name in only.split(",")] if only else []
    for name in wanted:
        if name not in MEASURES:
            raise RecipeError(f"there is no measure '{name}'", where="only", hint=nearest(name, MEASURES))
    return tuple(name for name in MEASURES if name in wanted)


def _sensible(question: Question, trial: Trial) -> Sequence[str]:
    """What was asked for or, where nothing was, all but answers of a model that names other classes, or none."""
    if not question.measures:
        return [name for name in MEASURES if name != "answers" or trial.answers]
    if "answers" in question.measures and not trial.answers:
        raise RecipeError(
            "the model does not name the classes of these videos",
            where="--only answers",
            expected=", ".join(trial.labelled.classes[:12]),
            found=", ".join(trial.classes[:12]) or "a model without a trained classifier",
        )
    return question.measures


def _check(question: Question) -> None:
    """Raise before any work if it could not be finished."""
    on = question.on
    if on != PLAYGROUND and not on.is_dir():
        raise DataError(
            "there is no such folder of videos",
            where=str(on),
            expected=FOLDERS,
        )
    files = [] if on == PLAYGROUND else [path for path in on.rglob("*") if path.is_file()]
    files += [path for path in question.model.rglob("*") if path.is_file()] if question.model.is_dir() else []
    question.places.check(question.model, "file of weights", files, "a file that is read")


def _open(question: Question, who: Subject) -> LabelledSet:
    """The same clips as those of the tables, kept as the recipe keeps its own: as raw frames, or as pictures."""
    own = who.recipe.data
    data = replace(question.data, quality=own.quality, size=own.size, seed=own.seed)
    name = "actions" if question.on == PLAYGROUND else question.on.resolve().name
    return labelled_set(name, open_clips(data, who.task.side, setting=""))
