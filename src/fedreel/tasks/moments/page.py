"""The page of found moments: the sentence, where in the video it comes true, and a picture of every moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fedreel.machine.words import clock
from fedreel.report.markup import Html, count, duration, el, quantity, short, table
from fedreel.report.pictures import (
    BOARD,
    CURVE,
    SIDE,
    header,
    image,
    percent,
    problems,
    relative_link,
    stretched,
    time_labels,
)
from fedreel.report.shell import document, section
from fedreel.tasks.moments.result import Finding, Moment, Scale

LANE = 2.1  # rem: the height of a moment's bar with the room around it
STYLE = """
.lanes { margin-bottom: .9rem; border-bottom: 1px solid var(--line); }
.lanes rect { fill: rgb(var(--heat) / .26); } .lanes rect:first-of-type, .lanes rect:hover { fill: rgb(var(--heat) / .45); }
.lanes .y span { transform: translateY(-50%); font-weight: 600; }
.lanes .lines span { transform: translateY(-50%); padding: 0 .5rem; color: var(--ink); pointer-events: none; }
.level { grid-template-rows: 160px 1.5rem; } .level rect { fill: rgb(var(--heat) / .1); }
.board + .scroll { margin-top: 1rem; }
.key.moment { background: rgb(var(--heat) / .45); }
.rank { float: right; color: var(--soft); font-weight: 400; }
header h1 { max-width: 32em; } .headline.wide { flex-basis: 20rem; } .headline.wide .value { font-size: 2.1rem; line-height: 1.3; }
"""  # noqa: E501


class Words(NamedTuple):
    """How a page speaks of scores."""

    best: str  # above the first moment
    lead: str
    curve: str
    said: str  # to those who hear the figure


WORDS: Mapping[Scale, Words] = {
    "probability": Words(
        "most likely",
        "A bar is a moment. The curve says how likely each part of the video is inside what the sentence means.",
        "inside the moment",
        "the probability to be inside the moment",
    ),
    "likeness": Words(
        "most alike",
        "A bar is a moment. The curve says how alike the names of what is seen and the sentence are, 1 at most; it is "
        "no probability, and its heights are to be compared within this video only.",
        "likeness of names",
        "how alike the names of what is seen and the sentence are",
    ),
}


def draw_page(finding: Finding, pictures: dict[int, bytes], clips: Sequence[Path], folder: Path) -> str:
    """The whole page, for a file in `folder`; pictures lead to the clips, where these are written."""
    links = [quote(relative_link(clip, folder)) for clip in clips]
    body = el(
        "main",
        problems(finding.notes),
        section("line", "When it happens", _figure(finding), lead=WORDS[finding.scale].lead),
        section(
            "moments", "The moments", _board(finding, pictures, links), _listed(finding), lead=_lead(finding, links)
        ),
    )
    title = f"{short(finding.sentence)}: {short(finding.source.name)}"
    return document(title, el("style", Html(BOARD + CURVE + STYLE)), _header(finding), body, images=True)


def _header(finding: Finding) -> Html:
    facts = [
        ("model", finding.run.resolve().name + (f", {finding.client}" if finding.client else "")),
        ("features", finding.features),
        ("length", clock(finding.seconds)),
    ]
    best = finding.moments[0]
    return header(
        "find",
        finding.sentence,
        lead=["looked for in ", el("b", finding.source.name)],
        facts=facts,
        headline=(WORDS[finding.scale].best, _codes(best), finding.in_words(best)),
        wide=True,
    )


def _lead(finding: Finding, links: list[str]) -> str:
    said = f"{count(len(finding.moments), 'moment')}, the best first."
    return f"{said} A picture leads to its clip." if links else said


def _figure(finding: Finding) -> Html:
    keys = [
        el("span", el("i", class_=f"key {style}"), name)
        for style, name in (("moment", "moment"), ("s0", WORDS[finding.scale].curve))
    ]
    caption = el("figcaption", el("strong", "The video's time"), el("span", keys, class_="legend"))
    return el("figure", caption, _lanes(finding), _level(finding), class_="chart wide")


def _lanes(finding: Finding) -> Html:
    """A bar for each moment, one below the other."""
    n, whole = len(finding.moments), finding.seconds or 1.0
    high = SIDE / n
    bars = [_rect(finding, m, (i + 0.12) * high, 0.76 * high) for i, m in enumerate(finding.moments)]
    ranks, labels = [], []
    for i, moment in enumerate(finding.moments):
        top = f"top:{(i + 0.5) / n:.2%}"
        late = moment.start + moment.end > whole
        side = f"right:{1 - moment.end / whole:.2%}" if late else f"left:{moment.start / whole:.2%}"
        ranks.append(el("span", moment.rank, style=top))
        labels.append(el("span", _said(finding, moment), style=f"{top};{side}"))
    said = f"{count(n, 'moment')} of a video of {clock(whole)}"
    return el(
        "div",
        el("div", ranks, class_="y", aria_hidden="true"),
        el("div", stretched(said, bars), labels, class_="lines"),
        class_="curve lanes",
        style=f"grid-template:{LANE * n:.1f}rem / 3.2rem 1fr",
    )


def _level(finding: Finding) -> Html:
    """The probability to be inside, or the likeness, over time."""
    whole, n = finding.seconds or 1.0, len(finding.inside)
    places = [0.0, *((i + 0.5) / n for i in range(n)), 1.0]
    values = [finding.inside[0], *finding.inside, finding.inside[-1]]
    path = "M" + "L".join(f"{SIDE * x:.2f} {SIDE * (1 - y):.1f}" for x, y in zip(places, values))
    marks = [
        el("path", class_="grid", d="".join(f"M0 {y}H{SIDE}" for y in (0, SIDE // 2, SIDE))),
        _rect(finding, finding.moments[0], 0, SIDE),
        el("path", class_="thick s0 fine", d=path),
    ]
    shown = percent if finding.scale == "probability" else "{:.1f}".format
    said = f"{WORDS[finding.scale].said}, from {shown(min(values))} to {shown(max(values))}"
    return el(
        "div",
        el("div", [el("span", shown(y), style=f"bottom:{y:.0%}") for y in (0.0, 0.5, 1.0)], class_="y"),
        el("div", stretched(said, marks), class_="lines"),
        el("div", [el("span", clock(t, 0), style=f"left:{t / whole:.2%}") for t in time_labels(whole)], class_="x"),
        class_="curve level",
    )


def _rect(finding: Finding, moment: Moment, y: float, height: float) -> Html:
    whole = finding.seconds or 1.0
    return el(
        "rect",
        el("title", f"{moment.rank}: {_said(finding, moment)}"),
        x=f"{moment.start / whole * SIDE:.2f}",
        y=f"{y:.1f}",
        width=f"{max((moment.end - moment.start) / whole * SIDE, 1):.2f}",
        height=f"{height:.1f}",
    )


def _board(finding: Finding, pictures: dict[int, bytes], links: list[str]) -> Html:
    cards = []
    for i, moment in enumerate(finding.moments):
        long, likely = duration(moment.end - moment.start), finding.in_words(moment)
        words = el(
            "p",
            el("span", _codes(moment), el("span", moment.rank, class_="rank"), class_="at"),
            el("small", el("span", long), el("span", likely)),
        )
        card = [image(pictures.get(moment.middle), f"the moment from {_codes(moment)}"), words]
        cards.append(el("li", el("a", card, href=links[i]) if links else card))
    return el("ol", cards, class_="board")


def _listed(finding: Finding) -> Html:
    rows: list[list[object]] = [
        [
            str(moment.rank),
            quantity(moment.start, clock(moment.start)),
            quantity(moment.end, clock(moment.end)),
            quantity(moment.end - moment.start, duration(moment.end - moment.start)),
            quantity(moment.score, finding.in_words(moment).partition(" ")[2]),
            f"{moment.first:,} – {moment.last:,}",
        ]
        for moment in finding.moments
    ]
    score = finding.in_words(finding.moments[0]).partition(" ")[0]
    return table(["rank", "from", "to", "length", score, "frames"], rows, caption="Moments", class_="sortable")


def _codes(moment: Moment) -> str:
    return f"{clock(moment.start)} – {clock(moment.end)}"


def _said(finding: Finding, moment: Moment) -> str:
    return f"{_codes(moment)}, {finding.in_words(moment)}"
