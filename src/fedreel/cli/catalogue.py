"""What there is, with one line each: a recipe's description, what a module or class says of itself, and of a method
what its server sees and what it needs of a task."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import TYPE_CHECKING

from fedreel.config import load_recipe, recipe_names
from fedreel.errors import RecipeError, nearest
from fedreel.registry import BACKBONES, ENGINES, METHODS, TASKS

if TYPE_CHECKING:  # listing recipes does not load torch
    from fedreel.core.method import Method

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
    lines = {name: _line(cls, alone=modules[cls.__module__] == 1) for name, cls in classes.items()}
    return [(name, line + (declared(classes[name]) if kind == "methods" else "")) for name, line in lines.items()]


def declared(method: type[Method]) -> str:
    """What a method declares, in few words."""
    sees = "sees sums" if method.sees == "sum" else "sees each update"
    needs = " and ".join(ability.says for ability in method.needs)
    return f" [{sees}{f'; needs a task that {needs}' if needs else ''}]"


def _line(cls: type, alone: bool) -> str:
    """A method's module says what it is; registered classes that share a module say it themselves. A backbone says
    first what it takes."""
    text = (inspect.getmodule(cls).__doc__ if alone else cls.__doc__) or ""
    takes = f"{cls.takes}: " if hasattr(cls, "takes") else ""
    return takes + next(iter(text.strip().splitlines()), "")
