"""CFed-VS (Wan et al. 2023): its tables and figures, on the playground or on given h5 files.

F1 hardly tells methods apart on TVSum (a constant score is near the best of them), so tau and rho stand beside it,
and what chance and people reach stands in every table. A folder with TVSum's and SumMe's files gives rows for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedreel.reproduce import cfedvs_measures as measures
from fedreel.reproduce import robust
from fedreel.reproduce.cfedvs_sets import VideoSet, sets_of
from fedreel.reproduce.spec import Choose, Claim, Row, Scale, Table

METRICS = ("f1", "f1_clients", "tau", "rho")
VSLSTM: Mapping[str, Any] = {"task.summarizer": "vslstm"}
CFEDVS: Mapping[str, Any] = {"method.name": "cfedvs"}
METHODS: dict[str, Mapping[str, Any]] = {
    "FedAvg": {"method.name": "fedavg"},
    "FedAvg, frames": {"method.name": "fedavg", "method.weight_by": "frames"},
    "FedProx": {"method.name": "fedprox"},
    "IFCA": {"method.name": "ifca", "method.weight_by": "frames"},
    "FedGroup": {"method.name": "fedgroup", "method.weight_by": "frames"},
    "CFed-VS": CFEDVS,
    "CFed-VS, nothing shared": {**CFEDVS, "method.share": "none"},
    "CFed-VS, three proxies": {**CFEDVS, "method.proxies": 3},
    "CFed-VS, path-normalised": {**CFEDVS, "method.normalize": "path"},
    "grouped by length (control)": {**CFEDVS, "method.grouping": "length"},
    "grouped at random (control)": {**CFEDVS, "method.grouping": "random"},
    "grouped by topic (oracle)": {**CFEDVS, "method.grouping": "topics"},
    "each client alone": {"method.name": "local-only"},
    "centralised": {"method.name": "centralised", "train.keep_optimizer": True},
}
GROUPING = ("ifca", "fedgroup", "cfedvs")
PRINTED: dict[str, dict[str, dict[int, float]]] = {  # Table II: F1 by set and classes a client
    "FedAvg": {"TVSum": {1: 54.23, 2: 54.38, 4: 56.08}, "SumMe": {1: 43.78, 2: 49.59}},
    "FedProx": {"TVSum": {1: 55.65, 2: 54.63, 4: 57.42}, "SumMe": {1: 43.62, 2: 50.77}},
    "IFCA": {"TVSum": {1: 57.29, 2: 57.94, 4: 58.51}, "SumMe": {1: 47.23, 2: 51.41}},
    "FedGroup": {"TVSum": {1: 57.41, 2: 58.39, 4: 58.74}, "SumMe": {1: 47.72, 2: 51.59}},
    "CFed-VS": {"TVSum": {1: 57.91, 2: 58.86, 4: 59.98}, "SumMe": {1: 48.20, 2: 52.13}},
}
TABLE1 = {  # Max - min, mean, rounds by set and classes a client; 0 is IID
    "TVSum": {1: (10.98, 49.29, 75), 4: (5.21, 52.08, 46), 0: (2.23, 53.14, 17)},
    "SumMe": {1: (12.19, 33.62, 64), 0: (4.87, 36.48, 18)},
}
CENTRAL = {"TVSum": 54.27, "SumMe": 37.72}
MODELS: dict[str, Mapping[str, Any]] = {
    "vsLSTM": VSLSTM,
    "attention": {"task.summarizer": "attention"},
    "plain Transformer": {"task.attention": "plain"},
    "Mixture Transformer": {},
    "Mixture Transformer, Eq. 5 literal": {"task.attention": "literal"},
    "Mixture Transformer, Eqs. 4, 5 literal": {"task.attention": "literal", "task.block": "literal"},
}
MODEL = "Mixture Transformer"
PAPER = {  # Tables III and IV, of the Mixture Transformer
    "TVSum": {"f1": 63.8, "tau": 0.098, "rho": 0.149},
    "SumMe": {"f1": 55.1, "tau": 0.102, "rho": 0.107},
}
PARTS = 3  # of videos for each client of Fig 7: with fewer, many hold parts of one video alone and test nothing
GRID = {"train.lr": (1e-4, 5e-4), "train.epochs": (4, 1)}  # of all rows, each by the same rule


def row(of: VideoSet, name: str, settings: Mapping[str, Any], setting: Mapping[str, Any], **more: Any) -> Row:
    """A row of one set, with as many groups as the paper has for it where its method groups clients. The playground's
    videos are cut only where they are dealt out: its owners have enough of them."""
    groups = {"method.groups": of.groups} if settings.get("method.name") in GROUPING else {}
    parts = {"task.fragments": of.fragments} if "data.partition" in settings and not of.path else {}
    settings = {**settings, **of.source}
    return Row(name, settings, {**of.label, **setting}, usual={**of.usual, **groups, **parts}, **more)


def classes(n: int, clients: int = 10) -> dict[str, Any]:
    """Clients with so many categories each; 0 is IID."""
    if not n:
        return {"data.partition": {"name": "iid", "num_partitions": clients}}
    return {"data.partition": {"name": "pathological", "num_partitions": clients, "num_classes_per_partition": n}}


def divisions(of: VideoSet, asked: Sequence[int]) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Classes a client, the settings and the label of each division; the playground has owners."""
    if of.path is None:
        return [(0, {}, {"clients": "owners"})]
    return [(n, classes(n), dealt(of, n)) for n in asked]


