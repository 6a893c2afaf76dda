"""The top of the report: what ran, how it ended, and the numbers one asks for first."""

from __future__ import annotations

import math

from fedreel.machine.words import size
from fedreel.report.charts import sparkline
from fedreel.report.markup import Html, count, duration, el, finite, number, score
from fedreel.report.run import Run


def header(run: Run) -> Html:
    """Name, facts, badge, and the headline metric with its curve."""
    badge = (
        el("span", "complete", class_="badge good") if run.complete else el("span", "incomplete", class_="badge bad")
    )
    device, description = run.label("device"), run.label("description")
    facts = [
        ("method", run.label("method")),
        ("task", run.label("task")),
        ("engine", run.label("engine") + (f" on {device}" if device else "")),
        ("seed", run.label("seed")),
        ("last written", run.when),
        ("directory", run.path.resolve().name),
    ]
    shown = [el("div", el("dt", name), el("dd", value)) for name, value in facts if value]
    title = el(
        "div",
        el("p", "fedreel run report ", badge, class_="eyebrow"),
        el("h1", run.label("system") or run.label("method") or "Unnamed run"),
        el("p", description, class_="lead") if description else None,
        el("dl", shown, class_="facts"),
    )
    return el("header", title, _headline(run))


def problems(run: Run) -> Html | None:
    """One plain line per missing or damaged file."""
    if not run.problems:
        return None
    return el("ul", [el("li", text) for text in run.problems], class_="problems")


def tiles(run: Run) -> Html:
    """Key numbers."""
    wall = run.total("wall_seconds", "seconds")
    clients = finite(run.summary.get("clients"))
    refused = run.summary.get("refused")
    dropped = run.refused.seen or sum(
        int(finite(n) or 0) for n in (refused.values() if isinstance(refused, dict) else ())
    )
    known = run.has_metrics or bool(run.summary)
    shown = [
        ("rounds", number(run.rounds)),
        ("clients", number(clients if clients is not None else len(run.clients))),
        ("wall time", duration(wall)),
        ("per round", duration(wall / run.rounds if wall is not None and run.rounds else None)),
        *([] if run.waiting is None else [("waiting for data", f"{run.waiting:.1%}")]),
        ("sent up", size(run.total("bytes_up", "bytes_up"))),
        ("sent down", size(run.total("bytes_down", "bytes_down"))),
        ("parameters", number(finite(run.summary.get("parameters")))),
        ("updates refused", number(dropped) if known else "–"),
    ]
    shown += [(name, score(value) if value is not None else "not finite") for name, value in run.metrics.items()]
    lines = math.ceil(len(shown) / 8)
    tiles = [el("div", el("dt", name), el("dd", value)) for name, value in shown]
    return el("dl", tiles, class_="tiles", style=f"--columns:{math.ceil(len(shown) / lines)}")


def _headline(run: Run) -> Html | None:
    name = run.headline
    if not name:
        return None
    curve = run.curve(name)
    known = [value for value in curve if value is not None]
    value = run.metrics[name]
    said = []
    if best := run.best(name):
        said.append(f"best {score(best[0])} in round {best[1]}")
        said.append(count(len(curve) + run.test.seen - len(run.test), "test"))
    return el(
        "div",
        el("p", name, class_="name"),
        el("p", score(value) if value is not None else "not finite", class_="value"),
        sparkline(curve, f"{name} over the tests") if len(known) > 1 else None,
        el("p", ", ".join(said), class_="hint") if said else None,
        class_="headline",
    )
