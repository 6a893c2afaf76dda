"""What pages share that show pictures: their head and style, boards of cards, time lines, rankings, links to files."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Sequence
from pathlib import Path

from fedreel.report.markup import Html, el, escape, join

SIDE = 1000  # a drawing is SIDE x SIDE and stretched to its frame; strokes do not stretch
BOARD = """
.board { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(46%, 15.5rem), 1fr)); gap: 1rem; list-style: none; margin: 0; padding: 0; }
.board li { display: flex; flex-direction: column; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; break-inside: avoid; min-width: 0; }
.board a { color: inherit; text-decoration: none; }
.board a:hover .at { text-decoration: underline; text-underline-offset: .25em; }
.board img, .board .none { display: block; width: 100%; aspect-ratio: 16 / 9; object-fit: contain; background: #000; }
.board p { margin: 0; padding: .5rem .8rem .6rem; font-variant-numeric: tabular-nums; }
.board .at { display: block; font-weight: 600; }
.board small { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 .8rem; font-size: .82rem; }
"""  # noqa: E501
CURVE = """
.curve { display: grid; grid-template: 240px 1.5rem / 3.2rem 1fr; }
.curve > div { position: relative; }
.curve .y { grid-area: 1 / 1; } .curve .lines { grid-area: 1 / 2; } .curve .x { grid-area: 2 / 2; }
.curve svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.curve span { position: absolute; color: var(--soft); font-size: .75rem; line-height: 1; white-space: nowrap; font-variant-numeric: tabular-nums; }
.curve .y span { right: .6rem; transform: translateY(50%); } .curve .x span { top: .5rem; transform: translateX(-50%); }
.curve .x span:first-child { transform: none; }
@media (max-width: 600px) { .curve .x span:nth-child(even) { display: none; } }
"""  # noqa: E501
RANKING = """
.moving { display: grid; grid-template-columns: minmax(0, 3fr) minmax(min(100%, 19rem), 2fr); gap: 1rem; align-items: start; }
@media (max-width: 760px) { .moving { grid-template-columns: minmax(0, 1fr); } }
.moving > section { margin: 0; } .problems + .moving { margin-top: 1.2rem; }
.moving figure { margin: 0; padding: .9rem 1.1rem .8rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.moving td { text-align: right; } .moving tbody th { min-width: 5em; color: var(--soft); white-space: nowrap; } .moving thead { display: none; }
.below { display: flex; justify-content: space-between; align-items: baseline; gap: 1rem; margin: .5rem 0 0; color: var(--soft); font-size: .82rem; }
.ranking { list-style: none; margin: 0 0 1.6rem; padding: 0; }
.ranking li { display: grid; grid-template-columns: 1fr auto; gap: .15rem 1rem; margin-bottom: .7rem; overflow-wrap: anywhere; }
.ranking b { font-weight: 400; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ranking li:first-child span, .ranking li:first-child b { font-weight: 600; }
.ranking div { grid-column: 1 / -1; height: 7px; border-radius: 4px; background: var(--wash); overflow: hidden; }
.ranking i { display: block; height: 100%; border-radius: 4px; background: rgb(var(--heat) / .5); }
.ranking li:first-child i { background: var(--s0); }
"""  # noqa: E501


def header(
    verb: str,
    title: str,
    *,
    lead: object = None,
    facts: Sequence[tuple[str, object]] = (),
    headline: tuple[str, str, str] | None = None,
    wide: bool = False,
) -> Html:
    """The head of a verb's page: what was asked, and the answer's name, value and a hint."""
    left = [el("p", f"fedreel {verb}", class_="eyebrow"), el("h1", title)]
    if lead is not None:
        left.append(el("p", lead, class_="lead"))
    if facts:
        left.append(el("dl", [el("div", el("dt", name), el("dd", text)) for name, text in facts], class_="facts"))
    if headline is None:
        return el("header", el("div", left))
    name, value, hint = headline
    right = [el("p", name, class_="name"), el("p", value, class_="value"), el("p", hint, class_="hint")]
    return el("header", el("div", left), el("div", right, class_="headline wide" if wide else "headline"))


def problems(notes: Sequence[str]) -> Html | None:
    """Notes above all else; nothing where there are none."""
    return el("ul", [el("li", text) for text in notes], class_="problems") if notes else None


def ranking_bars(ranking: Sequence[tuple[str, float]], top: int) -> Html:
    """The likeliest classes with a bar each, and what is left for all others."""
    rows = [
        el("li", el("span", label), el("b", percent(share, 1)), el("div", el("i", style=f"width:{share:.1%}")))
        for label, share in ranking[:top]
    ]
    rest = ranking[top:]
    words = [f"{len(rest)} more", percent(sum(share for _, share in rest), 1)]
    more = el("li", el("span", words[0], class_="hint"), el("b", words[1], class_="hint"))
    return el("ol", rows, more if rest else None, class_="ranking")


def image(content: bytes | None, text: str) -> Html:
    """A JPEG file in the page itself; a black field where there is none."""
    if content is None:
        return el("div", class_="none", role="img", aria_label=f"no picture of {text}")
    return Html(f'<img alt="{escape(text)}" src="{jpeg_link(content)}">')


def jpeg_link(content: bytes) -> str:
    """An address that holds the file."""
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def stretched(said: str, marks: Sequence[Html]) -> Html:
    """A drawing of SIDE x SIDE that fills its frame."""
    opening = f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" aria-label="{escape(said)}">'
    return Html(f"{opening}{join(marks)}</svg>")


def time_labels(seconds: float) -> list[float]:
    """Times to label: a round number of seconds, minutes or hours apart, at most ten."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
    step = next((s for s in steps if seconds / s <= 9), math.ceil(seconds / 9 / 3600) * 3600)
    return [float(t) for t in range(0, math.floor(seconds * 0.97) + 1, step)]


def relative_link(path: Path, folder: Path) -> str:
    """A file as a page in that folder links to it."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()


def percent(share: float, decimals: int = 0) -> str:
    """A probability as people say it."""
    return f"{100 * share:.{decimals}f} %"