def dealt(of: VideoSet, n: int) -> dict[str, str]:
    """The label of a division with so many categories a client."""
    return {"clients": f"{n} of {of.categories} classes" if n else "IID"}


def references(of: VideoSet, setting: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    kinds = ("random", "constant", "centre", "human")
    return [row(of, k, settings, setting, compute=partial(measures.without_training, k)) for k in kinds]


def trained(of: VideoSet, name: str, settings: Mapping[str, Any], setting: Mapping[str, Any], **more: Any) -> Row:
    return row(of, name, settings, setting, grid=GRID, **more)


def _table1(of: VideoSet) -> list[Row]:
    """Each division has other test videos, hence its own centralised model and its own chance."""
    rows = []
    for n in (*of.skewed, 0):
        split, label, printed = classes(n), dealt(of, n), TABLE1.get(of.name, {}).get(n)
        paper = dict(zip(("max_min", "f1_clients", "rounds_to_target"), printed)) if printed else {}
        rows.append(trained(of, _held(n), {**VSLSTM, **METHODS["FedAvg, frames"], **split}, label, paper=paper))
        paper = {"f1_clients": CENTRAL[of.name]} if of.name in CENTRAL and not n else {}
        rows.append(trained(of, "centralised", {**VSLSTM, **METHODS["centralised"], **split}, label, paper=paper))
        rows += references(of, label, split)
    return rows


def _held(n: int) -> str:
    return f"{n} {'class' if n == 1 else 'classes'} a client" if n else "IID clients"


def _table2(of: VideoSet) -> list[Row]:
    rows = []
    for n, split, label in divisions(of, of.classes):
        for name, method in METHODS.items():
            printed = PRINTED.get(name, {}).get(of.name, {}).get(n)
            paper = {} if printed is None else {"f1_clients": printed}
            made = trained(of, name, {**method, **split}, label, paper=paper)
            if name.endswith("(oracle)") and n == 1:  # as many groups as there are categories
                made = replace(made, settings={**made.settings, "method.groups": of.categories})
            rows.append(made)
        rows += references(of, label, split)
    return rows


def _models(metrics: tuple[str, ...], of: VideoSet) -> list[Row]:
    """Centralised, whole videos; where the published splits lie beside the data, a seed is one of them."""
    split = {"data.partition": {"name": "iid", "num_partitions": 5}, "task.fragments": 0, **of.splits}
    printed = {m: v for m, v in PAPER.get(of.name, {}).items() if m in metrics}
    rows = [
        trained(of, k, {**METHODS["centralised"], **s, **split}, {}, paper=printed if k == MODEL else {})
        for k, s in MODELS.items()
    ]
    return [*rows, *references(of, {}, split)]


def _fig2(of: VideoSet) -> list[Row]:
    names = ("FedAvg, frames", "FedAvg", "centralised")
    rows = [trained(of, n, {**VSLSTM, **METHODS[n], **classes(0)}, dealt(of, 0)) for n in names]
    return [*rows, *references(of, dealt(of, 0), classes(0))[:1]]


def _fig5(of: VideoSet) -> list[Row]:
    ((_, split, label),) = divisions(of, (of.fig5,))
    names = ("IFCA", "FedGroup", "CFed-VS", "centralised")
    rows = [trained(of, n, {**METHODS[n], **split}, label) for n in names]
    return [*rows, *references(of, label, split)[:1]]


def _fig6(of: VideoSet) -> list[Row]:
    ((_, split, label),) = divisions(of, (1,))
    rows = []
    for m in of.tried:
        name = f"{m} groups, the paper's choice" if m == of.groups and of.path else f"{m} groups"
        rows.append(trained(of, name, {**CFEDVS, "method.groups": m, **split}, label))
    return rows


def _fig7(of: VideoSet) -> list[Row]:
    return [
        trained(of, name, {**METHODS[name], **classes(1, k)}, {"clients": k})
        for k in of.clients
        if k == 10 or k * PARTS <= of.videos * of.fragments
        for name in ("FedAvg", "CFed-VS")
    ]


def _robust(of: VideoSet) -> list[Row]:
    """Of given data each client has one category, or all have some of each."""
    made = []
    for n, hostile in ((1, robust.HOSTILE), (0, robust.FEWER)) if of.path else ((None, robust.FEWER),):
        split = {} if n is None else classes(n)
        label = {**of.label, **({"clients": "owners"} if n is None else dealt(of, n))}
        made += robust.rows(CAP, {**METHODS["FedAvg"], **split, **of.source}, label, hostile)
    return [replace(row, usual=of.usual) for row in made]


def rows_of(make: Callable[[VideoSet], list[Row]], data: Path | None) -> tuple[Row, ...]:
    return tuple(made for of in sets_of(data) for made in make(of))


def remark(rows: Sequence[tuple[Row, Sequence[Path]]]) -> list[str]:
    """How each set is used, then the pairs of videos."""
    given = {row.settings["data.source"]: row.settings for row, _ in rows if "data.source" in row.settings}
    sets = [replace(sets_of(Path(file))[0], public=own["data.public"]) for file, own in given.items()]
    notes = [of.note(own.get("task.splits", "")) for of, own in zip(sets, given.values())]
    return [*notes, *measures.remark(rows)]


CAP = 0.04  # about twice the farthest that an honest client moves (round.divergence)
GIVEN: Mapping[str, Any] = {"task.width": 256, "task.blocks": 2, "task.hidden": 256, "train.lr": 1e-4}
BRIEF: Mapping[str, Any] = {
    "task.width": 16,
    "task.blocks": 1,
    "task.hidden": 16,
    "train.epochs": 1,
    "round.rounds": 1,
    "round.trust": False,  # no table shows how far its models can be believed, and asking takes longer than training
}
BRIEFLY = {"train.lr": 5e-4, "train.epochs": 1, "task.fragments": 0, "round.rounds": 12}
HELD_OUT = Choose("tau", {"data.validate": True, "round.rounds": 10}, "videos held out of the training parts")  # half


def of_paper(rounds: int) -> dict[str, Any]:
    """The paper's epochs, and the rate of each row chosen by half of the rounds."""
    settings = {**HELD_OUT.settings, "round.rounds": rounds // 2}
    return {
        "settings": {"round.rounds": rounds},
        "choose_given": replace(HELD_OUT, settings=settings, fixed=("train.epochs",)),
    }


SCALES = {
    "smoke": Scale("cfedvs", (0,), BRIEF),
    "small": Scale(
        "cfedvs",
        (0, 1, 2, 3),
        {"round.evaluate_every": 5},
        given=GIVEN,
        choose_given=HELD_OUT,
    ),
    "paper": Scale("cfedvs-paper", (0, 1, 2, 3, 4), **of_paper(200)),
}
CURVES = {**SCALES, "small": replace(SCALES["small"], settings={"round.evaluate_every": 1})}
FEWER = {**SCALES, "paper": replace(SCALES["paper"], **of_paper(100))}
NOTES = (
    "f1 in percent; f1_clients is the mean over clients; tau and rho are rank correlations with the annotators",
    "a seed has its own split, fragments and proxy; within a seed and setting all rows have the same clients and tests",
)
DIVISIONS = (
    "rows with other clients have other test videos under the same seed (of the playground the same, dealt out"
    " otherwise): a claim that compares the two compares these, too",
)
GAINS = (f"f1_gain, tau_gain: mean difference to {measures.REFERENCE} over the same test videos",)
TARGET = (
    f"rounds_to_target, rounds_to_tau: first tested round in which the clients' mean F1, tau is {measures.SHARE:.0%}"
    " of the way from random scores to the centralised model, both on the tests of the same clients; one more than"
    " there were if none is. The paper counts to F1 48 (TVSum) and 30 (SumMe), which random scores reach here",
)
RIVALS = (
    "paper, SumMe / TVSum, not run here: F1 DPP-LSTM 38.6 / 54.7, SUM-GAN 41.7 / 54.3, Cycle-SUM 41.9 / 57.6,"
    " DMASum 54.3 / 61.4, SumGraph 51.4 / 63.9, RSGN 45.0 / 61.0",
    "paper, tau rho, not run here: DPP-LSTM TVSum .042 .055; SUM-GAN SumMe .049 .066, TVSum .024 .031;"
    " SumGraph TVSum .094 .138; RSGN SumMe .083 .085, TVSum .083 .090",
)
COMMON: Mapping[str, Any] = {
    "factor": 100.0,
    "plain": ("tau", "rho", "tau_gain", "rounds_to_*", "ari", "length_correlation"),
    "derive": (measures.derive, measures.by_video, measures.curves),
    "relate": measures.relate,
    "remark": remark,
    "follow": ("data.seed",),
}


def table(
    make: Callable[[VideoSet], list[Row]], metrics: tuple[str, ...], claims: Sequence[Claim], **more: Any
) -> Table:
    notes = (*NOTES, *more.pop("notes", ()))
    scales = more.pop("scales", SCALES)
    return Table(partial(rows_of, make), metrics, scales, notes=notes, claims=tuple(claims), **{**COMMON, **more})


def ahead(
    better: str,
    worse: Sequence[str],
    *metrics: str,
    higher: bool = True,
    ours: Sequence[str] = ("tau", "rounds_to_tau"),  # metrics that the paper does not print here
    of: str = "",  # the division of the first, where those of the others are not the same
) -> list[Claim]:
    settings: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"clients": of} if of else {}, {})
    return [Claim(better, other, metric, higher, metric in ours, settings) for other in worse for metric in metrics]


