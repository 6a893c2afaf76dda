"""What there is, with one line each: the first line of a class's docstring, a recipe's description."""

from __future__ import annotations

import inspect
from collections import Counter

from fedreel.config import load_recipe, recipe_names
from fedreel.errors import RecipeError, nearest
from fedreel.registry import BACKBONES, ENGINES, METHODS, TASKS

_TABLES = {"methods": METHODS, "tasks": TASKS, "engines": ENGINES, "backbones": BACKBONES}


def catalogue(what: str = "all") -> dict[str, list[tuple[str, str]]]:
    kinds = ["recipes", *_TABLES]
    if what not in ("all", *kinds):
        raise RecipeError(f"cannot list '{what}'", hint=nearest(what, ["all", *kinds]))
    wanted = kinds if what == "all" else [what]
    return {kind: _rows(kind) for kind in wanted}


def _rows(kind: str) -> list[tuple[str, str]]:
    if kind == "recipes":
        return [(name, load_recipe(name).description) for name in recipe_names()]
    table = _TABLES[kind]
    classes = {name: table.lookup(name) for name in table.names()}
    modules = Counter(cls.__module__ for cls in classes.values())
    return [(name, _line(cls, alone=modules[cls.__module__] == 1)) for name, cls in classes.items()]


def _line(cls: type, alone: bool) -> str:
    """A method's module says what it is; registered classes that share a module say it themselves. A backbone says
    first what it takes."""
    text = (inspect.getmodule(cls).__doc__ if alone else cls.__doc__) or ""
    takes = f"{cls.takes}: " if hasattr(cls, "takes") else ""
    return takes + next(iter(text.strip().splitlines()), "")
