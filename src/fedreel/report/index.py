"""One page over several reports: a card per system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fedreel.report.charts import sparkline
from fedreel.report.markup import Html, duration, el, score
from fedreel.report.read import read_run
from fedreel.report.shell import document, save


@dataclass(frozen=True)
class Entry:
    """One card: the report it opens, and the line, number and curve it shows."""

    name: str
    description: str
    report: Path
    metric: str = ""
    value: float | None = None
    seconds: float | None = None
    curve: Sequence[float | None] = ()

    @classmethod
    def of_run(cls, name: str, description: str, folder: Path) -> Entry:
        """The card of a run directory: its headline metric, its wall time, its curve."""
        run = read_run(Path(folder))
        metric = run.headline
        value, seconds = run.metrics.get(metric), run.total("wall_seconds", "seconds")
        return cls(name, description, Path(folder) / "report.html", metric, value, seconds, run.curve(metric))


def write_index(out: Path, title: str, entries: list[Entry]) -> Path:
    """Write the page `out` (a directory gets an index.html). Links are relative, so the tree can move."""
    out = Path(out)
    out = out / "index.html" if out.is_dir() else out
    cards = [_card(entry, out.parent) for entry in entries]
    total = sum(entry.seconds or 0.0 for entry in entries)
    body = el("main", el("div", cards, class_="cards") if cards else el("p", "No reports yet.", class_="empty"))
    top = el(
        "header",
        el(
            "div",
            el("p", "fedreel", class_="eyebrow"),
            el("h1", title),
            el("p", _lead(len(entries), total), class_="lead"),
        ),
    )
    return save(out, document(title, top, body))


def _lead(n: int, seconds: float) -> str:
    return f"{n} {'run' if n == 1 else 'runs'}, {duration(seconds)} in all. Each card opens its report."


def _card(entry: Entry, folder: Path) -> Html:
    link = quote(os.path.relpath(entry.report, folder).replace(os.sep, "/"))
    number = el("p", score(entry.value), class_="value") if entry.metric else None
    return el(
        "a",
        el("h2", entry.name),
        el("p", entry.description, class_="what"),
        el("p", entry.metric, class_="name") if entry.metric else None,
        number,
        sparkline(entry.curve, f"{entry.metric} over the tests") if len(entry.curve) > 1 else None,
        el("p", duration(entry.seconds), class_="hint"),
        class_="card",
        href=link,
    )
