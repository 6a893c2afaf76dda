"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: section.key=value. Repeatable.")]
RecipeName = Annotated[str, typer.Argument(help="A recipe's name (see `fedreel list`) or a .toml file.")]
Seed = Annotated[int | None, typer.Option(help="Seed of initial weights, sampling and batches.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