CONTROLS = ("grouped at random (control)", "grouped by length (control)")
FEWER_CLASSES = ("4 classes a client", "2 classes a client", "1 class a client")
OTHER_MODELS = ("vsLSTM", "attention", "plain Transformer")
TABLES = {
    "table1": table(
        _table1,
        ("f1_clients", "max_min", "rounds_to_target", "rounds_to_tau", "tau", "rho"),
        [
            *ahead("IID clients", FEWER_CLASSES, "f1_clients", "tau", of="IID"),
            *ahead("4 classes a client", ("1 class a client",), "f1_clients", "tau", of="4 of 10 classes"),
            *ahead("centralised", ("IID clients",), "f1_clients", "tau"),
            *(
                claim
                for metric in ("max_min", "rounds_to_target", "rounds_to_tau")
                for claim in (
                    *ahead("IID clients", FEWER_CLASSES[::2], metric, higher=False, of="IID"),
                    *ahead("4 classes a client", ("1 class a client",), metric, higher=False, of="4 of 10 classes"),
                )
            ),
        ],
        notes=(*DIVISIONS, *TARGET),
        scales=CURVES,
    ),
    "table2": table(
        _table2,
        (*METRICS, "f1_gain", "tau_gain", "max_min", "ari", "length_correlation"),
        [
            *ahead("CFed-VS", ("FedGroup", "IFCA", "FedProx", "FedAvg"), "f1_clients", "tau"),
            *ahead("FedGroup", ("IFCA", "FedProx", "FedAvg"), "f1_clients"),
            *ahead("IFCA", ("FedProx", "FedAvg"), "f1_clients"),
            *ahead("CFed-VS", CONTROLS, "f1_clients", "tau", ours=("f1_clients", "tau")),
            *(
                Claim(name, name, "f1_clients", settings=({"clients": more}, {"clients": fewer}))
                for name in PRINTED
                for more, fewer in (("4 of 10 classes", "1 of 10 classes"), ("2 of 3 classes", "1 of 3 classes"))
            ),
            *(  # the same clients: the Mixture Transformer beside the vsLSTM of Table 1
                Claim("FedAvg", other, "f1_clients", second="table1")
                for other in ("1 class a client", "4 classes a client")
            ),
        ],
        notes=(*DIVISIONS, *GAINS),
    ),
    "table3": table(
        partial(_models, ("f1",)),
        ("f1", "tau", "rho"),
        ahead(MODEL, OTHER_MODELS, "f1", "tau", ours=("f1", "tau")),
        notes=RIVALS[:1],
    ),
    "table4": table(
        partial(_models, ("tau", "rho")),
        ("tau", "rho"),
        [
            *ahead(MODEL, ("random",), "tau", "rho", ours=()),
            *ahead(MODEL, OTHER_MODELS, "tau", "rho", ours=("tau", "rho")),
        ],
        notes=RIVALS[1:],
    ),
    "fig2": table(
        _fig2,
        (*METRICS, "f1_gain", "tau_gain", "rounds_to_target", "rounds_to_tau"),
        [
            *ahead("FedAvg, frames", ("FedAvg",), "f1_clients", "tau"),
            *ahead("FedAvg, frames", ("FedAvg",), "rounds_to_target", "rounds_to_tau", higher=False),
        ],
        notes=(*TARGET, *GAINS),
        scales=CURVES,
    ),
    "fig5": table(
        _fig5,
        ("f1_clients", "rounds_to_target", "rounds_to_tau", "tau"),
        [
            *ahead("CFed-VS", ("IFCA", "FedGroup"), "rounds_to_target", "rounds_to_tau", higher=False),
            *ahead("CFed-VS", ("IFCA", "FedGroup"), "f1_clients", "tau"),
        ],
        notes=TARGET,
        scales=CURVES,
    ),
    "fig6": table(
        _fig6,
        (*METRICS, "ari"),
        [
            *ahead("3 groups, the paper's choice", ("2 groups", "4 groups"), "f1_clients", "tau"),
            *ahead("2 groups, the paper's choice", ("3 groups",), "f1_clients", "tau"),
        ],
        scales=FEWER,
    ),
    "robust": Table(
        partial(rows_of, _robust),
        ("tau", "rho", "f1"),
        {"smoke": SCALES["smoke"], "small": Scale("cfedvs", (0, 1, 2), BRIEFLY)},
        settings={"round.trust": False, "round.evaluate_every": 1000},  # tested after the last round
        notes=(*NOTES, *robust.NOTES, f"norm cap: max_change = {CAP:g}"),
        factor=100.0,
        plain=("tau", "rho"),
        follow=("data.seed",),
    ),
    "fig7": table(
        _fig7,
        ("f1_clients", "max_min", "tau", "f1_gain", "tau_gain"),
        [
            *ahead("CFed-VS", ("FedAvg",), "f1_clients", "tau"),
            *ahead("CFed-VS", ("FedAvg",), "max_min", higher=False),
        ],
        notes=GAINS,
    ),
}
