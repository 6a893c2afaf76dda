"""Commands that read runs: their pages, runs side by side, and what left each client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedreel.cli.say import say
from fedreel.cli.tables import print_table
from fedreel.errors import FedreelError


def add_commands(app: typer.Typer) -> None:
    app.command()(compare)
    app.command()(report)
    app.command()(ledger)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put runs side by side: mean and sd over seeds, and the settings in which they differ."""
    from fedreel.report.compare import cell_text, compare_table

    table = compare_table(runs)
    if as_json:
        say(json.dumps(table, indent=1))
    else:
        print_table(table["columns"], [[cell_text(row.get(c)) for c in table["columns"]] for row in table["rows"]])
        for left_out in table["skipped"]:
            say(f"left out {left_out['run']}: {left_out['why']}", err=True)
        for note in table["notes"]:
            say(note, err=True)


def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write report.html anew from a run's files, finished or not."""
    from fedreel.report import write

    if not (run / "recipe.toml").exists():
        raise FedreelError("this is not a run directory", where=str(run), expected="a folder with recipe.toml")
    say(write(run))


def ledger(
    run: Annotated[Path, typer.Argument(help="A run directory, a site's folder, or a ledger.jsonl.")],
    client: Annotated[str | None, typer.Option(help="Only this client.")] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="One line a departure instead of totals.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Say whether any line was changed or cut.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON lines.")] = False,
) -> None:
    """What left each client: which tensors and numbers, how much, for what."""
    from fedreel.core.ledger import departures, tensors, totals

    path = run if run.is_file() else run / "ledger.jsonl"
    if verify:
        _verify(path)
        return
    if as_json:
        for row in departures(path, client):
            say(json.dumps(row))
        return
    if rounds:
        rows = [
            [str(r["round"]), r["client"], r["purpose"], str(r["bytes"]), ", ".join(r["numbers"])]
            for r in departures(path, client)
        ]
        print_table(["round", "client", "purpose", "bytes", "numbers"], rows)
    else:
        print_table(["client", "purpose", "departures", "bytes", "kinds", "numbers"], totals(path, client))
    for name, rows in tensors(path, client):
        say(f"\nTensors of layout {name}:")
        print_table(["name", "shape", "type", "bytes"], rows)


def _verify(path: Path) -> None:
    from fedreel.core.chain import verify

    found = verify(path, path.with_suffix(".head"))
    for problem in found.problems:
        say(f"{path}: {problem}")
    if found.unchained:
        say(f"{path}: the first {found.unchained} lines are of a version that did not chain them")
    if found.problems:
        raise typer.Exit(1)
    say(f"{path}: {found.lines} lines, none changed or cut since they were chained; the last is {found.last}")
