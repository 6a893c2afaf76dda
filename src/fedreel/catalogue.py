"""What there is, with one line each: the first line of a class's docstring, a recipe's description."""

from __future__ import annotations

import inspect

from .config import load_recipe, recipe_names
from .errors import RecipeError, nearest
from .registry import ENGINES, METHODS, TASKS, lookup, names

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
    return [(name, _module_line(lookup(_TABLES[kind], name))) for name in names(_TABLES[kind])]


def _module_line(cls: type) -> str:
    """A method's module says what it is; classes that share a module say it themselves."""
    module = inspect.getmodule(cls)
    alone = (
        module is not None
        and sum(inspect.isclass(v) and v.__module__ == cls.__module__ for v in vars(module).values()) == 1
    )
    text = (module.__doc__ if alone and module else cls.__doc__) or ""
    return text.strip().splitlines()[0]
