"""The Python API: run a recipe, load what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreel.config import Recipe, load_recipe
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.runs import run as core
from fedreel.runs.run import Loaded, Result, load

__all__ = ["Loaded", "Result", "load", "load_recipe", "run"]


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    engine: str | None = None,
    device: str | None = None,
    resume: bool = False,
    quiet: bool = True,
    task: Task | None = None,
    method: Method | None = None,
) -> Result:
    """Run a recipe (its name, a file, or an object) into the folder `out`.

    `set` changes settings: ``run("recognition", "out", set={"method.name": "fedprox", "method.mu": 0.01})``.
    """
    if isinstance(recipe, Recipe):
        if set:
            raise TypeError("`set` goes with a recipe's name or file; change a Recipe object with dataclasses.replace")
    else:
        recipe = load_recipe(recipe, set or {})
    if seed is not None:
        recipe = replace(recipe, seed=seed)
    if device is not None:
        recipe = replace(recipe, device=device)
    if engine is not None:
        recipe = replace(recipe, engine={**recipe.engine, "name": engine})
    return core.run(recipe, out, resume=resume, quiet=quiet, task=task, method=method)
