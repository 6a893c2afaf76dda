"""Filling in hidden tubes (VideoMAE) beside Speed, by FedVSSL: rows that are to be compared at equal time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreel.reproduce.fedvssl_paper import BEST
from fedreel.reproduce.spec import Choose, Row
from fedreel.tasks.vision.evaluate.subject import UNTRAINED

TIMED = 16  # rounds by which rows are timed
KEPT: Mapping[str, Any] = {"round.keep_models": 6}  # of runs that Fig. 4 shows, too: Speed with R3D is FedVSSL there
ROUNDS = {"playground": 40, "data": 270}
R3D: dict[str, dict[str, Any]] = {  # as the other tables have it
    "playground": {"name": "r3d", "width": 8, "blocks": [1, 1, 1, 1], "bn_eps": 1e-3, "stem_size": 3},
    "data": {"name": "r3d", "width": 64, "blocks": [1, 1, 1, 1], "bn_eps": 1e-3, "stem_size": 7},
}
VIDEOMAE: dict[str, dict[str, Any]] = {  # 7 x 7 tokens a picture; on given data the size Ti
    "playground": {"name": "videomae", "width": 48, "depth": 4, "heads": 3, "mlp": 192, "patch": 4},
    "data": {"name": "videomae", "width": 192, "depth": 12, "heads": 3, "mlp": 768, "patch": 8},
}
ADAM: Mapping[str, Any] = {
    "train.optimizer": "adamw",
    "train.lr": 1e-3,
    "train.weight_decay": 0.05,
    "train.momentum": 0.0,
    "train.clip_norm": 1.0,
    "train.schedule": "cosine",
}
RATES = {"train.lr": (0.01, 0.03, 0.1)}
ADAM_RATES = {"train.lr": (3e-4, 1e-3, 3e-3)}
HELD_OUT = Choose(
    "loss",
    {"data.validate": True, "round.rounds": 90},
    "the pretext, of clips held out of the training part",
    higher=False,
    without=tuple(KEPT),
)
SPEED: Mapping[str, Any] = {"task.pretext": "speed"}
MAE: Mapping[str, Any] = {**ADAM, "task.pretext": "mae", "task.differences": False}
MAE_SCALE: dict[str, dict[str, Any]] = {
    "smoke": {
        "rows": {
            "Speed": {"round.rounds": 2},
            "mae": {"round.rounds": 2},
            "R3D": {"task.backbone.width": 4},
            "VideoMAE": {f"task.backbone.{k}": v for k, v in {"width": 24, "depth": 1, "mlp": 24, "patch": 4}.items()},
        }
    },
    "small": {"rows": {}, "seeds": (0, 1, 2), "timed": TIMED, "choose_given": HELD_OUT},
}


def mae_rows(data: Path | None) -> tuple[Row, ...]:
    """Each backbone untrained, Speed with each, and mae: in the time that Speed takes with the same backbone, in that
    which it takes with R3D, and with as many rounds."""
    where = "playground" if data is None else "data"
    r3d, videomae = {"task.backbone": R3D[where]}, {"task.backbone": VIDEOMAE[where]}
    plain = {"task.differences": False}  # an even number of frames for tokens of two
    mae = {**MAE, **videomae}
    speeds = (
        replace(_trained("Speed", {**SPEED, **r3d}, "R3D", where), run_as=BEST),
        _trained("Speed", {**ADAM, **SPEED, **plain, **videomae}, "VideoMAE", where),
    )
    return (
        Row("random weights", {**UNTRAINED, **SPEED, **r3d}, {"backbone": "R3D"}),
        Row("random weights", {**UNTRAINED, **SPEED, **plain, **videomae}, {"backbone": "VideoMAE"}),
        *speeds,
        _trained("mae", mae, "VideoMAE", where, speeds[1].label),
        _trained("mae", mae, "VideoMAE, as long as Speed of R3D", where, speeds[0].label),
        _trained("mae", mae, "VideoMAE, as many rounds as Speed", where),
    )


def _trained(name: str, settings: Mapping[str, Any], backbone: str, where: str, as_long_as: str = "") -> Row:
    """On the playground a scale may ask for fewer rounds; on given data rows say themselves how many."""
    rounds = {"round.rounds": ROUNDS[where]}
    kept = KEPT if backbone == "R3D" else {}
    setting, grid = {"backbone": backbone}, RATES if backbone == "R3D" else ADAM_RATES
    if where == "playground":
        return Row(name, settings, setting, usual={**rounds, **kept}, grid=grid, as_long_as=as_long_as)
    return Row(name, {**settings, **rounds}, setting, usual=kept, grid=grid, as_long_as=as_long_as)
