"""A recorded motion in, the name of the action out: by a trained model, in the words of one client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.device import pick_device
from ..core.files import write_atomic
from ..core.run import Loaded, load
from ..core.rundir import read_metrics
from ..core.server import GLOBAL
from ..core.state import PrivateStore
from ..data.skeleton.joints import Joints, find_joints, mapping
from ..data.skeleton.motions import read_motion
from ..data.skeleton.prepare import prepare
from ..errors import DataError, RecipeError, RunError, nearest
from ..tasks.skeleton import SkeletonRecognition
from .skeleton_gif import draw_gif
from .skeleton_page import draw_page, figure
from .wishes import check_places, check_task, only_client

KINECT = 30.0  # frames a second of all recordings that are not in an .npz file


@dataclass(frozen=True)
class Recognition:
    """What a client's classifier makes of a recording."""

    file: str
    run: Path
    client: str
    label: str
    confidence: float
    ranking: list[tuple[str, float]]  # all classes of the client with their probabilities, the likeliest first
    frames: int
    fps: float | None  # None: the file does not say
    joints: str  # of the model

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        ranking = [{"label": label, "probability": share} for label, share in self.ranking]
        return {**vars(self), "run": str(self.run), "ranking": ranking}


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
) -> Recognition:
    """Say which action a recording (FILE, or FILE.npz#NAME) shows, with the model of a run directory of the task
    skeleton. `client` is the one whose classifier, topology and statistics are used, and whose class list is spoken.

    `page` gets the moving skeleton and the `top` likeliest classes, `gif` the skeleton alone, `json` the numbers.
    """
    run = Path(model).parent if Path(model).name == "model" and (Path(model) / "card.json").is_file() else Path(model)
    _check(file, top, {"the page": page, "the GIF": gif, "the JSON file": json})
    loaded, client, classes = _load(run, client, device)
    task = loaded.task
    assert isinstance(task, SkeletonRecognition)
    joints = find_joints(task.joints)
    frames, body = _read(file, joints, task)
    ranking = _ranking(loaded, body, classes, pick_device(device))
    fps = _rate(_source(file))
    made = Recognition(str(file), run, client, *ranking[0], ranking, len(frames), fps, joints.name)
    contents: list[tuple[Path | str | None, str | bytes]] = []
    if page or gif:
        drawn = figure(frames, joints, fps)
        contents += [(page, draw_page(made, drawn, top) if page else ""), (gif, draw_gif(drawn) if gif else b"")]
    _write([*contents, (json, dumps(made.as_json(), indent=1) + "\n")])
    return made


def _check(file: Path | str, top: int, places: dict[str, Path | str | None]) -> None:
    """Nothing is begun that could not be finished."""
    if top < 1:
        raise RecipeError("there is nothing to show", where="top", expected="1 or more", found=str(top))
    source = _source(file)
    check_places(source, "recording", places)


def _source(file: Path | str) -> Path:
    """The file of a recording, which may be one of several in it."""
    before, mark, _ = str(file).rpartition(".npz#")
    return Path(f"{before}.npz" if mark else file).expanduser()


def _load(run: Path, client: str, device: str) -> tuple[Loaded, str, list[str]]:
    """The model as the client has it, who that is, and the names of its classes."""
    device = str(pick_device(device))
    loaded = load(run, device=device)
    card = loaded.card
    task = check_task(loaded, SkeletonRecognition, "skeleton", "recognise skeletons", run)
    lists = _class_lists(run)
    client = client or _only_client(run, lists, bool(card["private"]))
    if client not in lists and lists:
        raise RunError(f"this run has no client '{client}'", where=str(run), hint=nearest(client, lists))
    _check_trained(run, client, card)
    classes = lists.get(client) or [f"class {n}" for n in range(1, task.classes + 1)]
    group = card.get("communities", {}).get(client, GLOBAL)
    return load(run, model=group, client=client, device=device), client, classes


def _class_lists(run: Path) -> dict[str, list[str]]:
    """The clients of a run and what they call their classes; an empty list where the run does not tell."""
    try:
        record: dict[str, Any] = next(read_metrics(run, "partition"), {})
    except OSError:  # a model without its run
        record = {}
    if "sets" in record:
        return {client: [str(name) for name in told["classes"]] for client, told in record["sets"].items()}
    return {client: [] for client in record.get("train") or PrivateStore(run / "clients").clients()}


def _only_client(run: Path, lists: dict[str, list[str]], private: bool) -> str:
    """The one client for whom the model can speak when nobody was named."""
    same = not private and len({tuple(names) for names in lists.values()}) == 1
    if same:
        return next(iter(lists))
    hint = "each client has a classifier, a topology and statistics of its own, for its own list of classes"
    return only_client(run, list(lists), hint)


def _check_trained(run: Path, client: str, card: dict[str, Any]) -> None:
    if not card["private"] or card["recipe"].get("engine", {}).get("name") == "flower":
        return  # nothing is the client's own, or it stayed at a real site: loading says so
    store = PrivateStore(run / "clients")
    if not any(name.startswith("model/") for name in store.newest(client).tensors):
        trained = [name for name in store.clients() if name != client]
        raise RunError(
            f"the classifier of client '{client}' has never been trained",
            where=str(run),
            expected="a client that took part in a round",
            found=f"trained are {', '.join(trained)}" if trained else "no client's tensors in the run's folder",
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


def _ranking(loaded: Loaded, body: np.ndarray, classes: Sequence[str], device: torch.device) -> list[tuple[str, float]]:
    batch = (torch.from_numpy(body)[None].to(device), torch.zeros(1, dtype=torch.int64, device=device))
    counts = torch.tensor([len(classes)], device=device)
    with torch.inference_mode():
        logits = loaded.task.forward(loaded.model, (*batch, counts)).logits[0, : len(classes)]
    shares = logits.double().softmax(0).cpu()
    if not shares.isfinite().all():
        raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
    order = shares.argsort(descending=True, stable=True).tolist()
    return [(classes[i], float(shares[i])) for i in order]


def _write(contents: Sequence[tuple[Path | str | None, str | bytes]]) -> None:
    for given, content in contents:
        if given is None:
            continue
        place = Path(given)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, content)
        except OSError as error:
            raise DataError("this cannot be written", where=str(place), found=error.strerror or str(error)) from error
