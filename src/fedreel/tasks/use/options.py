"""The options of all verbs, spelled once. A verb is a function whose parameters are annotated with them.

The order is the same everywhere: the source, what is asked of it, `model`; then, by name, `out`, `page`, `json`,
`client`, `device`, and what a verb has of its own. What has no such annotation (`tell`) is for Python programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedreel.machine.progress import Tell
from fedreel.zoo import find_model, unasked

Place = Path | str

MODEL = "A run directory, the folder model/ in one, or a model of `fedreel models` [the one for this command]."
Model = Annotated[Place | None, typer.Option("--model", help=MODEL)]
Page = Annotated[Place | None, typer.Option("--page", help="Write a page with pictures; it opens offline.")]
Json = Annotated[Place | None, typer.Option("--json", help="Write all that was found as JSON; - prints it instead.")]
Client = Annotated[str, typer.Option("--client", help="Whose part of the model is used, where clients have their own.")]
Device = Annotated[str, typer.Option("--device", help="Where the model runs: auto, cpu, cuda or cuda:N.")]
Lists = Annotated[
    str, typer.Option("--lists", help="Lists of the videos to use, a file or folder [those among the videos].")
]
Fold = Annotated[int, typer.Option("--fold", help="The number of the lists, where several exclude each other.")]
Changes = Annotated[
    Mapping[str, Any] | Sequence[str] | None,
    typer.Option("--set", help="Change a setting of the recipe: section.key=value. Repeatable."),
]


def source_is(what: str) -> Any:
    """The one thing that every verb needs: a file, or a folder of them."""
    return typer.Argument(metavar="SOURCE", help=what)


def out_is(what: str) -> Any:
    """Where the verb's product goes: a video, a folder of clips."""
    return typer.Option("--out", "-o", help=what)


@dataclass(frozen=True)
class Request:
    """What every verb is told: a source, a run whose model answers, and where results go."""

    source: Path
    run: Path
    out: Path | None
    page: Path | None
    json: Path | None
    client: str
    device: str
    tell: Tell | None
    notes: tuple[str, ...] = ()  # what to know about the model, where the user has named none

    @classmethod
    def of(
        cls,
        source: Place,
        model: Place | None,
        *,
        verb: str = "",
        out: Place | None,
        page: Place | None,
        json: Place | None,
        client: str,
        device: str,
        tell: Tell | None,
    ) -> Request:
        """As a user says it. Without a model it is the one that comes with fedreel for the `verb`."""
        own = unasked(verb) if model is None else None
        folder = own.folder if own else find_model(model or "")
        notes = (
            (f"by {own.name}, which comes with fedreel: `fedreel models {own.name}` says what it is",) if own else ()
        )
        run = folder.parent if folder.name == "model" and (folder / "card.json").is_file() else folder
        product, drawn, told = (None if place is None else Path(place) for place in (out, page, json))
        return cls(Path(source).expanduser(), run, product, drawn, told, client, device, tell, notes)
