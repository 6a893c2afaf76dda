"""The curves of a run: every test metric and training number by round, and what each round cost."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fedreel.report.charts import THIN_LINES, Bar, Chart, Line, bar_chart, line_chart
from fedreel.report.markup import Html, el, finite, natural
from fedreel.report.run import COSTS, Run
from fedreel.report.verdict import falling, tested
from fedreel.report.waiting import waiting_note

MOST_CHARTS = 24
Block = tuple[int, int, dict[str, float]]
PER_CLIENT = "_clients"  # the mean over clients of a metric whose own name means the mean over samples


def curves(run: Run) -> Html:
    """One chart per quantity; training and test share a chart where they share a name."""
    charts = _charts(run)
    if not charts:
        return el("p", "No round has been recorded yet.", class_="empty")
    left = [chart.title for chart in charts[MOST_CHARTS:]]
    span = max(run.train.span, run.test.span)
    return el(
        "div",
        [line_chart(chart, wide=i == 0) for i, chart in enumerate(charts[:MOST_CHARTS])],
        el("p", f"One round in {span} is drawn, and the first and the last.", class_="hint") if span > 1 else None,
        el("p", "Not drawn, to keep this page small: " + ", ".join(left), class_="hint") if left else None,
        class_="charts",
    )


def costs(run: Run) -> Html:
    """Bytes, seconds and missing answers per round, as bars."""
    blocks = run.costs.blocks()
    trained = [block for block in blocks if "rounds" in block[2]]
    timed = [block for block in blocks if "rounds" in block[2] or "testing" in block[2]]
    figures = []
    parts = (("up", "bytes_up"), ("down", "bytes_down"), ("for testing", "bytes_testing"))
    traffic = [(name, y) for name, key in parts if any(y := _sums(trained, key))]
    if traffic:
        figures.append(bar_chart("Bytes per round", _bars(run, trained), traffic, "bytes"))
    line = [(name, y) for name, key in (("up", "wire_up"), ("down", "wire_down")) if any(y := _sums(trained, key))]
    if line:
        title = "Bytes per round on the line between sites and server"
        figures.append(bar_chart(title, _bars(run, trained), line, "bytes"))
    testing = [t + a for t, a in zip(_sums(timed, "testing"), _sums(timed, "averaging"))]
    server = _sums(timed, "serving")
    whole = _sums(timed, "seconds")  # a round's seconds include its tests and the server's training
    training = [max(0.0, w - t - s) for w, t, s in zip(whole, testing, server)]
    spent = (("training", training), ("testing", testing), ("the server's training", server))
    seconds = [(name, y) for name, y in spent if any(y)]
    if seconds:
        figures.append(bar_chart("Seconds per round", _bars(run, timed), seconds, "s"))
    answered, ordered = (_sums(trained, key) for key in ("answered", "ordered"))
    missing = [max(0.0, o - a) for o, a in zip(ordered, answered)]
    if any(missing):
        series = [("answered", answered), ("missing", missing)]
        figures.append(bar_chart("Answers per round", _bars(run, trained), series))
    if not figures:
        return el("p", "No bytes or seconds were recorded.", class_="empty")
    note = waiting_note(run.waiting, run.train[max(run.train)] if run.train else {})
    drawn = el("div", figures, class_="charts even")
    return el("div", el("p", f"{note[0].upper()}{note[1:]}.", class_="hint"), drawn) if note else drawn


def _charts(run: Run) -> list[Chart]:
    rounds = sorted(run.test)
    names: dict[str, None] = dict.fromkeys([run.headline] if run.headline else [])
    for r in rounds:
        names.update(dict.fromkeys(run.test[r]["metrics"]))
        for values in run.test[r]["clients"].values():
            names.update(dict.fromkeys(str(name) for name in values if name != "n"))
    training = _training_numbers(run)
    names.update(dict.fromkeys(training))
    charts = []
    for name in names:
        if name.endswith(PER_CLIENT) and name.removesuffix(PER_CLIENT) in names:
            continue  # drawn with the metric it belongs to
        lines = []
        measured, values = tested(run, name)
        if measured:
            lines.append(Line("test", measured, values))
        if name in training:
            lines.append(training[name])
        by_client = tested(run, name + PER_CLIENT)
        if measured and by_client[0]:
            lines.append(Line("test, mean over clients", *by_client))
        thin, band, clients = _by_client(run, rounds, name)
        if lines or thin:
            charts.append(Chart(name, lines, thin, clients, band, said=falling(name, measured, values)))
    return charts


def _training_numbers(run: Run) -> dict[str, Line]:
    """Numbers that most training rounds carry. A value that is no finite number stays as a hole."""
    rounds = sorted(run.train)
    seen = Counter(
        key
        for r in rounds
        for key, value in run.train[r].items()
        if key not in ("round", *COSTS) and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return {
        key: Line("training", having, [finite(run.train[r][key]) for r in having])
        for key, n in seen.items()
        if 2 * n > len(rounds) and (having := [r for r in rounds if key in run.train[r]])
    }


def _by_client(
    run: Run, rounds: list[int], name: str
) -> tuple[list[Line], tuple[list[int], list[float], list[float]] | None, int]:
    """The clients' own lines; where they are too many, an even choice of them and a band over all."""
    series: dict[str, tuple[list[int], list[float | None]]] = {}
    for r in rounds:
        for client, values in run.test[r]["clients"].items():
            if name in values:
                x, y = series.setdefault(client, ([], []))
                x.append(r)
                y.append(finite(values[name]))
    lines = [Line(client, *series[client]) for client in sorted(series, key=natural)]
    if len(lines) <= THIN_LINES:
        return lines, None, len(lines)
    ranked = sorted(lines, key=lambda line: (line.y[-1] is None, line.y[-1] or 0.0))
    chosen = [ranked[i] for i in np.linspace(0, len(ranked) - 1, THIN_LINES).round().astype(int)]
    at: dict[int, list[float]] = {}
    for line in lines:
        for r, value in zip(line.x, line.y):
            if value is not None:
                at.setdefault(r, []).append(value)
    xs = sorted(at)
    lows, highs = ([float(np.quantile(at[r], q)) for r in xs] for q in (0.1, 0.9))
    return chosen, ((xs, lows, highs) if xs else None), len(lines)


def _sums(blocks: list[Block], key: str) -> list[float]:
    return [max(0.0, sums.get(key, 0.0)) for _, _, sums in blocks]


def _bars(run: Run, blocks: list[Block]) -> list[Bar]:
    """The last block may not be over yet."""
    return [Bar(first, min(last, max(first, run.rounds)), int(sums.get("rounds", 1))) for first, last, sums in blocks]
