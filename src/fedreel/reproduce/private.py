"""What differential privacy of clients costs: a head on a frozen network, few clients and many. A table of two systems,
no paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedreel.config import load_recipe
from fedreel.core.task import EVERYONE
from fedreel.reproduce.spec import Choose, Metrics, Row
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import load

EPSILONS = (math.inf, 8.0, 4.0, 2.0)
DELTA = 1e-5
AT_ONCE = 256  # samples that are tested together
TESTED_ONCE: Mapping[str, Any] = {  # after the last round, by `tested`; beside that, how clients train
    "train.epochs": 1,
    "train.batch_size": 10,
    "train.optimizer": "sgd",
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
    "train.schedule": "constant",
    "round.evaluate_every": 0,
    "round.trust": False,
}
NOTES = (
    "epsilon: of one client, for the whole run, at delta 1e-5; inf: neither clipped nor noised. Everybody takes part in"
    " every round; noise is its standard deviation on the sum of a round's changes, in clips",
    "training and test data are the same for any number of clients: ten times as many have a tenth of them each",
    "seeds differ in first weights, the order of batches and the noise; all rows of a seed have the same clients and"
    " first weights",
)


@dataclass(frozen=True)
class Grids:
    """Settings that are tried, as many for every row: rates without privacy, rates and clips with it."""

    open: Mapping[str, tuple[Any, ...]]
    private: Mapping[str, tuple[Any, ...]]


def rows(method: str, settings: Mapping[str, Any], clients: int, grids: Grids) -> list[Row]:
    """One division of the data, without privacy and with less and less to learn about a client."""
    made, settings = [], {"method.name": method.lower(), **settings}
    for epsilon in EPSILONS:
        label = {"clients": clients, "epsilon": f"{epsilon:g}"}
        if math.isinf(epsilon):
            made.append(Row(method, settings, label, grid=grids.open))
            continue
        private = {"privacy.epsilon": epsilon, "privacy.delta": DELTA, "privacy.tests": "off", "privacy.seeded": True}
        made.append(Row(method, {**settings, **private}, label, grid=grids.private))
    return made


def tested(run: Path) -> Metrics:
    """Of the finished model on all test data, once: top1 and the loss. And what the noise was."""
    loaded, recipe = load(run), load_recipe(run / "recipe.toml")
    data = loaded.task.population(recipe.data, recipe.data.seed).data(EVERYONE)
    with torch.no_grad():
        found = loaded.task.evaluate(loaded.model, loaded.task.prepared(loaded.model, data.test, False), AT_ONCE)
    counted = [*read_metrics(run, "privacy")]
    noise = {"noise": float(counted[-1]["noise"])} if counted else {}
    return {"top1": found["top1"], "loss": found["loss"], **noise}


def held_out(what: str) -> Choose:
    return Choose("top1", {"data.validate": True}, what, derive=(tested,))
