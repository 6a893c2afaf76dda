"""The demo: a small job of every system that has landed, and one page that links their reports."""

from __future__ import annotations

import sys
from pathlib import Path

from fedreel.config import load_recipe
from fedreel.report import Entry, write_index
from fedreel.systems import systems


def demo(out: Path) -> Path:
    """Runs (or, where one was interrupted or finished before, resumes) each job below `out`: the recipes of all systems
    that declare one, for a part of their rounds, so that all take less than eight minutes on two cores."""
    from fedreel.api import run

    entries = []
    for system in systems():
        if not system.demo_rounds:
            continue
        title, folder = system.title, out / system.name
        recipe = load_recipe(system.recipe, {"round.rounds": system.demo_rounds})
        print(f"{title}: {recipe.description}", file=sys.stderr, flush=True)
        result = run(recipe, folder, resume=(folder / "recipe.toml").exists(), quiet=False)
        print(f"{title}: report at {(result.path / 'report.html').resolve()}", flush=True)
        entries.append(Entry.of_run(title, recipe.description, result.path))
    return write_index(out / "index.html", "fedreel demo", entries)
