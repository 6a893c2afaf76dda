"""Runs side by side: equal recipes become one row over their seeds, and where recipes differ is said."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedreel.errors import RunError
from fedreel.report.markup import finite, score
from fedreel.report.read import read_settings

ABSENT = "–"
NAMED = ("system", "method.name", "method")
NO_MATTER = ("description", "track")  # change nothing in what a run computes
COSTS = ("wall_seconds", "bytes_up", "bytes_down")


def compare_table(runs: list[Path]) -> dict[str, Any]:
    """`columns` and `rows` (a dict per row, by column), which recipe keys differ, and what was left out.

    Runs whose recipes are equal up to the seed form one row; its metric cells are {"mean", "sd", "n"}, with
    the sample standard deviation (None for one run). Values that are not finite are left out of n.
    """
    loaded, skipped = [], []
    for path in map(Path, runs):
        run = read_settings(path)
        if run.summary:
            flat = {key: value for key, value in _flat(run.recipe).items() if key not in NO_MATTER}
            loaded.append(
                {
                    "label": str(path),
                    "seed": flat.pop("seed", run.summary.get("seed")),
                    "run": run,
                    "recipe": flat,
                }
            )
        else:
            skipped.append({"run": str(path), "why": run.problems[-1] if run.problems else "summary.json is empty"})
    if not loaded:
        raise RunError(
            "none of these runs can be compared",
            expected="run directories with a summary.json",
            found="; ".join(f"{s['run']}: {s['why']}" for s in skipped) or "no runs",
        )
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for item in loaded:
        recipe = json.dumps(item["recipe"], sort_keys=True, default=str)
        groups[item["run"].label("system"), item["run"].label("method"), recipe].append(item)
    differ = _differing(groups)
    metrics = list(dict.fromkeys(name for item in loaded for name in item["run"].metrics))
    rows = [_row(system, method, members, differ, metrics) for (system, method, _), members in groups.items()]
    return {
        "columns": ["system", "method", *differ, "n", "seeds", *metrics, *COSTS],
        "rows": rows,
        "differ": differ,
        "skipped": skipped,
        "notes": [note for row, members in zip(rows, groups.values()) for note in _notes(row, members)],
    }


def cell_text(value: object) -> str:
    """A cell of the table as terminal text."""
    if isinstance(value, dict) and "mean" in value:
        if value["mean"] is None:
            return "not finite"
        return score(value["mean"], value["sd"])
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return ABSENT if value is None else str(value)


def _row(
    system: str, method: str, members: list[dict[str, Any]], differ: list[str], metrics: list[str]
) -> dict[str, Any]:
    recipe = members[0]["recipe"]
    row: dict[str, Any] = {"system": system, "method": method, **{key: recipe.get(key) for key in differ}}
    row.update(n=len(members), seeds=sorted((m["seed"] for m in members), key=str))
    for name in metrics:
        having = [m["run"].metrics[name] for m in members if name in m["run"].metrics]
        row[name] = _spread(having) if having else None
    row.update({name: _spread(m["run"].summary.get(name) for m in members) for name in COSTS})
    return row


def _spread(values: Iterable[object]) -> dict[str, float | int | None]:
    known = [v for value in values if (v := finite(value)) is not None]
    mean = statistics.fmean(known) if known else None
    return {"mean": mean, "sd": statistics.stdev(known) if len(known) > 1 else None, "n": len(known)}


def _differing(groups: dict[tuple[str, str, str], list[dict[str, Any]]]) -> list[str]:
    """Keys with two values, or that one of two runs of the same system and method lacks.

    A key that only another method has (its own knob) is no difference between the two: their names say it.
    """
    recipes = [((system, method), members[0]["recipe"]) for (system, method, _), members in groups.items()]
    known = [(kind, recipe) for kind, recipe in recipes if recipe]
    differing = []
    for key in dict.fromkeys(key for _, recipe in known for key in recipe):
        if key in NAMED:
            continue
        values = {json.dumps(recipe[key], default=str) for _, recipe in known if key in recipe}
        having = {kind for kind, recipe in known if key in recipe}
        lacking = {kind for kind, recipe in known if key not in recipe}
        if len(values) > 1 or having & lacking:
            differing.append(key)
    return differing


def _flat(recipe: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _notes(row: dict[str, Any], members: list[dict[str, Any]]) -> list[str]:
    """What a reader of the means must know."""
    name = f"{row['system']} / {row['method']}"
    twice = [str(seed) for seed, n in Counter(map(str, row["seeds"])).items() if n > 1]
    notes = [f"{name}: seed {', '.join(twice)} occurs more than once; n counts runs."] if twice else []
    notes += [f"{m['label']}: the run is incomplete." for m in members if not m["run"].complete]
    notes += [f"{m['label']}: recipe.toml is missing or unreadable." for m in members if not m["recipe"]]
    return notes
