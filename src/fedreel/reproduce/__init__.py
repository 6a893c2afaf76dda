"""Reproduction: a table is data (the sweep, the printed numbers, the metrics); the harness runs it, resumably."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from fedreel.config import load_recipe
from fedreel.errors import RecipeError, nearest
from fedreel.machine.files import write_atomic
from fedreel.report import write_table
from fedreel.reproduce.cells import Cell, cell_names, merged, metrics_of, why_diverged
from fedreel.reproduce.choose import (
    BEYOND,
    UNCHOSEN,
    Choice,
    Try,
    check_unset,
    chosen_of,
    further,
    in_words,
    knows,
    narrowed,
    note,
)
from fedreel.reproduce.claims import in_words as in_one_line
from fedreel.reproduce.claims import judged
from fedreel.reproduce.equal_time import model_of, round_seconds, rounds_within, timing, to_time
from fedreel.reproduce.kept import Kept, Line, known_of, line_of, open_kept
from fedreel.reproduce.side_by_side import each_done
from fedreel.reproduce.spec import SEED, Metrics, Row, Scale, Table
from fedreel.reproduce.twins import check_apart
from fedreel.systems import System, systems


def reproduce(
    system: str,
    *tables: str,
    scale: str = "smoke",
    data: Path | None = None,
    out: Path,
    device: str = "auto",
    jobs: int = 1,
    rows: str = "",
    seeds: int | None = None,
    set: Mapping[str, Any] | None = None,
    cells: Path | None = None,
    together: bool = False,
) -> dict[str, dict[str, Any]]:
    """Run every cell (row x seed) of the tables that is not finished yet, `jobs` at a time, or with `together` so many
    rows, seeds and rates of each in lock-step; a cell that several tables show is run once. Where rows have settings to
    choose, all that are to be tried are run first. After each cell, TABLE.json and TABLE.html of the tables that show
    it are written; returns what is in them, by table. `rows` takes only rows with this text in their name or setting
    (`A & B`: both, `A | B`: one, `=A`: the whole of it); `seeds` so many seeds instead of the scale's; `set` goes over
    the settings of all rows. `cells` is a text file: finished cells that it has are not run, and those that get
    finished are put into it."""
    sweeps = wanted(system, *tables, scale=scale, data=data, out=out, rows=rows, seeds=seeds, over=set or {})
    kept = open_kept(cells, data) if cells else None
    sweeps = _in_time(sweeps, device, kept)
    sweeps = _chosen(sweeps, device, jobs, kept, together)
    asked = merged(cell for sweep in sweeps for cell in sweep.cells())
    shown: dict[Path, list[Sweep]] = {}
    for sweep in sweeps:
        for cell in sweep.cells():
            shown.setdefault(cell.folder, []).append(sweep)
    contents: dict[str, dict[str, Any]] = {}
    for number, cell in enumerate(each_done(asked, device, jobs, kept, together), 1):
        print(f"[{number}/{len(asked)}] {cell.name}, seed {cell.seed}: done", file=sys.stderr, flush=True)
        out.mkdir(parents=True, exist_ok=True)
        for sweep in shown[cell.folder]:
            content = contents[sweep.table] = sweep.collect()
            write_atomic(out / f"{sweep.table}.json", json.dumps(content, indent=1) + "\n")
            write_table(out / f"{sweep.table}.html", content)
    return {sweep.table: contents[sweep.table] for sweep in sweeps}  # in the order they were asked for


def wanted(
    system: str,
    *tables: str,
    scale: str,
    data: Path | None,
    out: Path,
    rows: str,
    seeds: int | None,
    over: Mapping[str, Any],
) -> list[Sweep]:
    """The tables with those of their rows that are wanted, as these data ask for; what cannot be run is refused."""
    found = [_sweep(system, table, scale, data, seeds, over, out) for table in dict.fromkeys(tables)]
    picked = [replace(s, rows=tuple(row for row in s.rows if row.has(rows)), only=rows) for s in found]
    sweeps = [replace(s, size=for_data(s.size, s.spec, data)) for s in picked if s.rows]
    if not sweeps:
        named = sorted({str(v) for sweep in found for row in sweep.rows for v in (row.name, *row.setting.values())})
        raise RecipeError(f"no row of '{system} {' '.join(tables)}' has '{rows}' in it", hint=nearest(rows, named))
    for sweep in sweeps:
        check_unset(sweep.rows, sweep.size, sweep.spec.follow)
        check_apart(sweep.table, sweep.rows, sweep.spec, sweep.size, data, _tables(system))
    return sweeps


def reproducible() -> dict[str, System]:
    """The systems that declare tables, by name."""
    return {system.name: system for system in systems() if system.tables}


def find_table(system: str, table: str) -> Table:
    known = reproducible()
    if system not in known:
        raise RecipeError(f"there is no system '{system}' to reproduce", hint=nearest(system, known))
    tables = _tables(system)
    if table not in tables:
        raise RecipeError(f"'{system}' has no '{table}'", hint=nearest(table, tables))
    return tables[table]


def _tables(system: str) -> dict[str, Table]:
    found = reproducible().get(system)
    return dict(importlib.import_module(found.tables).TABLES) if found else {}


def _in_time(sweeps: Sequence[Sweep], device: str, kept: Kept | None) -> list[Sweep]:
    """The sweeps, their rows with as many rounds as fit into the time they are to take. They are timed one by one: what
    is run side by side is slower by as much as the others take."""
    timings = [sweep.timing(row) for sweep in sweeps for row in sweep.to_time()]
    cells = [*{cell.folder: cell for cell in timings}.values()]
    for number, cell in enumerate(each_done(cells, device, 1, kept), 1):
        print(f"[{number}/{len(cells)}] {cell.name}: timed", file=sys.stderr, flush=True)
    return [sweep.in_time(line_of) for sweep in sweeps]


def _chosen(sweeps: Sequence[Sweep], device: str, jobs: int, kept: Kept | None, together: bool) -> list[Sweep]:
    """The sweeps, their rows with the best settings of their grids."""
    known, ended = partial(known_of, kept=kept), set[Path]()
    while True:  # of some rows it shows by what was tried that more is to be
        tries = merged(cell for sweep in sweeps for row in sweep.rows for cell in sweep.tries(row, known))
        left = [cell for cell in tries if cell.folder not in ended]
        if not left:
            return [sweep.choose(known) for sweep in sweeps]
        for number, cell in enumerate(each_done(left, device, jobs, kept, together), 1):
            print(f"[{number}/{len(left)}] {cell.name}: tried", file=sys.stderr, flush=True)
        ended.update(cell.folder for cell in left)


def _nothing(cell: Cell) -> Line:
    return {}


@dataclass(frozen=True)
class Sweep:
    """One of the tables: the rows that are wanted of it, how large they are run, and what was chosen for them."""

    system: str
    table: str
    scale: str
    spec: Table
    size: Scale
    rows: tuple[Row, ...]
    out: Path
    data: Path | None
    only: str = ""  # the text by which its rows were picked
    choices: Mapping[str, Choice] = field(default_factory=dict)  # by the rows' labels
    seconds: Mapping[str, float] = field(default_factory=dict)  # of a round, of rows that were timed; likewise

    def to_time(self) -> list[Row]:
        """The rows whose rounds are timed before the others are run."""
        given = "round.rounds" in self.size.over
        return to_time(self.rows, self.spec.rows_for(self.data)) if self.size.timed and not given else []

    def timing(self, row: Row) -> Cell:
        """What is run to know how long a round of the row takes."""
        settings = {**_settings(self.spec, self.size, row, 0), **timing(self.size.timed)}
        folder, key = self._names(row, settings, 0)
        return Cell(row.label, 0, self.size.recipe, settings, folder, key, None, (round_seconds,))

    def in_time(self, known: Callable[[Cell], Line]) -> Self:
        """With as many rounds as fit into its time for every row that is timed, and so is that whose time it takes."""
        if not self.to_time():
            return self
        found = {row.label: known(self.timing(row)) for row in (*self.rows, *self.to_time())}
        read = {label: line.get("derived", {}).get(round_seconds.__name__) for label, line in found.items()}
        seconds = {label: metrics["round seconds"] for label, metrics in read.items() if metrics}
        rows = []
        for row in self.rows:
            if {row.label, row.as_long_as} <= seconds.keys():
                other = model_of(row, self.spec.rows_for(self.data))
                rounds = _settings(self.spec, self.size, other, 0)["round.rounds"]
                rounds = rounds_within(rounds, seconds[other.label], seconds[row.label])
                row = replace(row, settings={**row.settings, "round.rounds": rounds})
            rows.append(row)
        return replace(self, rows=tuple(rows), seconds=seconds)

    def _time_of(self, row: Row) -> Metrics:
        """What a round of the row took when it was timed, if it was, and all its rounds by that."""
        if row.label not in self.seconds:
            return {}
        rounds, each = _settings(self.spec, self.size, row, 0)["round.rounds"], self.seconds[row.label]
        return {"round seconds": each, "rounds": float(rounds), "seconds": rounds * each}

    def tries(self, row: Row, known: Callable[[Cell], Line] = _nothing) -> list[Cell]:
        """What is run to choose the row's settings, by what is known of it; nothing where there is no choice."""
        return [cell for _, cell in self._options(row, known)]

    def _options(self, row: Row, known: Callable[[Cell], Line]) -> list[tuple[dict[str, Any], Cell]]:
        rule, options = self.size.choose, narrowed(row, self.size)
        if rule is None or len(options) < 2:
            return []
        found = [(option, self._try(row, option)) for option in options]
        for _ in range(BEYOND if rule.beyond else 0):
            if not all(known(cell) for _, cell in found):
                break
            best = chosen_of(found, rule, known).best
            found += [(more, self._try(row, more)) for more in further([o for o, _ in found], best, rule.beyond)]
        return found

    def _try(self, row: Row, chosen: Mapping[str, Any]) -> Cell:
        key = id(row), tuple(chosen.items())
        if key not in self._tried:
            self._tried[key] = self._made_try(row.chosen_by or row, chosen)
        return self._tried[key]

    @cached_property
    def _tried(self) -> dict[tuple[int, tuple[tuple[str, Any], ...]], Cell]:
        """Made once: every setting of every cell is checked on the way."""
        return {}

    def _made_try(self, row: Row, chosen: Mapping[str, Any]) -> Cell:
        size, rule = self.size, self.size.choose
        assert rule is not None
        usual = _settings(self.spec, size, row, 0)
        kept = {key: value for key, value in usual.items() if key not in rule.without}
        settings = {**kept, **rule.settings_of(row), **chosen}
        folder, key = self._names(row, settings, 0)
        name = f"{row.name}, {in_words(chosen)}"
        return Cell(name, 0, size.recipe, settings, folder, key, row.compute, rule.derive, row.needs)

    def choose(self, known: Callable[[Cell], Line]) -> Sweep:
        """With the best settings for every row all of whose tries are known."""
        rule = self.size.choose
        if rule is None:
            return self
        choices: dict[str, Choice] = {}
        rows = []
        for row in self.rows:
            options, alone = self._options(row, known), narrowed(row, self.size)
            if options and all(known(cell) for _, cell in options):
                choices[row.label] = chosen_of(options, rule, known)
            elif not options and alone:
                choices[row.label] = Choice((Try(alone[0], None),), rule.higher)
            if row.label in choices:
                row = replace(row, settings={**row.settings, **choices[row.label].best})
            rows.append(row)
        return replace(self, rows=tuple(rows), choices=choices)

    def cell(self, row: Row, seed: int) -> Cell:
        return self._cells[id(row), seed]

    def cells(self) -> list[Cell]:
        return [*self._cells.values()]

    @cached_property
    def _cells(self) -> dict[tuple[int, int], Cell]:
        """Made once: every setting of every cell is checked on the way, and tables are written after each cell."""
        return {(id(row), seed): self._cell(row, seed) for row in self.rows for seed in self.size.seeds}

    def _cell(self, row: Row, seed: int) -> Cell:
        settings, spec, recipe = _settings(self.spec, self.size, row, seed), self.spec, self.size.recipe
        folder, key = self._names(row, settings, seed)
        return Cell(row.name, seed, recipe, settings, folder, key, row.compute, spec.derive, row.needs)

    def _names(self, row: Row, settings: Mapping[str, Any], seed: int) -> tuple[Path, str]:
        folder, key = cell_names(self.size.recipe, settings, row.run_as or row.name, seed, self.data)
        return self.out / "cells" / folder, key

    def collect(self) -> dict[str, Any]:
        """The table so far."""
        spec, size = self.spec, self.size
        found = {
            id(row): [metrics_of(self.cell(row, seed).folder, spec.derive) for seed in size.seeds] for row in self.rows
        }
        if spec.relate is not None:
            for i, seed in enumerate(size.seeds):
                done = [row for row in self.rows if found[id(row)][i]]
                more = spec.relate([(row, self.cell(row, seed).folder) for row in done]) if done else []
                for row, added in zip(done, more):
                    found[id(row)][i] |= added
        for row in self.rows:
            found[id(row)] = [cell | self._time_of(row) if cell else cell for cell in found[id(row)]]
        names = _names(spec.metrics, [cell for row in found.values() for cell in row])
        rows, lost = [], []
        for row in self.rows:
            cells = [cell for cell in found[id(row)] if cell]
            why = {seed: why_diverged(self.cell(row, seed).folder) for seed in size.seeds}
            lost += [
                f"{row.label}, seed {seed}: diverged, not in the mean ({text})" for seed, text in why.items() if text
            ]
            if cells or any(why.values()):
                factors = {m: 1.0 if any(fnmatch(m, p) for p in spec.plain) else spec.factor for m in names}
                metrics = {m: _mean_sd([c.get(m) for c in found[id(row)]], factors[m]) for m in names}
                chosen = self.choices[row.label].content() if row.label in self.choices else {}
                shown = {"method": row.name, "setting": row.setting, "metrics": metrics, "paper": dict(row.paper)}
                rows.append(shown | chosen)
        claims = judged(spec.claims, rows)
        return {
            "system": load_recipe(self.size.recipe).system or self.system,
            "table": self.table,
            "scale": self.scale,
            "data": self.data.name if self.data else "playground",
            "command": self._command(),
            "rows": rows,
            "claims": claims,
            "notes": [*spec.notes, *self._remarks(), *map(in_one_line, claims), *lost, *self._choosing(), self._run()],
        }

    def _remarks(self) -> Sequence[str]:
        if self.spec.remark is None:
            return ()
        folders = [(row, [self.cell(row, seed).folder for seed in self.size.seeds]) for row in self.rows]
        return self.spec.remark([(row, [f for f in own if metrics_of(f)]) for row, own in folders])

    def _choosing(self) -> list[str]:
        if self.choices and self.size.choose:
            return [note(self.size.choose, self.choices)]
        return [UNCHOSEN] if any(row.grid for row in self.rows) else []

    def _command(self) -> str:
        """What makes this table; data by the folder's name."""
        words = ["fedreel", "reproduce", self.system, self.table, "--scale", self.scale]
        words += ["--data", self.data.name] if self.data else []
        words += ["--rows", self.only] if self.only else []
        if self.size.seeds != self.spec.scales[self.scale].seeds:
            words += ["--seeds", str(len(self.size.seeds))]
        for key, value in self.size.over.items():
            words += ["--set", f"{key}={json.dumps(value) if isinstance(value, (list, bool)) else value}"]
        return shlex.join(words)

    def _run(self) -> str:
        size = self.size
        task = load_recipe(size.recipe).task["name"]
        changed = "".join(f", {key}={value}" for key, value in size.over.items())
        return f"recipe {size.recipe}{changed}, seeds {', '.join(map(str, size.seeds))}, task {task}"


