"""The part of the playground: a file with a pebble for every action owner."""

from __future__ import annotations

from fedreel.playground.sizes import Size
from fedreel.playground.work import Jobs


def write(jobs: Jobs) -> dict[str, int]:
    (jobs.out / "pebbles.txt").write_text(f"{jobs.size.action_owners} pebbles\n")
    jobs.run(1)
    return {"pebbles": jobs.size.action_owners}


def job(out: object, seed: int, size: Size, number: int) -> None:
    """There is nothing to draw."""
