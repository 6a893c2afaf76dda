"""FedLID (Psaltis et al. 2023): its tables and figures, on the playground's pictures or on given images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedreel.errors import DataError
from fedreel.reproduce.spec import Claim, Row, Scale, Table
from fedreel.tasks.image import analysis as image_runs
from fedreel.tasks.image.pictures import open_pictures

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
PRINTED: dict[str, dict[str, float]] = {  # mean accuracy over local clients: Tables 1 and 3
    "Dirichlet 1": {"20": 42.15, "40": 41.79, "60": 42.74, "80": 43.81, "100": 43.98, "FedLID": 47.52},
    "Dirichlet 0.5": {"20": 32.83, "40": 33.08, "60": 32.84, "80": 34.32, "100": 35.16, "FedLID": 48.88},
}
QUOTED = {  # Tables 2 and 4: FedSimCLR, FedCA, both from FedCA's paper
    "Dirichlet 1": {"FedSimCLR": 34.18, "FedCA": 39.47},
    "Dirichlet 0.5": {"FedSimCLR": 33.63, "FedCA": 38.94},
}
FEW = {"Dirichlet 1": (32.09, 33.51), "Dirichlet 0.5": (22.46, 24.12)}  # Table 5: FedCA, FedLID with 10 % of labels
SPLITS: dict[str, Mapping[str, Any]] = {
    "equal": {"name": "iid", "num_partitions": 10},
    "Dirichlet 1": {"name": "dirichlet", "num_partitions": 10, "alpha": 1.0},
    "Dirichlet 0.5": {"name": "dirichlet", "num_partitions": 10, "alpha": 0.5},
}
INITS: dict[str, Mapping[str, Any]] = {
    "random": {},
    "ImageNet": {"task.backbone": {"name": "efficientnet-lite0", "init": "imagenet"}},
}
SUPERVISED = {f"supervised server, {100 * s:.0f} %": {"method.server": "labels", "method.share": s} for s in SHARES}
NONE, ONCE = "no server training", "server without labels, once"
METHODS: dict[str, Mapping[str, Any]] = {
    NONE: {"method.server": "none"},
    **SUPERVISED,
    ONCE: {"method.when": "once"},
    "FedLID": {},
}
VIEWS: Mapping[str, Any] = {"task.objective": "views"}
UNSUPERVISED: dict[str, Mapping[str, Any]] = {
    "FedSimCLR": {"method.name": "fedsimclr", "server": None, **VIEWS},
    "FedCA": {"method.name": "fedca", **VIEWS},
}


def adapt(data: Path) -> dict[str, Any]:
    """Given data are a folder with two sources, `clients*` and `server*`: folders, or zips or tars of images."""
    sources = {}
    for name in ("clients", "server"):
        found = sorted(p for p in data.glob(f"{name}*") if not p.name.startswith(".")) if data.is_dir() else []
        if len(found) != 1:
            raise DataError(
                f"there is not one source of images for the {name}",
                where=str(data),
                expected=f"{name}/, {name}.zip or {name}.tar.gz",
                found=", ".join(p.name for p in found) or "none",
            )
        sources[name] = str(found[0].resolve())
    classes = len(open_pictures(sources["clients"], 32).classes)
    return {"data.source": sources["clients"], "data.public": sources["server"], "task.classes": classes}


def _row(name: str, settings: Mapping[str, Any], split: str, paper: Mapping[str, float], init: str = "random") -> Row:
    setting = {"split": split, "init": init}
    return Row(name, {**settings, **INITS[init], "data.partition": SPLITS[split]}, setting, paper)


def _servers(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 1 and 3. Weights of ImageNet are for given data: the playground's pictures are too small a world."""
    printed = PRINTED[split]
    rows = []
    for init in INITS if data is not None else ("random",):
        for name, settings in METHODS.items():
            share = name.rpartition(", ")[2].removesuffix(" %") if name in SUPERVISED else name
            paper = {"trained": printed[share]} if share in printed and init == "ImageNet" else {}
            rows.append(_row(name, settings, split, paper, init))
    if split == "Dirichlet 1":
        rows += [_row(name, METHODS[name], "equal", {}) for name in (NONE, "FedLID")]
    return tuple(rows)


def _others(split: str) -> tuple[Row, ...]:
    """Tables 2 and 4: methods without labels, judged by a linear classifier on what they learned."""
    rows = [_row(name, s, split, {"probe": QUOTED[split][name]}) for name, s in UNSUPERVISED.items()]
    return (*rows, _row("FedLID", {}, split, {"trained": PRINTED[split]["FedLID"]}))