def _sweep(
    system: str,
    table: str,
    scale: str,
    data: Path | None,
    seeds: int | None,
    over: Mapping[str, Any],
    out: Path,
) -> Sweep:
    """All rows of a table; the data are not looked at beyond what tells which rows there are."""
    spec = find_table(system, table)
    if scale not in spec.scales:
        raise RecipeError(f"'{system} {table}' has no scale '{scale}'", hint=nearest(scale, spec.scales))
    size = spec.scales[scale]
    size = replace(size, seeds=size.seeds if seeds is None else tuple(range(seeds)), over=over)
    return Sweep(system, table, scale, spec, size, spec.rows_for(data), out, data)


def for_data(size: Scale, spec: Table, data: Path | None) -> Scale:
    """The scale with what it takes for these data; for the playground, without what is for given data only."""
    if data is None:
        return replace(size, given={}, rows={})
    asked = spec.adapt(data) if spec.adapt else {}
    given = {"data.source": str(data.resolve()), **asked, **size.given}
    return replace(size, given=given, choose=size.choose_given)


def _settings(spec: Table, size: Scale, row: Row, seed: int) -> dict[str, Any]:
    """All that a cell changes in the recipe, but the seed."""
    settings = {**spec.settings, **row.usual, **size.settings, **size.given, **row.settings}
    for text, changed in size.rows.items():
        settings |= changed if row.has(text) else {}
    method = settings.get("method.name", load_recipe(size.recipe).method["name"])
    over = {key: value for key, value in size.over.items() if key.partition(".")[0] != "method" or knows(method, key)}
    settings |= {**dict.fromkeys(spec.follow, seed), **over}
    return {key: value.replace(SEED, str(seed)) if isinstance(value, str) else value for key, value in settings.items()}


def _mean_sd(by_seed: Sequence[float | None], factor: float) -> dict[str, Any]:
    """Mean and sample sd; the sd of a single run is unknown, not zero. And what each seed came to, if anything."""
    values = [None if v is None else v * factor for v in by_seed]
    known = [v for v in values if v is not None]
    mean, sd = fmean(known) if known else None, stdev(known) if len(known) > 1 else None
    return {"mean": mean, "sd": sd, "n": len(known), "values": values}


def _names(wanted: Sequence[str], cells: Sequence[Metrics]) -> list[str]:
    """The metrics that a table shows; a pattern stands for those that were found."""
    known = sorted({name for cell in cells for name in cell})
    return [name for w in wanted for name in ([k for k in known if fnmatch(k, w)] if "*" in w else [w])]
