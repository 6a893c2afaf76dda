"""Reproduction: a table is data (the sweep, the printed numbers, the metrics); the harness runs it, resumably."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from ..config import Recipe, as_table, load_recipe
from ..core.files import write_atomic
from ..core.processes import cores, in_processes
from ..errors import RecipeError, nearest
from ..report import write_table
from .spec import Claim, Metrics, Row, Scale, Table

SYSTEMS = {
    name: f"fedreel.reproduce.{name}" for name in ("recognition", "cfedvs", "fsar", "fedvmr", "fedvssl", "fedlid")
}
DERIVED = "derived.json"  # what was read off a finished cell, by function: several tables may share the cell


def reproduce(
    system: str,
    table: str,
    *,
    scale: str = "smoke",
    data: Path | None = None,
    out: Path,
    device: str = "auto",
    jobs: int = 1,
    rows: str = "",
    seeds: int | None = None,
    set: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run every cell (row x seed) that is not finished yet, `jobs` at a time, and write table.json and table.html after
    each. `rows` takes only rows with this text (`A & B`: both, `A | B`: one) in their name or setting; `seeds` so many
    seeds instead of the scale's; `set` goes over the settings of all rows."""
    spec = find_table(system, table)
    if scale not in spec.scales:
        raise RecipeError(f"'{system} {table}' has no scale '{scale}'", hint=nearest(scale, spec.scales))
    size = spec.scales[scale]
    size = replace(size, seeds=size.seeds if seeds is None else tuple(range(seeds)), over=set or {})
    wanted = tuple(row for row in spec.rows_for(data) if row.has(rows))
    if not wanted:
        named = sorted({str(v) for row in spec.rows_for(data) for v in (row.name, *row.setting.values())})
        raise RecipeError(f"no row of '{system} {table}' has '{rows}' in it", hint=nearest(rows, named))
    size = for_data(size, spec, data)
    spec = replace(spec, rows=())  # cells go to other processes: what they need of it and no more
    out.mkdir(parents=True, exist_ok=True)
    cells = [(spec, size, row, seed, out, device, jobs > 1) for row in wanted for seed in size.seeds]
    content: dict[str, Any] = {}
    for number, cell in enumerate(_each(cells, jobs), 1):
        print(f"[{number}/{len(cells)}] {cell[2].name}, seed {cell[3]}: done", file=sys.stderr, flush=True)
        content = _collect(spec, wanted, size, system, table, scale, out)
        write_atomic(out / "table.json", json.dumps(content, indent=1) + "\n")
        write_table(out / "table.html", content)
    return content


def find_table(system: str, table: str) -> Table:
    if system not in SYSTEMS:
        raise RecipeError(f"there is no system '{system}' to reproduce", hint=nearest(system, SYSTEMS))
    tables: dict[str, Table] = importlib.import_module(SYSTEMS[system]).TABLES
    if table not in tables:
        raise RecipeError(f"'{system}' has no '{table}'", hint=nearest(table, tables))
    return tables[table]


Cell = tuple[Table, Scale, Row, int, Path, str, bool]


