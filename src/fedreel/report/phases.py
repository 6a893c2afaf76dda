"""The steps of a round at whose end the server trains: its clients, their mean, and what the server makes of it."""

from __future__ import annotations

from fedreel.report.charts import Bar, Chart, Line, bar_chart, line_chart
from fedreel.report.markup import Html, count, duration, el, finite
from fedreel.report.rounds import Record
from fedreel.report.run import Run

ACCURACIES = ("top1", "top1_own")
AIMS = {"views": "to tell views of them apart", "labels": "to learn their labels"}
SAME = "the model tested is the mean of the clients' models, and their two lines coincide."
EXPLAINED = (
    "Each round goes through three models: those of the clients right after their training, the mean of them, and the "
    "mean after the server's training. The server leaves the classifier as it is, so at first it does not fit the "
    "backbone that the server has trained; it recovers when clients train again."
)
MEANS = "The first line is the mean over the clients that trained, the others are means over all test samples."


def steps(run: Run) -> Html | None:
    """Accuracy at each step of a round, and the server's loss and seconds; None if there are no such records."""
    if not (run.trained or run.averaged or run.server):
        return None
    charts = _accuracies(run)
    figures = [line_chart(chart) for chart in charts] + _server(run)
    said = [_explained(run) if charts else "", _effort(run)]
    return el(
        "div",
        [el("p", text, class_="lead") for text in said if text],
        el("div", figures, class_="charts even") if figures else el("p", "No value was recorded.", class_="empty"),
        el("p", MEANS, class_="hint") if any(len(chart.lines) > 1 for chart in charts) and run.trained else None,
    )


def _accuracies(run: Run) -> list[Chart]:
    """The headline and its kin, as far as they were measured before the server's training."""
    tested = "after the server's training" if _every_round(run) else "the model tested"
    phases = [("clients after training (mean)", run.trained), ("their mean", run.averaged), (tested, run.test)]
    before = {name for tests in (run.trained, run.averaged) for r in tests for name in tests[r]["metrics"]}
    return [
        Chart(
            f"{name} of the clients and the server",
            [line for title, tests in phases if (line := _line(title, tests, name)).x],
            dots=True,
        )
        for name in dict.fromkeys((run.headline, *ACCURACIES))
        if name in before
    ]


def _line(title: str, tests: dict[int, Record], name: str) -> Line:
    rounds = [r for r in sorted(tests) if name in tests[r]["metrics"]]
    return Line(title, rounds, [finite(tests[r]["metrics"][name]) for r in rounds])


def _server(run: Run) -> list[Html]:
    rounds = sorted(run.server)
    figures = []
    if rounds:
        loss = Line("server", rounds, [run.server[r]["loss"] for r in rounds])
        figures.append(line_chart(Chart("loss of the server's training", [loss], dots=True)))
    seconds = [max(0.0, run.server[r]["seconds"] or 0.0) for r in rounds]
    if any(seconds):
        bars = [Bar(r, r) for r in rounds]
        figures.append(bar_chart("Seconds of the server's training", bars, [("server", seconds)], "s"))
    return figures


def _explained(run: Run) -> str:
    if _every_round(run):
        return EXPLAINED
    where = "in every round; where it does not, " if run.server else "in this run: "
    return f"The server does not train {where}{SAME}"


def _every_round(run: Run) -> bool:
    """Whether the server trains at the end of rounds, not only once before the first (a run may end in mid-round)."""
    rounds = {*run.trained, *run.averaged}
    return 2 * len(rounds & {*run.server}) > len(rounds)


def _effort(run: Run) -> str:
    """The server's training in a sentence."""
    if not run.server:
        return ""
    last = run.server[max(run.server)]
    where = f"in {run.server.seen:,} rounds" if run.server.seen > 1 else f"in round {max(run.server)} only"
    samples = last["samples"]
    data = f"on {count(int(samples), 'sample')} of its own" if samples is not None else "on data of its own"
    aim = AIMS.get(last["what"], "")
    spent = run.costs.total("serving")
    time = f" It took {duration(spent)} in all." if spent is not None and spent >= 0 else ""
    return f"The server trained {where}, {data}{', ' + aim if aim else ''}.{time}"
