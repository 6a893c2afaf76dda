"""What training at FedVSSL's clients cost, beside training in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedreel.reproduce.cells import derived_of
from fedreel.reproduce.spec import Metrics, Row
from fedreel.tasks.pretrain import analysis as pretraining


def relate(cells: Sequence[tuple[Row, Path]]) -> list[Metrics]:
    """Beside the run in one place: how many rounds it took to answer the pretext as well, and how much less it cost."""
    centre = next((path for row, path in cells if row.name == "centralised"), None)
    return [_cost(path, centre) for _, path in cells]


def effort(run: Path) -> Metrics:
    """`passes` over the data, and how well the pretext was answered after which round."""
    answered = {f"pretext in round {number}": value for number, value in pretraining.pretext_curve(run).items()}
    return {"passes": pretraining.passes(run), **answered}


def _cost(cell: Path, centre: Path | None) -> Metrics:
    own, other = (derived_of(path).get(effort.__name__, {}) if path else {} for path in (cell, centre))
    if not own or not other:  # or finished a moment ago, and not read off yet
        return {}
    curve, target = _curve(own), _curve(other)
    reached = pretraining.rounds_to(curve, target[max(target)])
    saved = {"saved": 1 - own["passes"] / other["passes"]}
    return saved if reached is None else {**saved, "rounds": float(reached)}


def _curve(known: Metrics) -> dict[int, float]:
    return {int(name.rpartition(" ")[2]): value for name, value in known.items() if name.startswith("pretext in")}
