"""What a reader should hear before the numbers: that clients lied, that a result is no better than guessing, or was
better before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreel.report.markup import Html, count, el, finite, lower_is_better, score
from fedreel.report.run import Run

TESTS = 3  # in a row whose mean is compared: one test alone may be a stroke of luck
NOISE = 3.0  # times the usual change by chance between two tests: of curves of mere noise 3 in 100 are called falling
SHARE = 0.1  # of the way that a metric has come; less is not worth a word
LEAST = 0.01  # of the value itself


def verdicts(run: Run) -> Html | None:
    """Sentences for the top of the page; None if there is nothing to warn of."""
    overall = run.trust.get("overall")
    said = [attacked(run), at_chance(overall) if isinstance(overall, Mapping) else ""]
    names = dict.fromkeys(name for record in run.test.values() for name in record["metrics"])
    said += [falling(name, *tested(run, name)) for name in names if not name.endswith("_clients")]
    items = [el("li", text) for text in said if text]
    return el("ul", items, class_="problems") if items else None


def attacked(run: Run) -> str:
    """That clients of a simulation lied on purpose, and who they were."""
    told = [note["text"] for note in run.notes if note["text"].startswith("simulated attack:")]
    return f"Some clients lied on purpose. A {told[0]}." if told else ""


def at_chance(overall: Mapping[str, Any]) -> str:
    """By what held-out samples said when the last round was over; '' if the model beat guessing, or nobody knows."""
    result, chance, n = (finite(overall.get(name)) for name in ("score", "chance", "samples"))
    if overall.get("near_chance") is not True or result is None or chance is None or n is None:
        return ""
    return (
        f"The model is at chance: {score(result)} on {count(int(n), 'held-out sample')}, where guessing gives "
        f"{score(chance)}. As far as they can tell, it has learned nothing."
    )


def falling(name: str, rounds: Sequence[int], values: Sequence[float | None]) -> str:
    """Says that a metric was better before; '' if it was not, or if chance alone might look like that."""
    known = [(r, v) for r, v in zip(rounds, values) if v is not None]
    lower = lower_is_better(name)
    verb = "rises" if lower else "falls"
    good = np.array([-v if lower else v for _, v in known])
    if len(known) < 2 * TESTS:
        if len(known) < TESTS or not (np.diff(good) < 0).all():
            return ""
        (first, begins), (last, ends) = known[0], known[-1]
        if abs(ends - begins) < LEAST * abs(begins):
            return ""
        return f"{name} {verb} from test to test: {score(begins)} in round {first}, {score(ends)} in round {last}."
    means = np.convolve(good, np.full(TESTS, 1 / TESTS), "valid")
    best = int(means.argmax())
    fall = means[best] - means[-1]
    noise = float(np.median(np.abs(np.diff(good, 2)))) / 3**0.5  # second differences do not see a steady way up or down
    enough = max(NOISE * noise, SHARE * float(means.max() - means.min()), LEAST * abs(float(means[best])))
    if best + TESTS > len(means) - 1 or not fall > enough:
        return ""
    before, after = (score(float(-m if lower else m)) for m in (means[best], means[-1]))
    return (
        f"{name} {verb}: {before} in rounds {known[best][0]} to {known[best + TESTS - 1][0]}, "
        f"{after} in the last {TESTS} tests (means). The model of the last round is not the best one."
    )


def tested(run: Run, name: str) -> tuple[list[int], list[float | None]]:
    """A metric in the rounds in which it was measured."""
    rounds = [r for r in sorted(run.test) if name in run.test[r]["metrics"]]
    return rounds, [finite(run.test[r]["metrics"][name]) for r in rounds]
