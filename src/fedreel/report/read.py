"""A run directory read into memory: whatever is there, with a plain sentence for whatever is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fedreel.errors import RunError
from fedreel.machine.records import Records
from fedreel.report.digest import Mark, after, begin
from fedreel.report.rounds import Record
from fedreel.report.run import Ledger, Run, add_ledger, add_metrics

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MISSING = {
    "metrics.jsonl": "rounds, tests and refusals are unknown.",
    "ledger.jsonl": "what left the clients is unknown.",
}


def read_run(path: Path) -> Run:
    """Read a run directory, finished or not."""
    run = read_settings(path)
    marks = begin(run)
    ledger, run.ledger = run.ledger or Ledger(), None
    run.has_metrics = _each_record(run, "metrics.jsonl", marks, lambda record: add_metrics(run, record))
    if run.sites and not (run.path / "ledger.jsonl").exists():
        return run  # each site keeps its own
    if _each_record(run, "ledger.jsonl", marks, lambda record: add_ledger(ledger, record)):
        run.ledger = ledger
    return run


def read_settings(path: Path) -> Run:
    """Only what was asked for and how it ended: the recipe and the summary."""
    if not path.is_dir():
        raise RunError(
            "this is not a run directory",
            expected="a directory that `fedreel run` wrote",
            found="a file" if path.exists() else "nothing",
            where=str(path),
        )
    run = Run(path)
    _read_recipe(run)
    _read_summary(run)
    return run


def _read_recipe(run: Run) -> None:
    try:
        run.recipe_text = (run.path / "recipe.toml").read_text("utf-8", errors="replace")
        run.recipe = tomllib.loads(run.recipe_text)
    except OSError:
        run.problems.append("recipe.toml is missing: what was asked for is unknown.")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        run.problems.append(f"recipe.toml is not valid TOML ({error}); it is shown as it is.")


def _read_summary(run: Run) -> None:
    try:
        summary = json.loads((run.path / "summary.json").read_text("utf-8", errors="replace"))
        if not isinstance(summary, dict):
            raise ValueError("not an object")
        run.summary = summary
    except OSError:
        run.problems.append(
            "summary.json is missing: the run has not finished. Totals are sums over the rounds so far."
        )
    except (ValueError, RecursionError) as error:
        run.problems.append(f"summary.json cannot be read ({error}). Totals are sums over the rounds so far.")


def _each_record(run: Run, name: str, marks: Mapping[str, Mark], add: Callable[[Record], None]) -> bool:
    """Hand every record of a JSON-lines file from its mark on to `add`; lines that are none are counted and
    reported."""
    records = Records(run.path / name, marks[name].at, marks[name].lines)
    try:
        for record in records:
            try:
                add(record)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                records.bad.append(records.number)
    except OSError:
        run.problems.append(f"{name} is missing: {MISSING[name]}")
        return False
    if records.torn:
        run.problems.append(f"{name}: the last line is torn (the run was writing it) and left out.")
    found = after(marks[name], records)
    if found.bad:
        where = ", ".join(map(str, found.where[:8])) + (", …" if found.bad > 8 else "")
        run.problems.append(f"{name}: {found.bad} unreadable line(s) left out (line {where}).")
    return True
