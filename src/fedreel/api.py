"""The Python API: run a recipe and report on it, load the model. Every way of running goes through here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreel.config import Recipe, load_recipe
from fedreel.core.method import Method
from fedreel.core.server import ServerState, Watcher
from fedreel.core.task import Task
from fedreel.report import write as write_report
from fedreel.report.digest import Digest
from fedreel.runs import run as runs
from fedreel.runs.run import Loaded, Result, load
from fedreel.runs.rundir import room_to_write

__all__ = ["Loaded", "Result", "load", "load_recipe", "run"]


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    engine: str | None = None,
    device: str | None = None,
    resume: bool = False,
    quiet: bool = True,
    task: Task | None = None,
    method: Method | None = None,
) -> Result:
    """Run a recipe (its name, a file, or an object) into the folder `out`, on the `data` of a folder of your own.

    `set` changes settings: ``run("recognition", "out", set={"method.name": "fedprox", "method.mu": 0.01})``.
    """
    if isinstance(recipe, Recipe):
        if set:
            raise TypeError("`set` goes with a recipe's name or file; change a Recipe object with dataclasses.replace")
    else:
        recipe = load_recipe(recipe, set or {})
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, source=str(data)))
    if seed is not None:
        recipe = replace(recipe, seed=seed)
    if device is not None:
        recipe = replace(recipe, device=device)
    if engine is not None:
        recipe = replace(recipe, engine={**recipe.engine, "name": engine})
    result = runs.run(recipe, out, resume=resume, quiet=quiet, task=task, method=method, watching=[_Digested])
    with room_to_write(result.path):
        _report(result.path)
    return result


class _Digested(Watcher):
    """Keeps what a long run's records came to beside them."""

    def __init__(self, run: Path) -> None:
        self._digest = Digest(run)

    def round_done(self, progress: ServerState, sync: Callable[[], None]) -> None:
        self._digest.round_done()


def _report(run: Path) -> None:
    """Written when a run has finished; the page of one that was finished before is left alone."""
    page, summary = run / "report.html", run / "summary.json"
    if not page.exists() or page.stat().st_mtime < summary.stat().st_mtime:
        write_report(run)
