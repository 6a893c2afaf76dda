"""The demo: a small job of every system that has landed, and one page that links their reports."""

from __future__ import annotations

import sys
from pathlib import Path

from fedreel.config import load_recipe
from fedreel.report import Entry, write_index

# title -> recipe and rounds: a part of each recipe's own, so that all take less than eight minutes on two cores
DEMOS = {
    "recognition": ("recognition", 6),
    "FedVSSL": ("fedvssl", 14),
    "FedLID": ("fedlid", 9),
    "FedVMR": ("fedvmr", 20),
    "CFed-VS": ("cfedvs", 12),
    "FSAR": ("fsar", 16),
}


def demo(out: Path) -> Path:
    """Runs (or, where one was interrupted or finished before, resumes) each job below `out`."""
    from fedreel.api import run

    entries = []
    for title, (name, rounds) in DEMOS.items():
        recipe = load_recipe(name, {"round.rounds": rounds})
        print(f"{title}: {recipe.description}", file=sys.stderr, flush=True)
        result = run(recipe, out / name, resume=(out / name / "recipe.toml").exists(), quiet=False)
        print(f"{title}: report at {(result.path / 'report.html').resolve()}", flush=True)
        entries.append(Entry.of_run(title, recipe.description, result.path))
    return write_index(out / "index.html", "fedreel demo", entries)
