"""A reproduction table as a page: our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedreel.report.markup import Html, el, finite, lower_is_better, score
from fedreel.report.shell import document, save

Row = dict[str, Any]


def write_table(out: Path, table: dict[str, Any]) -> Path:
    """Write the page `out` of a table of rows with `metrics` and `paper`."""
    system, name, scale = (str(table.get(key) or "") for key in ("system", "table", "scale"))
    title = " · ".join(part for part in (system, name) if part) or "Reproduction"
    badge = el("span", f"scale: {scale}", class_="badge") if scale else None
    top = el("header", el("div", el("p", "fedreel reproduction ", badge, class_="eyebrow"), el("h1", title)))
    notes = [el("li", str(note)) for note in table.get("notes") or []]
    body = el(
        "main",
        _table(table.get("rows") or [], title),
        el("p", "★ the best row of its column. ± is the standard deviation over n seeds.", class_="hint"),
        el("section", el("h2", "Notes"), el("ul", notes, class_="notes")) if notes else None,
    )
    return save(out, document(f"{title}: fedreel reproduction", top, body))


def _table(rows: list[Row], title: str) -> Html:
    if not rows:
        return el("p", "The table has no rows yet.", class_="empty")
    settings = list(dict.fromkeys(str(key) for row in rows for key in row.get("setting") or {}))
    sides = [row.get(side) or {} for side in ("metrics", "paper") for row in rows]
    metrics = list(dict.fromkeys(str(name) for side in sides for name in side))
    printed = {name for name in metrics if any((row.get("paper") or {}).get(name) is not None for row in rows)}
    choosing = any(row.get("chosen") for row in rows)
    best_ours = {name: _best(rows, name, _ours) for name in metrics}
    best_paper = {name: _best(rows, name, _paper) for name in metrics}
    first = el(
        "tr",
        [el("th", word, scope="col", rowspan=2) for word in ("method", *settings, *(["chosen"] if choosing else []))],
        [
            el("th", name, " ↓" if lower_is_better(name) else None, scope="colgroup", colspan=1 + (name in printed))
            for name in metrics
        ],
    )
    whose = [word for name in metrics for word in (("ours", "paper") if name in printed else ("ours",))]
    second = el("tr", [el("th", word, scope="col") for word in whose])
    body = []
    for row in rows:
        values = row.get("setting") or {}
        cells = [el("td", "–" if values.get(key) is None else str(values[key])) for key in settings]
        cells += [_chosen_cell(row)] if choosing else []
        for name in metrics:
            cells.append(_our_cell(row, name, best_ours[name]))
            if name in printed:
                cells.append(_paper_cell(row, name, best_paper[name]))
        body.append(el("tr", el("th", str(row.get("method") or ""), scope="row"), cells))
    caption = el("caption", f"{title}: ours and the paper's", class_="unseen")
    inner = el("table", caption, el("thead", first, second), el("tbody", body), class_="results")
    return el("div", inner, class_="scroll full", tabindex=0, role="region", aria_label=title)


def _chosen_cell(row: Row) -> Html:
    """The settings that were chosen for a row; below them all that were tried, with their scores."""
    tries = []
    for tried in row.get("tries") or []:
        known = finite(tried.get("score"))
        tries.append(f"{_words(tried['settings'])}: {'diverged' if known is None else score(known)}")
    text = _words(row.get("chosen") or {}) or "–"
    return el("td", text, [el("small", el("br"), line) for line in tries])


def _words(settings: Row) -> str:
    return ", ".join(f"{key.rpartition('.')[2].rstrip('_')}={value}" for key, value in settings.items())


def _our_cell(row: Row, name: str, best: float | None) -> Html:
    cell: Any = (row.get("metrics") or {}).get(name)
    mean = _ours(row, name)
    if mean is None:
        measured = cell is not None and cell.get("n") != 0
        return el("td", "not finite" if measured else "–", class_="num ours")
    n = finite(cell.get("n"))
    text, plus, spread = score(mean, finite(cell.get("sd"))).partition(" ± ")
    detail = el("small", plus + spread, f" (n={int(n)})" if n is not None else None)
    return _value(text, detail, won=mean == best, class_="num ours")


def _paper_cell(row: Row, name: str, best: float | None) -> Html:
    printed = (row.get("paper") or {}).get(name)
    value = _paper(row, name)
    text = "–" if printed is None else str(printed)
    return _value(text, None, won=value is not None and value == best, class_="num paper")


def _value(text: str, detail: Html | None, *, won: bool, class_: str) -> Html:
    star = el("span", "★ ", class_="star", title="best of this column") if won else None
    return el("td", star, text, detail, class_=f"{class_} best" if won else class_)


def _best(rows: list[Row], name: str, value: Callable[[Row, str], float | None]) -> float | None:
    """The best value of a column; None where there is nothing to be better than."""
    known = [v for row in rows if (v := value(row, name)) is not None]
    return (min if lower_is_better(name) else max)(known) if len(known) > 1 else None


def _ours(row: Row, name: str) -> float | None:
    cell = (row.get("metrics") or {}).get(name)
    return finite(cell.get("mean")) if isinstance(cell, dict) else None


def _paper(row: Row, name: str) -> float | None:
    return finite((row.get("paper") or {}).get(name))
