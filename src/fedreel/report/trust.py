"""How far a run's model is to be trusted, by what the owners' held-out samples said when the last round was over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedreel.report.charts import share_chart
from fedreel.report.markup import Html, count, el, finite, number, quantity, score, table
from fedreel.report.run import Run

MOST = 100  # clients in the table
EXPLAINED = (
    "A point is a bin of answers by their confidence: how sure the model was, and how many of them were right. On the "
    "diagonal both are the same. Calibrated answers were judged at a temperature that was fitted without them."
)


def trust(run: Run) -> Html | None:
    """Whether the test beat guessing, the reliability diagram, and the temperatures; None if nobody was asked."""
    overall = _part(run.trust.get("overall"))
    if not overall:
        return None
    said = [_against_guessing(overall), _calibration(overall)]
    diagram = _diagram(overall)
    return el(
        "div",
        [el("p", text, class_="lead") for text in said if text],
        el("div", diagram, class_="charts") if diagram else None,
        el("p", EXPLAINED, class_="hint") if diagram else None,
        _units(run),
    )


def _against_guessing(overall: Mapping[str, Any]) -> str:
    result, chance, n = (finite(overall.get(name)) for name in ("score", "chance", "samples"))
    if result is None or chance is None or n is None:
        return "How good guessing would be is not known."
    verdict = "no better than" if overall.get("near_chance") is True else "better than"
    return (
        f"On {count(int(n), 'held-out sample')} the model scored {score(result)}, where guessing gives "
        f"{score(chance)}: {verdict} guessing, as far as so many samples can tell."
    )


def _calibration(overall: Mapping[str, Any]) -> str:
    before, after = (finite(overall.get(name)) for name in ("ece_uncalibrated", "ece"))
    if before is None or after is None:
        return ""
    told = overall.get("bins")
    bins = len(told) if isinstance(told, list) else 0
    return (
        f"Expected calibration error, of {bins} bins: {100 * before:.1f} % as the model is, {100 * after:.1f} % with "
        "the temperature that its answers are given with."
    )


def _diagram(overall: Mapping[str, Any]) -> Html | None:
    lines = [
        ("calibrated", _points(overall.get("bins"))),
        ("as the model is", _points(overall.get("bins_uncalibrated"))),
    ]
    if not any(points for _, points in lines):
        return None
    told = [f"{name}: " + ", ".join(f"{100 * y:.0f} % right at {100 * x:.0f} %" for x, y in p) for name, p in lines]
    return share_chart("Right answers by confidence", "; ".join(told), lines, "equal")


def _points(bins: Any) -> list[tuple[float, float]]:
    """Mean confidence and share of right answers of each bin that has any."""
    points = []
    for row in bins if isinstance(bins, list) else []:
        known = [finite(value) for value in row] if isinstance(row, list) and len(row) == 3 else [None]
        if None not in known and known[0]:
            n, sure, right = (float(value or 0.0) for value in known)
            points.append((min(sure / n, 1.0), min(right / n, 1.0)))
    return points


def _units(run: Run) -> Html | None:
    kinds = {"model": run.trust.get("models"), "client": run.trust.get("clients")}
    units = [(kind, str(name), _part(part)) for kind, some in kinds.items() for name, part in _part(some).items()]
    if not units:
        return None
    rows = [_row(kind, name, part) for kind, name, part in units[:MOST]]
    head: list[object] = ["whose", "held out", "score", "guessing", "temperature", "calibration error", "false alarms"]
    hidden = len(units) - len(rows)
    more = el("p", f"{hidden} more are in metrics.jsonl.", class_="hint") if hidden > 0 else None
    return el("div", table(head, rows, caption="What is known of each model", class_="sortable"), more)


def _row(kind: str, name: str, part: Mapping[str, Any]) -> list[object]:
    error, alarms = finite(part.get("ece")), finite(part.get("false_alarms"))
    return [
        f"{kind} {name}",
        _known(finite(part.get("samples")), number),
        *(_known(finite(part.get(key)), score) for key in ("score", "chance")),
        _known(finite(part.get("temperature")), number),
        *(_known(value, lambda share: f"{100 * (share or 0.0):.1f} %") for value in (error, alarms)),
    ]


def _known(value: float | None, said: Callable[[float | None], str]) -> Html:
    return quantity(value, "not known" if value is None else said(value))


def _part(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
