"""Charts as inline SVG with HTML labels, so that text keeps its size at any width, and values as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedreel.machine.words import size
from fedreel.report.markup import Html, data, el, finite, join, number, short

SIDE = 1000  # the drawing is SIDE x SIDE and stretched to its frame; strokes do not stretch
POINTS, THIN_POINTS, THIN_LINES, BARS = 600, 160, 40, 250
DOTS = 40  # longer lines would become strings of beads
UNITS: dict[str, Callable[[float], str]] = {"": number, "bytes": size, "s": lambda v: f"{number(v)} s"}


@dataclass(frozen=True)
class Line:
    """One series by round; None where a value was not finite."""

    name: str
    x: list[int]
    y: list[float | None]

    def thinned(self, most: int) -> Line:
        """At most about `most` points, evenly taken, the last one kept."""
        if len(self.x) <= most:
            return self
        step = math.ceil(len(self.x) / most)
        keep = sorted({*range(0, len(self.x), step), len(self.x) - 1})
        return Line(self.name, [self.x[i] for i in keep], [self.y[i] for i in keep])


@dataclass(frozen=True)
class Chart:
    """What a line chart shows: thick lines, thin ones behind them, a band over all clients if many.

    With `dots` short lines mark their points: for lines that were measured in different rounds. `said` stands below.
    """

    title: str
    lines: list[Line]
    thin: list[Line] = field(default_factory=list)
    clients: int = 0
    band: tuple[list[int], list[float], list[float]] | None = None
    dots: bool = False
    said: str = ""


def line_chart(chart: Chart, *, wide: bool = False) -> Html:
    """A figure with axes, legend, hover values and a sentence for whatever it leaves out."""
    lines = [line.thinned(POINTS) for line in chart.lines]
    thin = [line.thinned(THIN_POINTS) for line in chart.thin]
    values = [y for line in (*lines, *thin) for y in line.y if y is not None]
    rounds = [x for line in (*lines, *thin) for x in line.x]
    if chart.band:
        values += chart.band[1] + chart.band[2]
    if not values:
        return _figure(chart.title, [], el("p", "No finite value was recorded.", class_="empty"), wide=wide)
    low, high, ticks = _axis(min(values), max(values))
    first, last = min(rounds), max(rounds)
    place = _Place(first, last, low, high)

    marks: list[Html] = []
    if chart.band:
        xs, lows, highs = chart.band
        edge = [*zip(xs, lows), *zip(reversed(xs), reversed(highs))]
        marks.append(el("path", class_="band", d="M" + "L".join(place.at(x, y) for x, y in edge) + "Z"))
    marks += [el("path", class_="thin", d=_path(line, place)) for line in thin]
    marks += [el("path", class_=_style(i, line), d=_path(line, place)) for i, line in enumerate(lines)]
    if chart.dots:
        marks += [_dots(i, line, place) for i, line in enumerate(lines) if len(line.x) <= DOTS]

    payload: dict[str, object] = {
        "kind": "line",
        "range": [first, last, low, high],
        "lines": [{"n": line.name, "x": line.x, "y": _brief(line.y)} for line in lines],
        "thin": [{"n": short(line.name, 40), "x": line.x, "y": _brief(line.y)} for line in thin],
    }
    legend = [_key(f"s{i}", line.name) for i, line in enumerate(lines)]
    if thin:
        legend.append(_key("thin", "each client"))
    if chart.band:
        legend.append(_key("band", "middle 80 % of clients"))
    frame = _frame(
        _describe(chart),
        marks,
        _named(ticks),
        (low, high),
        _labelled([(place.across(x), x) for x in _rounds(first, last)]),
        payload,
    )
    return _figure(chart.title, legend, frame, notes=_left_out(chart), wide=wide)


@dataclass(frozen=True)
class Bar:
    """The rounds that a bar is about, first and last, and how many of them there are."""

    first: int
    last: int
    rounds: int = 1


def bar_chart(title: str, x: list[Bar], series: list[tuple[str, list[float]]], unit: str = "") -> Html:
    """Stacked bars of sums, drawn as means over the rounds of each; of more than BARS neighbours are drawn as one."""
    step = max(1, math.ceil(len(x) / BARS))
    groups = [slice(i, i + step) for i in range(0, len(x), step)]
    ends = [(x[g][0].first, x[g][-1].last) for g in groups]
    names = [str(first) if first == last else f"{first}–{last}" for first, last in ends]
    over = [sum(bar.rounds for bar in x[g]) for g in groups]
    stacks = [(name, [sum(y[g]) / n for g, n in zip(groups, over)]) for name, y in series]
    tops = [sum(column) for column in zip(*(y for _, y in stacks))]
    _, high, ticks = _axis(0.0, max(tops) or 1.0)
    width = SIDE / len(groups)
    marks, below = [], [0.0] * len(groups)
    for i, (_, y) in enumerate(stacks):
        parts = []
        for k, value in enumerate(y):
            base, top = (SIDE * (1 - v / high) for v in (below[k], below[k] + value))
            parts.append(f"M{k * width + width * 0.1:.1f} {base:.1f}V{top:.1f}h{width * 0.8:.1f}V{base:.1f}Z")
            below[k] += value
        marks.append(el("path", class_=f"bar s{i}", d="".join(parts)))
    payload: dict[str, object] = {
        "kind": "bars",
        "x": names,
        "unit": unit,
        "high": high,
        "lines": [{"n": name, "y": _brief(y)} for name, y in stacks],
    }
    inside = {r: k for r in _rounds(ends[0][0], ends[-1][1]) for k, (a, b) in enumerate(ends) if a <= r <= b}
    labels = _labelled([((k + 0.5) / len(groups), r) for r, k in inside.items()])
    most = max(range(len(tops)), key=tops.__getitem__)
    text = f"{title}: at most {UNITS[unit](tops[most])}, in round {names[most]}"
    frame = _frame(text, marks, _named(ticks, unit), (0.0, high), labels, payload)
    notes = [f"Each bar is the mean over {over[0]} rounds."] if over[0] > 1 else []
    return _figure(title, [_key(f"s{i}", name) for i, (name, _) in enumerate(series)], frame, notes=notes)


def share_chart(title: str, text: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], named: str) -> Html:
    """Points of two shares, from 0 to 1, as lines beside the diagonal on which both are equal, which is `named` in the
    legend. The whole is said in `text` to those who hear it."""
    diagonal = el("path", class_="thin", style="opacity:1;stroke-width:1.4", d=f"M0 {SIDE}L{SIDE} 0")
    places = [[f"{SIDE * x:.0f} {SIDE * (1 - y):.0f}" for x, y in points] for _, points in lines]
    marks = [el("path", class_=f"thick s{i}", d="M" + "L".join(at)) for i, at in enumerate(places) if at]
    style = "stroke-width:7;stroke-dasharray:none"
    dots = ["".join(f"M{at}h0" for at in points) for points in places]
    marks += [el("path", class_=f"thick s{i}", style=style, d=d) for i, d in enumerate(dots) if d]
    shares = [(k / 4, f"{25 * k} %") for k in range(5)]
    frame = _frame(text, [diagonal, *marks], shares, (0.0, 1.0), shares)
    return _figure(title, [*(_key(f"s{i}", name) for i, (name, _) in enumerate(lines)), _key("thin", named)], frame)


def sparkline(values: Sequence[float | None], title: str) -> Html:
    """A curve the size of a word; empty if there is nothing to draw."""
    line = Line("", list(range(len(values))), [finite(v) for v in values]).thinned(THIN_POINTS)
    known = [y for y in line.y if y is not None]
    if not known:
        return Html("")
    spread = (max(known) - min(known)) or abs(known[0]) or 1.0
    place = _Place(0, line.x[-1], min(known) - spread * 0.08, max(known) + spread * 0.08)
    return _svg(title, [el("path", class_="thick s0", d=_path(line, place))], class_="spark")


@dataclass(frozen=True)
class _Place:
    first: int
    last: int
    low: float
    high: float

    def across(self, x: int) -> float:
        return (x - self.first) / (self.last - self.first) if self.last > self.first else 0.5

    def at(self, x: int, y: float) -> str:
        return f"{self.across(x) * SIDE:.0f} {(self.high - y) / (self.high - self.low) * SIDE:.1f}"


def _path(line: Line, place: _Place) -> str:
    """Lines between finite neighbours; a lone point becomes a dot (a zero-length stroke with a round cap)."""
    parts, drawing = [], False
    for x, y in zip(line.x, line.y):
        if y is None:
            drawing = False
            continue
        parts.append(f"L{place.at(x, y)}" if drawing else f"M{place.at(x, y)}h0")
        drawing = True
    return "".join(parts)


def _dots(i: int, line: Line, place: _Place) -> Html:
    path = "".join(f"M{place.at(x, y)}h0" for x, y in zip(line.x, line.y) if y is not None)
    return el("path", class_=f"thick s{i}", style="stroke-width:6;stroke-dasharray:none", d=path)


def _style(i: int, line: Line) -> str:
    return f"thick s{i} fine" if len(line.x) > 120 else f"thick s{i}"


def _axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Bounds and three to six round ticks from one to the other."""
    if high - low <= max(1e-9 * max(abs(high), abs(low)), 1e-290):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    exponent = math.floor(math.log10((high - low) / 4))
    step = next(m * 10.0**exponent for m in (1, 2, 5, 10) if (high - low) / (m * 10.0**exponent) <= 5)
    start, end = math.floor(low / step + 0.02), math.ceil(high / step - 0.02)
    ticks = [k * step for k in range(start, end + 1)]
    return min(low, ticks[0]), max(high, ticks[-1]), ticks


