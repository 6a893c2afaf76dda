"""Images or videos in, the names of what they show out: by a trained model of the task image or recognition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedreel.core.server import GLOBAL
from fedreel.core.task import Task
from fedreel.data.shards import Broken
from fedreel.errors import DataError, RunError
from fedreel.runs.run import Loaded, load
from fedreel.tasks.image.task import Image
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.use.checks import only_client
from fedreel.tasks.use.classes import (
    Ranking,
    check_client,
    class_lists,
    kind,
    model_for,
    numbered,
    plain,
    ranked,
    ranking_lines,
    write_all,
)
from fedreel.tasks.vision.media import Medium, Seen, medium_of
from fedreel.tasks.vision.page import SHOWN, draw_album, draw_file

NAMED = 20  # skipped files that a terminal gets to see
OF_VIDEOS = ("frames", "fault")  # what an image does not have


@dataclass(frozen=True)
class FileRecognition:
    """What a model makes of an image or a video."""

    file: str
    run: Path
    client: str  # the one whose part of the model was used; '' where nobody was named
    label: str
    confidence: float
    ranking: Ranking  # all classes
    side: int  # pixels of the square that the model sees
    frames: int | None = None  # of a video that the model sees, evenly spaced; None: an image
    fault: str = ""  # why the tail of a video is missing

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        ranking = [{"label": label, "probability": share} for label, share in self.ranking]
        told = {**vars(self), "run": str(self.run), "ranking": ranking}
        return {name: value for name, value in told.items() if self.frames is not None or name not in OF_VIDEOS}

    def lines(self, top: int) -> list[str]:
        """What a terminal shows of it."""
        return ranking_lines(self.ranking, top)

    def notes(self) -> list[str]:
        """What a terminal shows beside that."""
        return [plain(f"{self.file}: {self.fault}; only what comes before was looked at")] if self.fault else []


@dataclass(frozen=True)
class Album:
    """What a model makes of the images or videos of a folder."""

    folder: str
    run: Path
    client: str
    what: str  # images or videos
    files: list[FileRecognition]  # in the order of their paths
    skipped: list[Broken]  # files of the folder that cannot be read, and why

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        shared = ("run", "client", "side", "frames")
        every = [made.as_json() for made in self.files]
        own = [{name: value for name, value in made.items() if name not in shared} for made in every]
        same = {name: every[0][name] for name in shared if name in every[0]}
        return {"folder": self.folder, **same, self.what: own, "skipped": [*map(asdict, self.skipped)]}

    def lines(self, top: int) -> list[str]:
        """What a terminal shows of it: a line for each file."""
        files, labels = ([plain(getattr(made, name)) for made in self.files] for name in ("file", "label"))
        first, second = (max(map(len, names)) for names in (files, labels))
        rows = zip(files, labels, self.files)
        return [f"{file:<{first}}  {label:<{second}}  {100 * made.confidence:3.0f} %" for file, label, made in rows]

    def notes(self) -> list[str]:
        """What a terminal shows beside that."""
        named = [plain(f"skipped {broken.path}: {broken.reason}") for broken in self.skipped[:NAMED]]
        more = len(self.skipped) - len(named)
        cut = [note for made in self.files for note in made.notes()]
        rest = [f"{len(cut) - NAMED} more videos break off; --json says which"] if len(cut) > NAMED else []
        return [*named, *([f"skipped {more} more; --json lists them"] if more else []), *cut[:NAMED], *rest]


def recognize_files(
    source: Path,
    run: Path,
    loaded: Loaded,
    client: str,
    *,
    top: int,
    page: Path | str | None,
    json: Path | str | None,
    device: torch.device,
    tell: Callable[[str, float], None] | None = None,
) -> FileRecognition | Album:
    """Say what a file shows, or each file below a folder. Of a folder, files that cannot be read are skipped."""
    task = _classifying(loaded.task, run)
    loaded, client, classes = _own(loaded, run, client, task.classes, device)
    medium = medium_of(task)
    paths = _listed(source, medium)
    _check_spared(paths, {"the page": page, "the JSON file": json}, medium)
    files: list[FileRecognition] = []
    skipped: list[Broken] = []
    strips: dict[str, np.ndarray] = {}
    for path, seen, ranking in _answered(loaded, paths, medium, classes, device, tell):
        if isinstance(seen, str):
            skipped.append(Broken(path, seen))
            continue
        label, confidence = ranking[0]
        told = (label, confidence, ranking, medium.side, medium.frames, seen.fault)
        files.append(FileRecognition(path, run, client, *told))
        if page and medium.frames and len(strips) < SHOWN:
            strips[path] = seen.pixels
    if not files:
        raise _unreadable(skipped, medium)
    made = Album(str(source), run, client, medium.many, files, skipped) if source.is_dir() else files[0]
    drawn = _drawn(made, top, strips) if page else ""
    write_all([(page, drawn), (json, dumps(made.as_json(), indent=1) + "\n")])
    return made


def _drawn(made: FileRecognition | Album, top: int, strips: Mapping[str, np.ndarray]) -> str:
    if isinstance(made, Album):
        return draw_album(made, top, strips)
    return draw_file(made, top, strips.get(made.file))


def _own(loaded: Loaded, run: Path, client: str, classes: int, device: torch.device) -> tuple[Loaded, str, list[str]]:
    """The model for use, with the private part of the client where there is one; who that is; and the names of the
    classes."""
    card, lists = loaded.card, class_lists(run)
    if card["private"] and not client:
        client = only_client(run, [*lists], "a part of this model never left the clients, and each has one of its own")
    if client:
        check_client(run, client, [*lists], card)
    model = model_for(client, card)
    if client or model != GLOBAL:
        loaded = load(run, model=model, client=client, device=str(device))
    names = next(iter(lists.values()), []) or card["recipe"].get("data", {}).get("labels", [])
    return loaded, client, [*names] if len(names) == classes else numbered(classes)


def _classifying(task: Task, run: Path) -> Image | Recognition:
    """The task, if its models have classes."""
    assert isinstance(task, Image | Recognition)
    if task.objective == "views":
        raise RunError(
            "this run's model has no classes: it learned to tell views apart, not labels",
            where=str(run),
            expected="a run with task.objective = labels",
            found="task.objective = views",
            hint="`fedreel export` writes its backbone; a run with task.backbone.init=FILE learns labels from there",
        )
    return task


def _listed(source: Path, medium: Medium) -> list[Path]:
    """The file, or all of the kind that are below the folder, sorted."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError("there is no such file or folder", where=str(source), expected=medium.expected)
    found = [source / name for name in medium.files(source)]
    if not found:
        expected = f"files ending in {' '.join(sorted(medium.suffixes))}"
        raise DataError(f"there are no {medium.many} in this folder", where=str(source), expected=expected)
    return found


