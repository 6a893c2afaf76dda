"""The shared methods on video action recognition. No paper stands behind it: it compares, between the two ends."""

from __future__ import annotations

from fedreel.reproduce.spec import Row, Scale, Table

_METHODS = ("centralised", "fedavg", "fedprox", "fedbn", "fedagm", "moon", "loss", "fedu", "local-only")

TABLES = {
    "methods": Table(
        rows=tuple(Row(name, {"method.name": name}) for name in _METHODS),
        metrics=("top1", "top1_clients"),
        scales={
            "smoke": Scale("recognition", (0,), {"round.rounds": 2}),
            "small": Scale("recognition", (0, 1, 2), {"round.rounds": 30}),
            "paper": Scale("recognition-r3d18", (0, 1, 2)),
        },
        notes=(
            "top1 in percent: mean over samples and, as top1_clients, over clients; the same clients, initial weights "
            "and client sequence for all rows",
        ),
        factor=100.0,
    )
}
