"""`fedreel search` and `fedreel.search`: a clip or a sentence in, the videos of a folder that are most like it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedreel.machine.progress import Tell
from fedreel.tasks.use.options import Client, Device, Json, Model, Page, Place, Request, out_is, source_is
from fedreel.tasks.vision.search.result import Similar


def search(
    source: Annotated[Place, source_is("A video file, or a sentence: what to look for.")],
    folder: Annotated[Place, typer.Option("--in", metavar="FOLDER", help="A folder of videos: where to look.")],
    model: Model = None,
    *,
    out: Annotated[Place | None, out_is("Copy the most similar videos into this folder.")] = None,
    page: Page = None,
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    top: Annotated[int, typer.Option(help="How many videos to give, the most similar first.")] = 10,
    pooling: Annotated[str, typer.Option(help="mean, or grid: where in the picture and when counts too.")] = "mean",
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Look at all videos anew.")] = False,
    tell: Tell | None = None,
) -> Similar:
    """Find the videos of a folder that are most like a clip or a sentence: by a trained model, or by the folder of a
    CLIP. Sentences are compared with the names of a model's classes, or read by CLIP. The folder is looked at once."""
    from fedreel.tasks.vision.search.search import search_folder

    request = Request.of(
        source, model, verb="search", out=out, page=page, json=json, client=client, device=device, tell=tell
    )
    return search_folder(request, Path(folder), top, pooling, rebuild)
