"""The page of a summary: a picture of each chosen shot, and the scores behind the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from fedreel.machine.words import clock
from fedreel.media.frames import Timeline
from fedreel.report.markup import Html, count, duration, el, number, quantity, score, short, table
from fedreel.report.pictures import (
    BOARD,
    CURVE,
    SIDE,
    header,
    image,
    problems,
    relative_link,
    stretched,
    time_labels,
)
from fedreel.report.shell import document, section
from fedreel.tasks.summary.result import Shot, Summary

POINTS, ROWS = 1500, 500
STYLE = """
.curve path.edge { stroke: rgb(var(--thin) / .2); stroke-width: 1; }
.curve rect.kept { fill: rgb(var(--heat) / .26); } .curve rect.left { fill: transparent; }
.curve rect:hover { fill: rgb(var(--heat) / .38); } .curve rect.left:hover { fill: rgb(var(--thin) / .08); }
.key.kept { background: rgb(var(--heat) / .3); } .key.edge { width: 1px; background: rgb(var(--thin) / .5); }
tr:has(.good) > * { background: rgb(var(--heat) / .07); }
"""


def draw_page(summary: Summary, line: Timeline, pictures: Mapping[int, bytes], folder: Path, out: Path | None) -> str:
    """The whole page, for a file in `folder`. If the summary itself is in `out`, pictures lead to their place in it."""
    link = None if out is None else quote(relative_link(out, folder))
    body = el(
        "main",
        problems(summary.notes),
        section("chosen", "The summary", _board(summary, pictures, link), lead=_lead(summary, link)),
        section(
            "scores", "Why these shots", _curve(summary, line), lead="Point at a shot for its times and its score."
        ),
        section("shots", "All shots", _shots(summary)),
    )
    title = f"{short(summary.source.name)}: summary"
    style = el("style", Html(BOARD + CURVE + STYLE))
    return document(title, style, _header(summary, line), body, images=True)


def _header(summary: Summary, line: Timeline) -> Html:
    whole = line.seconds(line.n_frames)
    facts = [
        ("model", f"{summary.run.resolve().name}, {summary.client or summary.community}"),
        ("features", summary.features),
        ("shots by", summary.shots_by),
        ("steps", number(len(summary.picks))),
        ("frames", f"{number(summary.n_frames)}, {summary.fps:.4g} a second"),
        ("may keep", f"{summary.ratio * 100:.4g} % of the frames"),
    ]
    hint = f"of {clock(whole)}, {summary.seconds / max(whole, 1e-9):.1%}"
    return header("summarize", summary.source.name, facts=facts, headline=("summary", clock(summary.seconds), hint))


def _lead(summary: Summary, link: str | None) -> list[object]:
    said: list[object] = [f"{count(len(summary.chosen), 'shot')} of {number(len(summary.shots))}, in their order."]
    if link:
        said += [" A picture leads to its place in ", el("a", "the summary", href=link), "."]
    return said


def _board(summary: Summary, pictures: Mapping[int, bytes], link: str | None) -> Html:
    cards, at = [], 0.0
    for shot in summary.chosen:
        text = f"{clock(shot.start)} – {clock(shot.end)}"
        words = el(
            "p",
            el("span", text, class_="at"),
            el("small", el("span", duration(shot.end - shot.start)), el("span", f"score {score(shot.score)}")),
        )
        card = [image(pictures.get(shot.middle), f"the shot from {text}"), words]
        cards.append(el("li", el("a", card, href=f"{link}#t={at:.2f}") if link else card))
        at += shot.end - shot.start
    return el("ol", cards, class_="board")


def _curve(summary: Summary, line: Timeline) -> Html:
    whole = line.seconds(line.n_frames) or 1.0
    low, high, ticks = _axis(summary.scores)
    rects = [_rect(i, shot, whole) for i, shot in enumerate(summary.shots)]
    edges = "".join(f"M{shot.start / whole * SIDE:.2f} 0V{SIDE}" for shot in summary.shots[1:])
    grid = "".join(f"M0 {_height(tick, low, high):.1f}H{SIDE}" for tick in ticks)
    marks = [
        el("path", class_="grid", d=grid),
        el("path", class_="edge", d=edges),
        el("path", class_="thick s0 fine", d=_path(summary, line, whole, low, high)),
        *rects,
    ]
    text = f"Scores from {min(summary.scores):.3f} to {max(summary.scores):.3f}; {len(summary.chosen)} shots are kept"
    y = [
        el("span", f"{tick:.{_decimals(ticks)}f}", style=f"bottom:{(tick - low) / (high - low):.2%}") for tick in ticks
    ]
    x = [el("span", clock(t, 0), style=f"left:{t / whole:.2%}") for t in time_labels(whole)]
    frame = el(
        "div",
        el("div", y, class_="y", aria_hidden="true"),
        el("div", stretched(text, marks), class_="lines"),
        el("div", x, class_="x", aria_hidden="true"),
        class_="curve",
    )
    names = (("s0", "score"), ("kept", "kept"), ("edge", "a new shot"))
    keys = [el("span", el("i", class_=f"key {style}"), name) for style, name in names]
    caption = el("figcaption", el("strong", "Importance over time"), el("span", keys, class_="legend"))
    return el("figure", caption, frame, class_="chart wide")


def _rect(i: int, shot: Shot, whole: float) -> Html:
    said = f"shot {i + 1}, {clock(shot.start)} – {clock(shot.end)}: {shot.score:.3f}{', kept' if shot.chosen else ''}"
    width = (shot.end - shot.start) / whole * SIDE
    return el(
        "rect",
        el("title", said),
        class_="kept" if shot.chosen else "left",
        x=f"{shot.start / whole * SIDE:.2f}",
        y=0,
        width=f"{width:.2f}",
        height=SIDE,
    )


def _path(summary: Summary, line: Timeline, whole: float, low: float, high: float) -> str:
    """The scores at their picks; of very many, the means of neighbours."""
    size = math.ceil(len(summary.scores) / POINTS)
    groups = range(0, len(summary.scores), size)
    times = [line.seconds(summary.picks[min(i + size // 2, len(summary.picks) - 1)]) for i in groups]
    heights = [_height(float(np.mean(summary.scores[i : i + size])), low, high) for i in groups]
    if len(times) == 1:
        return f"M0 {heights[0]:.1f}H{SIDE}"
    return "M" + "L".join(f"{t / whole * SIDE:.2f} {y:.1f}" for t, y in zip(times, heights))


def _height(value: float, low: float, high: float) -> float:
    return (high - value) / (high - low) * SIDE


def _axis(scores: Sequence[float]) -> tuple[float, float, list[float]]:
    """Bounds around the scores and round numbers between them."""
    low, high = min(scores), max(scores)
    if high - low < 1e-6:
        low, high = low - 0.05, high + 0.05
    step = next(m * 10.0**e for e in range(-7, 3) for m in (1, 2, 5) if (high - low) / (m * 10.0**e) <= 5)
    ticks = [k * step for k in range(math.floor(low / step), math.ceil(high / step) + 1)]
    return ticks[0], ticks[-1], ticks


def _decimals(ticks: Sequence[float]) -> int:
    return max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))


def _shots(summary: Summary) -> Html:
    rows: list[list[object]] = [
        [
            str(i + 1),
            quantity(shot.start, clock(shot.start)),
            quantity(shot.end, clock(shot.end)),
            quantity(shot.end - shot.start, f"{shot.end - shot.start:.1f} s"),
            quantity(shot.score, score(shot.score)),
            el("span", "kept", class_="good") if shot.chosen else "",
        ]
        for i, shot in enumerate(summary.shots[:ROWS])
    ]
    hidden = len(summary.shots) - len(rows)
    more = el("p", f"{hidden} more are left out; `--json` writes all of them.", class_="hint") if hidden else None
    listed = table(["shot", "from", "to", "length", "score", "summary"], rows, caption="All shots", class_="sortable")
    return el("div", listed, more)
