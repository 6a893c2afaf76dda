"""Whose backbone is looked at: that of a run, one with the weights of a file, or one that has learned nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from fedreel.config import Recipe, load_recipe, make_recipe, read_setting
from fedreel.core.abilities import Embeds
from fedreel.core.job import make_task
from fedreel.core.task import Task
from fedreel.data.feature_networks import load_embedding
from fedreel.data.weights_file import SUFFIXES
from fedreel.errors import RecipeError, RunError
from fedreel.registry import TASKS
from fedreel.runs.run import load, run
from fedreel.tasks.classification import Classification
from fedreel.tasks.use.classes import class_lists
from fedreel.tasks.use.trust import read_trust
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.zoo import find_model

RANDOM = Path("random")  # as the model
INIT = "task.backbone.init"
# Nothing is learned, but batch norms take their statistics from the data.
UNTRAINED: Mapping[str, Any] = {"method.name": "fedavg", "train.lr": 0.0, "round.rounds": 1}


@dataclass(frozen=True)
class Subject:
    """A model, the task that says what vector a clip is, and the recipe that both are of."""

    model: nn.Module
    task: Embeds
    recipe: Recipe
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()  # that the model itself names; none where it names none
    temperature: float = 1.0  # at which it names them


def find_subject(
    model: Path, recipe: str, settings: Mapping[str, Any] | Sequence[str], client: str, seed: int | None, device: str
) -> Subject:
    """What `model` names. A recipe, and changes of it, go with weights that have none."""
    if model != RANDOM and not _is_file_of_weights(model):
        if recipe or settings:
            raise RecipeError(
                "a run has its own recipe",
                where="--recipe" if recipe else "--set",
                expected="a file of weights, or random, instead of a run; or neither --recipe nor --set",
                found=str(model),
            )
        return _of_run(model, client, device)
    if client:
        raise RecipeError("these weights are nobody's own", where="--client", expected="a run", found=str(model))
    if not recipe:
        raise RecipeError(
            "it is not clear what network these weights are of",
            where=str(model),
            expected="a recipe: --recipe NAME or FILE.toml",
            hint="--recipe fedvssl-paper is R3D-18 on 16 frames of 112 pixels, as in FedVSSL's and CtP's releases",
        )
    given = dict(settings) if isinstance(settings, Mapping) else dict(map(read_setting, settings))
    given |= {"device": device} | ({} if seed is None else {"seed": seed})
    return _untrained(recipe, given) if model == RANDOM else _of_file(model, recipe, given)


def _is_file_of_weights(model: Path) -> bool:
    """Or of anything else: reading it tells."""
    return model.is_file() or (model.suffix in SUFFIXES and not model.exists())


def _of_run(folder: Path, client: str, device: str) -> Subject:
    folder = find_model(folder)
    if not folder.exists():
        raise RunError(
            "there is no such model",
            where=str(folder),
            expected=f"a run directory, a file of weights ({', '.join(SUFFIXES)}), or the word random",
        )
    loaded, task = load_embedding(folder, client, device)
    named = isinstance(task, Contrasting) and task.objective == "labels" and not loaded.card["not_trained"]
    lists = class_lists(folder) if named else {}
    return Subject(
        loaded.model,
        task,
        make_recipe(loaded.card["recipe"], str(folder)),
        classes=tuple(lists.get(client) or next(iter(lists.values()), ())),
        temperature=read_trust(folder, loaded, client).temperature,
    )


def _of_file(file: Path, name: str, given: dict[str, Any]) -> Subject:
    if INIT in given:
        raise RecipeError("the weights are given twice", where=f"--set {INIT}", found=f"{given[INIT]}, beside {file}")
    recipe = load_recipe(name, {**given, INIT: str(file)})
    task = make_task(recipe)
    embeds = _able(task, name)
    if isinstance(task, Classification) and not task.classes:
        embeds = _able(task.counted(2, name), name)  # whatever their number: the head is not used
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = embeds.model()  # type: ignore[attr-defined]
    return Subject(model.to(recipe.device).eval(), embeds, recipe)


def _untrained(name: str, given: dict[str, Any]) -> Subject:
    """By the run that the tables have for it, in a folder that does not stay."""
    recipe = load_recipe(name, {**given, **UNTRAINED})
    task = make_task(recipe)
    _able(task, name)
    backbone = recipe.task.get("backbone")
    if isinstance(backbone, dict) and (init := backbone.get("init")):
        raise RecipeError(
            "these weights would not be random",
            where=f"[task.backbone] init of {name}",
            expected="no weights to begin with",
            found=str(init),
            hint=f"--set {INIT}=''",
        )
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out = run(recipe, Path(folder) / "run", quiet=True).path
        loaded = load(out, device=recipe.device)
    note = f"random weights of seed {recipe.seed}; batch norms took their statistics from {recipe.data.source}"
    return Subject(loaded.model, _able(loaded.task, name), recipe, (note,))


def _able(task: Task, recipe: str) -> Embeds:
    if isinstance(task, Embeds):
        return task
    able = [name for name in TASKS.names() if issubclass(TASKS.lookup(name), Embeds)]
    raise RecipeError(
        f"the task of this recipe does not {Embeds.says.replace('turns', 'turn')}",
        where=recipe,
        expected=f"a recipe of the task {' or '.join(able)}",
        found=type(task).__name__,
    )
