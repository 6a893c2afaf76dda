"""The page of a video's poses: the skeletons over the video, and as a Kinect would have recorded them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedreel.media.thumbnails import thumbnails
from fedreel.report.markup import Html, count, duration, el, number, short, table
from fedreel.report.pictures import RANKING, header, percent, problems
from fedreel.report.shell import document, section
from fedreel.tasks.skeleton.figure import KEYS, POINTS, Figure, figure
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.page import STYLE, moving_figure, script
from fedreel.tasks.skeleton.poses.estimate import Poses
from fedreel.tasks.skeleton.poses.landmarks import BONES, NAMES
from fedreel.tasks.skeleton.poses.result import PosesResult

WIDE = 640.0  # of the drawing


def draw_page(result: PosesResult, poses: Poses) -> str:
    """The whole page: one file that opens without a network."""
    body = el(
        "main",
        problems(result.notes),
        el(
            "div",
            section("video", "Over the video", over_video(result.source, poses)),
            section("motion", "As recorded", _recorded(poses), _about(result)),
            class_="moving",
        ),
        script(result.frames),
    )
    name = result.source.name
    hint = f"in {percent(float(poses.there.any(axis=1).mean()))} of the frames"
    head = header("poses", name, headline=("found", count(result.people, "person", "people"), hint))
    return document(f"{short(name)}: poses", el("style", Html(RANKING + STYLE)), head, body, images=True)


def over_video(video: Path, poses: Poses) -> Html:
    """The landmarks where they are in the picture, with the frames of the video behind them."""
    drawn, frames = _over(poses)
    pictures = thumbnails(video, poses.line, frames.tolist())
    said = f"{count(poses.people, 'body', 'bodies')} over the frames of the video"
    return moving_figure(drawn, said, "at the speed of the video", [pictures.get(frame) for frame in frames.tolist()])


def _over(poses: Poses) -> tuple[Figure, np.ndarray]:
    """The drawing at key frames, and which frames of the video these are."""
    most = max(2, min(KEYS, POINTS // (poses.people * len(NAMES))))
    frames = np.unique(np.linspace(0, len(poses.scores) - 1, most).round().astype(int))
    scale = WIDE / poses.size[1]
    times = np.array([poses.line.seconds(frame) for frame in frames.tolist()])
    size = (WIDE, poses.size[0] * scale)
    return Figure(poses.places[frames] * scale, poses.there[frames], times, BONES, size, len(poses.scores)), frames


def _recorded(poses: Poses) -> Html:
    drawn = figure(poses.joints, KINECT_V2, poses.line.fps)
    said = f"{count(poses.people, 'body', 'bodies')} moving, seen by the camera's mirror image"
    return moving_figure(drawn, said, "in metres, left and right as a Kinect has them")


def _about(result: PosesResult) -> Html:
    rows: list[list[object]] = [
        ["frames", f"{number(result.frames)}, {result.fps:.4g} a second"],
        ["length", duration(result.frames / result.fps)],
        ["network", f"BlazePose {result.detail}"],
        ["joints", f"{len(KINECT_V2.names)}, {result.joints}"],
    ]
    rows += [
        [f"person {m}", f"{percent(seen / result.frames)} of the frames, {percent(score)} sure"]
        for m, (seen, score) in enumerate(zip(result.seen, result.scores), 1)
    ]
    return table(["what", "value"], rows, caption="The video")
