"""FSAR (Guo et al. 2023): its tables and figures, on the playground's owners or on given skeleton sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedreel.methods.fsar import FSAR
from fedreel.playground.sizes import owner_name
from fedreel.reproduce.spec import Choose, Claim, Row, Scale, Table
from fedreel.tasks.skeleton import analysis as skeletons
from fedreel.tasks.skeleton.joints import KINECT_V1
from fedreel.tasks.skeleton.motions import find_sets
from fedreel.tasks.skeleton.playground import OWNERS
from fedreel.tasks.skeleton.recordings import set_name

SETS = ("PKU I", "PKU II", "NTU60", "NTU120", "UESTC")
PRINTED: dict[tuple[str, str], tuple[float, ...]] = {  # Table 1
    ("ST-GCN", "vanilla"): (77.77, 48.89, 81.08, 74.77, 80.91),
    ("ST-GCN", "FedProx"): (76.85, 47.81, 81.37, 75.32, 80.88),
    ("ST-GCN", "FedBN"): (78.13, 46.49, 78.45, 72.89, 79.72),
    ("ST-GCN", "FedAGM"): (78.05, 49.13, 81.56, 76.00, 79.27),
    ("ST-GCN", "MOON"): (75.69, 46.88, 79.45, 73.70, 81.48),
    ("ST-GCN", "FSAR"): (81.96, 56.30, 91.30, 84.31, 91.88),
    ("ST-GCN", "FSAR without ATS"): (79.73, 52.38, 84.45, 76.83, 84.56),
    ("ST-GCN", "FSAR without MKD"): (81.36, 53.83, 89.50, 83.34, 90.33),
    ("CTR-GCN", "vanilla"): (81.85, 51.87, 82.91, 76.48, 81.37),
    ("CTR-GCN", "FSAR"): (84.19, 59.04, 91.64, 84.91, 92.60),
    ("MST-GCN", "vanilla"): (79.01, 50.14, 81.98, 74.93, 80.89),
    ("MST-GCN", "FSAR"): (82.48, 57.45, 90.07, 83.53, 91.53),
    ("MS-G3D", "vanilla"): (78.17, 51.89, 80.15, 75.02, 81.26),
    ("MS-G3D", "FSAR"): (82.83, 57.98, 90.98, 84.84, 91.79),
}
UNSEEN = {"vanilla": (75.81, 45.18, 81.62, 71.51, 84.89), "FSAR": (78.39, 48.83, 82.33, 73.04, 87.66)}  # Table 2
IN_PAIRS = tuple(  # of Fig. 9, as their files may be called: pku1, PKU-MMD-I, PKUMMDv1; UESTC; ntu60, nturgb+d_60
    re.compile(rf"(?i)(?<![a-z0-9]){name}(?![a-z0-9])")
    for name in (
        r"pku[ _.-]?(mmd)?[ _.-]?((part|phase|v)[ _.-]?)?(1|i)",
        "uestc",
        r"ntu[ _.-]?(rgb[ _.+-]?d)?[ _.-]?60",
    )
)
TOPOLOGIES = {  # Table 3: alpha, beta, gamma
    "graph": ("1, 0, 0", (77.77, 48.89, 81.08, 74.77, 80.91)),
    "inflected": ("1, 1, 0", (79.19, 50.76, 82.41, 78.35, 84.32)),
    "unique": ("1, 0, 1", (81.23, 53.40, 83.38, 78.23, 89.68)),
    "both": ("1, 1, 1", (82.31, 55.93, 83.50, 78.13, 91.20)),
    "learnable": ("learnable", (82.79, 57.02, 84.77, 79.41, 91.33)),
}
PLAIN: Mapping[str, Any] = {"task.backbone.topology": "graph"}
METHODS: dict[str, Mapping[str, Any]] = {
    "each set alone": {"method.name": "local-only", **PLAIN},
    "vanilla": {"method.name": "fedavg", **PLAIN},
    "FedProx": {"method.name": "fedprox", **PLAIN},
    "FedBN": {"method.name": "fedbn", **PLAIN},
    "FedAGM": {"method.name": "fedagm", **PLAIN},
    "MOON": {"method.name": "moon", **PLAIN},
    "MOON with a projection": {"method.name": "moon", "task.projection": 256, **PLAIN},  # as in its own paper
    "vanilla with a projection": {"method.name": "fedavg", "task.projection": 256, **PLAIN},
    "vanilla, equal weights": {"method.name": "fedavg", "method.weight_by": "equal", **PLAIN},
    "FSAR": {},
    "FSAR, mean over grains": {"method.grains": "mean"},  # as in the authors' code
    "FSAR, equal weights": {"method.weight_by": "equal"},
    "FSAR, teacher with U": {"method.teacher_topology": "client"},
    "FSAR without ATS": PLAIN,
    "FSAR without MKD": {"method.blocks": 0},
}
NETWORKS: dict[str, Mapping[str, Any]] = {  # quarter widths
    "ST-GCN": {"task.backbone.name": "stgcn"},  # the rest is the recipe's
    "CTR-GCN": {"task.backbone": {"name": "ctrgcn", "width": 16, "features": 128, "topology": "learnable"}},
    "MST-GCN": {"task.backbone": {"name": "mstgcn", "width": 28, "features": 112, "topology": "learnable"}},
    "MS-G3D": {"task.backbone": {"name": "msg3d", "width": 24, "features": 96, "topology": "learnable"}},
}
KEEP: Mapping[str, Any] = {"engine.keep_trained": True}  # clients' models of the first and the last round: for Figs. 5
# and 8, and for what can be read off their runs as well
RATES = {"train.lr": (0.01, 0.03, 0.1)}  # of all rows, each by the same rule
AVERAGING: dict[str, Mapping[str, Any]] = {
    "plain": {"method.lambda_": 0.0, "method.tau": 1.0, "method.mu": 0.0},
    "momentum, proximal": {},
}


def adapt(data: Path) -> dict[str, Any]:
    """What given sets ask for: their joints, and the most classes and bodies of any of them."""
    joints, classes, bodies = "kinect-v1", 2, 1
    for path in find_sets(data):
        if path.suffix != ".npz":  # NTU, PKU-MMD, UESTC
            joints, classes, bodies = "kinect-v2", max(classes, 120), 2
            continue
        with np.load(path, allow_pickle=False) as arrays:
            joints = "kinect-v2" if len(arrays["joint_names"]) > len(KINECT_V1.names) else joints
            classes, bodies = max(classes, len(arrays["class_names"])), 2 if "data2" in arrays else bodies
    return {"task.joints": joints, "task.classes": classes, "task.bodies": bodies}


def _table1() -> tuple[Row, ...]:
    rows = []
    for network, other in NETWORKS.items():
        for method in METHODS if network == "ST-GCN" else ("vanilla", "FSAR"):
            printed = PRINTED.get((network, method))
            paper = {"top1_clients": round(fmean(printed), 2)} if printed else {}
            rows.append(Row(method, {**METHODS[method], **other}, {"network": network}, paper, grid=RATES))
    layered = {"task.backbone": {**NETWORKS["MST-GCN"]["task.backbone"], "per_layer": True}}
    return (*rows, Row("FSAR, a topology a layer", layered, {"network": "MST-GCN"}, grid=RATES))


def _table2(data: Path | None) -> tuple[Row, ...]:
    names = _names(data)
    return tuple(
        Row(method, {**METHODS[method], "task.leave_out": name}, {"unseen": name}, grid=RATES)
        for name in names
        for method in ("vanilla", "FSAR")
    )


def _table3() -> tuple[Row, ...]:
    return tuple(
        _topology(label, kind, printed, averaging)
        for averaging in AVERAGING
        for kind, (label, printed) in TOPOLOGIES.items()
    )


def _topology(label: str, kind: str, printed: tuple[float, ...], averaging: str) -> Row:
    """Two of them are rows of Table 1; of vanilla the paper prints the same numbers in both tables."""
    settings, run_as = {"method.blocks": 0, "task.backbone.topology": kind, **AVERAGING[averaging]}, ""
    if (kind, averaging) == ("graph", "plain"):
        settings, run_as = {**METHODS["vanilla"]}, "vanilla"
    elif (kind, averaging) == ("learnable", "momentum, proximal"):
        run_as = "FSAR without MKD"
    paper = {"top1_clients": round(fmean(printed), 2)}
    return Row(label, settings, {"averaging": averaging}, paper, grid=RATES, run_as=run_as)


def _fig9(data: Path | None) -> tuple[Row, ...]:
    """All sets together, and two pairs of them."""
    pairs, rows = _pairs(_names(data)), []
    for sets in [(), *pairs]:
        chosen: Mapping[str, Any] = {"task.sets": list(sets)} if sets else {}
        setting = {"sets": " + ".join(sets) or "all"} if pairs else {}
        for b in range(4):
            known = "" if sets else {0: "FSAR without MKD", FSAR.blocks: "FSAR"}.get(b, "")
            if known == "FSAR":
                rows.append(Row(f"{b} blocks", {}, setting, grid=RATES, untouched=("method.blocks",), run_as=known))
            else:
                rows.append(Row(f"{b} blocks", {"method.blocks": b, **chosen}, setting, grid=RATES, run_as=known))
    return tuple(rows)


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """The paper's, where sets have the names of its own: PKU-MMD I with UESTC and with NTU-60. Else, of four sets or
    more, the first with the last and with the third."""
    known = [[name for name in names if own.search(name)] for own in IN_PAIRS]
    if all(len(found) == 1 for found in known):
        (first,), (second,), (third,) = known
        return [(first, second), (first, third)]
    return [(names[0], names[i]) for i in (-1, 2) if len(names) > 3]


def _names(data: Path | None) -> list[str]:
    return [owner_name(i) for i in range(len(OWNERS))] if data is None else [set_name(p) for p in find_sets(data)]


def _rows(*names: str) -> tuple[Row, ...]:
    return tuple(Row(name, METHODS[name], grid=RATES) for name in names)


HELD_OUT = Choose(
    "top1_clients",
    {"data.validate": True, "round.rounds": 60},  # a fifth
    "subjects held out of the training parts",
    without=tuple(KEEP),
)
SCALES = {
    "smoke": Scale("fsar", (0,), {"round.rounds": 2, "data.size": "tiny", "task.most": 16}),
    "small": Scale("fsar", (0, 1, 2, 3), given={"round.rounds": 10, "round.evaluate_every": 2}),  # an hour on 2 cores
    "medium": Scale(  # the paper's quarter width and rounds
        "fsar",
        (0, 1, 2, 3),
        {
            "round.rounds": 300,
            "round.evaluate_every": 10,
            "task.backbone": {"name": "stgcn", "width": 16, "features": 128, "topology": "learnable"},
            "task.length": 50,
            "task.settle": True,
        },
        choose_given=HELD_OUT,
    ),
    "paper": Scale(
        "fsar-paper",
        (0, 1, 2, 3),
        {"task.settle": True},
        choose_given=replace(HELD_OUT, settings={**HELD_OUT.settings, "train.milestones": [40, 52]}),
    ),
}
COMMON: Mapping[str, Any] = {
    "scales": SCALES,
    "factor": 100.0,
    "adapt": adapt,
    "plain": ("alpha/*", "beta/*", "gamma/*", "cka*", "sharpness*", "I alike*", "U alike*"),
}
NOTES = (
    "top-1 in percent: the server's model with each client's own classifier, topology and batch-norm statistics",
    "unsteady is the deviation of top-1 from round to round over the last rounds",
    "the same clients, initial weights and batches for all rows; top1_clients (paper): mean over the paper's sets",
)


def _printed(rows: Mapping[Any, tuple[float, ...]]) -> tuple[str, ...]:
    """The paper's numbers set by set: its sets are not ours, so they cannot stand in our columns."""
    named = {" ".join(k) if isinstance(k, tuple) else k: v for k, v in rows.items()}
    return tuple(f"paper, {' / '.join(SETS)}: {name} {' / '.join(map(str, v))}" for name, v in named.items())