def _each(cells: list[Cell], jobs: int) -> Iterator[Cell]:
    """Cells as they get done; several at once in processes of their own."""
    jobs = max(1, jobs)
    share = partial(_share_cores, max(1, cores() // jobs))
    for number, _ in in_processes(_run_cell, cells, jobs, share):
        yield cells[number]


def _share_cores(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _run_cell(cell: Cell) -> None:
    from ..api import run

    spec, size, row, seed, out, device, quiet = cell
    settings = _settings(spec, size, row, seed)
    folder = _cell_folder(out, size, row, settings, seed)
    if row.compute is not None:
        _compute(row.compute, load_recipe(size.recipe, {**settings, "seed": seed}), folder)
        return
    started = (folder / "recipe.toml").exists()
    run(size.recipe, folder, set=settings, seed=seed, device=device, resume=started, quiet=quiet)
    derived = _derived(folder)
    for function in spec.derive:
        if function.__name__ not in derived:
            derived[function.__name__] = function(folder)
            write_atomic(folder / DERIVED, json.dumps(derived) + "\n")


def for_data(size: Scale, spec: Table, data: Path | None) -> Scale:
    """The scale with what it takes for these data; for the playground, without what is for given data only."""
    if data is None:
        return replace(size, given={}, rows={})
    asked = spec.adapt(data) if spec.adapt else {}
    return replace(size, given={"data.source": str(data.resolve()), **asked, **size.given})


def _settings(spec: Table, size: Scale, row: Row, seed: int) -> dict[str, Any]:
    """All that a cell changes in the recipe, but the seed."""
    settings = {**spec.settings, **size.settings, **size.given, **row.settings}
    for text, changed in size.rows.items():
        settings |= changed if row.has(text) else {}
    return settings | {**dict.fromkeys(spec.follow, seed), **size.over}


def _collect(
    spec: Table,
    wanted: Sequence[Row],
    size: Scale,
    system: str,
    table: str,
    scale: str,
    out: Path,
) -> dict[str, Any]:
    def folder(row: Row, seed: int) -> Path:
        return _cell_folder(out, size, row, _settings(spec, size, row, seed), seed)

    found = {id(row): [_metrics(folder(row, seed), spec) for seed in size.seeds] for row in wanted}
    if spec.relate is not None:
        for i, seed in enumerate(size.seeds):
            done = [row for row in wanted if found[id(row)][i]]
            more = spec.relate([(row, folder(row, seed)) for row in done]) if done else []
            for row, added in zip(done, more):
                found[id(row)][i] |= added
    names = _names(spec.metrics, [cell for row in found.values() for cell in row])
    rows = []
    for row in wanted:
        cells = [cell for cell in found[id(row)] if cell]
        if cells:
            factors = {m: 1.0 if any(fnmatch(m, p) for p in spec.plain) else spec.factor for m in names}
            metrics = {m: _mean_sd([c[m] for c in cells if m in c], factors[m]) for m in names}
            rows.append({"method": row.name, "setting": row.setting, "metrics": metrics, "paper": dict(row.paper)})
    example = load_recipe(size.recipe)
    notes = [*spec.notes, *claims_held(spec.claims, rows)]
    changed = "".join(f", {key}={value}" for key, value in size.over.items())
    notes.append(f"recipe {size.recipe}{changed}, seeds {', '.join(map(str, size.seeds))}, task {example.task['name']}")
    return {"system": system, "table": table, "scale": scale, "rows": rows, "notes": notes}


def _mean_sd(values: list[float], factor: float) -> dict[str, float | int | None]:
    """Mean and sample sd; the sd of a single run is unknown, not zero."""
    n = len(values)
    if not n:
        return {"mean": None, "sd": None, "n": 0}
    mean = sum(values) / n
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) * factor if n > 1 else None
    return {"mean": mean * factor, "sd": sd, "n": n}


def _names(wanted: Sequence[str], cells: Sequence[Metrics]) -> list[str]:
    """The metrics that a table shows; a pattern stands for those that were found."""
    known = sorted({name for cell in cells for name in cell})
    return [name for w in wanted for name in ([k for k in known if fnmatch(k, w)] if "*" in w else [w])]


def _metrics(folder: Path, spec: Table) -> Metrics:
    """What a finished cell says; nothing of one that is not."""
    try:
        found: Metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    except (OSError, ValueError):
        return {}
    derived = _derived(folder)
    for function in spec.derive:
        found |= derived.get(function.__name__, {})
    return found


def _derived(folder: Path) -> dict[str, Metrics]:
    try:
        found: dict[str, Metrics] = json.loads((folder / DERIVED).read_text())
    except (OSError, ValueError):
        return {}
    return found


def _compute(function: Callable[[Recipe], Metrics], recipe: Recipe, folder: Path) -> None:
    """A cell that needs no run; its summary holds the metrics only."""
    if (folder / "summary.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "summary.json", json.dumps({"metrics": function(recipe), "complete": True}) + "\n")


def claims_held(claims: Sequence[Claim], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For every claim of the paper and every setting: whether our numbers agree, and how sure that is."""
    notes = []
    for claim in claims:
        for setting in _unique([row["setting"] for row in rows]):
            pair = [
                next((r["metrics"][claim.metric] for r in rows if (r["method"], r["setting"]) == (name, setting)), None)
                for name in (claim.better, claim.worse)
            ]
            if not all(cell and cell["mean"] is not None for cell in pair):
                continue
            notes.append(_verdict(claim, setting, *pair))  # type: ignore[arg-type]
    return notes


def _verdict(claim: Claim, setting: Mapping[str, Any], better: Mapping[str, Any], worse: Mapping[str, Any]) -> str:
    ahead = (better["mean"] - worse["mean"]) * (1 if claim.higher else -1)
    n = min(better["n"], worse["n"])
    noise = math.sqrt(((better["sd"] or 0) ** 2 + (worse["sd"] or 0) ** 2) / n) if n > 1 else None
    sure = "one run each" if noise is None else "within noise" if abs(ahead) <= 2 * noise else "clear"
    where = f" ({', '.join(f'{k} {v}' for k, v in setting.items())})" if setting else ""
    held = "holds here" if ahead > 0 else "does NOT hold here"
    return (
        f"paper: {claim.better} better than {claim.worse} in {claim.metric}{where}: {held},"
        f" {better['mean']:.3g} against {worse['mean']:.3g} ({sure})"
    )


def _unique(settings: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [s for i, s in enumerate(settings) if s not in settings[:i]]


def _cell_folder(out: Path, size: Scale, row: Row, settings: Mapping[str, Any], seed: int) -> Path:
    """Named after what is run, so that a changed row is run anew beside the old, and tables can share cells."""
    what = as_table(load_recipe(size.recipe, settings))
    mark = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    slug = "".join(c if c.isalnum() else "-" for c in row.name.lower())
    return out / "cells" / f"{slug}-{mark}-seed{seed}"
