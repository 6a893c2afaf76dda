"""The verb's work: a video's people found, written as a file of skeletons, and drawn over the video."""

from __future__ import annotations

from pathlib import Path

from fedreel.errors import DataError
from fedreel.machine.progress import Tell
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.poses.estimate import Poses, as_npz, estimate, guessed
from fedreel.tasks.skeleton.poses.folder import PosesAlbum, folder_poses
from fedreel.tasks.skeleton.poses.networks import BlazePose
from fedreel.tasks.skeleton.poses.page import draw_page
from fedreel.tasks.skeleton.poses.result import PosesResult
from fedreel.tasks.skeleton.poses.weights import find_weights
from fedreel.tasks.use.outputs import Places

DETAIL, PEOPLE = "full", 2  # where nobody says otherwise


def find_poses(
    source: Path,
    out: Path | None,
    page: Path | None,
    json: Path | None,
    weights: Path | None,
    *,
    people: int = PEOPLE,
    detail: str = DETAIL,
    tell: Tell | None = None,
) -> PosesResult | PosesAlbum:
    """Follow the people of a video; `out` gets the file of skeletons. Or of all videos below a folder: then it may be a
    folder too, which gets a file for every owner."""
    named = out is None or out.suffix.lower() == ".npz"
    if source.is_dir():
        places = Places("the files of skeletons", out, page, json, folder=not named)
        places.check(source, "folder")
        return folder_poses(source, places, find_weights(detail, weights), people, detail, tell)
    places = Places("the file of skeletons", out, page, json)
    places.check(source, "video")
    if not named:
        raise DataError("skeletons are written as npz", where=str(out), expected="a name ending in .npz")
    given = find_weights(detail, weights)
    found = estimate(source, BlazePose(given), people, tell)
    there, fault = found.there, found.line.fault
    result = PosesResult(
        source=source,
        run=given.place,
        notes=[*([f"{fault}; the skeletons are of what comes before"] if fault else []), *guessed(found)],
        frames=len(there),
        fps=found.line.fps,
        people=found.people,
        seen=there.sum(axis=0).tolist(),
        scores=[float(found.scores[seen, m].mean()) for m, seen in enumerate(there.T)],
        joints=KINECT_V2.name,
        detail=detail,
        weights=given.fingerprint,
        fault=fault,
    )
    drawn = draw_page(result, found) if page is not None else ""
    return places.write(result, drawn, as_npz(found, source.stem) if out is not None else ())


def video_motion(source: Path, people: int, tell: Tell | None) -> Poses:
    """The people of a video for a model of skeletons, by the weights of the cache folder or of FEDREEL_POSE."""
    return estimate(source, BlazePose(find_weights(DETAIL)), people, tell)
