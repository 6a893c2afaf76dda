"""An image or a folder of images in, the names of what they show out: by a trained model of the task image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.run import Loaded, load
from ..core.server import GLOBAL
from ..data.pictures import FORMATS, SUFFIXES, _decoded, _files
from ..data.shards import Broken
from ..errors import DataError, RunError
from ..tasks.image import Image
from .answers import Ranking, check_client, class_lists, kind, numbered, plain, ranked, ranking_lines, write_all
from .image_page import draw_album, draw_image
from .wishes import only_client

BATCH = 64  # images that go through the network at once
NAMED = 20  # skipped files that a terminal gets to see
EXPECTED = f"an image ({', '.join(FORMATS)}), or a folder of images"


@dataclass(frozen=True)
class ImageRecognition:
    """What a model makes of an image."""

    file: str
    run: Path
    client: str  # the one whose part of the model was used; '' where nobody was named
    label: str
    confidence: float
    ranking: Ranking  # all classes
    side: int  # pixels of the square that the model sees

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        ranking = [{"label": label, "probability": share} for label, share in self.ranking]
        return {**vars(self), "run": str(self.run), "ranking": ranking}

    def lines(self, top: int) -> list[str]:
        """What a terminal shows of it."""
        return ranking_lines(self.ranking, top)

    def page(self, top: int) -> str:
        return draw_image(self, top)


@dataclass(frozen=True)
class Album:
    """What a model makes of the images of a folder."""

    folder: str
    run: Path
    client: str
    images: list[ImageRecognition]  # in the order of their paths
    skipped: list[Broken]  # images of the folder that cannot be read, and why
    side: int

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        own = ("file", "label", "confidence", "ranking")
        images = [{name: made[name] for name in own} for made in (image.as_json() for image in self.images)]
        return {**vars(self), "run": str(self.run), "images": images, "skipped": [*map(asdict, self.skipped)]}

    def lines(self, top: int) -> list[str]:
        """What a terminal shows of it: a line for each image."""
        files = [plain(image.file) for image in self.images]
        labels = [plain(image.label) for image in self.images]
        first, second = (max(map(len, names)) for names in (files, labels))
        rows = zip(files, labels, self.images)
        return [f"{file:<{first}}  {label:<{second}}  {100 * image.confidence:3.0f} %" for file, label, image in rows]

    def notes(self) -> list[str]:
        """What a terminal shows beside that."""
        named = [plain(f"skipped {broken.path}: {broken.reason}") for broken in self.skipped[:NAMED]]
        more = len(self.skipped) - len(named)
        return [*named, *([f"skipped {more} more; --json lists them"] if more else [])]

    def page(self, top: int) -> str:
        return draw_album(self, top)


def recognize_images(
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
) -> ImageRecognition | Album:
    """Say what an image shows, or each image below a folder. Of a folder, images that cannot be read are skipped."""
    loaded, client, classes = _own(loaded, run, client, device)
    task = loaded.task
    assert isinstance(task, Image)
    paths = _listed(source)
    _check_spared(paths, {"the page": page, "the JSON file": json})
    answers, broken = _answers(loaded, paths, task.size, classes, device, tell)
    if not answers:
        raise _unreadable(broken)
    images = [ImageRecognition(str(p), run, client, *ranking[0], ranking, task.size) for p, ranking in answers.items()]
    skipped = [Broken(str(path), reason) for path, reason in broken.items()]
    made = Album(str(source), run, client, images, skipped, task.size) if source.is_dir() else images[0]
    write_all([(page, made.page(top) if page else ""), (json, dumps(made.as_json(), indent=1) + "\n")])
    return made


def _own(loaded: Loaded, run: Path, client: str, device: torch.device) -> tuple[Loaded, str, list[str]]:
    """The model, with the private part of the client where there is one; who that is; and the names of the classes."""
    task, card = loaded.task, loaded.card
    assert isinstance(task, Image)
    if task.objective == "views":
        raise RunError(
            "this run's model has no classes: it learned to tell views of images apart, not their labels",
            where=str(run),
            expected="a run with task.objective = labels",
            found="task.objective = views",
            hint="`fedreel export` writes its backbone; a run with task.init=FILE learns labels from there",
        )
    lists = class_lists(run)
    if card["private"] and not client:
        client = only_client(run, [*lists], "a part of this model never left the clients, and each has one of its own")
    if client:
        check_client(run, client, [*lists], card)
        group = card.get("communities", {}).get(client, GLOBAL)
        loaded = load(run, model=group, client=client, device=str(device))
    names = next(iter(lists.values()), []) or card["recipe"].get("data", {}).get("labels", [])
    return loaded, client, [*names] if len(names) == task.classes else numbered(task.classes)


def _listed(source: Path) -> list[Path]:
    """The image, or all that are below the folder, sorted."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError("there is no such file or folder", where=str(source), expected=EXPECTED)
    found = [source / name for name in _files(source)]
    if not found:
        suffixes = " ".join(sorted(SUFFIXES))
        raise DataError("there are no images in this folder", where=str(source), expected=f"files ending in {suffixes}")
    return found


def _check_spared(paths: Sequence[Path], places: Mapping[str, Path | str | None]) -> None:
    """Raise if a result would overwrite an image."""
    images = {path.resolve() for path in paths}
    for name, given in places.items():
        if given is not None and Path(given).resolve() in images:
            raise DataError(f"{name} would overwrite an image", where=str(given), hint="give it another name")


def _answers(
    loaded: Loaded,
    paths: Sequence[Path],
    side: int,
    classes: Sequence[str],
    device: torch.device,
    tell: Callable[[str, float], None] | None,
) -> tuple[dict[Path, Ranking], dict[Path, str]]:
    """What each image shows, and why others cannot be read."""
    answers: dict[Path, Ranking] = {}
    broken: dict[Path, str] = {}
    waiting: dict[Path, np.ndarray] = {}
    for done, (path, pixels) in enumerate(zip(paths, _decoded(paths, side)), 1):
        if isinstance(pixels, str):
            broken[path] = pixels
        else:
            waiting[path] = pixels
        if waiting and (len(waiting) == BATCH or done == len(paths)):
            batch = torch.from_numpy(np.stack([*waiting.values()])).to(device)
            with torch.inference_mode():
                logits = loaded.task.forward(loaded.model, (batch,)).logits
            answers |= zip(waiting, (ranked(row, classes) for row in logits.cpu()))
            waiting = {}
        if tell:
            tell("recognising", done / len(paths))
    return answers, broken


def _unreadable(broken: Mapping[Path, str]) -> DataError:
    """What is wrong where no file could be read, by the name of the first and by what its decoder says."""
    path, reason = next(iter(broken.items()))
    hints = {
        "a video": "save a frame of it as PNG or JPEG, and give that",
        "a recorded skeleton": "give --model a run of the task skeleton",
    }
    seems = kind(path)
    if seems in hints:
        problem, found, hint = f"this is {seems}, and this run's model recognises images", path.suffix, hints[seems]
    else:
        problem, found = "this cannot be read as an image", reason
        hint = "get the file anew, or open it in another program and save it as PNG"
    if len(broken) > 1:
        problem = f"none of the {len(broken)} images can be read, beginning with this one"
    return DataError(problem, where=str(path), expected=EXPECTED, found=found, hint=hint)
