"""`fedreel recognize` and `fedreel.recognize`: a recording, an image or a video in, the name of what it shows out.

Several tasks share the verb: each declares who answers for it."""

from __future__ import annotations

from typing import Annotated

import typer

from fedreel.machine.progress import Tell
from fedreel.systems import resolve
from fedreel.tasks.use.options import Client, Device, Json, Model, Page, Place, Request, out_is, source_is
from fedreel.tasks.use.recognition import Album, Recognition

SOURCE = "A recorded motion (or FILE.npz#NAME), an image or a video; or a folder of images or videos."
OUT = "Write the moving skeleton to this GIF; copy images or videos into this folder, sorted by what they show."


def recognize(
    source: Annotated[Place, source_is(SOURCE)],
    model: Model = None,
    *,
    out: Annotated[Place | None, out_is(OUT)] = None,
    page: Page = None,
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    top: Annotated[int, typer.Option(help="How many of the likeliest classes to show.")] = 5,
    tell: Tell | None = None,
) -> Recognition | Album:
    """Say which action a moving skeleton shows, or what images or videos show, with a trained model; and draw it."""
    from fedreel.tasks.use.models import declared_verb

    request = Request.of(
        source, model, verb="recognize", out=out, page=page, json=json, client=client, device=device, tell=tell
    )
    verb = declared_verb(request.run, "recognize", "recognise skeletons, images or videos")
    return resolve(verb.answers)(request, top)
