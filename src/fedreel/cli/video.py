"""Commands for trained video models: search by example, and the backbone as a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedreel.tasks.pretrain.search import Similar

SHOWN = 20  # skipped files that are named

Client = Annotated[str, typer.Option(help="Whose private part of the model is used, if it has one.")]


def add_commands(app: typer.Typer) -> None:
    app.command()(search)
    app.command()(export)


def search(
    clip: Annotated[Path, typer.Argument(help="A video file: what to look for.")],
    folder: Annotated[Path, typer.Option("--in", help="A folder of videos: where to look.")],
    model: Annotated[Path, typer.Option("--model", help="A run directory of a task over video clips.")],
    top: Annotated[int, typer.Option(help="How many videos to show, the most similar first.")] = 10,
    page: Annotated[Path | None, typer.Option(help="Write a page with pictures of them, to be played.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all that was found.")] = None,
    pooling: Annotated[str, typer.Option(help="mean, or grid: where in the picture and when counts too.")] = "mean",
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Look at all videos anew.")] = False,
    client: Client = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Find the videos of a folder that are most like a clip, with a trained model. The folder is looked at once."""
    from fedreel.tasks.pretrain.search import search as start
    from fedreel.tasks.use.progress import Shown

    options = {"top": top, "pooling": pooling, "page": page, "json": as_json, "client": client, "device": device}
    try:
        with Shown() as shown:
            made = start(clip, folder, model, rebuild=rebuild, tell=shown, **options)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. What was looked at is kept: run the same command again to go on.", err=True)
        raise typer.Exit(130) from None
    for skipped in made.skipped[:SHOWN]:
        typer.echo(_plain(f"skipped {skipped.path}: {skipped.reason}"), err=True)
    if len(made.skipped) > SHOWN:
        typer.echo(f"skipped {len(made.skipped) - SHOWN} more; --json or --page lists them", err=True)
    for note in made.notes:
        typer.echo(_plain(f"note: {note}"), err=True)
    for line in _lines(made):
        typer.echo(line)
    for place in filter(None, (page, as_json)):
        typer.echo(place)


def export(
    run: Annotated[Path, typer.Argument(help="A run directory of a task over images or video clips.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the weights to this safetensors file.")],
    client: Client = "",
) -> None:
    """Write a trained model's backbone as weights under torchvision's names."""
    from fedreel.tasks.vision.export import export as start

    names = start(run, out, client=client)
    typer.echo(f"{len(names)} tensors of the backbone")
    typer.echo(out)


def _lines(made: Similar) -> list[str]:
    """The ranking in columns; those of labels and owners only where there are any."""
    columns = {
        "rank": [f"{hit.rank:>4}" for hit in made.hits],
        "similarity": [f"{hit.similarity:>10.4f}" for hit in made.hits],
        "label": [hit.label for hit in made.hits],
        "owner": [hit.owner for hit in made.hits],
        "video": [str(made.folder / hit.path) for hit in made.hits],
    }
    kept = {name: [name, *map(_plain, cells)] for name, cells in columns.items() if any(cells)}
    widths = [max(map(len, cells)) for cells in kept.values()]
    rows = zip(*kept.values())
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]


def _plain(text: str) -> str:
    """Names of files may hold anything; a terminal shall get text, on one line."""
    readable = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in readable)
