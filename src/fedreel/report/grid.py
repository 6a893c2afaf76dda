"""Counts on a grid: a shaded table while it is readable as one, a raster with hover values beyond that."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedreel.report.markup import Html, data, el, join, number, short

TABLE_ROWS, TABLE_COLUMNS = 30, 30
MOST_ROWS, MOST_COLUMNS = 400, 400
LEVELS = 9


def heat_map(title: str, rows: Sequence[str], columns: Sequence[str], counts: np.ndarray) -> Html:
    """Counts of shape (rows, columns), darker for more."""
    if len(rows) <= TABLE_ROWS and len(columns) <= TABLE_COLUMNS:
        return _table(title, rows, columns, counts)
    row_groups, column_groups = _groups(len(rows), MOST_ROWS), _groups(len(columns), MOST_COLUMNS)
    grouped = _reduce(np.add, counts, row_groups, column_groups)
    payload = {
        "kind": "grid",
        "rows": _group_names(rows, row_groups),
        "columns": _group_names(columns, column_groups),
        "cells": grouped.tolist(),
    }
    notes = _grouping(row_groups, "clients") + _grouping(column_groups, "classes")
    return _raster(title, payload, _levels(grouped), "heat", notes, ends=(columns[0], columns[-1]))


def states(title: str, rows: Sequence[str], columns: Sequence[str], cells: np.ndarray, words: list[str]) -> Html:
    """A state per cell, coloured by state; grouped cells show the highest state among them."""
    row_groups, column_groups = _groups(len(rows), MOST_ROWS), _groups(len(columns), 2 * MOST_COLUMNS)
    grouped = _reduce(np.maximum, cells, row_groups, column_groups)
    payload: dict[str, object] = {
        "kind": "grid",
        "rows": _group_names(rows, row_groups),
        "columns": _group_names(columns, column_groups),
        "cells": ["".join(map(str, row)) for row in grouped.tolist()],
        "words": words,
    }
    notes = _grouping(row_groups, "clients") + _grouping(column_groups, "rounds")
    legend = [el("span", el("i", class_=f"key state{k}"), words[k]) for k in range(1, len(words))]
    return _raster(title, payload, grouped, "state", notes, legend=legend, ends=(columns[0], columns[-1]))


def shades(title: str, rows: Sequence[str], columns: Sequence[str], values: np.ndarray) -> Html:
    """Numbers of shape (rows, columns), darker for those that are further from the least; their values on hover."""
    least, most = float(values.min()), float(values.max())
    levels = np.ceil(LEVELS * (values - least) / ((most - least) or 1.0)).astype(int)
    cells = [[float(f"{v:.4g}") for v in row] for row in values.tolist()]
    payload: dict[str, object] = {"kind": "grid", "rows": [*rows], "columns": [*columns], "cells": cells}
    notes = [f"from {number(least)} to {number(most)}"]
    return _raster(title, payload, levels, "heat", notes, ends=(columns[0], columns[-1]))


def _table(title: str, rows: Sequence[str], columns: Sequence[str], counts: np.ndarray) -> Html:
    levels = _levels(counts)
    turned = "turned" if len(columns) > 8 or max(map(len, columns), default=0) > 12 else None
    head = el(
        "tr",
        el("th", "client", scope="col"),
        [el("th", el("span", short(c, 28)), scope="col", class_=turned) for c in columns],
        el("th", "all", scope="col", class_="num"),
    )
    body = [
        el(
            "tr",
            el("th", short(name, 40), scope="row"),
            [el("td", number(int(n)) if n else "·", class_=f"heat{k}") for n, k in zip(counts[i], levels[i])],
            el("td", number(int(counts[i].sum())), class_="num all"),
        )
        for i, name in enumerate(rows)
    ]
    inner = el("table", el("caption", title), el("thead", head), el("tbody", body), class_="heatmap")
    return el("div", inner, class_="scroll", tabindex=0, role="region", aria_label=title)


def _raster(
    title: str,
    payload: dict[str, object],
    levels: np.ndarray,
    style: str,
    notes: list[str],
    ends: tuple[str, str],
    legend: list[Html] | None = None,
) -> Html:
    height, width = levels.shape
    marks = [el("path", class_=f"{style}{k}", d=_runs(levels == k)) for k in sorted(set(levels[levels > 0].tolist()))]
    opening = f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img">'
    svg = Html(f"{opening}{el('title', title)}{join(marks)}</svg>")
    names = payload["rows"]
    assert isinstance(names, list)
    size = "tall" if height <= 40 else "low"
    caption = el("figcaption", el("strong", title), el("span", legend, class_="legend") if legend else None)
    body = el(
        "div",
        el("div", [el("span", short(name, 24)) for name in names], class_="rows", aria_hidden="true"),
        el("div", svg, class_="plot", role="group", aria_label=title),
        data(payload),
        class_=f"raster {size}",
        style=f"--rows:{height}",
    )
    scale = el("p", el("span", short(ends[0], 30)), el("span", short(ends[1], 30)), class_="ends")
    window = el("div", body, class_="window", tabindex=0, role="region", aria_label=title)
    return el("figure", caption, window, scale, [el("p", n, class_="hint") for n in notes], class_="grid")


def _runs(mask: np.ndarray) -> str:
    """A mask as horizontal strokes, neighbours in one row joined."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    return "".join(f"M{x0} {y}.5H{x1}" for (y, x0), (_, x1) in zip(starts.tolist(), ends.tolist()))


def _levels(counts: np.ndarray) -> np.ndarray:
    """0 for nothing, then 1 to LEVELS by the square root, so that small counts stay visible."""
    top = max(int(counts.max(initial=0)), 1)
    return np.ceil(LEVELS * np.sqrt(np.clip(counts, 0, None) / top)).astype(int)


def _groups(n: int, most: int) -> list[slice]:
    step = max(1, math.ceil(n / most))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def _reduce(by: np.ufunc, cells: np.ndarray, rows: list[slice], columns: list[slice]) -> np.ndarray:
    starts = [[group.start for group in groups] for groups in (rows, columns)]
    return np.asarray(by.reduceat(by.reduceat(cells, starts[0], axis=0), starts[1], axis=1))


def _group_names(names: Sequence[str], groups: list[slice]) -> list[str]:
    return [
        short(names[g][0], 40)
        if len(names[g]) == 1
        else f"{short(names[g][0], 30)} – {short(names[g][-1], 30)} ({len(names[g])})"
        for g in groups
    ]


def _grouping(groups: list[slice], what: str) -> list[str]:
    step = groups[0].stop - groups[0].start
    return [f"A cell stands for {step} {what}."] if step > 1 else []
