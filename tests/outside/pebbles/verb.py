"""The verb of the package outside the tree: points in a text file in, how many are of each class out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from fedreel.machine.progress import Tell
from fedreel.tasks.use.options import Client, Device, Json, Model, Page, Place, Request, out_is, source_is
from fedreel.tasks.use.result import Result


@dataclass(frozen=True, kw_only=True)
class Counted(Result):
    """How many points are of which class."""

    counts: dict[str, int]

    def lines(self) -> list[str]:
        return [f"{name}: {count}" for name, count in self.counts.items()]


def count(
    source: Annotated[Place, source_is("A text file: a point x y in every line.")],
    model: Model,
    *,
    out: Annotated[Place | None, out_is("Write the classes of the points to this file.")] = None,
    page: Page = None,
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    names: Annotated[str, typer.Option(help="What the classes are called.")] = "no,yes",
    tell: Tell | None = None,
) -> Counted:
    """Count the points that a trained model finds inside and outside."""
    from fedreel.tasks.use.models import declared_verb, load_for
    from fedreel.tasks.use.outputs import Places
    from pebbles.task import Counting

    request = Request.of(source, model, out=out, page=page, json=json, client=client, device=device, tell=tell)
    places = Places.of(request, "the classes")
    places.check(request.source, "list of points")
    declared_verb(request.run, "count", "count points")
    loaded, whose = load_for(request.run, client, "cpu")
    task = loaded.task
    assert isinstance(task, Counting)
    rows = [[float(number) for number in line.split()] for line in request.source.read_text().splitlines()]
    classes = task.which(loaded.model, rows)
    if tell:
        tell("counting", 1.0)
    counts = {name: classes.count(number) for number, name in enumerate(names.split(","))}
    counted = Counted(source=request.source, run=request.run, client=whose, notes=["a toy"], counts=counts)
    return places.write(counted, "<!doctype html>", "\n".join(map(str, classes)).encode() if out else ())
