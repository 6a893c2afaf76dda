"""What there is, with one line each: the first line of a class's docstring, a recipe's description."""

from __future__ import annotations

import inspect
from collections import Counter

from fedreel.config import load_recipe, recipe_names
from fedreel.errors import RecipeError, nearest
from fedreel.registry import ENGINES, METHODS, TASKS, lookup, names

_TABLES = {"methods": METHODS, "tasks": TASKS, "engines": ENGINES}


def catalogue(what: str = "all") -> dict[str, list[tuple[str, str]]]:
    kinds = ["recipes", *_TABLES]
    if what not in ("all", *kinds):
        raise RecipeError(f"cannot list '{what}'", hint=nearest(what, ["all", *kinds]))
    wanted = kinds if what == "all" else [what]
    return {kind: _rows(kind) for kind in wanted}


def _rows(kind: str) -> list[tuple[str, str]]:
    if kind == "recipes":
        return [(name, load_recipe(name).description) for name in recipe_names()]
    classes = {name: lookup(_TABLES[kind], name) for name in names(_TABLES[kind])}
    modules = Counter(cls.__module__ for cls in classes.values())
    return [(name, _line(cls, alone=modules[cls.__module__] == 1)) for name, cls in classes.items()]


def _line(cls: type, alone: bool) -> str:
    """A method's module says what it is; registered classes that share a module say it themselves."""
    text = (inspect.getmodule(cls).__doc__ if alone else cls.__doc__) or ""
    return next(iter(text.strip().splitlines()), "")
