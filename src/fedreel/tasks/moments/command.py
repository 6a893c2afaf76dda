"""`fedreel find` and `fedreel.find`: a video and a sentence in, when it happens out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedreel.machine.progress import Tell
from fedreel.systems import resolve
from fedreel.tasks.moments.result import Finding
from fedreel.tasks.use.options import Client, Device, Json, Model, Page, Place, Request, out_is, source_is

if TYPE_CHECKING:
    from fedreel.data.features import Features


def find(
    source: Annotated[Place, source_is("A video file.")],
    sentence: Annotated[str, typer.Argument(help="What to find, in words.")],
    model: Model = None,
    *,
    out: Annotated[Place | None, out_is("Write the moments as mp4 into this folder.")] = None,
    page: Page = None,
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    top: Annotated[int, typer.Option(help="How many moments to give, the likeliest first.")] = 3,
    features: Features | None = None,
    tell: Tell | None = None,
) -> Finding:
    """Find the moments of a video that a sentence describes, with a trained model; and cut them out."""
    from fedreel.tasks.use.models import declared_verb

    request = Request.of(
        source, model, verb="find", out=out, page=page, json=json, client=client, device=device, tell=tell
    )
    verb = declared_verb(request.run, "find", "find moments")
    return resolve(verb.answers)(request, sentence, top, features)
