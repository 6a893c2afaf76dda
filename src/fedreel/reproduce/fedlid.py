"""FedLID (Psaltis et al. 2023): its tables and figures, on the playground's pictures or on given images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedreel.errors import DataError
from fedreel.reproduce import private
from fedreel.reproduce.spec import Choose, Claim, Row, Scale, Table
from fedreel.tasks.image import analysis as image_runs

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
LITE0, RESNET18 = "ImageNet, EfficientNet-Lite0", "ImageNet, ResNet-18"  # initial weights; the second is the paper's
WEIGHTS = "resnet18*"  # a file beside the images, of torchvision's weights
OTHERS_NETWORK: Mapping[str, Any] = {"task.backbone.name": "resnet50"}  # FedCA's paper, from random weights
OTHERS_CLIENTS = 5
BEGIN = "task.backbone.init"  # rows from random weights leave it empty
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
RATES: Mapping[str, tuple[Any, ...]] = {"server.lr": (1e-3, 1e-4)}  # the paper's, and one for weights that know a lot
TEMPERATURES: Mapping[str, tuple[Any, ...]] = {"task.temperature": (0.1, 0.5)}  # the paper gives none
GRIDS: dict[str, Mapping[str, tuple[Any, ...]]] = {  # all rows with a server's rate or a contrast try the same values
    NONE: {},
    **dict.fromkeys(SUPERVISED, RATES),
    "FedSimCLR": TEMPERATURES,
    **{key: {**RATES, **TEMPERATURES} for key in (ONCE, "FedLID", "FedCA")},
}


def adapt(data: Path) -> dict[str, Any]:
    """Given data are a folder with two sources, `clients*` and `server*`: folders, or zips or tars of images; and a
    file of torchvision's weights of ResNet-18, if there is to be a row that begins with them."""
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
    return {"data.source": sources["clients"], "data.public": sources["server"]}


def _weights(data: Path) -> Path | None:
    found = sorted(p for p in data.glob(WEIGHTS) if p.suffix in (".pth", ".pt", ".safetensors"))
    if len(found) > 1:
        raise DataError(
            "there is more than one file of weights", where=str(data), found=", ".join(p.name for p in found)
        )
    return found[0].resolve() if found else None


def _inits(data: Path | None) -> dict[str, Mapping[str, Any]]:
    """What models begin with. Weights of ImageNet are for given data: the playground's pictures are too small a world;
    those of ResNet-18 must be given with them."""
    inits: dict[str, Mapping[str, Any]] = {"random": {}}
    if data is not None:
        inits[LITE0] = {"task.backbone": {"name": "efficientnet-lite0", "init": "imagenet"}}
        if (file := _weights(data)) is not None:
            inits[RESNET18] = {"task.backbone": {"name": "resnet18", "init": str(file)}}
    return inits


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
    return Row(name, {**settings, **begin}, setting, paper or {}, grid=GRIDS[name], untouched=untouched)


def _printed(data: Path | None) -> str:
    """The initial weights beside which the paper's numbers stand."""
    return [*_inits(data)][-1] if data is not None else RESNET18


