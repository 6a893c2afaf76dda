"""The shared methods on video action recognition. No paper stands behind it: it compares, between the two ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedreel.config import load_recipe
from fedreel.errors import DataError
from fedreel.reproduce import private, robust
from fedreel.reproduce.spec import SEED, Choose, Metrics, Row, Scale, Table
from fedreel.runs.reading import read_summary

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


def _few(data: Path | None) -> tuple[Row, ...]:
    """For every folder of clips SET-N: the recipe clips, and the recipe that starts from nothing. Four tries each. A
    folder may have divisions of its clips in it, one for each seed."""
    folders = sorted(p for p in data.iterdir() if p.is_dir() and p.name.rpartition("-")[2].isdigit()) if data else []
    if data is not None and not folders:
        raise DataError(
            "there are no clips here to learn from",
            where=str(data),
            expected="folders SET-N, N labelled clips of each owner, as bench/few_clips.py lays them out",
        )
    folders.sort(key=lambda p: (p.name.rpartition("-")[0], int(p.name.rpartition("-")[2])))
    recipes: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
        "clips": ({}, {"task.there": (0.5, 2.0), "train.lr": (10.0, 3.0)}),
        "from scratch": (_from_scratch(), {"train.lr": (0.1, 0.03), "train.epochs": (2, 6)}),
    }
    places: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"data.source": _divided(p.resolve())}, dict(zip(("set", "clips"), p.name.rsplit("-", 1)))) for p in folders
    ] or [({}, {"set": "playground"})]
    rounds = {"from scratch": {"round.rounds": load_recipe("recognition").round.rounds}}
    return tuple(
        Row(name, {**settings, **source}, setting, grid=grid, usual=rounds.get(name, {}))
        for source, setting in places
        for name, (settings, grid) in recipes.items()
    )


def _divided(folder: Path) -> str:
    return str(folder / f"split-{SEED}" if (folder / "split-0").is_dir() else folder)


def _robust(data: Path | None) -> tuple[Row, ...]:
    """Of given data the owners are the clients; beside that, clients who have two classes each."""
    if data is None:
        return tuple(robust.rows(_CAP, {**_MOTION, **_split("iid")}, {"clients": "IID"}, robust.FEWER))
    skewed = {**_MOTION, **_split("pathological", num_classes_per_partition=2)}
    return (
        *robust.rows(_CAP, _MOTION, {"clients": "owners"}, robust.HOSTILE),
        *robust.rows(_CAP, skewed, {"clients": "two classes"}, robust.FEWER),
    )


def _private(data: Path | None) -> tuple[Row, ...]:
    """For every folder clients-N, so many clients."""
    grids = private.Grids(
        {"train.lr": (0.03, 0.3), "method.server_lr": (0.003, 0.01)},
        {"privacy.clip": (1.0, 0.25), "method.server_lr": (0.01, 0.03)},
    )
    if data is None:
        return tuple(private.rows("FedAdam", _split("iid"), 10, grids))
    folders = {p.name.removeprefix("clients-"): p for p in data.glob("clients-*") if p.is_dir()}
    numbers = sorted(int(n) for n in folders if n.isdigit())
    if not numbers:
        raise DataError(
            "there are no clips here to learn from",
            where=str(data),
            expected="folders clients-N, the same clips of N owners, as bench/many_clients.py lays them out",
        )
    sources = {n: {"data.source": str(folders[str(n)].resolve())} for n in numbers}
    return tuple(row for n in numbers for row in private.rows("FedAdam", sources[n], n, grids))


def _split(name: str, **more: Any) -> dict[str, Any]:
    return {"data.partition": {"name": name, "num_partitions": 10, **more}}


def _from_scratch() -> dict[str, Any]:
    """The settings in which the recipe recognition differs from clips."""
    recipe = load_recipe("recognition")
    task = {f"task.{key}": value for key, value in recipe.task.items() if key != "name"}
    train = {f"train.{key}": getattr(recipe.train, key) for key in ("epochs", "batch_size", "lr", "weight_decay")}
    return {**task, **train, "task.head": "linear"}


# The head that robust rules were tried on: of the last stage, what is there and how much it changes.
_MOTION: dict[str, Any] = {
    "task.head": "motion",
    "task.backbone.grid": 1,
    "task.backbone.image.stages": 7,
    "train.epochs": 4,
    "train.lr": 0.01,
    "train.weight_decay": 0.01,
    "round.rounds": 15,
}
# Under privacy of clients no batch norm may learn from clips: a linear classifier on what is there.
_STILL: dict[str, Any] = {
    **private.TESTED_ONCE,
    "task.head": "linear",
    "task.backbone.grid": 1,
    "task.backbone.image.stages": 7,
    "train.lr": 0.3,
    "round.rounds": 25,
}
_CAP = 2.0  # about twice the farthest that an honest client moves (round.divergence)


def calibration(run: Path) -> Metrics:
    """The expected calibration error on held-out clips, at the model's own confidence and at the temperature that was
    fitted to the other half of them; see docs/confidence.md."""
    told = read_summary(run).get("trust", {})
    return {name: float(told[name]) for name in ("ece_uncalibrated", "ece") if name in told}


def traffic(run: Path) -> Metrics:
    """What all clients sent in training, in MB."""
    return {"sent": read_summary(run)["bytes_up"] / 1e6}


# Everything of the published image network over frames, or a part: same first weights, same tries.
_TUNE_RATES: dict[str, tuple[Any, ...]] = {"train.lr": (0.01, 0.03, 0.1, 0.003)}
_TUNED = {
    "task.head": "linear",
    "task.frames": 8,
    "task.size": 96,
    "task.backbone.grid": 1,
    "task.backbone.image.stages": 7,
    "train.epochs": 1,
    "train.lr": 0.01,
    "round.rounds": 15,
}
_HELD_OUT = Choose("loss", {"data.validate": True}, "a part of the training clips", higher=False)
_LAST = Choose(  # clips beside each other may be of one film: of those drawn the settings that learn it look best
    "loss", {"data.validate": True, "data.hold_out": "last"}, "the last of the training clips", higher=False
)
TABLES = {
    "few": Table(
        rows=_few,
        metrics=("top1", "top1_clients", "ece_uncalibrated", "ece"),
        derive=(calibration,),
        scales={
            "smoke": Scale("clips", (0,), {"round.rounds": 1, "task.frames": 4, "task.size": 32, "data.size": "tiny"}),
            "small": Scale("clips", (0, 1, 2, 3), choose_given=_LAST),
        },
        notes=(
            "top1 in percent on the owners' test clips; seeds differ in first weights and in the order of batches, and "
            "where folders have divisions in them, in what is learned from and tested on",
            "settings are chosen by the loss on the last training clips of each owner and class, four tries for a row",
            "ece: the expected calibration error, in percent, before and after a temperature was fitted to other clips",
        ),
        factor=100.0,
    ),
    "tune": Table(
        rows=tuple(Row(how, {"task.backbone.tune": how}, grid=_TUNE_RATES) for how in ("all", "lora", "norm", "head")),
        metrics=("top1", "loss", "sent"),
        derive=(traffic,),
        plain=("loss", "sent"),
        settings=_TUNED,
        scales={
            "smoke": Scale("clips", (0,), {"round.rounds": 1, "task.frames": 2, "task.size": 32, "data.size": "tiny"}),
            "small": Scale("clips", (0, 1, 2), choose_given=_HELD_OUT),
        },
        notes=(
            "top1 in percent on the owners' test clips; EfficientNet-Lite0 over 8 frames of 96 pixels, its mean, and a "
            "linear classifier; 15 rounds of one epoch",
            "sent: what all clients sent in training, in MB",
        ),
        factor=100.0,
    ),
    "robust": Table(
        rows=_robust,
        metrics=("top1", "top1_clients"),
        settings={"round.trust": False, "round.evaluate_every": 1000},  # tested after the last round
        scales={
            "smoke": Scale("clips", (0,), {"round.rounds": 1, "task.frames": 4, "task.size": 32, "data.size": "tiny"}),
            "small": Scale("clips", (0, 1, 2)),
        },
        notes=("top1 in percent on the owners' test clips", *robust.NOTES, f"norm cap: max_change = {_CAP:g}"),
        factor=100.0,
    ),
    "private": Table(
        rows=_private,
        metrics=("top1", "noise"),
        derive=(private.tested,),
        plain=("noise",),
        settings=_STILL,
        scales={
            "smoke": Scale("clips", (0,), {"round.rounds": 1, "task.frames": 4, "task.size": 32, "data.size": "tiny"}),
            "small": Scale("clips", (0, 1, 2), choose_given=private.held_out("clips kept for it")),
        },
        notes=(
            "top1 in percent on the test clips; EfficientNet-Lite0, frozen, over 16 frames of 128 pixels, its mean and"
            " a linear classifier; 25 rounds of one epoch",
            *private.NOTES,
        ),
        factor=100.0,
    ),
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
    ),
}
