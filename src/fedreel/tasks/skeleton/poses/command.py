"""`fedreel poses` and `fedreel.poses`: a video in, or a folder of them, the moving skeletons of its people out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedreel.machine.progress import Tell
from fedreel.tasks.skeleton.poses.result import PosesAlbum, PosesResult
from fedreel.tasks.use.options import Json, Page, Place, out_is, source_is

OUT = "Write the skeletons to this npz file; those of a folder of videos to a folder too, a file for each owner."


def poses(
    source: Annotated[Place, source_is("A video file, or a folder of videos.")],
    *,
    out: Annotated[Place | None, out_is(OUT)] = None,
    page: Page = None,
    json: Json = None,
    people: Annotated[int, typer.Option(help="How many people are followed at most.")] = 2,
    detail: Annotated[str, typer.Option(help="lite, full or heavy: quicker or more exact.")] = "full",
    weights: Annotated[
        Place | None, typer.Option("--weights", help="The tarball of `npm pack @mediapipe/pose`, or its folder.")
    ] = None,
    tell: Tell | None = None,
) -> PosesResult | PosesAlbum:
    """Find the people of a video as moving skeletons, which `fedreel recognize` reads; and draw them over the video."""
    from fedreel.tasks.skeleton.poses.find import find_poses

    places = [None if place is None else Path(place) for place in (out, page, json, weights)]
    return find_poses(Path(source).expanduser(), *places, people=people, detail=detail, tell=tell)