PER_CLIENT = ("top1_clients", "top1/*", "unsteady")
TABLES = {
    "table1": Table(
        rows=_table1(),
        metrics=PER_CLIENT,
        derive=(skeletons.accuracies,),
        notes=(*NOTES, *_printed(PRINTED)),
        claims=(
            *(
                Claim("FSAR", other, "top1_clients")
                for other in dict.fromkeys(m for _, m in PRINTED)
                if other != "FSAR"
            ),
            Claim("FSAR without ATS", "vanilla", "top1_clients"),
            Claim("FSAR without MKD", "vanilla", "top1_clients"),
            Claim("FSAR without MKD", "FSAR without ATS", "top1_clients"),
            *(
                Claim(method, method, "top1_clients", settings=({"network": "CTR-GCN"}, {"network": "ST-GCN"}))
                for method in ("vanilla", "FSAR")
            ),
            Claim("FSAR", "vanilla", "unsteady", higher=False),
        ),
        **COMMON,
    ),
    "table2": Table(
        rows=_table2,
        metrics=("knn1", "knn5", "knn20"),
        derive=(skeletons.neighbours,),
        notes=(
            "k nearest neighbours on a set that took no part in training, in percent; the gallery is its train part",
            *_printed(UNSEEN),
        ),
        claims=(Claim("FSAR", "vanilla", "knn1"),),
        **COMMON,
    ),
    "table3": Table(
        rows=_table3(),
        metrics=PER_CLIENT,
        derive=(skeletons.accuracies,),
        notes=(
            *NOTES,
            "alpha, beta, gamma of A, I and U; no distillation. The paper does not say which averaging it used here,"
            " and its learnable row differs from Table 1's row without MKD, so both are given",
            *_printed(dict(TOPOLOGIES.values())),
        ),
        claims=tuple(
            Claim(better, worse, "top1_clients")
            for worse, better in combinations([n for n, _ in TOPOLOGIES.values()], 2)
        ),
        **COMMON,
    ),
    "table4": Table(
        rows=_rows("FSAR"),
        metrics=("alpha/*", "beta/*", "gamma/*"),
        derive=(skeletons.coefficients,),
        settings=KEEP,
        notes=(
            "paper, PKU II / NTU60 / NTU120 / UESTC: alpha .77 / 1.10 / .91 / .85, gamma 1.27 / .85 / 1.07 / 1.11;"
            " beta with PKU I first: .95 / 1.01 / .90 / .67 / .86",
        ),
        **COMMON,
    ),
    "fig5": Table(
        rows=_rows("each set alone", "vanilla", "FSAR"),
        metrics=("cka1", "cka2", "cka3"),
        derive=(skeletons.likeness,),
        settings=KEEP,
        notes=(
            "linear CKA between the models that clients trained in the last round, before they were averaged, after"
            " each of the three blocks, for the same input",
        ),
        **COMMON,
    ),
    "fig8": Table(
        rows=_rows("FSAR"),
        metrics=("I alike, *", "U alike, *"),
        derive=(skeletons.heat_maps,),
        settings=KEEP,
        notes=(
            "the correlation of clients' topologies after training in the first and in the last round, mean over pairs;"
            " I is averaged after every round, U never",
            "the topologies themselves are in the topology.html of each cell",
        ),
        claims=(Claim("FSAR", "FSAR", "I alike, last", than="U alike, last", ours=True),),
        **COMMON,
    ),
    "fig2": Table(
        rows=_rows("vanilla", "FSAR"),
        metrics=PER_CLIENT,
        derive=(skeletons.accuracies,),
        notes=(*NOTES, "the curves are in the report.html of each cell"),
        claims=(Claim("FSAR", "vanilla", "unsteady", higher=False),),
        **COMMON,
    ),
    "fig7": Table(
        rows=_rows("FSAR", "FSAR without MKD", "FSAR without ATS"),
        metrics=PER_CLIENT,
        derive=(skeletons.accuracies,),
        notes=(*NOTES, "the curves are in the report.html of each cell"),
        claims=tuple(
            Claim("FSAR", other, metric, higher=metric != "unsteady")
            for other in ("FSAR without MKD", "FSAR without ATS")
            for metric in ("top1_clients", "unsteady")
        ),
        **COMMON,
    ),
    "fig9": Table(
        rows=_fig9,
        metrics=PER_CLIENT,
        derive=(skeletons.accuracies,),
        notes=(*NOTES, "how many of the server's blocks the deepest stream passes; the paper shows two pairs of sets"),
        claims=(
            Claim("2 blocks", "1 blocks", "top1_clients"),
            Claim("1 blocks", "0 blocks", "top1_clients"),
            Claim("2 blocks", "3 blocks", "top1_clients"),
        ),
        **COMMON,
    ),
    "fig10": Table(
        rows=_rows("vanilla", "FSAR"),
        metrics=("sharpness", "sharpness/*"),
        derive=(skeletons.flatness,),
        settings=KEEP,
        notes=(
            "the landscapes are in the landscape.html of each cell",
            f"mean rise of the test loss within {skeletons.RADIUS} of a client's model, filter-normalised directions",
        ),
        claims=(Claim("FSAR", "vanilla", "sharpness", higher=False),),
        **COMMON,
    ),
}
