"""The storyboard of a summary: one page with a picture of each chosen shot, and the scores behind the choice."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.media.frames import Timeline
from fedreel.media.video import rgb
from fedreel.report.markup import Html, count, duration, el, escape, join, number, quantity, score, short, table
from fedreel.report.shell import document, save, section

if TYPE_CHECKING:
    from fedreel.tasks.summary.summarize import Shot, Summary

WIDE, HIGH = 360, 270  # a picture fits into this
SIDE = 1000  # the drawing is SIDE x SIDE and stretched to its frame; strokes do not stretch
POINTS, ROWS = 1500, 500
STYLE = """
.board { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15.5rem), 1fr)); gap: 1rem; list-style: none; margin: 0; padding: 0; }
.board li { display: flex; flex-direction: column; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; break-inside: avoid; min-width: 0; }
.board a { color: inherit; text-decoration: none; }
.board a:hover .at { text-decoration: underline; text-underline-offset: .25em; }
.board img, .board .none { display: block; width: 100%; aspect-ratio: 16 / 9; object-fit: contain; background: #000; }
.board p { margin: 0; padding: .5rem .8rem .6rem; font-variant-numeric: tabular-nums; }
.board .at { display: block; font-weight: 600; }
.board small { display: flex; justify-content: space-between; gap: .8rem; font-size: .82rem; }
.curve { display: grid; grid-template: 240px 1.5rem / 3.2rem 1fr; }
.curve > div { position: relative; }
.curve .y { grid-area: 1 / 1; } .curve .lines { grid-area: 1 / 2; } .curve .x { grid-area: 2 / 2; }
.curve svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.curve span { position: absolute; color: var(--soft); font-size: .75rem; line-height: 1; white-space: nowrap; font-variant-numeric: tabular-nums; }
.curve .y span { right: .6rem; transform: translateY(50%); } .curve .x span { top: .5rem; transform: translateX(-50%); }
.curve .x span:first-child { transform: none; }
.curve path.edge { stroke: rgb(var(--thin) / .2); stroke-width: 1; }
.curve rect.kept { fill: rgb(var(--heat) / .26); } .curve rect.left { fill: transparent; }
.curve rect:hover { fill: rgb(var(--heat) / .38); } .curve rect.left:hover { fill: rgb(var(--thin) / .08); }
.key.kept { background: rgb(var(--heat) / .3); } .key.edge { width: 1px; background: rgb(var(--thin) / .5); }
tr:has(.good) > * { background: rgb(var(--heat) / .07); }
"""  # noqa: E501


class Thumbnails:
    """Gets frames by their numbers and keeps small JPEG pictures of those that are wanted."""

    def __init__(self, wanted: set[int], line: Timeline) -> None:
        self.wanted, self.pixel, self.scaler = wanted, line.pixel, VideoReformatter()
        self.pictures: dict[int, bytes] = {}

    def __call__(self, number: int, frame: Any) -> None:
        if number in self.wanted:
            self.pictures[number] = jpeg(rgb(frame, self._size(frame), self.scaler))

    def _size(self, frame: Any) -> tuple[int, int]:
        """Height and width of the picture, even and with the proportions in which the video is shown."""
        width, height = frame.width * float(self.pixel), float(frame.height)
        if round(frame.rotation / 90) % 2:
            width, height = height, width
        scale = min(WIDE / width, HIGH / height)
        tall, wide = (max(round(side * scale / 2) * 2, 2) for side in (height, width))
        return tall, wide


def jpeg(pixels: np.ndarray) -> bytes:
    """RGB (h, w, 3) with even sides as a JPEG file."""
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuvj420p")
    encoder: Any = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    encoder.options = {"qmin": "3", "qmax": "5"}
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


def write_storyboard(
    path: Path, summary: Summary, line: Timeline, pictures: Mapping[int, bytes], out: Path | None
) -> Path:
    """Write the page. If the summary itself is written to `out`, pictures lead to their place in it."""
    link = None if out is None else quote(relative(out, path.parent))
    notes = [el("li", text) for text in summary.notes]
    body = el(
        "main",
        el("ul", notes, class_="problems") if notes else None,
        section("chosen", "The summary", _board(summary, pictures, link), lead=_lead(summary, link)),
        section(
            "scores", "Why these shots", _curve(summary, line), lead="Point at a shot for its times and its score."
        ),
        section("shots", "All shots", _shots(summary)),
    )
    title = f"{short(summary.video.name)}: storyboard"
    return save(path, document(title, el("style", Html(STYLE)), _header(summary, line), body, images=True))


def clock(seconds: float, decimals: int = 1) -> str:
    """m:ss.t, or h:mm:ss.t from an hour on."""
    unit = 10**decimals
    total, part = divmod(round(seconds * unit), unit)
    hours, minutes = divmod(total // 60, 60)
    start = f"{hours}:{minutes:02d}" if hours else str(minutes)
    return f"{start}:{total % 60:02d}" + (f".{part:0{decimals}d}" if decimals else "")


def _header(summary: Summary, line: Timeline) -> Html:
    whole = line.seconds(line.n_frames)
    facts = [
        ("model", f"{summary.run.resolve().name}, {summary.community}"),
        ("features", summary.features),
        ("steps", number(len(summary.picks))),
        ("frames", f"{number(summary.n_frames)}, {summary.fps:.4g} a second"),
        ("may keep", f"{summary.ratio * 100:.4g} % of the frames"),
    ]
    title = el(
        "div",
        el("p", "fedreel storyboard", class_="eyebrow"),
        el("h1", summary.video.name),
        el("dl", [el("div", el("dt", name), el("dd", text)) for name, text in facts], class_="facts"),
    )
    headline = el(
        "div",
        el("p", "summary", class_="name"),
        el("p", clock(summary.seconds), class_="value"),
        el("p", f"of {clock(whole)}, {summary.seconds / max(whole, 1e-9):.1%}", class_="hint"),
        class_="headline",
    )
    return el("header", title, headline)


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
        card = [image(pictures.get((shot.first + shot.last) // 2), f"the shot from {text}"), words]
        cards.append(el("li", el("a", card, href=f"{link}#t={at:.2f}") if link else card))
        at += shot.end - shot.start
    return el("ol", cards, class_="board")


def image(content: bytes | None, text: str) -> Html:
    if content is None:
        return el("div", class_="none", role="img", aria_label=f"no picture of {text}")
    return Html(f'<img alt="{escape(text)}" src="data:image/jpeg;base64,{base64.b64encode(content).decode()}">')


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
    opening = f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" aria-label="{escape(text)}">'
    y = [
        el("span", f"{tick:.{_decimals(ticks)}f}", style=f"bottom:{(tick - low) / (high - low):.2%}") for tick in ticks
    ]
    x = [el("span", clock(t, 0), style=f"left:{t / whole:.2%}") for t in times(whole)]
    frame = el(
        "div",
        el("div", y, class_="y", aria_hidden="true"),
        el("div", Html(f"{opening}{join(marks)}</svg>"), class_="lines"),
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


def times(whole: float) -> list[float]:
    """Times to label: a round number of seconds, minutes or hours apart, at most ten."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
    step = next((s for s in steps if whole / s <= 9), math.ceil(whole / 9 / 3600) * 3600)
    return [float(t) for t in range(0, math.floor(whole * 0.97) + 1, step)]


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
    more = el("p", f"{hidden} more are left out; `--score-only` writes all of them.", class_="hint") if hidden else None
    listed = table(["shot", "from", "to", "length", "score", "summary"], rows, caption="All shots", class_="sortable")
    return el("div", listed, more)


def relative(path: Path, folder: Path) -> str:
    """As a link from a page in that folder."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