def _named(ticks: list[float], unit: str = "") -> list[tuple[float, str]]:
    """Ticks with their labels, all with the same number of decimals."""
    step = ticks[1] - ticks[0]
    if unit == "bytes" or step < 1e-4 or max(map(abs, ticks)) >= 1e6:
        return [(tick, UNITS[unit](tick)) for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(tick, f"{tick + 0.0:,.{decimals}f}{' s' if unit == 's' else ''}") for tick in ticks]


def _rounds(first: int, last: int) -> list[int]:
    """Rounds to label: the first, then multiples of a round step, at most nine or so."""
    step = next(m * 10**e for e in range(30) for m in (1, 2, 5) if (last - first) / (m * 10**e) <= 8)
    return [first, *(k for k in range(first // step * step, last + 1, step) if k - first > step / 2)]


def _labelled(rounds: list[tuple[float, int]]) -> list[tuple[float, str]]:
    return [(at, f"round {r}" if i == 0 else str(r)) for i, (at, r) in enumerate(rounds)]


def _frame(
    text: str,
    marks: list[Html],
    ticks: list[tuple[float, str]],
    bounds: tuple[float, float],
    labels: list[tuple[float, str]],
    payload: dict[str, object] | None = None,
) -> Html:
    low, high = bounds
    heights = [(tick - low) / (high - low) for tick, _ in ticks]
    grid = el("path", class_="grid", d="".join(f"M0 {SIDE * (1 - h):.1f}H{SIDE}" for h in heights))
    y = [el("span", name, style=f"bottom:{h:.2%}") for h, (_, name) in zip(heights, ticks)]
    x = [el("span", name, style=f"left:{at:.2%}") for at, name in labels]
    plot = el("div", _svg(text, [grid, *marks]), class_="plot", tabindex=0, role="group", aria_label=text)
    return el(
        "div",
        el("div", y, class_="y", aria_hidden="true"),
        plot,
        el("div", x, class_="x", aria_hidden="true"),
        data(payload) if payload else None,
        class_="frame",
    )


def _svg(title: str, marks: list[Html], class_: str | None = None) -> Html:
    # el() lower-cases nothing, but viewBox is not a Python-like name, so the opening tag is written out.
    named = f' class="{class_}"' if class_ else ""
    opening = f'<svg{named} viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img">'
    return Html(f"{opening}{el('title', title)}{join(marks)}</svg>")


def _figure(title: str, legend: list[Html], body: Html, *, notes: Sequence[str] = (), wide: bool = False) -> Html:
    caption = el("figcaption", el("strong", title), el("span", legend, class_="legend") if legend else None)
    hints = [el("p", note, class_="hint") for note in notes]
    return el("figure", caption, body, hints, class_="chart wide" if wide else "chart")


def _key(class_: str, name: str) -> Html:
    return el("span", el("i", class_=f"key {class_}"), name)


def _brief(values: Sequence[float | None]) -> list[float | None]:
    return [None if y is None else float(f"{y:.4g}") for y in values]


def _describe(chart: Chart) -> str:
    """The chart in words, for those who hear it and for print."""
    said = []
    for line in chart.lines:
        known = [(x, y) for x, y in zip(line.x, line.y) if y is not None]
        if known:
            (x0, y0), (x1, y1) = known[0], known[-1]
            said.append(f"{line.name} from {number(y0)} in round {x0} to {number(y1)} in round {x1}")
    return f"{chart.title} by round: {'; '.join(said) or 'one line per client'}"


def _left_out(chart: Chart) -> list[str]:
    notes = [chart.said] if chart.said else []
    holes = sum(y is None for line in chart.lines for y in line.y)
    if holes:
        notes.append(f"{holes} value(s) were not finite and are left out.")
    if len(chart.thin) < chart.clients:
        notes.append(f"{len(chart.thin)} of {chart.clients} clients are drawn, evenly chosen by their last value.")
    if any(len(line.x) > POINTS for line in chart.lines) or any(len(line.x) > THIN_POINTS for line in chart.thin):
        notes.append(f"Long lines are thinned to about {POINTS} points, those of clients to {THIN_POINTS}.")
    return notes
