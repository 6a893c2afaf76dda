"""Whether what a paper claims of rows of a table holds: seed by seed, with a 95 % interval for the mean difference."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal

from fedreel.reproduce.spec import Claim

Rows = Sequence[Mapping[str, Any]]
Verdict = Literal["holds", "does not hold", "cannot be told"]
ENOUGH = 4  # seeds; with fewer nothing is called
MOST = 1000  # seeds beyond which it is not worth saying how many would tell


def judged(
    claims: Sequence[Claim], rows: Rows, others: Mapping[str, Rows] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Every claim for every two rows that it is about and that have numbers; `rows` as a table's JSON has them, and
    `others` those of other tables, by name, on the same data."""
    found = []
    for claim in claims:
        for pair in pairs(claim, rows, others.get(claim.second, ()) if claim.second else rows):
            metrics = [_measured(row, metric) for row, metric in zip(pair, claim.metrics)]
            if all(metrics):
                values = [row["metrics"][metric]["values"] for row, metric in zip(pair, metrics)]
                if any(a is not None and b is not None for a, b in zip(*values)):
                    found.append(_judge(replace(claim, metric=metrics[0], than=metrics[1]), pair))
    return found


def _measured(row: Mapping[str, Any], metric: str) -> str:
    """The metric of a row that is meant; nothing if it has none."""
    return next((name for name in row["metrics"] if fnmatchcase(name, metric)), "")


def pairs(claim: Claim, first_of: Rows, second_of: Rows) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Rows of the claim's names and settings that differ in nothing else."""
    better, worse = (
        [row for row in rows if row["method"] == name and said.items() <= row["setting"].items()]
        for rows, name, said in zip((first_of, second_of), (claim.better, claim.worse), claim.settings)
    )
    said = {key for setting in claim.settings for key in setting}
    for first, second in product(better, worse):
        rest = [{k: v for k, v in row["setting"].items() if k not in said} for row in (first, second)]
        if rest[0] == rest[1]:
            yield first, second


def _judge(claim: Claim, pair: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sign = 1 if claim.higher else -1
    numbers = [row["metrics"][metric] for row, metric in zip(pair, claim.metrics)]
    better, worse = (found["values"] for found in numbers)
    ahead = [sign * (a - b) for a, b in zip(better, worse) if a is not None and b is not None]
    low, high = interval(ahead)
    verdict: Verdict = "cannot be told"
    if len(ahead) >= ENOUGH:
        verdict = "holds" if low > 0 else "does not hold" if high < 0 else verdict
    return {
        **made(claim, [row["setting"] for row in pair]),
        "paper": printed(claim, pair),
        "ours": [{key: found[key] for key in ("mean", "sd", "n")} for found in numbers],
        "ahead": fmean(ahead),
        "interval": [low, high] if len(ahead) > 1 else None,
        "seeds": len(ahead),
        "verdict": verdict,
        "would_tell": seeds_to_tell(ahead) if verdict == "cannot be told" else None,
    }


def printed(claim: Claim, pair: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """What the paper prints of two rows, by the set that it is of; without a name where that is no matter. Nothing if
    it prints neither."""
    numbers = [row["paper"] for row in pair]
    sets = [key.removeprefix(claim.metric) for key in numbers[0] if key.startswith(f"{claim.metric}/")]
    found = {
        name.removeprefix("/"): [own.get(metric + name) for own, metric in zip(numbers, claim.metrics)]
        for name in ("", *sets)
    }
    own = {"": [*claim.printed]} if any(claim.printed) else found
    return {name: both for name, both in own.items() if any(number is not None for number in both)}


def made(claim: Claim, settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a claim says of two rows with these settings: `setting` is what they share, `settings` what each has."""
    first, second = settings
    shared = {key: value for key, value in first.items() if key in second and second[key] == value}
    return {
        "better": claim.better,
        "worse": claim.worse,
        "metric": claim.metric,
        "than": claim.metrics[1],
        "second": claim.second,
        "higher": claim.higher,
        "by": "ours" if claim.ours else "paper",
        "setting": shared,
        "settings": [{key: value for key, value in own.items() if key not in shared} for own in settings],
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval for the mean; of fewer than two values, everything."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def seeds_to_tell(values: Sequence[float]) -> int | None:
    """How many seeds would tell a difference of this mean and spread from none; None if too many, or unknown."""
    if len(values) < 2 or fmean(values) == 0:
        return None
    mean, sd = abs(fmean(values)), stdev(values)
    counts = range(max(ENOUGH, len(values)), MOST + 1)
    # the interval gets narrower with every seed, so that the first that tells is found by halves
    first = bisect_left(counts, True, key=lambda n: t_quantile(n - 1) * sd / math.sqrt(n) < mean)
    return counts[first] if first < len(counts) else None


@cache
def t_quantile(freedom: int) -> float:
    """What 97.5 % of Student's t lie below: its integral by Simpson's rule after x = sqrt(f) tan(u), bisected."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def below(u: float, steps: int = 200) -> float:  # the density becomes scale cos(u)^(freedom - 1)
        values = [math.cos(u * i / steps) ** (freedom - 1) for i in range(steps + 1)]
        return 0.5 + scale * u / steps / 3 * (values[0] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]) + values[-1])

    low, high = 0.0, math.pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.975 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def in_words(claim: Mapping[str, Any]) -> str:
    """A judged claim in one line."""
    better, worse = (ours["mean"] for ours in claim["ours"])
    said = {"holds": "holds here", "does not hold": "does NOT hold here"}.get(claim["verdict"], "cannot be told here")
    sure = f" (95 %: {claim['interval'][0]:+.3g} to {claim['interval'][1]:+.3g})" if claim["interval"] else ""
    return (
        f"{claim['by']}: {statement(claim)}: {said}, {better:.3g} against {worse:.3g}, ahead by {claim['ahead']:.3g}"
        f"{sure}, seeds: {claim['seeds']}"
    )


def statement(claim: Mapping[str, Any], less: str = "") -> str:
    """What a claim says, judged or not; `less` stands behind a metric of which less is better."""
    first, second = (
        _with(claim[side], setting) for side, setting in zip(("better", "worse"), claim["settings"], strict=True)
    )
    second += f" of {claim['second']}" if claim["second"] else ""
    metric, than = claim["metric"], claim["than"]
    if metric == than:
        said = f"{first} better than {second} in {metric}{'' if claim['higher'] else less}"
    elif first == second:
        said = f"{first}: {metric} {'above' if claim['higher'] else 'below'} {than}"
    else:
        said = f"{metric} of {first} {'above' if claim['higher'] else 'below'} {than} of {second}"
    return _with(said, claim["setting"])


def _with(text: str, setting: Mapping[str, Any]) -> str:
    return f"{text} ({', '.join(f'{k} {v}' for k, v in setting.items())})" if setting else text