def _check_spared(paths: Sequence[Path], places: Mapping[str, Path | str | None], medium: Medium) -> None:
    """Raise if a result would overwrite a file that is to be recognised."""
    sources = {path.resolve() for path in paths}
    for name, given in places.items():
        if given is not None and Path(given).resolve() in sources:
            raise DataError(f"{name} would overwrite {medium.one}", where=str(given), hint="give it another name")


def _answered(
    loaded: Loaded,
    paths: Sequence[Path],
    medium: Medium,
    classes: Sequence[str],
    device: torch.device,
    tell: Callable[[str, float], None] | None,
) -> Iterator[tuple[str, Seen | str, Ranking]]:
    """What the model sees of each file and what that shows; or why a file cannot be read, and nothing."""
    waiting: dict[str, Seen] = {}
    for done, (path, reading) in enumerate(zip(paths, medium.readings(paths)), 1):
        if isinstance(reading, str):
            yield str(path), reading, []
        else:
            waiting[str(path)] = reading
        if waiting and (len(waiting) == medium.batch or done == len(paths)):
            batch = torch.from_numpy(np.stack([seen.pixels for seen in waiting.values()])).to(device)
            with torch.inference_mode():
                logits = loaded.task.forward(loaded.model, (batch,)).logits.cpu()
            for (answered, seen), row in zip(waiting.items(), logits):
                yield answered, seen, ranked(row, classes)
            waiting = {}
        if tell:
            tell("recognising", done / len(paths))


def _unreadable(skipped: Sequence[Broken], medium: Medium) -> DataError:
    """What is wrong where no file could be read, by the name of the first and by what its decoder says."""
    path, reason = skipped[0].path, skipped[0].reason
    seems = kind(Path(path))
    if seems in medium.others:
        problem = f"this is {seems}, and this run's model recognises {medium.many}"
        found, hint = Path(path).suffix, medium.others[seems]
    else:
        problem, found, hint = f"this cannot be read as {medium.one}", reason, medium.mend
    if len(skipped) > 1:
        problem = f"none of the {len(skipped)} {medium.many} can be read, beginning with this one"
    return DataError(problem, where=path, expected=medium.expected, found=found, hint=hint)
