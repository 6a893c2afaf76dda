"""Rows that settings of a user would make another row of the same table, under their own name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedreel.config import load_recipe, stated
from fedreel.core.job import make_method, make_task
from fedreel.errors import RecipeError
from fedreel.reproduce.choose import knows, leaves, touches
from fedreel.reproduce.spec import Row, Scale, Table


def check_apart(rows: Sequence[Row], every: Sequence[Row], spec: Table, size: Scale) -> None:
    """Raise if what a user wants changed in these rows makes one of them the same as another one of `every` row."""
    for row in rows if size.over else ():
        for key, other in _meant(row, every, size.over):
            if _made(row, spec, size, over=size.over) != _made(other, spec, size, under=size.over):
                continue
            if _made(row, spec, size) != _made(other, spec, size):
                raise RecipeError(
                    f"the row '{row.label}' would be the row '{other.label}': --set must not undo what makes the row",
                    where=f"--set {key}",
                    hint=f"leave it out, or take the other row: --rows '={other.name}'",
                )


def _meant(row: Row, every: Sequence[Row], over: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    """Other rows that have of their own what a user wants, and the setting in question."""
    for other in every:
        if other.label == row.label or row.compute or other.compute:
            continue
        for key, wanted in over.items():
            own = [name for name in leaves(other.settings) if touches(key, name)]
            if own and all(name != key or leaves(other.settings)[name] == wanted for name in own):
                yield key, other
                break


def _made(row: Row, spec: Table, size: Scale, under: Mapping[str, Any] = {}, over: Mapping[str, Any] = {}) -> object:
    """What a row comes to by its own settings, on top of `under` and below `over`, without those that only fit its
    data; what comes to nothing is like no other."""
    base = {**spec.settings, **size.settings, **size.given}
    method = {**base, **row.settings}.get("method.name", load_recipe(size.recipe).method["name"])
    under, over = (
        {key: value for key, value in wanted.items() if key.partition(".")[0] != "method" or knows(method, key)}
        for wanted in (under, over)
    )
    try:
        recipe = load_recipe(size.recipe, {**base, **under, **row.settings, **over})
        made = make_task(recipe), make_method(recipe)
    except RecipeError:
        return object()
    return made, {name: section for name, section in stated(recipe).items() if name not in ("task", "method")}
