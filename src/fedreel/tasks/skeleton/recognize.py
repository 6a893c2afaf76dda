"""A recorded motion, an image or a video in, the name of what it shows out: by a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedreel.errors import DataError, RecipeError
from fedreel.machine.device import pick_device
from fedreel.runs.run import Loaded, load
from fedreel.tasks.image.task import Image
from fedreel.tasks.recognition.task import Recognition as Videos
from fedreel.tasks.skeleton.gif import draw_gif
from fedreel.tasks.skeleton.joints import Joints, find_joints, mapping
from fedreel.tasks.skeleton.motions import read_motion
from fedreel.tasks.skeleton.page import draw_page, figure
from fedreel.tasks.skeleton.prepare import prepare
from fedreel.tasks.skeleton.task import SkeletonRecognition
from fedreel.tasks.use.checks import check_places, check_task, only_client
from fedreel.tasks.use.classes import (
    Ranking,
    check_client,
    class_lists,
    kind,
    model_for,
    numbered,
    ranked,
    ranking_lines,
    write_all,
)
from fedreel.tasks.vision.recognize import Album, FileRecognition, recognize_files

NAMES = "skeleton, image or recognition"  # tasks whose models recognise something
KINECT = 30.0  # frames a second of all recordings that are not in an .npz file


@dataclass(frozen=True)
class Recognition:
    """What a client's classifier makes of a recording."""

    file: str
    run: Path
    client: str
    label: str
    confidence: float
    ranking: Ranking  # all classes of the client
    frames: int
    fps: float | None  # None: the file does not say
    joints: str  # of the model

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        ranking = [{"label": label, "probability": share} for label, share in self.ranking]
        return {**vars(self), "run": str(self.run), "ranking": ranking}

    def lines(self, top: int) -> list[str]:
        """What a terminal shows of it."""
        return ranking_lines(self.ranking, top)

    def notes(self) -> list[str]:
        """What a terminal shows beside that: nothing."""
        return []


def recognize(
    file: Path | str,
    model: Path | str,
    client: str = "",
    *,
    top: int = 5,
    page: Path | str | None = None,
    gif: Path | str | None = None,
    json: Path | str | None = None,
    device: str = "cpu",
    tell: Callable[[str, float], None] | None = None,
) -> Recognition | FileRecognition | Album:
    """Say which action a recording (FILE, or FILE.npz#NAME) shows, with the model of a run directory of the task
    skeleton; or what an image or a video shows, or each one of a folder, with that of the task image or recognition.
    `client` is the one whose part of the model is used where clients have their own, such as a classifier for their own
    class list.

    `page` gets the moving skeleton, the images or frames of the videos, and the `top` likeliest classes; `gif` the
    skeleton alone, `json` the numbers. `tell` hears of the progress in a folder.
    """
    run = Path(model).parent if Path(model).name == "model" and (Path(model) / "card.json").is_file() else Path(model)
    _check(file, top, {"the page": page, "the GIF": gif, "the JSON file": json})
    on, source = pick_device(device), _source(file)
    loaded = load(run, device=str(on))
    if isinstance(loaded.task, Image | Videos):
        _check_still(gif)
        return recognize_files(source, run, loaded, client, top=top, page=page, json=json, device=on, tell=tell)
    loaded, client, classes = _own(loaded, run, client, str(on))
    task = loaded.task
    assert isinstance(task, SkeletonRecognition)
    joints = find_joints(task.joints)
    _check_motion(source)
    frames, body = _read(file, joints, task)
    ranking = _ranking(loaded, body, classes, on)
    fps = _rate(source)
    made = Recognition(str(file), run, client, *ranking[0], ranking, len(frames), fps, joints.name)
    contents: list[tuple[Path | str | None, str | bytes]] = []
    if page or gif:
        drawn = figure(frames, joints, fps)
        contents += [(page, draw_page(made, drawn, top) if page else ""), (gif, draw_gif(drawn) if gif else b"")]
    write_all([*contents, (json, dumps(made.as_json(), indent=1) + "\n")])
    return made


