"""Rows that settings of a user would make another row, of the same table or of another, under their own name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedreel.config import Recipe, as_table, load_recipe, settings_of, stated
from fedreel.core.job import make_method, make_task, resolved
from fedreel.errors import DataError, RecipeError
from fedreel.registry import METHODS
from fedreel.reproduce.choose import knows, leaves
from fedreel.reproduce.spec import Row, Scale, Table


@dataclass(frozen=True)
class Twin:
    """A row that another one could become. Its own settings are its method and what rows of the same setting in its
    table do not all have."""

    table: str
    row: Row
    own: Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """What rows of a table are made of beside their own settings."""

    spec: Table
    size: Scale

    def recipe(
        self, settings: Mapping[str, Any], under: Mapping[str, Any] = {}, over: Mapping[str, Any] = {}
    ) -> Recipe:
        """Of settings on top of `under` and below `over`; what the method does not know is left out of these."""
        base = {**self.spec.settings, **self.size.settings, **self.size.given}
        method = self.method({**base, **settings})
        under, over = (
            {key: value for key, value in wanted.items() if key.partition(".")[0] != "method" or knows(method, key)}
            for wanted in (under, over)
        )
        return load_recipe(self.size.recipe, {**base, **under, **settings, **over})

    def method(self, settings: Mapping[str, Any]) -> str:
        return str(settings.get("method.name", self._usual))

    @cached_property
    def _usual(self) -> str:
        return str(load_recipe(self.size.recipe).method["name"])

    def made(self, settings: Mapping[str, Any], under: Mapping[str, Any] = {}, over: Mapping[str, Any] = {}) -> object:
        """What these settings come to; what comes to nothing is like no other."""
        try:
            recipe = self.recipe(settings, under, over)
            made = make_task(recipe), make_method(recipe).comes_to()
        except RecipeError:
            return object()
        return made, {name: section for name, section in stated(recipe).items() if name not in ("task", "method")}

    def written(self, settings: Mapping[str, Any], over: Mapping[str, Any]) -> Mapping[str, Any]:
        """All that these settings come to, by whole names; empty if that is nothing."""
        try:
            recipe = self.recipe(settings, over=over)
            task, method = make_task(recipe), make_method(recipe).comes_to()
        except RecipeError:
            return {}
        named = {"name": METHODS.name_of(type(method)), **settings_of(method)}
        return leaves(as_table(replace(resolved(recipe, task, method), method=named)))

    def becomes(self, row: Row, twin: Twin, over: Mapping[str, Any]) -> bool:
        """Whether the row gets by `over` what makes the other one, and has not had it before."""
        same = self.method(row.settings) == twin.own["method.name"]
        kept = {key: value for key, value in row.settings.items() if same or key.partition(".")[0] != "method"}
        turned = {**kept, **twin.own}
        if self.made(row.settings, over=over) != self.made(turned, under=over):
            return False
        return self.made(row.settings) != self.made(turned)


def check_apart(
    table: str, rows: Sequence[Row], spec: Table, size: Scale, data: Path | None, tables: Mapping[str, Table]
) -> None:
    """Raise if what a user wants changed in rows of this table makes one of them what a row of another name is, in one
    of the system's tables."""
    if not size.over:
        return
    place = Place(spec, size)
    twins = [*_twins(place, data, {table: spec, **tables})]
    wanted = _bounded(size.over, [twin.row for twin in twins])
    for row in rows:
        over = {key: value for key, value in wanted.items() if size.over[key] not in _values(row, key)}
        others = [twin for twin in twins if twin.row.name != row.name or twin.table == table]
        found = _met(place, row, others, over) if over and row.compute is None else []
        if not found:
            continue
        made = place.made(row.settings, over=over)
        twin = next((one for one in found if place.made(one.row.settings, under=over) == made), found[0])
        undoing = [k for k in over if not place.becomes(row, twin, {o: v for o, v in over.items() if o != k})]
        raise RecipeError(
            f"the row '{row.label}' would be the row '{twin.row.label}': --set must not undo what makes the row",
            where=f"--set {', '.join(undoing or over)}",
            hint=f"leave it out, or take the other row: {twin.table} --rows '={twin.row.name}'",
        )


def _twins(place: Place, data: Path | None, tables: Mapping[str, Table]) -> Iterator[Twin]:
    """The rows of all tables of the same recipe, as far as there are any of these data. Where all rows of a table state
    the same settings, they are values of these, each of which any row may have."""
    for name, table in tables.items():
        if place.size.recipe not in {size.recipe for size in table.scales.values()}:
            continue
        try:
            rows = [row for row in table.rows_for(data) if row.compute is None]
        except (DataError, OSError):  # it is made of other data
            continue
        every = [leaves(row.settings) for row in rows]
        values = [{*own, *row.untouched} for own, row in zip(every, rows)]
        for row, mine in zip(rows, every):
            alike = [other for other, one in zip(every, rows) if one.setting == row.setting]
            own = {
                key: value
                for key, value in mine.items()
                if len(alike) == 1 or not all(key in other and other[key] == value for other in alike)
            }
            told = own.keys() - {"method.name"}
            if not told or not told <= set.intersection(*values):
                yield Twin(name, row, {"method.name": place.method(row.settings), **own})


def _values(row: Row, key: str) -> list[Any]:
    """Those of a setting that are the row's own: what it states, and what may be chosen for it."""
    own = leaves(row.settings)
    return [*row.grid.get(key, ()), *([own[key]] if key in own else [])]


def _bounded(over: Mapping[str, Any], rows: Sequence[Row]) -> Mapping[str, Any]:
    """With what a row has in place of values that come to the same."""
    ends = {key: (least, leaves(row.settings)[key]) for row in rows for key, least in row.reaches.items()}
    return {k: ends[k][1] if k in ends and not isinstance(v, str) and v >= ends[k][0] else v for k, v in over.items()}


def _met(place: Place, row: Row, twins: Sequence[Twin], over: Mapping[str, Any]) -> list[Twin]:
    """The rows that this one becomes. Making settings takes long, so that is done for those alone whose own settings
    it has now and has not had before."""
    before, now = place.written(row.settings, {}), place.written(row.settings, over)
    near = [twin for twin in twins if _has(now, twin.own) and not _has(before, twin.own)]
    return [twin for twin in near if twin.row.label != row.label and place.becomes(row, twin, over)]


def _has(written: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    plain = {key: [*value] if isinstance(value, tuple) else value for key, value in own.items()}
    return bool(written) and all(written.get(key) == value for key, value in plain.items())
