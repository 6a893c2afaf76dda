"""FedLID (Psaltis et al. 2023): its tables and figures, on the playground's pictures or on given images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedreel.reproduce import fedlid_claims as said
from fedreel.reproduce import private
from fedreel.reproduce.cells import derived_of
from fedreel.reproduce.fedlid_data import WEIGHTS, adapt, inits
from fedreel.reproduce.fedlid_paper import (
    AHEAD,
    BEST,
    FEW,
    IID,
    LITE0,
    NON_IID,
    NONE,
    ONCE,
    OTHERS_CLIENTS,
    QUOTED,
    RESNET18,
    SUPERVISED,
    others_setting,
    printed,
)
from fedreel.reproduce.spec import Choose, Metrics, Row, Scale, Table
from fedreel.tasks.image import analysis as image_runs

SPLITS: dict[str, Mapping[str, Any]] = {
    "equal": {"name": "iid", "num_partitions": 10},
    IID: {"name": "dirichlet", "num_partitions": 10, "alpha": 1.0},
    NON_IID: {"name": "dirichlet", "num_partitions": 10, "alpha": 0.5},
}
OTHERS_NETWORK: Mapping[str, Any] = {"task.backbone.name": "resnet50"}  # FedCA's paper, from random weights
BEGIN = "task.backbone.init"  # rows from random weights leave it empty
METHODS: dict[str, Mapping[str, Any]] = {
    NONE: {"method.server": "none"},
    **{name: {"method.server": "labels", "method.share": share} for name, share in SUPERVISED.items()},
    ONCE: {"method.when": "once"},
    "FedLID": {},
}
VIEWS: Mapping[str, Any] = {"task.objective": "views"}
UNSUPERVISED: dict[str, Mapping[str, Any]] = {
    "FedSimCLR": {"method.name": "fedsimclr", "server": None, **VIEWS},
    "FedCA": {"method.name": "fedca", **VIEWS},
}
OPTIONS: dict[str, Mapping[str, Any]] = {  # what the paper leaves open, one change at a time
    "FedLID": {},
    "rate 1e-4": {"train.lr": 1e-4, "server.lr": 1e-4},
    "server's rate 1e-4": {"server.lr": 1e-4},
    "temperature 0.07": {"task.temperature": 0.07},
    "temperature 0.5": {"task.temperature": 0.5},
    "anchor is the image itself": {"task.anchor": "raw"},
    "views of at least a fifth": {"task.crop_scale": 0.2},
    "views of shrunk images": {"task.server_size": 0},
    "projector of one layer": {"task.projector": "one-layer"},
    "projector afresh in each round": {"method.keep_projector": False},
    "server's optimizer kept": {"server.keep_optimizer": True},
    "classifiers stay at clients": {"method.local_head": True},
    "statistics of clients": {"method.statistics": "clients"},
    NONE: METHODS[NONE],
    "no server training, rate 1e-4": {**METHODS[NONE], "train.lr": 1e-4},
}
CHOICES = (
    "server's rate 1e-4",
    "temperature 0.5",
)  # of OPTIONS: what may be chosen for FedLID; then they are its cells
DRAWN = (NONE, BEST, "FedLID")  # rows of Figures 3 and 4
TESTED: Mapping[str, Any] = {"round.evaluate_every": 1}  # which they read, as one run with those of Tables 1 and 3
TESTED_ONCE: Mapping[str, Any] = {"round.evaluate_every": 1000}  # after the last round
TENTH: Mapping[str, Any] = {"task.label_share": image_runs.TENTH}
RATES: Mapping[str, tuple[Any, ...]] = {"server.lr": (1e-3, 1e-4)}  # the paper's, and one for weights that know a lot
TEMPERATURES: Mapping[str, tuple[Any, ...]] = {"task.temperature": (0.1, 0.5)}  # the paper gives none
GRIDS: dict[str, Mapping[str, tuple[Any, ...]]] = {  # all rows with a server's rate or a contrast try the same values
    NONE: {},
    **dict.fromkeys(SUPERVISED, RATES),
    "FedSimCLR": TEMPERATURES,
    **{key: {**RATES, **TEMPERATURES} for key in (ONCE, "FedLID", "FedCA")},
}


def _row(
    name: str,
    settings: Mapping[str, Any],
    split: str,
    init: tuple[str, Mapping[str, Any]],
    paper: Mapping[str, float] | None = None,
) -> Row:
    """`paper` is what was printed for the paper's ResNet-18: it is shown beside that, or where its weights are not
    given beside the ImageNet weights that stand in for them."""
    setting, begin = {"split": split, "init": init[0]}, {**init[1], "data.partition": SPLITS[split]}
    untouched = () if init[1] else (BEGIN,)
    usual = TESTED if name in DRAWN and not settings.keys() & TENTH.keys() else TESTED_ONCE
    return Row(name, {**settings, **begin}, setting, paper or {}, grid=GRIDS[name], usual=usual, untouched=untouched)


def _printed(data: Path | None) -> str:
    """The initial weights beside which the paper's numbers stand."""
    return [*inits(data)][-1] if data is not None else RESNET18


