"""The command line: one typed function a command. torch is imported only by the commands that need it."""

from __future__ import annotations

import gc
import sys

import typer

from fedreel.cli import data, models, privacy, reports, sites, train, ui, use
from fedreel.cli.say import say, say_warnings
from fedreel.errors import FedreelError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated video understanding: train on video that may not leave its owners, then use the models.",
)
# Objects that are made before garbage is looked for. torch brings half a million that stay: to search them again and
# again, as by default, takes a fifth of the time until a command begins its work.
YOUNG = 20_000

for commands in (train, reports, data, sites, models, privacy, ui, use):
    commands.add_commands(app)


def main() -> None:
    """Errors meant for the user are printed without a traceback; status 2."""
    gc.set_threshold(YOUNG)
    say_warnings()
    try:
        app()
    except FedreelError as error:
        say(f"fedreel: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        say("\nInterrupted.", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
        sys.exit(141)
