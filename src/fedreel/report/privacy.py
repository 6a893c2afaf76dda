"""What a private run has given away about one client or one example, and what that number is about."""

from __future__ import annotations

from fedreel.report.charts import Chart, Line, line_chart
from fedreel.report.markup import Html, el, finite, number
from fedreel.report.run import Run

_ABOUT = {
    "client": "whatever one client's data are, what this run has given away would be about as likely without them",
    "example": "whatever one example of a client is, what this run has given away would be about as likely without it",
}


def privacy(run: Run) -> Html | None:
    """Epsilon over the rounds, and in words what it holds for; None where nothing was counted."""
    if not run.privacy:
        return None
    last = run.privacy[max(run.privacy)]
    epsilon, delta = finite(last.get("epsilon")), finite(last.get("delta"))
    unit = str(last.get("unit") or "")
    config = run.recipe.get("privacy")
    settings = config if isinstance(config, dict) else {}
    said = [
        f"Epsilon {number(epsilon)} at delta {number(delta)}, unit: one {unit}. In words: {_ABOUT.get(unit, '')}, up "
        "to a factor of e to the epsilon."
    ]
    if unit == "client":
        said.append("The server has added the noise, and is trusted with what single clients sent.")
    if unit == "example":
        said.append("Each client has added the noise itself, so that its whole run keeps within this epsilon.")
    if settings.get("tests") == "open":
        said.append("Test results were told as they are: epsilon is not about them.")
    error = finite(last.get("test_error"))
    if settings.get("tests") == "noised" and error:
        said.append(f"Test results have noise: they are off by about {number(error)}.")
    warning = "Noise and samples followed the recipe's seed: this was an experiment, and protects nobody."
    rounds = sorted(run.privacy)
    values = [finite(run.privacy[r].get("epsilon")) for r in rounds]
    chart = line_chart(Chart("epsilon", [Line("epsilon", rounds, values)])) if len(rounds) > 1 else None
    return el(
        "div",
        el("p", warning, class_="lead") if settings.get("seeded") is True else None,
        [el("p", text, class_="lead") for text in said],
        el("div", chart, class_="charts") if chart else None,
    )
