"""Rules against hostile clients: what each is worth when some clients lie. A table of two systems, no paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedreel.reproduce.spec import Row

HOSTILE = (0, 1, 2, 3, 4)  # of ten clients
FEWER = (0, 2)
ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "label flip": {"attack.kind": "label-flip"},
    "sign flip": {"attack.kind": "sign-flip"},
    "scaled update": {"attack.kind": "scaled", "attack.scale": 10.0},
    "free rider": {"attack.kind": "free-rider"},
}
NOTES = (
    "hostile: how many clients lie in every round, the same for all rules of a seed; tests are everybody's, with true"
    " labels",
    "label flip learns from class K - 1 - y, or from the score 1 - y; sign flip sends the honest update times -1;"
    " scaled update sends ten times it; a free rider sends back what it got",
    "trimmed mean and Krum are set for three hostile clients of ten: trim = 0.3, byzantine = 3",
)


def rules(cap: float) -> dict[str, Mapping[str, Any]]:
    """Ways to make one model of many. `cap` is the norm cap: an update that moved farther, in lengths of the model that
    was sent, does not count."""
    return {
        "FedAvg": {},
        "median": {"round.aggregation": "median"},
        "trimmed mean": {"round.aggregation": "trimmed-mean", "round.trim": 0.3},
        "Krum": {"round.aggregation": "krum", "round.byzantine": 3},
        "norm cap": {"round.max_change": cap},
    }


def rows(cap: float, settings: Mapping[str, Any], label: Mapping[str, Any], hostile: Sequence[int]) -> list[Row]:
    """Every rule against every attack by so many clients, of one division of the data. Without hostile clients all
    attacks are the same, and so are their cells."""
    return [
        Row(
            name,
            {**settings, **rule, **({**attack, "attack.clients": n} if n else {})},
            {**label, "attack": kind, "hostile": n},
        )
        for kind, attack in ATTACKS.items()
        for n in hostile
        for name, rule in rules(cap).items()
    ]
