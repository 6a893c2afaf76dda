"""A folder of videos in, files of skeletons out that the task `skeleton` trains on: one for every owner, or one for
all."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from fedreel.data.clip_index import Clip, find
from fedreel.data.shards import Broken
from fedreel.errors import DataError
from fedreel.machine.files import file_name
from fedreel.machine.progress import Tell
from fedreel.report.markup import count, el, number, short, table
from fedreel.report.pictures import header, percent, problems
from fedreel.report.shell import document, section
from fedreel.tasks.skeleton.poses.estimate import Poses, estimate
from fedreel.tasks.skeleton.poses.layout import JOINTS
from fedreel.tasks.skeleton.poses.networks import BlazePose
from fedreel.tasks.skeleton.poses.result import Followed, PosesAlbum
from fedreel.tasks.skeleton.poses.weights import Weights
from fedreel.tasks.use.outputs import Places

UNKNOWN = "unknown"  # class or subject of a video that nothing is said of


@dataclass(frozen=True)
class Recording:
    """A clip's skeletons (T, M, 25, 3), and how many frames a second it has."""

    clip: Clip
    joints: np.ndarray
    fps: float


def folder_poses(
    source: Path, places: Places, given: Weights, people: int, detail: str, tell: Tell | None
) -> PosesAlbum:
    """Follow the people of every video below a folder. Videos that cannot be read or show nobody are skipped."""
    places.check_apart(source)
    clips, network = find(source), BlazePose(given)
    found: list[Recording] = []
    videos: list[Followed] = []
    skipped: list[Broken] = []
    for done, clip in enumerate(clips, 1):
        try:
            poses = estimate(source / clip.path, network, people)
        except DataError as error:
            skipped.append(Broken(clip.path, error.problem))
        else:
            found.append(Recording(clip, poses.joints.astype(np.float32), poses.line.fps))
            videos.append(_followed(clip, poses))
        if tell:
            tell("following people", done / len(clips))
    if not found:
        raise DataError(
            "nobody was found in any video of this folder",
            where=str(source),
            found=f"{skipped[0].path}: {skipped[0].reason}",
        )
    sets = _sets(found, source, places)
    result = PosesAlbum(
        source=source,
        run=given.place,
        videos=videos,
        skipped=skipped,
        detail=detail,
        weights=given.fingerprint,
        sets=[*sets],
    )
    page = _page(result) if places.page else ""
    if places.out is None:
        return places.write(result, page)
    if not places.folder:
        return places.write(result, page, set_npz(found))
    with places.staged() as staging:
        for name, own in sets.items():
            (staging / name).write_bytes(set_npz(own))
        return places.write(result, page, [places.out / name for name in sets])


def set_npz(recordings: Sequence[Recording]) -> bytes:
    """A file of recordings, as the task `skeleton` reads it. Who is not there in a frame is all zero in it."""
    people = max(recording.joints.shape[1] for recording in recordings)
    padded = [np.pad(r.joints, ((0, 0), (0, people - r.joints.shape[1]), (0, 0), (0, 0))) for r in recordings]
    together = np.concatenate(padded)
    bodies = {"data" if m == 0 else f"data{m + 1}": together[:, m] for m in range(people)}
    clips = [recording.clip for recording in recordings]
    classes = sorted({clip.label or UNKNOWN for clip in clips})
    optional: dict[str, np.ndarray] = {}
    if all(clip.split for clip in clips):
        optional["split"] = np.array([clip.split for clip in clips])
    if len(rates := {round(recording.fps, 3) for recording in recordings}) == 1:
        optional["fps"] = np.array(rates.pop())
    file = io.BytesIO()
    np.savez_compressed(
        file,
        **bodies,  # type: ignore[arg-type]
        **optional,  # type: ignore[arg-type]
        lengths=np.array([len(body) for body in padded]),
        labels=np.array([classes.index(clip.label or UNKNOWN) for clip in clips]),
        class_names=np.array(classes),
        subjects=np.array([clip.owner or UNKNOWN for clip in clips]),
        names=np.array(_names(clips)),
        joint_names=np.array(JOINTS),
    )
    return file.getvalue()


def _names(clips: Sequence[Clip]) -> list[str]:
    """Paths without a suffix; with it where two would have the same name."""
    bare = [PurePosixPath(clip.path).with_suffix("").as_posix() for clip in clips]
    return [clip.path if bare.count(name) > 1 else name for name, clip in zip(bare, clips)]


def _sets(found: Sequence[Recording], source: Path, places: Places) -> dict[str, list[Recording]]:
    """The files that are written, by name: all recordings in one, or in a folder an owner's in each."""
    if places.out is None:
        return {}
    if not places.folder:
        return {places.out.name: [*found]}
    sets: dict[str, list[Recording]] = {}
    for recording in found:
        for owner in recording.clip.owners:
            sets.setdefault(f"{file_name(owner or source.resolve().name)}.npz", []).append(recording)
    return sets


def _followed(clip: Clip, poses: Poses) -> Followed:
    return Followed(clip.path, len(poses.joints), poses.people, poses.there.mean(axis=0).tolist())


def _page(result: PosesAlbum) -> str:
    rows: list[list[object]] = [
        [video.path, str(video.people), number(video.frames), ", ".join(map(percent, video.seen))]
        for video in result.videos
    ]
    lost: list[list[object]] = [[broken.path, broken.reason] for broken in result.skipped]
    body = el(
        "main",
        problems(result.notes),
        section(
            "videos",
            "The videos",
            table(["video", "people", "frames", "there in"], rows, caption="Videos", class_="sortable"),
            lead="Each person is there in a share of the frames. The page of a single video shows the skeletons.",
        ),
        section("skipped", "Skipped", table(["video", "why"], lost, caption="Skipped")) if lost else None,
    )
    name = result.source.resolve().name
    hint = "with people in them" + (f", {len(lost)} skipped" if lost else "")
    head = header("poses", name, headline=("found", count(len(rows), "video"), hint))
    return document(f"{short(name)}: poses", head, body)