def _few() -> tuple[Row, ...]:
    rows = []
    for split, (ca, lid) in FEW.items():
        tenth = {"task.label_share": 0.1}
        rows.append(_row("FedCA", {**UNSUPERVISED["FedCA"], **tenth}, split, {"probe": ca}))
        rows.append(_row(NONE, {**METHODS[NONE], **tenth}, split, {}))
        rows.append(_row("FedLID", tenth, split, {"trained": lid}))
    return tuple(rows)


SCALES = {
    "smoke": Scale(
        "fedlid",
        (0,),
        {"round.rounds": 2, "train.epochs": 1, "task.backbone": {"name": "resnet10", "width": 4}},
        rows={"FedCA": {"method.public": 100}},
    ),
    "small": Scale(
        "fedlid",
        (0, 1, 2),
        given={  # a hundred classes on ten clients, on a GPU
            "task.backbone": {"name": "resnet18", "width": 32, "small_stem": True},
            "train.epochs": 10,
            "train.batch_size": 128,
            "train.lr": 1e-3,
            "train.precision": "bf16",
            "server.epochs": 10,
            "server.batch_size": 256,
            "server.lr": 1e-3,
            "server.precision": "bf16",
            "round.rounds": 10,
            "round.evaluate_every": 10,  # the figures ask for every round
        },
        rows={"init ImageNet": {"round.rounds": 5, "task.backbone.small_stem": True}},  # there is less left to learn
    ),
    "paper": Scale("fedlid-paper", (0, 1, 2)),
}
NOTES = (
    "top-1 in percent on test images common to all clients. trained: mean over clients right after local training (the"
    " paper's number); own: with classes as common as at the client; averaged: the mean of their models; after: after"
    " the server's training, with the classifier from before it; probe: a linear classifier on the frozen body (before:"
    " of the mean of the clients' models)",
    "the same clients, initial weights and client sequence for all rows. The paper calls alpha 1 IID and 0.5 Non-IID;"
    " its ImageNet weights have seen the server's images with labels. Here they are those of EfficientNet-Lite0;"
    " task.backbone.name and task.backbone.init take torchvision's ResNets",
)
COMMON: Mapping[str, Any] = {"scales": SCALES, "factor": 100.0, "adapt": adapt}
STEPS = ("trained", "trained own", "averaged", "after", "probe before", "probe")
QUOTES = (
    "the paper's numbers for FedSimCLR and FedCA are quoted from FedCA's paper (ResNet-50, 5 clients, from scratch,"
    " linear or fine-tuned classifiers), not comparable with FedLID's; rows here are our own runs with its clients"
)
TENTH = (
    "a tenth of each client's images is labelled, at least one of each class; FedCA, which needs no labels, trains on"
    " all of them, and its linear classifier has the same tenth"
)
BEST = f"supervised server, {100 * SHARES[-1]:.0f} %"
AHEAD = (
    *(Claim("FedLID", other, "trained") for other in (BEST, NONE, ONCE)),
    Claim(BEST, next(iter(SUPERVISED)), "trained"),
)


def _by_servers(split: str) -> Table:
    return Table(
        rows=partial(_servers, split),
        metrics=STEPS,
        derive=(image_runs.accuracies, image_runs.probes),
        notes=NOTES,
        claims=AHEAD,
        **COMMON,
    )


def _by_others(split: str) -> Table:
    return Table(
        rows=_others(split),
        metrics=("trained", "trained own", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(*NOTES, QUOTES),
        claims=(Claim("FedCA", "FedSimCLR", "probe"), Claim("FedLID", "FedCA", "probe")),
        **COMMON,
    )


def _by_rounds(split: str) -> Table:
    return Table(
        rows=tuple(_row(name, METHODS[name], split, {}) for name in (NONE, BEST, "FedLID")),
        settings={"round.evaluate_every": 1},
        metrics=("trained at *", "after at *"),
        derive=(image_runs.curves,),
        notes=(*NOTES, "the paper draws both by rounds; the report.html of each cell has the lines"),
        **COMMON,
    )


TABLES = {
    "table1": _by_servers("Dirichlet 1"),
    "table2": _by_others("Dirichlet 1"),
    "table3": _by_servers("Dirichlet 0.5"),
    "table4": _by_others("Dirichlet 0.5"),
    "table5": Table(
        rows=_few(),
        metrics=("trained", "trained own", "averaged", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(*NOTES, QUOTES, TENTH),
        claims=(Claim("FedLID", NONE, "trained"), Claim("FedLID", "FedCA", "probe")),
        **COMMON,
    ),
    "fig3": _by_rounds("Dirichlet 1"),
    "fig4": _by_rounds("Dirichlet 0.5"),
}