def _servers(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 1 and 3."""
    rows = []
    for init in _inits(data).items():
        for name, settings in METHODS.items():
            share = name.rpartition(", ")[2].removesuffix(" %") if name in SUPERVISED else name
            shown = share in PRINTED[split] and init[0] == _printed(data)
            rows.append(_row(name, settings, split, init, {"trained": PRINTED[split][share]} if shown else {}))
    if split == "Dirichlet 1":
        rows += [_row(name, METHODS[name], "equal", ("random", {})) for name in (NONE, "FedLID")]
    return tuple(rows)


def _others(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 2 and 4: methods without labels, judged by a linear classifier on what they learned; with FedLID's clients
    and networks, and with FedCA's."""
    rows = []
    for init in _inits(data).items():
        rows += [_row(name, settings, split, init) for name, settings in UNSUPERVISED.items()]
        paper = {"trained": PRINTED[split]["FedLID"]} if init[0] == _printed(data) else {}
        rows.append(_row("FedLID", {}, split, init, paper))
    fewer, setting = {**SPLITS[split], "num_partitions": OTHERS_CLIENTS}, _others_setting(split)
    for name, settings in {**UNSUPERVISED, "FedLID": {}}.items():
        paper = {"probe": QUOTED[split][name]} if name in QUOTED[split] else {}
        changed = {**settings, **OTHERS_NETWORK, "data.partition": fewer}
        made = Row(name, changed, setting, paper, only="data", grid=GRIDS[name], untouched=(BEGIN,))
        rows.append(made)  # too large for a CPU
    return tuple(rows)


def _others_setting(split: str) -> dict[str, str]:
    return {"split": f"{split}, {OTHERS_CLIENTS} clients", "init": "random, ResNet-50"}


def _few(data: Path | None) -> tuple[Row, ...]:
    """Table 5."""
    rows, tenth = [], {"task.label_share": 0.1}
    for split, (ca, lid) in FEW.items():
        for init in _inits(data).items():
            shown = init[0] == _printed(data)
            rows += [
                _row("FedCA", {**UNSUPERVISED["FedCA"], **tenth}, split, init, {"probe": ca} if shown else {}),
                _row(NONE, {**METHODS[NONE], **tenth}, split, init),
                _row("FedLID", tenth, split, init, {"trained": lid} if shown else {}),
            ]
    return tuple(rows)


def _curves(split: str, data: Path | None) -> tuple[Row, ...]:
    """Figures 3 and 4: the cells of Tables 1 and 3."""
    return tuple(
        _row(name, METHODS[name], split, init) for init in _inits(data).items() for name in (NONE, BEST, "FedLID")
    )


def _options(data: Path | None) -> tuple[Row, ...]:
    """Ours: with the paper's settings but for one."""
    split = "Dirichlet 1"
    return tuple(
        Row(
            name,
            {**settings, **begin, "data.partition": SPLITS[split]},
            {"split": split, "init": init},
            untouched=() if begin else (BEGIN,),
        )
        for init, begin in _inits(data).items()
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
            "round.evaluate_every": 1,  # so that tables and figures share their cells
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
            derive=(image_runs.accuracies, image_runs.probes),
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
TENTH = (
    "a tenth of each client's images is labelled, at least one of each class; FedCA, which needs no labels, trains on"
    " all of them, and its linear classifier has the same tenth"
)
BEST = f"supervised server, {100 * SHARES[-1]:.0f} %"
AHEAD = (
    Claim("FedLID", BEST, "trained"),
    *(Claim("FedLID", other, "trained", ours=True) for other in (NONE, ONCE)),  # which the paper does not run
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
        rows=partial(_others, split),
        metrics=("trained", "trained own", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(*NOTES, QUOTES),
        claims=(
            Claim("FedCA", "FedSimCLR", "probe"),
            Claim("FedLID", "FedCA", "probe", ours=True),
            *(  # as printed: each with its own network, clients and measure
                Claim("FedLID", other, "trained", settings=({"split": split, "init": init}, theirs), than="probe")
                for theirs in (_others_setting(split),)
                for init in (RESNET18, LITE0)
                for other in UNSUPERVISED
            ),
        ),
        **COMMON,
    )


def _by_rounds(split: str) -> Table:
    return Table(
        rows=partial(_curves, split),
        settings={"round.evaluate_every": 1},
        metrics=("trained at *", "after at *"),
        derive=(image_runs.accuracies, image_runs.curves),
        notes=(*NOTES, "the paper draws both by rounds; the report.html of each cell has the lines"),
        **COMMON,
    )


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
    "table1": _by_servers("Dirichlet 1"),
    "table2": _by_others("Dirichlet 1"),
    "table3": _by_servers("Dirichlet 0.5"),
    "table4": _by_others("Dirichlet 0.5"),
    "table5": Table(
        rows=_few,
        metrics=("trained", "trained own", "averaged", "probe"),
        derive=(image_runs.accuracies, image_runs.probes),
        notes=(*NOTES, QUOTES, TENTH),
        claims=(
            Claim("FedLID", NONE, "trained", ours=True),
            Claim("FedLID", "FedCA", "trained", than="probe"),  # as printed
            Claim("FedLID", "FedCA", "probe", ours=True),
        ),
        **COMMON,
    ),
    "fig3": _by_rounds("Dirichlet 1"),
    "fig4": _by_rounds("Dirichlet 0.5"),
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