def _check(file: Path | str, top: int, places: dict[str, Path | str | None]) -> None:
    """Nothing is begun that could not be finished."""
    if top < 1:
        raise RecipeError("there is nothing to show", where="top", expected="1 or more", found=str(top))
    source = _source(file)
    kinds = {"an image": "image", "a video": "video"}
    check_places(source, "folder" if source.is_dir() else kinds.get(kind(source), "recording"), places)


def _check_still(gif: Path | str | None) -> None:
    if gif is not None:
        raise RecipeError(
            "a GIF is drawn of moving skeletons only",
            where=str(gif),
            expected="--gif with runs of the task skeleton only",
            hint="use --page, which shows images and videos too",
        )


def _source(file: Path | str) -> Path:
    """The file of a recording, which may be one of several in it."""
    before, mark, _ = str(file).rpartition(".npz#")
    return Path(f"{before}.npz" if mark else file).expanduser()


def _own(loaded: Loaded, run: Path, client: str, device: str) -> tuple[Loaded, str, list[str]]:
    """The model as the client has it, who that is, and the names of its classes."""
    task = check_task(loaded, SkeletonRecognition, NAMES, "recognise skeletons, images or videos", run)
    lists = class_lists(run)
    client = client or _only_client(run, lists, bool(loaded.card["private"]))
    check_client(run, client, [*lists], loaded.card)
    loaded = load(run, model=model_for(client, loaded.card), client=client, device=device)
    return loaded, client, lists.get(client) or numbered(task.classes)


def _only_client(run: Path, lists: dict[str, list[str]], private: bool) -> str:
    """The one client for whom the model can speak when nobody was named."""
    same = not private and len({tuple(names) for names in lists.values()}) == 1
    if same:
        return next(iter(lists))
    hint = "each client has a classifier, a topology and statistics of its own, for its own list of classes"
    return only_client(run, list(lists), hint)


def _check_motion(source: Path) -> None:
    """What is plainly something else is said to be so, before it is looked for joints."""
    found = "a folder" if source.is_dir() else kind(source)
    hints = {
        "an image": "give --model a run of the task image",
        "a video": "give --model a run of the task recognition",
        "a folder": "give one recording; folders go with runs of the tasks image and recognition",
    }
    if found in hints:
        raise DataError(
            f"this is {found}, and this run's model recognises moving skeletons",
            where=str(source),
            expected="one recording: .skeleton, .txt, .mat, .npz or FILE.npz#NAME",
            found=found if source.is_dir() else source.suffix,
            hint=hints[found],
        )


def _read(file: Path | str, joints: Joints, task: SkeletonRecognition) -> tuple[np.ndarray, np.ndarray]:
    """The recording (T, M, V, 3) in the model's joints, and what of it the network gets."""
    given, names = read_motion(file)
    try:
        frames = given[:, :, mapping(names, joints)]
        return frames, prepare(frames, joints, task.length, task.bodies, task.align)
    except DataError as error:
        raise DataError(
            error.problem, where=error.where or str(file), expected=error.expected, found=error.found, hint=error.hint
        ) from error


def _rate(source: Path) -> float | None:
    """Frames a second; of an .npz file what its key `fps` says, if it has one."""
    if source.suffix != ".npz":
        return KINECT
    with np.load(source, allow_pickle=False) as found:
        said = found["fps"] if "fps" in found.files else np.zeros(0)
    usable = said.size == 1 and said.dtype.kind in "fiu" and 0.1 <= said.item() <= 1000
    return float(said.item()) if usable else None


def _ranking(loaded: Loaded, body: np.ndarray, classes: Sequence[str], device: torch.device) -> Ranking:
    batch = (torch.from_numpy(body)[None].to(device), torch.zeros(1, dtype=torch.int64, device=device))
    counts = torch.tensor([len(classes)], device=device)
    with torch.inference_mode():
        logits = loaded.task.forward(loaded.model, (*batch, counts)).logits[0, : len(classes)]
    return ranked(logits, classes)
