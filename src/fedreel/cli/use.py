"""Commands that use a trained model: a verb for each that a task declares; what its backbone is worth, and the backbone
as a file of weights."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from fedreel.cli.say import one_line, say
from fedreel.errors import Interrupted
from fedreel.machine.progress import ProgressBar
from fedreel.systems import resolve, verbs
from fedreel.tasks.use.options import Client, Place
from fedreel.tasks.vision.evaluate.command import evaluate

if TYPE_CHECKING:
    from fedreel.tasks.use.result import Result

SHOWN = 20  # files whose names are printed
ON_A_COMMAND_LINE: dict[Any, Any] = {  # typer takes no unions
    Place: Path,
    Place | None: Path | None,
    Mapping[str, Any] | Sequence[str] | None: list[str] | None,
}

log = logging.getLogger(__name__)


def add_commands(app: typer.Typer) -> None:
    app.command()(export)
    app.command()(as_command(evaluate))
    for verb in verbs().values():
        if verb.name in _names(app):
            log.warning("the verb '%s' of a package is left out: fedreel has a command of that name", verb.name)
        else:
            app.command(verb.name)(as_command(resolve(verb.function)))


def as_command(verb: Callable[..., Result]) -> Callable[..., None]:
    """A verb's function for the command line, with the same parameters: those that are annotated as options. Progress
    and notes go to stderr; the answer, then the names of the files that were written, to stdout."""

    def command(**options: Any) -> None:
        try:
            with ProgressBar() as tell:
                result = verb(**options, tell=tell)
        except Interrupted as interruption:
            say(f"\nInterrupted. {interruption}", err=True)
            raise typer.Exit(130) from None
        for remark in result.remarks():
            say(one_line(remark), err=True)
        printed = str(options["json"]) == "-"  # stdout is for the JSON alone
        for line in [*result.lines(), *map(str, result.files[:SHOWN])]:
            say(one_line(line), err=printed)
        if len(result.files) > SHOWN:
            say(f"and {len(result.files) - SHOWN} more files", err=printed)

    parameters = [
        parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(verb).parameters.items()
        if (annotation := _annotation(verb, name)) is not None
    ]
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def export(
    model: Annotated[Path, typer.Option("--model", help="A run directory of a task over images or video clips.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write to this safetensors file; with --peft, this folder.")],
    client: Client = "",
    peft: Annotated[
        bool, typer.Option("--peft", help="Write what LoRA has trained, as the package peft does.")
    ] = False,
) -> None:
    """Write a trained model's backbone as weights under the names of torchvision or transformers, or its LoRA."""
    from fedreel.tasks.vision.export import export as export_backbone
    from fedreel.tasks.vision.export import export_lora

    names = (export_lora if peft else export_backbone)(model, out, client=client)
    say(f"{len(names)} tensors of {'LoRA' if peft else 'the backbone'}")
    say(out)


def _annotation(verb: Callable[..., Any], name: str) -> Any:
    """What typer needs to know of a parameter; None of one that is for Python programs."""
    holder = SimpleNamespace(__annotations__={name: verb.__annotations__.get(name)})
    try:
        hint = get_type_hints(holder, vars(inspect.getmodule(verb)), include_extras=True)[name]
    except NameError:  # a class that only a type checker imports
        return None
    kind, *info = get_args(hint) or (None,)
    if not any(isinstance(option, (typer.models.OptionInfo, typer.models.ArgumentInfo)) for option in info):
        return None
    return Annotated[(ON_A_COMMAND_LINE.get(kind, kind), *info)]


def _names(app: typer.Typer) -> set[str]:
    """Of the commands that are there."""
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    return commands | {group.name for group in app.registered_groups if group.name}
