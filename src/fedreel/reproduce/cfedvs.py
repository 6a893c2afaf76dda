"""CFed-VS (Wan et al. 2023): its tables and figures, on the playground or on a given h5 file.

F1 cannot tell methods apart on TVSum (a constant score gets more than most models), so tau and rho stand beside it,
and what chance and people reach stands in every table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedreel.config import Recipe
from fedreel.methods.cluster import adjusted_rand_index
from fedreel.reproduce.spec import Claim, Metrics, Only, Row, Scale, Table
from fedreel.runs.rundir import read_metrics
from fedreel.tasks.summary.metrics import (
    SummaryScores,
    Truth,
    centre_scores,
    constant_scores,
    human_scores,
    mean_defined,
    mean_scores,
    random_scores,
    score,
)

METRICS = ("f1", "f1_clients", "tau", "rho")
VSLSTM: Mapping[str, Any] = {"task.summarizer": "vslstm"}
FRAMES: Mapping[str, Any] = {"method.name": "fedavg", "method.weight_by": "frames"}
TARGET = 48.0  # percent of F1, mean over clients: the paper's for TVSum


def classes(n: int) -> dict[str, Any]:
    """Ten clients with so many categories each; ten of them is IID."""
    if n >= 10:
        return {"data.partition": {"name": "iid", "num_partitions": 10}}
    return {"data.partition": {"name": "pathological", "num_partitions": 10, "num_classes_per_partition": n}}


def adapt(data: Path) -> dict[str, Any]:
    """What a given h5 file asks for: its features, their rate, fragments as in the paper, a proxy of the same kind."""
    with h5py.File(data, "r") as file:
        video = file[next(iter(file))]
        width = int(video["features"].shape[1])
        step = float(np.median(np.diff(video["picks"][()]))) if len(video["picks"]) > 1 else 15.0
        rate = float(video["n_frames"][()]) / float(video["duration"][()]) / step if "duration" in video else 2.0
    return {
        "task.features": f"given-{width}",
        "task.width_in": width,
        "task.fps": round(rate, 3),
        "task.fragments": 3,
        "task.width": 256,
        "task.blocks": 2,
        "task.hidden": 256,
        "train.lr": 1e-4,  # the paper's
        "data.public": str(data.resolve()),
    }


def derive(run: Path) -> Metrics:
    """Max - min over clients, the first round in which the mean reached the target, and how the grouping went."""
    tests = list(read_metrics(run, "test"))
    found: Metrics = {}
    last = [client["f1"] for client in tests[-1]["clients"].values() if "f1" in client]
    if last:
        found["max_min"] = max(last) - min(last)
    reached = [t["round"] for t in tests if 100 * t["metrics"].get("f1_clients", 0.0) >= TARGET]
    if reached:
        found["rounds_to_target"] = float(reached[0])
    for record in read_metrics(run, "distance"):
        if record.get("correlation_with_length") is not None:
            found["length_correlation"] = record["correlation_with_length"]
    found |= _agreement(run)
    return found


def _agreement(run: Path) -> Metrics:
    """Adjusted Rand index of the communities found against those planted, where these are known."""
    planted: dict[str, str] = next((r.get("communities", {}) for r in read_metrics(run, "partition")), {})
    members: dict[str, str] = next((r["members"] for r in read_metrics(run, "communities")), {})
    both = [c for c in members if c in planted]
    if len(both) < 2:
        return {}
    return {"ari": adjusted_rand_index(np.array([members[c] for c in both]), np.array([planted[c] for c in both]))}


def without_training(kind: str, recipe: Recipe) -> Metrics:
    """A row of scores that no model made: random, constant, centre (a prior) or human (leave one out)."""
    from fedreel.core.job import make_task

    population = make_task(recipe).population(recipe.data, recipe.data.seed)
    by_client = []
    for number, client in enumerate(population.clients):
        truths = population.data(client).test.truths  # type: ignore[attr-defined]
        by_client.append([_scores(kind, t, 1000 * recipe.seed + 50 * number + i) for i, t in enumerate(truths)])
    everything = mean_scores([s for found in by_client for s in found])
    clients = mean_defined([mean_scores(found).f1 for found in by_client if found])
    named = {"f1": everything.f1, "tau": everything.tau, "rho": everything.rho, "f1_clients": clients}
    return {name: value for name, value in named.items() if value == value}


def _scores(kind: str, truth: Truth, seed: int) -> SummaryScores:
    if kind == "human":
        return human_scores(truth)
    steps = len(truth.picks)
    made = {"constant": constant_scores(steps), "centre": centre_scores(steps), "random": random_scores(steps, seed)}
    return score(made[kind], truth)


def references(setting: Mapping[str, Any], settings: Mapping[str, Any], **options: Any) -> tuple[Row, ...]:
    kinds = ("random", "constant", "centre", "human")
    return tuple(Row(k, settings, setting, compute=partial(without_training, k), **options) for k in kinds)


METHODS: dict[str, Mapping[str, Any]] = {
    "FedAvg": {"method.name": "fedavg"},
    "FedAvg, frames": FRAMES,
    "FedProx": {"method.name": "fedprox"},
    "IFCA": {"method.name": "ifca", "method.weight_by": "frames"},
    "FedGroup": {"method.name": "fedgroup", "method.weight_by": "frames"},
    "CFed-VS": {"method.name": "cfedvs"},
    "CFed-VS, path-normalised": {"method.name": "cfedvs", "method.normalize": "path"},
    "grouped by length (control)": {"method.name": "cfedvs", "method.grouping": "length"},
    "grouped at random (control)": {"method.name": "cfedvs", "method.grouping": "random"},
    "each client alone": {"method.name": "local-only"},
    "centralised": {"method.name": "centralised", "train.keep_optimizer": True},
}
PRINTED = {  # Table II, TVSum: F1 by classes a client
    "FedAvg": {1: 54.23, 2: 54.38, 4: 56.08},
    "FedProx": {1: 55.65, 2: 54.63, 4: 57.42},
    "IFCA": {1: 57.29, 2: 57.94, 4: 58.51},
    "FedGroup": {1: 57.41, 2: 58.39, 4: 58.74},
    "CFed-VS": {1: 57.91, 2: 58.86, 4: 59.98},
}


def methods(names: tuple[str, ...], setting: Mapping[str, Any], settings: Mapping[str, Any], **more: Any) -> list[Row]:
    return [Row(name, {**METHODS[name], **settings}, setting, **more) for name in names]


def _table2() -> list[Row]:
    rows = methods(tuple(METHODS), {"clients": "owners"}, {}, only="playground")
    rows += references({"clients": "owners"}, {}, only="playground")
    for n in (1, 2, 4):
        setting = {"clients": f"{n} of 10 classes"}
        for name in METHODS:
            paper = {"f1_clients": PRINTED[name][n]} if name in PRINTED else {}
            rows.append(Row(name, {**METHODS[name], **classes(n)}, setting, paper, only="data"))
        rows += references(setting, classes(n), only="data")
    return rows


def _table1() -> list[Row]:
    printed = {1: (10.98, 49.29, 75), 4: (5.21, 52.08, 46), 10: (2.23, 53.14, 17)}
    rows = []
    for n, (gap, mean, rounds) in printed.items():
        paper = {"max_min": gap, "f1_clients": mean, "rounds_to_target": rounds}
        rows.append(Row("FedAvg, frames", {**VSLSTM, **FRAMES, **classes(n)}, {"classes": n}, paper))
    central = {**VSLSTM, **METHODS["centralised"], **classes(10)}
    rows.append(Row("centralised", central, {"classes": "all"}, {"f1_clients": 54.27}))
    return [*rows, *references({"classes": "all"}, classes(10))]


def _models(paper: Mapping[str, Mapping[str, float]]) -> tuple[Row, ...]:
    kinds = {
        "vsLSTM": VSLSTM,
        "attention": {"task.summarizer": "attention"},
        "plain Transformer": {"task.attention": "plain"},
        "Mixture Transformer": {},
        "Mixture Transformer, literal": {"task.attention": "literal"},
    }
    split = {"data.partition": {"name": "iid", "num_partitions": 5}, "task.fragments": 0}
    rows = [Row(k, {**METHODS["centralised"], **s, **split}, {}, paper.get(k, {})) for k, s in kinds.items()]
    return (*rows, *references({}, split))


SCALES = {
    "smoke": Scale("cfedvs", (0,), {"round.rounds": 2}),
    "small": Scale("cfedvs", (0, 1, 2)),
    "paper": Scale("cfedvs-paper", (0, 1, 2, 3, 4)),
}
ORDER = ("CFed-VS", "FedGroup", "IFCA", "FedProx", "FedAvg")
ORDERING = tuple(Claim(a, b, m) for a, b in pairwise(ORDER) for m in ("f1_clients", "tau"))
NOTES = (
    "f1 in percent; f1_clients is the mean over clients; tau and rho are rank correlations with the annotators' scores",
    "the same clients, initial weights and client sequence for all rows of a setting",
)
COMMON: Mapping[str, Any] = {
    "scales": SCALES,
    "notes": NOTES,
    "factor": 100.0,
    "plain": ("tau", "rho", "rounds_to_target", "ari", "length_correlation"),
    "derive": (derive,),
    "adapt": adapt,
}

GROUP_SPLITS: tuple[tuple[Only, Mapping[str, Any]], ...] = (("playground", {}), ("data", classes(1)))

TABLES = {
    "table1": Table(
        rows=tuple(_table1()),
        metrics=("f1_clients", "max_min", "rounds_to_target", "tau", "rho"),
        claims=(Claim("FedAvg, frames", "random", "f1_clients"),),
        **COMMON,
    ),
    "table2": Table(
        rows=tuple(_table2()),
        metrics=(*METRICS, "max_min", "ari", "length_correlation"),
        claims=(*ORDERING, Claim("CFed-VS", "grouped at random (control)", "tau")),
        **COMMON,
    ),
    "table3": Table(
        rows=_models({"Mixture Transformer": {"f1": 63.8}}),
        follow=("data.seed",),
        metrics=("f1", "tau", "rho"),
        claims=(Claim("Mixture Transformer", "vsLSTM", "f1"), Claim("Mixture Transformer", "plain Transformer", "tau")),
        **COMMON,
    ),
    "table4": Table(
        rows=_models({"Mixture Transformer": {"tau": 0.098, "rho": 0.149}}),
        follow=("data.seed",),
        metrics=("tau", "rho"),
        claims=(Claim("Mixture Transformer", "vsLSTM", "tau"),),
        **COMMON,
    ),
    "fig2": Table(
        rows=tuple(
            Row(name, {**VSLSTM, **METHODS[name], **classes(10)}, {"clients": "IID"})
            for name in ("FedAvg, frames", "FedAvg")
        ),
        metrics=(*METRICS, "rounds_to_target"),
        claims=(Claim("FedAvg, frames", "FedAvg", "f1_clients"),),
        **COMMON,
    ),
    "fig5": Table(
        rows=(
            *methods(("IFCA", "FedGroup", "CFed-VS"), {"clients": "owners"}, {}, only="playground"),
            *methods(("IFCA", "FedGroup", "CFed-VS"), {"clients": "2 of 10 classes"}, classes(2), only="data"),
        ),
        metrics=("f1_clients", "rounds_to_target", "tau"),
        claims=(Claim("CFed-VS", "IFCA", "rounds_to_target", higher=False),),
        **COMMON,
    ),
    "fig6": Table(
        rows=tuple(
            Row("CFed-VS", {**METHODS["CFed-VS"], "method.groups": m, **split}, {"groups": m}, only=on)
            for on, split in GROUP_SPLITS
            for m in (2, 3, 4)
        ),
        metrics=(*METRICS, "ari"),
        **COMMON,
    ),
    "fig7": Table(
        rows=tuple(
            Row(
                name,
                {
                    **METHODS[name],
                    "data.partition": {
                        "name": "pathological",
                        "num_partitions": k,
                        "num_classes_per_partition": 1,
                    },
                },
                {"clients": k},
            )
            for k in (10, 15, 20, 30)
            for name in ("FedAvg", "CFed-VS")
        ),
        metrics=("f1_clients", "max_min", "tau"),
        claims=(Claim("CFed-VS", "FedAvg", "f1_clients"),),
        **COMMON,
    ),
}
