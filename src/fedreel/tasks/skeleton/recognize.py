"""A recorded motion in, the name of the action out: by a trained model, for the classes of one client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedreel.data.bounded import read_npz
from fedreel.errors import DataError, RecipeError
from fedreel.machine.device import pick_device
from fedreel.runs.run import Loaded
from fedreel.tasks.skeleton.bearing import bearing
from fedreel.tasks.skeleton.figure import figure
from fedreel.tasks.skeleton.gif import draw_gif
from fedreel.tasks.skeleton.joints import Joints, find_joints, mapping, shared
from fedreel.tasks.skeleton.motions import read_motion
from fedreel.tasks.skeleton.page import draw_page
from fedreel.tasks.skeleton.poses.estimate import Poses
from fedreel.tasks.skeleton.poses.find import video_motion
from fedreel.tasks.skeleton.poses.layout import JOINTS
from fedreel.tasks.skeleton.poses.page import over_video
from fedreel.tasks.skeleton.prepare import prepare
from fedreel.tasks.skeleton.result import MotionRecognition
from fedreel.tasks.skeleton.task import SkeletonRecognition
from fedreel.tasks.use.classes import (
    class_lists,
    file_kind,
    numbered_classes,
    other_model,
    rank_classes,
    recording_file,
)
from fedreel.tasks.use.models import load_for, only_client, partition_record, read_card
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.recognition import Ranking
from fedreel.tasks.use.trust import read_trust, unlike_note

VIDEO = "a video"
KINECT = 30.0  # frames a second of all recordings that are not in an .npz file


def recognize_motion(request: Request, top: int) -> MotionRecognition:
    """Say which action a recording (FILE, or FILE.npz#NAME) shows, among the classes of a client."""
    places, file = Places.of(request, "the GIF"), recording_file(request.source)
    if top < 1:
        raise RecipeError("there is nothing to show", where="top", expected="1 or more", found=str(top))
    places.check(file, "folder" if file.is_dir() else "recording")
    if places.out is not None and places.out.suffix.lower() != ".gif":
        raise DataError("a moving skeleton is written as GIF", where=str(places.out), expected="a name ending in .gif")
    _check_motion(file)
    device = pick_device(request.device)
    loaded, client, classes = _load(request, str(device))
    task = loaded.task
    assert isinstance(task, SkeletonRecognition)
    joints = find_joints(task.joints)
    poses = video_motion(file, task.bodies, request.tell) if file_kind(file) == VIDEO else None
    given = read_motion(request.source) if poses is None else _as_recorded(poses, request.run, client)
    frames, body = _prepared(file, *given, joints, task)
    record = read_trust(request.run, loaded, client)
    ranking = _ranking(loaded, body, classes, device, record.temperature)
    trust = record.of(bearing(torch.from_numpy(body)[None]))
    recognition = MotionRecognition(
        source=request.source,
        run=request.run,
        client=client,
        label=ranking[0][0],
        confidence=ranking[0][1],
        ranking=ranking,
        frames=len(frames),
        fps=_rate(file) if poses is None else poses.line.fps,
        joints=joints.name,
        top=top,
        trust=trust,
        notes=[
            *request.notes,
            *record.notes,
            *unlike_note(trust, "this motion"),
            *([] if poses is None else _notes(poses, given[1])),
        ],
    )
    if not (request.page or request.out):
        return places.write(recognition)
    drawn = figure(frames, joints, recognition.fps)
    over = over_video(file, poses) if request.page and poses is not None else None
    page = draw_page(recognition, drawn, over) if request.page else ""
    return places.write(recognition, page, draw_gif(drawn) if request.out else ())


def _load(request: Request, device: str) -> tuple[Loaded, str, list[str]]:
    """The model as the client has it, who that is, and the names of its classes."""
    lists = class_lists(request.run)
    client = request.client or _only_client(request.run, lists)
    loaded, client = load_for(request.run, client, device)
    assert isinstance(loaded.task, SkeletonRecognition)
    return loaded, client, lists.get(client) or numbered_classes(loaded.task.classes)


def _only_client(run: Path, lists: dict[str, list[str]]) -> str:
    """The one client for whom the model can speak when nobody was named."""
    if not read_card(run)["private"] and len({tuple(names) for names in lists.values()}) == 1:
        return next(iter(lists))
    hint = "each client has a classifier, a topology and statistics of its own, for its own list of classes"
    return only_client(run, list(lists), hint)


def _check_motion(source: Path) -> None:
    """What is plainly something else is said to be so, before it is looked for joints."""
    kind = "a folder" if source.is_dir() else file_kind(source)
    if kind in ("", "a recorded skeleton", VIDEO):
        return
    folders = "give one recording or video; folders go with runs of the tasks image and recognition"
    raise DataError(
        f"this is {kind}, and this run's model recognises moving skeletons",
        where=str(source),
        expected="one recording: .skeleton, .txt, .mat, .npz or FILE.npz#NAME; or a video",
        found=kind if source.is_dir() else source.suffix,
        hint=folders if source.is_dir() else other_model(kind),
    )


def _as_recorded(poses: Poses, run: Path, client: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Poses with those joints only that the client's own recordings have: where the model has more, it has learned from
    what stands in for them."""
    sensor = partition_record(run).get("sets", {}).get(client, {}).get("joints", ())
    chosen = shared(JOINTS, sensor)
    return poses.joints[:, :, chosen], tuple(JOINTS[i] for i in chosen)


def _notes(poses: Poses, names: Sequence[str]) -> list[str]:
    found = f"the skeletons were found in the video by BlazePose, with the {len(names)} joints of the client's sensor"
    return [found, *([f"{poses.line.fault}; what comes before was looked at"] if poses.line.fault else [])]


def _prepared(
    file: Path, given: np.ndarray, names: Sequence[str], joints: Joints, task: SkeletonRecognition
) -> tuple[np.ndarray, np.ndarray]:
    """The recording (T, M, V, 3) in the model's joints, and what of it the network gets."""
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
    said = read_npz(source, ("fps",)).get("fps", np.zeros(0))
    usable = said.size == 1 and said.dtype.kind in "fiu" and 0.1 <= said.item() <= 1000
    return float(said.item()) if usable else None


def _ranking(
    loaded: Loaded, body: np.ndarray, classes: Sequence[str], device: torch.device, temperature: float
) -> Ranking:
    batch = (torch.from_numpy(body)[None].to(device), torch.zeros(1, dtype=torch.int64, device=device))
    counts = torch.tensor([len(classes)], device=device)
    with torch.inference_mode():
        logits = loaded.task.forward(loaded.model, (*batch, counts)).logits[0, : len(classes)]
    return rank_classes(logits, classes, temperature)
