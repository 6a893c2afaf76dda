"""Rows that are to be compared at equal time: what a round of each takes is measured first, with nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedreel.errors import RecipeError, nearest
from fedreel.reproduce.spec import Metrics, Row
from fedreel.runs.reading import read_metrics

FIRST = 4  # rounds that are not counted: in them steps are recorded, and data brought to the device


def round_seconds(run: Path) -> Metrics:
    """`round seconds`: of training in a round, the median of all but the first ones."""
    seconds = [record["seconds"] for record in read_metrics(run, "train")]
    return {"round seconds": median(seconds[FIRST:] or seconds)}


def to_time(rows: Sequence[Row], every: Sequence[Row]) -> list[Row]:
    """The rows that are as long as another, and these others, which are among `every` row of the table."""
    found = [row for own in rows if own.as_long_as for row in (own, model_of(own, every))]
    return [row for i, row in enumerate(found) if row not in found[:i]]


def model_of(row: Row, every: Sequence[Row]) -> Row:
    """The row whose time this one is to take."""
    known = {other.label: other for other in every}
    if row.as_long_as not in known:
        raise RecipeError(
            f"the row '{row.label}' is to take the time of a row that is not there",
            found=row.as_long_as,
            hint=nearest(row.as_long_as, known),
        )
    return known[row.as_long_as]


def timing(rounds: int) -> dict[str, Any]:
    """What is changed in a row to time it."""
    return {"round.rounds": rounds, "round.evaluate_every": rounds}


def rounds_within(rounds: int, seconds: float, own: float) -> int:
    """How many rounds of `own` seconds take as long as so many of other `seconds`."""
    return max(1, round(rounds * seconds / own))
