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
from fedreel.reproduce.fedlid_data import WEIGHTS, adapt, adapt_without_server
from fedreel.reproduce.fedlid_paper import AHEAD, BEST, IID, LITE0, NON_IID, NONE, RESNET18
from fedreel.reproduce.fedlid_rows import (
    FEW_STEPS,
    TESTED,
    by_few_labels,
    by_others,
    by_servers,
    curves,
    extra,
    options,
)
from fedreel.reproduce.fedlid_work import work
from fedreel.reproduce.spec import Choose, Metrics, Row, Scale, Table
from fedreel.tasks.image import analysis as image_runs

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
                "train.batch_size": 200,
                "server.batch_size": 200,
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
            "train.epochs": 5,
            "train.batch_size": 128,
            "train.lr": 1e-3,
            "train.precision": "bf16",
            "server.epochs": 5,
            "server.batch_size": 256,
            "server.lr": 1e-3,
            "server.precision": "bf16",
            "round.rounds": 10,
            "round.trust": False,  # of which no table shows anything
        },
        rows={
            "init ImageNet": {"round.rounds": 5, "train.epochs": 3, "server.epochs": 3},  # less is left to learn
            LITE0: {"task.backbone.small_stem": True},
            "ResNet-50": {"task.backbone.width": 16, "task.backbone.small_stem": True, "round.rounds": 5},
            RESNET18: {"task.size": 64},  # its stem needs larger images
        },
        choose_given=Choose(
            "score",
            {"data.validate": True, "data.test_share": 0.2, "round.rounds": 3},
            "a fifth of the training images, the same for all clients, with Dirichlet 1 and all labels, once for each"
            " kind of training and of initial weights",
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
COMMON: Mapping[str, Any] = {"scales": SCALES, "factor": 100.0, "adapt": adapt, "work": work}
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
        rows=partial(by_servers, split),
        metrics=(STEPS[0], AHEAD, *STEPS[1:]),
        derive=(image_runs.accuracies, image_runs.probes),
        relate=_beside_supervised,
        notes=(*NOTES, f"{AHEAD}: points of `trained` above those of the row '{BEST}' of the same split and weights"),
        claims=said.of_servers(split),
        **COMMON,
    )


def _by_others(split: str) -> Table:
    return Table(
        rows=partial(by_others, split),
        metrics=("trained", "trained own", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(*NOTES, QUOTES),
        claims=said.of_others(split),
        **COMMON,
    )


def _by_rounds(split: str) -> Table:
    return Table(
        rows=partial(curves, split),
        metrics=("trained at *", "after at *"),
        derive=(image_runs.accuracies, image_runs.curves),
        notes=(*NOTES, "the paper draws both by rounds; the report.html of each cell has the lines"),
        **COMMON,
    )


def _by_few(scale: Scale) -> Scale:
    """Of so few images, clients of the paper make two steps in an epoch, and 20 in a round. What is tried, with all
    labels, is as in the other tables."""
    rule, pretrained = scale.choose_given, "init ImageNet"
    assert rule is not None
    usual = {key: scale.given[key] for key in FEW_STEPS}
    tried = {
        "FedLID": usual,
        f"FedLID & {pretrained}": {**usual, "train.epochs": scale.rows[pretrained]["train.epochs"]},
    }
    rows = {**scale.rows, **dict.fromkeys((NONE, "FedLID"), FEW_STEPS)}
    return replace(scale, rows=rows, choose_given=replace(rule, rows=tried))


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
        adapt=adapt_without_server,
        scales={
            "smoke": Scale(
                "fedlid",
                (0,),
                {"round.rounds": 1, "task.size": 32, "data.size": "tiny"},
                given={"task.most_per_class": 20},  # for a thousand clients
            ),
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
        rows=by_few_labels,
        metrics=("trained", "trained own", "averaged", "probe"),
        derive=(image_runs.accuracies, image_runs.few_probes),
        notes=(*NOTES, QUOTES, OF_TENTH),
        claims=said.OF_FEW,
        **{**COMMON, "scales": {**SCALES, "small": _by_few(SCALES["small"])}},
    ),
    "fig3": _by_rounds(IID),
    "fig4": _by_rounds(NON_IID),
    "extra": Table(
        rows=extra,
        metrics=("trained", "trained own", "averaged", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(
            *NOTES,
            "not a table of the paper: equal shares, and FedLID with the network and clients of FedCA's paper",
        ),
        claims=said.OF_EXTRA,
        **COMMON,
    ),
    "ablation": Table(
        rows=options,
        metrics=STEPS,
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(
            *NOTES,
            "not a table of the paper: FedLID as it is printed, and with one thing changed that it leaves open",
        ),
        **COMMON,
    ),
}
