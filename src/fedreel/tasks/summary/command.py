"""`fedreel summarize` and `fedreel.summarize`: a video in, its most important shots out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedreel.machine.progress import Tell
from fedreel.tasks.summary.result import Summary
from fedreel.tasks.use.options import Client, Device, Json, Model, Page, Place, Request, out_is, source_is

if TYPE_CHECKING:
    from fedreel.data.features import Features


def summarize(
    source: Annotated[Place, source_is("A video file.")],
    model: Model = None,
    *,
    out: Annotated[Place | None, out_is("Write the summary to this mp4.")] = None,
    page: Page = None,
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    ratio: Annotated[float, typer.Option(help="Share of the frames that the summary may keep.")] = 0.15,
    community: Annotated[str, typer.Option(help="auto, global, or the name of a community.")] = "auto",
    shots: Annotated[str, typer.Option(help="How shots are found: cuts, kts or transnet.")] = "cuts",
    features: Features | None = None,
    tell: Tell | None = None,
) -> Summary:
    """Choose the shots of a video that a trained model finds most important; as an mp4, and as a page."""
    from fedreel.tasks.summary.summarize import summarize_video

    request = Request.of(
        source, model, verb="summarize", out=out, page=page, json=json, client=client, device=device, tell=tell
    )
    return summarize_video(request, ratio, community, features, shots)
