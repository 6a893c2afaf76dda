"""What each way to tune a recipe's backbone trains and sends, counted without training anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import torch

from fedreel.config import Recipe
from fedreel.core.blueprint import Blueprint
from fedreel.core.job import check_fit, make_method, make_task
from fedreel.errors import RecipeError
from fedreel.machine.words import size
from fedreel.models.tune import Tune

COLUMNS = ["tune", "trained", "frozen", "a client sends", "of all"]


def tuning_table(recipe: Recipe) -> list[list[str]]:
    """A row for each way: the numbers that are trained and that are not, the bytes of a client's update, and their
    share of those of the whole model. Where a way makes no sense, why."""
    task, method = make_task(recipe), make_method(recipe)
    backbone: Any = getattr(task, "backbone", None)
    if backbone is None:
        raise RecipeError(
            "this task's network is no backbone of your choice", where="[task] name", found=type(task).__name__
        )
    task = task.for_data(recipe.data, here=True)
    rows, whole = [], 0
    for how in get_args(Tune):
        try:
            tuned = replace(task, backbone=replace(backbone, tune=how))  # type: ignore[type-var]
            check_fit(tuned, method)
            made = Blueprint(tuned, method, recipe.seed, torch.device("cpu"))
        except RecipeError as error:
            rows.append([how, error.problem, "", "", ""])
            continue
        whole = whole or made.travelling.nbytes
        frozen = sum(t.size for t in made.frozen.tensors)
        sent = made.travelling.nbytes
        rows.append([how, f"{made.parameters:,}", f"{frozen:,}", size(sent), f"{sent / whole:.2%}" if whole else ""])
    return rows
