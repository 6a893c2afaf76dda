"""The models that come with the package: a list of them, and what each is."""

from __future__ import annotations

from typing import Annotated

import typer

from fedreel.cli.say import say
from fedreel.machine import words
from fedreel.zoo import Entry, entries, entry


def add_commands(app: typer.Typer) -> None:
    app.command()(models)


def models(
    name: Annotated[str, typer.Argument(help="Print this model's card: data, method, numbers, limits.")] = "",
) -> None:
    """The models that come with fedreel: what each does, and which one a command uses where no --model is given."""
    if name:
        say(entry(name).card.rstrip("\n"))
        return
    for one in entries():
        say(_lines(one) + "\n")
    say("* where no --model is given. `fedreel models NAME` prints a model's card.")


def _lines(one: Entry) -> str:
    verbs = ", ".join(f"{verb}*" if verb in one.unasked else verb for verb in one.verbs)
    told = {"for": verbs, "data": one.data, "licence": one.licence, "result": one.result}
    rows = [f"  {what + ':':9}{text}" for what, text in told.items() if text]
    return "\n".join([f"{one.name} ({words.size(one.size)}): {one.does}", *rows])
