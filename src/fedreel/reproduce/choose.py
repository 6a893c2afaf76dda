"""Choosing the settings of a table's rows, each from its own grid and all by one rule, before the table is run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedreel.config import load_recipe
from fedreel.errors import RecipeError, RunError, nearest
from fedreel.registry import METHODS
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.kept import Line
from fedreel.reproduce.spec import Choose, Metrics, Row, Scale

BEYOND = 4  # values of a setting that are tried outside its grid, at most
STEPS = ("1e{}", "3e{}")  # of a decade
UNCHOSEN = "no settings were chosen for the rows: each has those of the recipe and its method"


@dataclass(frozen=True)
class Try:
    """Settings out of a row's grid, and how well they did; None if they came to nothing, or were not run because there
    are no others."""

    settings: Mapping[str, Any]
    score: float | None


@dataclass(frozen=True)
class Choice:
    """All tries of a row."""

    tries: tuple[Try, ...]
    higher: bool = True

    @property
    def best(self) -> Mapping[str, Any]:
        """The settings of the best try, of equals the first."""
        sign = 1 if self.higher else -1
        scores = [-float("inf") if t.score is None else sign * t.score for t in self.tries]
        return self.tries[scores.index(max(scores))].settings

    def content(self) -> dict[str, Any]:
        """For the table's JSON."""
        tries = [{"settings": dict(t.settings), "score": t.score} for t in self.tries]
        return {"chosen": dict(self.best), "tries": tries}


def chosen_of(options: Sequence[tuple[Mapping[str, Any], Cell]], rule: Choose, known: Callable[[Cell], Line]) -> Choice:
    """Of settings, each with what was run to try it, by what is known of that."""
    return Choice(tuple(Try(o, _score(known(cell), rule, cell.folder)) for o, cell in options), rule.higher)


def _score(line: Line, rule: Choose, folder: Path) -> float | None:
    """How well a try did; None if it diverged."""
    if "diverged" in line:
        return None
    found: Metrics = dict(line["metrics"])
    for function in rule.derive:
        found |= line["derived"].get(function.__name__, {})
    if rule.metric not in found:
        raise RunError(
            f"settings are chosen by {rule.metric}, which a finished try does not have",
            where=str(folder),
            expected=f"one of {', '.join(found)}",
        )
    return found[rule.metric]


def check_unset(rows: Sequence[Row], size: Scale, follow: Sequence[str] = ()) -> None:
    """Raise if a user wants settings changed that make a row what it is, its method above all, that `follow` the seed,
    that keep the choosing apart, or that are chosen here among others: one of the values of a grid narrows it."""
    _check_seeds(size, follow)
    _check_untouched(rows, size)
    usual = load_recipe(size.recipe).method["name"]
    for row in rows:
        method = {} if row.compute else {"method.name": usual}
        for key, wanted in size.over.items():
            for own, value in {**method, **leaves(row.settings)}.items():
                if touches(key, own) and value != wanted:
                    raise RecipeError(
                        f"{own} is {value} in the row '{row.label}': --set must not undo what makes the row",
                        where=f"--set {key}",
                        hint="leave it out, or take other rows (--rows)",
                    )
    check_methods(rows, size)
    if size.choose is None:
        return
    for row in rows:
        for key, values in _chosen_here(row, size).items():
            if size.over.get(key, values[0]) not in values:
                raise RecipeError(
                    f"{key} is chosen for the row '{row.name}': --set must not undo what makes the row",
                    where=f"--set {key}",
                    expected=f"one of {', '.join(map(str, values))}, by {size.choose.metric}",
                    hint="leave it out, or take other rows (--rows)",
                )
    for key in size.choose.settings:
        if key in size.over:
            raise RecipeError(
                f"settings are chosen under another {key} than the table is run with, so it cannot be changed",
                where=f"--set {key}",
            )


def _check_seeds(size: Scale, follow: Sequence[str]) -> None:
    for key in ("seed", *follow):
        if key in size.over:
            raise RecipeError(
                f"every run of the table has its own {key}, the number of its seed: --set must not undo that",
                where=f"--set {key}",
                hint="leave it out; --seeds says how many runs there are",
            )


