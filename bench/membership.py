"""Whose pictures was it trained on? An attack on whole clients, without privacy and with it.

    python bench/membership.py CIFAR100.zip [--clients 100] [--rounds 20] [--seeds 3] [--epsilons inf 8 2]

A frozen EfficientNet-Lite0 with a head that is trained (task image, FedAvg). Of twice so many clients with ten pictures
each, half take part. The attacker has the final model and the pictures of a client, and asks whether it took part: the
smaller the model's mean loss on them, the more it says yes. AUC is the chance that it ranks a client that did above one
that did not: 0.5 is guessing. `advantage` is its true minus its false positive rate, at best. top1 is on the pictures
of clients that did not take part. The last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from fedreel.config import DataConfig, Recipe, load_recipe
from fedreel.core.job import make_method, make_task
from fedreel.core.task import ClientData, Examples, Population
from fedreel.runs.run import run
from fedreel.tasks.image.task import Image

PICTURES = 10  # of a client


class Some(Population):
    """Some clients of a population."""

    def __init__(self, whole: Population, clients: tuple[str, ...]) -> None:
        self.whole, self.clients = whole, clients

    def data(self, client: str) -> ClientData:
        return self.whole.data(client)

    def agreement(self) -> dict[str, Any]:
        return self.whole.agreement()


@dataclass(frozen=True)
class Members(Image):
    """The task of those who take part."""

    members: tuple[str, ...] = ()

    def population(self, data: DataConfig, seed: int) -> Population:
        return Some(super().population(data, seed), self.members)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[math.inf, 8.0, 2.0])
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(options.seeds):
        for epsilon in options.epsilons:
            with tempfile.TemporaryDirectory(prefix="membership-") as folder:
                told = attack(options, epsilon, seed, Path(folder) / "run")
            found.setdefault(f"{epsilon:g}", []).append(told)
    rows = {name: {key: spread([t[key] for t in told]) for key in told[0]} for name, told in found.items()}
    print(f"{'epsilon':>8}{'AUC':>18}{'advantage':>18}{'top1':>18}   {options.seeds} seeds, mean and sd")
    for name, row in rows.items():
        print(f"{name:>8}" + "".join(f"{m:>10.3f} +- {s:.3f}" for m, s in row.values()))
    print(json.dumps({"bench": "membership", "clients": options.clients, "rounds": options.rounds, "rows": rows}))


def attack(options: argparse.Namespace, epsilon: float, seed: int, out: Path) -> dict[str, float]:
    recipe = recipe_of(options, epsilon, seed)
    whole = make_task(recipe)
    population = whole.population(recipe.data, recipe.data.seed)
    order = np.random.default_rng([seed, 7]).permutation(len(population.clients))
    clients = [population.clients[i] for i in order]
    members, others = clients[: options.clients], clients[options.clients :]
    settings = {field.name: getattr(whole, field.name) for field in fields(whole)}
    run(recipe, out, quiet=True, task=Members(**settings, members=tuple(sorted(members))), method=make_method(recipe))
    torch.manual_seed(recipe.seed)
    model = whole.model().eval()
    model.load_state_dict(load_file(out / "model" / "global.safetensors"), strict=False)
    looks = {c: look(whole, model, whole.prepared(model, population.data(c).train, True)) for c in clients}
    losses = np.array([looks[c][0] for c in clients])
    took_part = np.array([True] * len(members) + [False] * len(others))
    top1 = mean(looks[c][1] for c in others)
    return {**ranked(-losses, took_part), "top1": top1}


def recipe_of(options: argparse.Namespace, epsilon: float, seed: int) -> Recipe:
    private: Mapping[str, Any] = {
        "privacy.epsilon": epsilon,
        "privacy.delta": round(0.1 / options.clients, 6),
        "privacy.clip": options.clip,
        "privacy.tests": "off",
        "privacy.seeded": True,
    }
    recipe = load_recipe(
        "fedlid",
        {
            "seed": seed,
            "device": "cpu",
            "method": "fedavg",
            "task.backbone": {"name": "efficientnet-lite0", "init": "imagenet", "tune": "head"},
            "task.size": 64,
            "task.padding": 0.0,  # one view of each picture: what the frozen network sees of it is computed once
            "task.flip": 0.0,
            "task.classes": 100,
            "task.most_per_class": math.ceil(2 * options.clients * PICTURES / 100),
            "data.source": str(options.pictures),
            "data.seed": seed,
            "data.partition": {"name": "iid", "num_partitions": 2 * options.clients},
            "train.epochs": 5,
            "train.batch_size": PICTURES,
            "train.optimizer": "sgd",
            "train.lr": 0.3,
            "round.rounds": options.rounds,
            "round.evaluate_every": 0,
            **(private if math.isfinite(epsilon) else {}),
        },
    )
    return replace(recipe, server=None)  # it does not train


@torch.no_grad()
def look(task: Any, model: torch.nn.Module, pictures: Examples) -> tuple[float, float]:
    """The model's mean loss on a client's training pictures, and how many it names right."""
    losses, right = [], []
    for batch in pictures.batches(64):
        logits = task.forward(model, batch).logits
        losses.append(F.cross_entropy(logits, batch[1], reduction="none"))
        right.append(logits.argmax(1) == batch[1])
    return float(torch.cat(losses).mean()), float(torch.cat(right).float().mean())


def ranked(scores: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """How well scores tell the positives: the area under the ROC curve, and its greatest height above the diagonal."""
    wins = (scores[positive][:, None] > scores[~positive][None]).mean()
    ties = (scores[positive][:, None] == scores[~positive][None]).mean()
    levels = np.unique(scores)
    gap = max((scores[positive] >= level).mean() - (scores[~positive] >= level).mean() for level in levels)
    return {"auc": float(wins + ties / 2), "advantage": float(gap)}


def spread(values: list[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
