"""Images or videos in, the names of what they show out: by a trained model whose task has classes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fedreel.data.shards import Broken
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.machine.device import pick_device
from fedreel.machine.files import file_name
from fedreel.machine.progress import Tell
from fedreel.runs.run import Loaded
from fedreel.tasks.use.classes import (
    class_lists,
    file_kind,
    numbered_classes,
    other_model,
    rank_classes,
    recording_file,
)
from fedreel.tasks.use.models import load_for
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.recognition import Ranking
from fedreel.tasks.use.trust import Record, Trust, read_trust, unlike_note
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.media import Medium, Seen
from fedreel.tasks.vision.page import SHOWN, draw_album, draw_file
from fedreel.tasks.vision.result import Album, FileRecognition

R = TypeVar("R", FileRecognition, Album)


def recognize_files(request: Request, top: int, medium_of: Callable[[Contrasting], Medium]) -> FileRecognition | Album:
    """Say what a file shows, or each file below a folder. Of a folder, files that cannot be read are skipped."""
    places = Places.of(request, "the sorted files", folder=True)
    if top < 1:
        raise RecipeError("there is nothing to show", where="top", expected="1 or more", found=str(top))
    device, source = pick_device(request.device), recording_file(request.source)
    loaded, client = load_for(request.run, request.client, str(device))
    assert isinstance(loaded.task, Contrasting)
    medium = medium_of(loaded.task)
    check_classes(loaded.task, request.run)
    paths = _listed(source, medium)
    _check_places(places, source, paths, medium)
    entries: list[FileRecognition] = []
    skipped: list[Broken] = []
    strips: dict[Path, np.ndarray] = {}
    record = read_trust(request.run, loaded, client)
    names = class_names(loaded, request.run)
    for path, seen, answer in _answers(loaded, record, paths, medium, names, device, request.tell):
        if isinstance(seen, str):
            skipped.append(Broken(str(path), seen))
            continue
        assert answer is not None
        entries.append(_entry(path, seen, answer, medium, request, client, top))
        if request.page and medium.frames and len(strips) < SHOWN:
            strips[path] = seen.pixels
    if not entries:
        raise _unreadable(skipped, medium)
    if not source.is_dir():
        only = replace(entries[0], notes=[*request.notes, *record.notes, *entries[0].notes])
        page = draw_file(only, strips.get(source)) if request.page else ""
        return _write(only, [only], page, places)
    album = Album(
        source=source,
        run=request.run,
        client=client,
        trust=record.trust,
        notes=[
            *request.notes,
            *record.notes,
            *(f"{entry.source}: {note}" for entry in entries for note in entry.notes),
        ],
        skipped=skipped,
        what=medium.many,
        entries=entries,
    )
    return _write(album, entries, draw_album(album, strips) if request.page else "", places)


def class_names(loaded: Loaded, run: Path) -> list[str]:
    """As the run noted them when it began; else those of the recipe, or numbers."""
    assert isinstance(loaded.task, Contrasting)
    noted = next(iter(class_lists(run).values()), [])
    names = noted or loaded.card["recipe"].get("data", {}).get("labels", [])
    return [*names] if len(names) == loaded.task.classes else numbered_classes(loaded.task.classes)


def check_classes(task: Contrasting, run: Path) -> None:
    """Raise if the task's models have no classes."""
    if task.objective == "views":
        raise RunError(
            "this run's model has no classes: it learned to tell views apart, not labels",
            where=str(run),
            expected="a run with task.objective = labels",
            found="task.objective = views",
            hint="`fedreel export` writes its backbone; a run with task.backbone.init=FILE learns labels from there",
        )