def _check_untouched(rows: Sequence[Row], size: Scale) -> None:
    for row in rows:
        for key, wanted in size.over.items():
            for own in row.untouched:
                if own in leaves({key: wanted}):
                    raise RecipeError(
                        f"the row '{row.label}' is one that leaves {own} alone: --set must not undo what makes the row",
                        where=f"--set {key}",
                        hint="leave it out, or take other rows (--rows)",
                    )


def narrowed(row: Row, size: Scale) -> list[dict[str, Any]]:
    """The row's tries that have what a user wants of them."""
    tries = replace(row, grid=_chosen_here(row, size)).tries
    return [tried for tried in tries if all(size.over.get(key, value) == value for key, value in tried.items())]


def _chosen_here(row: Row, size: Scale) -> dict[str, tuple[Any, ...]]:
    """The row's grid without what is not chosen at this scale."""
    return {key: values for key, values in row.grid.items() if size.choose is None or key not in size.choose.fixed}


def further(
    options: Sequence[Mapping[str, Any]], best: Mapping[str, Any], beyond: Sequence[str]
) -> list[dict[str, Any]]:
    """What is to be tried besides these, so that the best value of each of these settings has one on both sides."""
    found = []
    for key in beyond:
        values = sorted({option[key] for option in options if key in option})
        if len(values) < 2 or best[key] not in (values[0], values[-1]):
            continue
        value = _next(best[key], up=best[key] == values[-1])
        found += [{**option, key: value} for option in options if option[key] == best[key]]
    return found


def _next(value: float, up: bool) -> float:
    decade = math.floor(math.log10(value))
    steps = [float(step.format(decade + more)) for more in (-1, 0, 1) for step in STEPS]
    return min(s for s in steps if s > 1.01 * value) if up else max(s for s in steps if s < 0.99 * value)


def check_methods(rows: Sequence[Row], size: Scale) -> None:
    """Raise if a setting of the method is wanted that no row's method has. Where some have it, it is theirs alone."""
    usual = load_recipe(size.recipe).method["name"]
    methods = {row.settings.get("method.name", usual) for row in rows}
    for key in size.over:
        if key.partition(".")[0] == "method" and not any(knows(method, key) for method in methods):
            fields = {f.name for method in methods for f in dataclasses.fields(METHODS.lookup(method))}
            raise RecipeError(
                f"no row's method has the setting {key}", where=f"--set {key}", hint=nearest(key[7:], sorted(fields))
            )


def knows(method: str, key: str) -> bool:
    """Whether a method has the setting `method.KEY`; all have a name."""
    name = key.partition(".")[2].partition(".")[0]
    return name in ("", "name", *(f.name for f in dataclasses.fields(METHODS.lookup(method))))


def touches(key: str, own: str) -> bool:
    """Whether to set one of two settings changes the other: they are the same, or one is a table that has the other."""
    return own == key or own.startswith(f"{key}.") or key.startswith(f"{own}.")


def leaves(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings by their whole names, tables taken apart; what is said by itself goes over what a table says."""
    found: dict[str, Any] = {}
    for key, value in sorted(settings.items(), key=lambda item: not isinstance(item[1], Mapping)):
        found |= leaves(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def note(rule: Choose, choices: Mapping[str, Choice]) -> str:
    """Which settings were chosen, among which."""
    apart = ", ".join(f"{key}={value}" for key, value in rule.settings.items())
    rows = [f"{name} {in_words(choice.best)} {_among(choice)}" for name, choice in choices.items()]
    return f"chosen on {rule.where} ({apart}) by {rule.metric} under seed 0: {'; '.join(rows)}"


def in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2].rstrip('_')}={value}" for key, value in settings.items())


def _among(choice: Choice) -> str:
    if len(choice.tries) == 1:
        return "(not tried: there was no choice)"
    values = [", ".join(str(value) for value in t.settings.values()) for t in choice.tries]
    lost = [value for value, t in zip(values, choice.tries) if t.score is None]
    return f"among {' | '.join(values)}" + (f" (diverged: {' | '.join(lost)})" if lost else "")
