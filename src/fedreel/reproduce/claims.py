"""Whether what a paper claims of two rows holds: seed by seed, with a 95 % interval for the mean difference."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import Any, Literal

from fedreel.reproduce.spec import Claim

Verdict = Literal["holds", "does not hold", "cannot be told"]
ENOUGH = 4  # seeds; with fewer nothing is called
MOST = 1000  # seeds beyond which it is not worth saying how many would tell


def judged(claims: Sequence[Claim], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every claim in every setting whose two rows have numbers; `rows` as a table's JSON has them."""
    found = []
    for claim in claims:
        for setting in _unique([row["setting"] for row in rows]):
            pair = [_row(rows, name, setting) for name in (claim.better, claim.worse)]
            known = [row for row in pair if row and claim.metric in row["metrics"]]
            values = [row["metrics"][claim.metric]["values"] for row in known]
            if len(known) == 2 and any(a is not None and b is not None for a, b in zip(*values)):
                found.append(_judge(claim, setting, known))
    return found


def _judge(claim: Claim, setting: Mapping[str, Any], pair: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sign = 1 if claim.higher else -1
    better, worse = (row["metrics"][claim.metric]["values"] for row in pair)
    ahead = [sign * (a - b) for a, b in zip(better, worse) if a is not None and b is not None]
    low, high = interval(ahead)
    verdict: Verdict = "cannot be told"
    if len(ahead) >= ENOUGH:
        verdict = "holds" if low > 0 else "does not hold" if high < 0 else verdict
    return {
        "better": claim.better,
        "worse": claim.worse,
        "metric": claim.metric,
        "higher": claim.higher,
        "by": "ours" if claim.ours else "paper",
        "setting": dict(setting),
        "paper": [row["paper"].get(claim.metric) for row in pair],
        "ours": [{key: row["metrics"][claim.metric][key] for key in ("mean", "sd", "n")} for row in pair],
        "ahead": fmean(ahead),
        "interval": [low, high] if len(ahead) > 1 else None,
        "seeds": len(ahead),
        "verdict": verdict,
        "would_tell": seeds_to_tell(ahead) if verdict == "cannot be told" else None,
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
    setting = ", ".join(f"{k} {v}" for k, v in claim["setting"].items())
    where = f" ({setting})" if setting else ""
    said = {"holds": "holds here", "does not hold": "does NOT hold here"}.get(claim["verdict"], "cannot be told here")
    sure = f" (95 %: {claim['interval'][0]:+.3g} to {claim['interval'][1]:+.3g})" if claim["interval"] else ""
    return (
        f"{claim['by']}: {claim['better']} better than {claim['worse']} in {claim['metric']}{where}:"
        f" {said}, {better:.3g} against {worse:.3g}, ahead by {claim['ahead']:.3g}{sure}, seeds: {claim['seeds']}"
    )


def _row(rows: Sequence[Mapping[str, Any]], name: str, setting: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in rows if (row["method"], row["setting"]) == (name, setting)), None)


def _unique(settings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [s for i, s in enumerate(settings) if s not in settings[:i]]
