"""The shared methods on video action recognition. No paper stands behind it: it compares, between the two ends."""

from __future__ import annotations

from typing import Any

from fedreel.reproduce.spec import Choose, Row, Scale, Table

# Three tries for each method, the default first, then values of its paper's range; methods without a setting of their
# own vary the clients' rate.
_RATES: dict[str, tuple[Any, ...]] = {"train.lr": (0.1, 0.05, 0.2)}
_SERVER_RATES: dict[str, tuple[Any, ...]] = {"method.server_lr": (0.01, 0.03, 0.1)}
_GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "centralised": _RATES,
    "fedavg": _RATES,
    "fedprox": {"method.mu": (0.01, 0.001, 0.1)},
    "fedbn": _RATES,
    "fedagm": {"method.lambda_": (0.8, 0.6, 0.9)},
    "moon": {"method.mu": (1.0, 0.1, 5.0)},
    "loss": _RATES,
    "fedu": {"method.mu": (0.4, 0.2, 0.6)},
    "fedavgm": {"method.beta": (0.9, 0.7, 0.97)},
    "fedadam": _SERVER_RATES,
    "fedyogi": _SERVER_RATES,
    "fedadagrad": _SERVER_RATES,
    "scaffold": {"train.lr": (0.1, 0.3, 1.0)},
    "fednova": _RATES,
    "feddyn": {"method.alpha": (0.01, 0.001, 0.1)},
    "ditto": {"method.lambda_": (0.1, 0.01, 1.0)},
    "fedper": _RATES,
    "fedrep": {"method.head_epochs": (1, 2, 5)},
    "local-only": _RATES,
}
_ANOTHER_WORLD = Choose("top1", {"data.seed": 1}, "another world")


def _row(name: str) -> Row:
    grid = _GRIDS[name]
    if name == "scaffold":  # meant for plain SGD, which takes longer steps than momentum does
        return Row(name, {"method.name": name, "train.momentum": 0.0}, {"momentum": 0.0}, grid=grid)
    return Row(name, {"method.name": name}, grid=grid)


TABLES = {
    "methods": Table(
        rows=tuple(map(_row, _GRIDS)),
        metrics=("top1", "top1_clients"),
        scales={
            "smoke": Scale("recognition", (0,), {"round.rounds": 2}),
            "small": Scale("recognition", (0, 1, 2), {"round.rounds": 30}, choose=_ANOTHER_WORLD),
            "paper": Scale("recognition-r3d18", (0, 1, 2)),
        },
        notes=(
            "top1 in percent: mean over samples and, as top1_clients, over clients; the same clients, initial weights "
            "and client sequence for all rows",
            "a client is tested with the model that it would use: with fedbn, ditto, fedper, fedrep and local-only, "
            "one of its own",
        ),
        factor=100.0,
    )
}