def _servers(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 1 and 3."""
    rows = []
    for init in inits(data).items():
        for name, settings in METHODS.items():
            rows.append(_row(name, settings, split, init, printed(split, name) if init[0] == _printed(data) else {}))
    if split == IID:
        rows += [_row(name, METHODS[name], "equal", ("random", {})) for name in (NONE, "FedLID")]
    return tuple(rows)


def _others(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 2 and 4: methods without labels, judged by a linear classifier on what they learned; with FedLID's clients
    and networks, and with FedCA's."""
    rows = []
    for init in inits(data).items():
        rows += [_row(name, settings, split, init) for name, settings in UNSUPERVISED.items()]
        paper = {"trained": printed(split, "FedLID")["trained"]} if init[0] == _printed(data) else {}
        rows.append(_row("FedLID", {}, split, init, paper))
    fewer, setting = {**SPLITS[split], "num_partitions": OTHERS_CLIENTS}, others_setting(split)
    for name, settings in {**UNSUPERVISED, "FedLID": {}}.items():
        paper = {"probe": QUOTED[split][name]} if name in QUOTED[split] else {}
        changed = {**settings, **OTHERS_NETWORK, "data.partition": fewer}
        more: dict[str, Any] = {"grid": GRIDS[name], "usual": TESTED_ONCE, "untouched": (BEGIN,)}
        rows.append(Row(name, changed, setting, paper, only="data", **more))  # too large for a CPU
    return tuple(rows)


def _few(data: Path | None) -> tuple[Row, ...]:
    """Table 5. FedCA looks at no label in training, so its cells are those of Tables 2 and 4."""
    rows = []
    for split, (ca, lid) in FEW.items():
        for init in inits(data).items():
            shown = init[0] == _printed(data)
            rows += [
                _row("FedCA", UNSUPERVISED["FedCA"], split, init, {"probe": ca} if shown else {}),
                _row(NONE, {**METHODS[NONE], **TENTH}, split, init),
                _row("FedLID", TENTH, split, init, {"trained": lid} if shown else {}),
            ]
    return tuple(rows)


def _curves(split: str, data: Path | None) -> tuple[Row, ...]:
    """Figures 3 and 4: the cells of Tables 1 and 3."""
    return tuple(_row(name, METHODS[name], split, init) for init in inits(data).items() for name in DRAWN)


def _options(data: Path | None) -> tuple[Row, ...]:
    """Ours: with the paper's settings but for one."""
    split = IID
    return tuple(
        Row(
            name,
            {**settings, **begin, "data.partition": SPLITS[split]},
            {"split": split, "init": init},
            usual=TESTED if name in (*DRAWN, *CHOICES) else TESTED_ONCE,
            untouched=() if begin else (BEGIN,),
            run_as="FedLID" if name in CHOICES else "",
        )
        for init, begin in inits(data).items()
        for name, settings in OPTIONS.items()
    )


SCALES = {
    "smoke": Scale(
        "fedlid",
        (0,),
        {"round.rounds": 2, "train.epochs": 1, "task.backbone": {"name": "resnet10", "width": 4}},
        given={
            "task.size": 8,
            "task.server_size": 16,
            "task.most_per_class": 2,
            "train.batch_size": 64,
            "round.evaluate_every": 2,
            "round.trust": False,
        },
        rows={
            "FedCA": {"method.public": 100},
            "ResNet-50": {"task.backbone.width": 4},
            LITE0: {  # seconds a step on a CPU
                "task.backbone.small_stem": True,
                "task.most_per_class": 1,
                "data.partition.num_partitions": 2,
                "round.rounds": 1,
            },
            RESNET18: {"task.size": 32, "task.most_per_class": 1, "data.partition.num_partitions": 2},
        },
    ),
    "small": Scale(
        "fedlid",
        (0, 1, 2, 3),
        given={  # a hundred classes on ten clients, on a GPU
            "task.backbone": {"name": "resnet18", "width": 32, "small_stem": True},
            "task.server_size": 64,
            "train.epochs": 10,
            "train.batch_size": 128,
            "train.lr": 1e-3,
            "train.precision": "bf16",
            "server.epochs": 10,
            "server.batch_size": 256,
            "server.lr": 1e-3,
            "server.precision": "bf16",
            "round.rounds": 10,
            "round.trust": False,  # of which no table shows anything
        },
        rows={
            "init ImageNet": {"round.rounds": 5},  # there is less left to learn
            LITE0: {"task.backbone.small_stem": True},
            "ResNet-50": {"task.backbone.width": 32, "task.backbone.small_stem": True},
            RESNET18: {"task.size": 64},  # its stem needs larger images
        },
        choose_given=Choose(
            "score",
            {"data.validate": True, "data.test_share": 0.2, "round.rounds": 3},
            "a fifth of the training images, the same for all clients",
            derive=(image_runs.scores,),
            without=tuple(TESTED),  # then the recipe says it: after the last of three rounds
        ),
    ),
    "paper": Scale("fedlid-paper", (0, 1, 2, 3)),
}
NOTES = (
    "top-1 in percent on test images common to all clients. trained: mean over clients right after local training (the"
    " paper's number); own: with classes as common as at the client; averaged: the mean of their models; after: after"
    " the server's training, with the classifier from before it; probe: a linear classifier on the frozen body (before:"
    " of the mean of the clients' models); score, by which settings are chosen: trained, or probe where no labels are"
    " learned",
    "the same clients, initial weights and client sequence for all rows. The paper calls alpha 1 IID and 0.5 Non-IID;"
    " its ImageNet weights have seen the server's images with labels. The paper's numbers are those of ResNet-18 with"
    " ImageNet weights, on all of both data sets and at 224 pixels: rows of it are there if a file of torchvision's"
    f" weights ({WEIGHTS}.pth) lies beside the images; else the numbers stand beside EfficientNet-Lite0's",
)
COMMON: Mapping[str, Any] = {"scales": SCALES, "factor": 100.0, "adapt": adapt}
STEPS = ("trained", "trained own", "averaged", "after", "probe before", "probe")
QUOTES = (
    "the paper's numbers for FedSimCLR and FedCA are quoted from FedCA's paper (ResNet-50, 5 clients, from scratch,"
    " linear or fine-tuned classifiers), not comparable with FedLID's; rows here are our own runs, with FedLID's"
    " clients and network, and with FedCA's"
)
OF_TENTH = (
    "a tenth of each client's images is labelled, at least one of each class, and linear classifiers learn from these;"
    " FedCA, which needs no labels, trains on all images"
)


def _beside_supervised(cells: Sequence[tuple[Row, Path]]) -> list[Metrics]:
    """By how much clients are better than those of a server with all labels, of the same split and weights."""
    trained = [derived_of(path).get("accuracies", {}).get("trained") for _, path in cells]
    best = {str(row.setting): value for (row, _), value in zip(cells, trained) if row.name == BEST}
    others = [best.get(str(row.setting)) for row, _ in cells]
    return [{} if a is None or b is None else {AHEAD: a - b} for a, b in zip(trained, others)]


def _by_servers(split: str) -> Table:
    return Table(
        rows=partial(_servers, split),
        metrics=(STEPS[0], AHEAD, *STEPS[1:]),
        derive=(image_runs.accuracies, image_runs.probes),
        relate=_beside_supervised,
        notes=(*NOTES, f"{AHEAD}: points of `trained` above those of the row '{BEST}' of the same split and weights"),
        claims=said.of_servers(split),
        **COMMON,
    )


def _by_others(split: str) -> Table:
    return Table(
        rows=partial(_others, split),
        metrics=("trained", "trained own", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(*NOTES, QUOTES),
        claims=said.of_others(split),
        **COMMON,
    )


def _by_rounds(split: str) -> Table:
    return Table(
        rows=partial(_curves, split),
        metrics=("trained at *", "after at *"),
        derive=(image_runs.accuracies, image_runs.curves),
        notes=(*NOTES, "the paper draws both by rounds; the report.html of each cell has the lines"),
        **COMMON,
    )


def _by_few(scale: Scale) -> Scale:
    """Settings are chosen by a tenth of the labels, too."""
    rule = scale.choose_given
    return replace(scale, choose_given=rule and replace(rule, derive=(image_runs.few_scores,)))


# A head on a network that stays as it came: what privacy of clients costs on pictures.
_HEAD: Mapping[str, Any] = {
    **private.TESTED_ONCE,
    "server": None,
    "task.backbone": {"name": "efficientnet-lite0", "init": "imagenet", "tune": "head"},
    "task.size": 64,
    "task.padding": 0.0,  # one view of each picture: what the network sees of it is computed once
    "task.flip": 0.0,
    "round.rounds": 10,
}
_HEAD_GRIDS = private.Grids({"train.lr": (0.01, 0.03, 0.1, 0.3)}, {"train.lr": (0.03, 0.3), "privacy.clip": (2.0, 0.5)})


def _private(data: Path | None) -> tuple[Row, ...]:
    numbers = (10,) if data is None else (100, 1000)
    split = {n: {"data.partition": {"name": "iid", "num_partitions": n}} for n in numbers}
    return tuple(row for n in numbers for row in private.rows("FedAvg", split[n], n, _HEAD_GRIDS))


TABLES = {
    "private": Table(
        rows=_private,
        metrics=("top1", "noise"),
        derive=(private.tested,),
        plain=("noise",),
        settings=_HEAD,
        scales={
            "smoke": Scale("fedlid", (0,), {"round.rounds": 1, "task.size": 32, "data.size": "tiny"}),
            "small": Scale("fedlid", (0, 1, 2), choose_given=private.held_out("a part of the training pictures")),
        },
        notes=(
            "top1 in percent on the test pictures; EfficientNet-Lite0, frozen, on pictures of 64 pixels, and a linear"
            " classifier; 10 rounds of one epoch",
            *private.NOTES,
        ),
        factor=100.0,
    ),
    "table1": _by_servers(IID),
    "table2": _by_others(IID),
    "table3": _by_servers(NON_IID),
    "table4": _by_others(NON_IID),
    "table5": Table(
        rows=_few,
        metrics=("trained", "trained own", "averaged", "probe"),
        derive=(image_runs.accuracies, image_runs.few_probes),
        notes=(*NOTES, QUOTES, OF_TENTH),
        claims=said.OF_FEW,
        **{**COMMON, "scales": {name: _by_few(scale) for name, scale in SCALES.items()}},
    ),
    "fig3": _by_rounds(IID),
    "fig4": _by_rounds(NON_IID),
    "ablation": Table(
        rows=_options,
        metrics=STEPS,
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(
            *NOTES,
            "not a table of the paper: FedLID as it is printed, and with one thing changed that it leaves open",
        ),
        **COMMON,
    ),
}