def _entry(
    path: Path, seen: Seen, answer: tuple[Ranking, Trust], medium: Medium, request: Request, client: str, top: int
) -> FileRecognition:
    ranking, trust = answer
    label, confidence = ranking[0]
    cut = [f"{seen.fault}; only what comes before was looked at"] if seen.fault else []
    return FileRecognition(
        source=path,
        run=request.run,
        client=client,
        trust=trust,
        notes=[*unlike_note(trust, f"this {medium.one.split()[1]}"), *cut],
        label=label,
        confidence=confidence,
        ranking=ranking,
        side=medium.side,
        frames=medium.frames,
        fault=seen.fault,
        top=top,
    )


def _listed(source: Path, medium: Medium) -> list[Path]:
    """The file, or all of the kind that are below the folder, sorted."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError("there is no such file or folder", where=str(source), expected=medium.expected)
    paths = [source / name for name in medium.files(source)]
    if not paths:
        expected = f"files ending in {' '.join(sorted(medium.suffixes))}"
        raise DataError(f"there are no {medium.many} in this folder", where=str(source), expected=expected)
    return paths


def _check_places(places: Places, source: Path, paths: Sequence[Path], medium: Medium) -> None:
    """Raise if a result would overwrite a file that is to be recognised, or lie among them."""
    kind = "folder" if source.is_dir() else (file_kind(source) or medium.one).split(maxsplit=1)[1]
    places.check(source, kind, paths if source.is_dir() else (), medium.one)
    places.check_apart(source)


def _answers(
    loaded: Loaded,
    record: Record,
    paths: Sequence[Path],
    medium: Medium,
    classes: Sequence[str],
    device: torch.device,
    tell: Tell | None,
) -> Iterator[tuple[Path, Seen | str, tuple[Ranking, Trust] | None]]:
    """What the model sees of each file, what that shows, and how far that is to be trusted; or why a file cannot be
    read, and nothing."""
    task, model = loaded.task, loaded.model
    assert isinstance(task, Contrasting)
    waiting: dict[Path, Seen] = {}
    for done, (path, reading) in enumerate(zip(paths, medium.readings(paths)), 1):
        if isinstance(reading, str):
            yield path, reading, None
        else:
            waiting[path] = reading
        if waiting and (len(waiting) == medium.batch or done == len(paths)):
            batch = torch.from_numpy(np.stack([seen.pixels for seen in waiting.values()])).to(device)
            with torch.inference_mode():
                ready = task.ready(model, batch)
                logits, looks = task.forward(model, ready).logits.cpu(), task.look_of(ready)
            for (answered, seen), row, look in zip(waiting.items(), logits, looks):
                yield answered, seen, (rank_classes(row, classes, record.temperature), record.of(look[None]))
            waiting = {}
        if tell:
            tell("recognising", done / len(paths))


def _unreadable(skipped: Sequence[Broken], medium: Medium) -> DataError:
    """What is wrong where no file could be read, by the name of the first and by what its decoder says."""
    path, reason = skipped[0].path, skipped[0].reason
    kind = file_kind(Path(path))
    if kind not in ("", medium.one):
        problem = f"this is {kind}, and this run's model recognises {medium.many}"
        found, hint = Path(path).suffix, other_model(kind)
    else:
        problem, found, hint = f"this cannot be read as {medium.one}", reason, medium.mend
    if len(skipped) > 1:
        problem = f"none of the {len(skipped)} {medium.many} can be read, beginning with this one"
    return DataError(problem, where=path, expected=medium.expected, found=found, hint=hint)


def _write(result: R, entries: Sequence[FileRecognition], page: str, places: Places) -> R:
    """The page, the JSON, and a copy of each file in a folder named after its label."""
    if places.out is None:
        return places.write(result, page)
    below = {entry.source: _sorted_path(entry, result.source) for entry in entries}
    with places.staged() as staging:
        for path, copy in below.items():
            (staging / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, staging / copy)
        return places.write(result, page, [places.out / copy for copy in below.values()])


def _sorted_path(entry: FileRecognition, source: Path) -> Path:
    """LABEL/PATH, with the path that the file has below the source."""
    own = entry.source.relative_to(source) if entry.source != source else Path(source.name)
    return Path(file_name(entry.label)) / own
