"""What every command on a user's file checks before it begins: where results go, and whether the run fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fedreel.core.task import Task
from fedreel.errors import DataError, RunError
from fedreel.runs.run import Loaded

T = TypeVar("T", bound=Task)
COMMANDS = {
    **dict.fromkeys(("skeleton", "image", "recognition"), "fedreel recognize"),
    "summary": "fedreel summarize",
    "moments": "fedreel find",
}


def check_places(source: Path, what: str, places: Mapping[str, Path | str | None]) -> None:
    """Raise if a result would be a folder, or overwrite another one or the source, which is `what` to the user."""
    seen: dict[Path, str] = {source.resolve(): f"the {what} itself"}
    for name, given in places.items():
        if given is None:
            continue
        place = Path(given)
        if place.is_dir():
            raise DataError(f"{name} would be a folder", where=str(place), expected="the name of a file")
        linked = place.exists() and source.exists() and place.samefile(source)
        if linked or place.resolve() in seen:
            other = f"the {what} itself" if linked else seen[place.resolve()]
            raise DataError(f"{name} would overwrite {other}", where=str(place), hint="give it another name")
        seen[place.resolve()] = name


def check_task(loaded: Loaded, wanted: type[T], name: str, does: str, run: Path) -> T:
    """The run's task, if it is the one that a command is for; else the error names the other task's command."""
    if isinstance(loaded.task, wanted):
        return loaded.task
    found = str(loaded.card.get("task"))
    raise RunError(
        f"this run's model does not {does}",
        where=str(run),
        expected=f"a run of the task {name}",
        found=found,
        hint=f"use {COMMANDS[found]}" if found in COMMANDS else "fedreel.load gives its model to Python programs",
    )


def only_client(run: Path, clients: Sequence[str], hint: str) -> str:
    """The client of a run that has just one; of several, the user must name one."""
    if len(clients) == 1:
        return clients[0]
    raise RunError(
        "it is not clear whose model is meant",
        where=str(run),
        expected="the name of a client: --client NAME",
        found=f"clients {', '.join(clients)}" if clients else "no record of clients beside this model",
        hint=hint,
    )
