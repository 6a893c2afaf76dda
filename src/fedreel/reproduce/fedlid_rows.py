"""The rows of FedLID's tables: what is run for each, and by which row's tries its settings are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreel.reproduce.fedlid_data import inits
from fedreel.reproduce.fedlid_paper import (
    BEST,
    FEW,
    IID,
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
from fedreel.reproduce.spec import Row
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
TESTED: Mapping[str, Any] = {"round.evaluate_every": 2}  # which they read, as one run with those of Tables 1 and 3
TESTED_ONCE: Mapping[str, Any] = {"round.evaluate_every": 1000}  # after the last round
TENTH: Mapping[str, Any] = {"task.label_share": image_runs.TENTH}
FEW_STEPS: Mapping[str, Any] = {"train.epochs": 10, "train.batch_size": 64}
RATES: Mapping[str, tuple[Any, ...]] = {"server.lr": (1e-3, 1e-4)}  # the paper's, and one for weights that know a lot
TEMPERATURES: Mapping[str, tuple[Any, ...]] = {"task.temperature": (0.1, 0.5)}  # the paper gives none
GRIDS: dict[str, Mapping[str, tuple[Any, ...]]] = {  # all rows with a server's rate or a contrast try the same values
    NONE: {},
    **dict.fromkeys(SUPERVISED, RATES),
    "FedSimCLR": TEMPERATURES,
    **{key: {**RATES, **TEMPERATURES} for key in (ONCE, "FedLID", "FedCA")},
}
# Settings are chosen once for each kind of training and of initial weights: with Dirichlet 1, all labels and most of
# that training. Rows of the same kind have them, too: those named here, the other split, fewer labels, FedCA's network.
CHOSEN_BY: Mapping[str, str] = {**dict.fromkeys(SUPERVISED, BEST), ONCE: "FedLID"}


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
    more: dict[str, Any] = {"grid": GRIDS[name], "usual": usual, "untouched": untouched}
    return Row(name, {**settings, **begin}, setting, paper or {}, chosen_by=_chosen_by(name, init), **more)


def _chosen_by(name: str, init: tuple[str, Mapping[str, Any]]) -> Row | None:
    """The row whose tries say what is best for all of its kind."""
    if not GRIDS[name]:
        return None
    name = CHOSEN_BY.get(name, name)
    settings = {**METHODS, **UNSUPERVISED}[name]
    return Row(name, {**settings, **init[1], "data.partition": SPLITS[IID]}, {"split": IID, "init": init[0]})


def _printed(data: Path | None) -> str:
    """The initial weights beside which the paper's numbers stand."""
    return [*inits(data)][-1] if data is not None else RESNET18


def by_servers(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 1 and 3."""
    rows = []
    for init in inits(data).items():
        for name, settings in METHODS.items():
            rows.append(_row(name, settings, split, init, printed(split, name) if init[0] == _printed(data) else {}))
    return tuple(rows)


def by_others(split: str, data: Path | None) -> tuple[Row, ...]:
    """Tables 2 and 4: methods without labels, judged by a linear classifier on what they learned; with FedLID's clients
    and networks, and with FedCA's, of which the paper quotes two numbers."""
    rows = []
    for init in inits(data).items():
        rows += [_row(name, settings, split, init) for name, settings in UNSUPERVISED.items()]
        paper = {"trained": printed(split, "FedLID")["trained"]} if init[0] == _printed(data) else {}
        rows.append(_row("FedLID", {}, split, init, paper))
    return (*rows, *(_with_others_network(name, split) for name in UNSUPERVISED))


def _with_others_network(name: str, split: str) -> Row:
    """With the network and as many clients as FedCA's paper has."""
    fewer, settings = {**SPLITS[split], "num_partitions": OTHERS_CLIENTS}, {**METHODS, **UNSUPERVISED}[name]
    paper = {"probe": QUOTED[split][name]} if name in QUOTED[split] else {}
    changed = {**settings, **OTHERS_NETWORK, "data.partition": fewer}
    more: dict[str, Any] = {"grid": GRIDS[name], "usual": TESTED_ONCE, "untouched": (BEGIN,)}
    more |= {"only": "data", "chosen_by": _chosen_by(name, ("random", {}))}  # too large for a CPU
    return Row(name, changed, others_setting(split), paper, **more)


def extra(data: Path | None) -> tuple[Row, ...]:
    """Ours: equal shares, which a caption of the paper speaks of; and FedLID with FedCA's network and clients."""
    equal = [_row(name, METHODS[name], "equal", ("random", {})) for name in (NONE, "FedLID")]
    theirs = [_with_others_network(name, split) for split in (IID, NON_IID) for name in ("FedCA", "FedLID")]
    return (*equal, *theirs)


def by_few_labels(data: Path | None) -> tuple[Row, ...]:
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


def curves(split: str, data: Path | None) -> tuple[Row, ...]:
    """Figures 3 and 4: the cells of Tables 1 and 3."""
    return tuple(_row(name, METHODS[name], split, init) for init in inits(data).items() for name in DRAWN)


def options(data: Path | None) -> tuple[Row, ...]:
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
