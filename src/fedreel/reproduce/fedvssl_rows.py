"""The rows of FedVSSL's tables: what is run for each, and by which row's tries its rate is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreel.playground.actions import CLASSES
from fedreel.reproduce.fedvssl_data import videos, whole_classes
from fedreel.reproduce.fedvssl_mae import KEPT
from fedreel.reproduce.fedvssl_paper import BEST, BY_PRETEXT, BY_SPLIT, MOMENTUM, T1, T2
from fedreel.reproduce.spec import Row
from fedreel.tasks.vision.evaluate.subject import UNTRAINED

MIXTURES = ((0.0, 0), (1.0, 0), (0.0, 1), (1.0, 1), (0.9, 0), (0.9, 1))
METHODS: dict[str, Mapping[str, Any]] = {
    "random weights": UNTRAINED,
    "FedAvg": {"method.name": "fedavg"},
    MOMENTUM: {"method.name": "fedavg", "train.momentum": 0.9},
    "Loss": {"method.name": "loss"},
    "FedU": {"method.name": "fedu"},
    **{f"FedVSSL {a:g}, {b}": {"method.alpha": a, "method.beta": b} for a, b in MIXTURES},
}
MIXED = tuple(name for name in METHODS if "FedVSSL" in name)
# Rates are chosen by one rule, see _chosen_by. Those of momentum .9 go as far with a third to a tenth of the rate.
RATES = {"train.lr": (0.01, 0.03, 0.1, 0.3)}  # the paper's .01 is for 571 steps a visit, 17 times as many in all
MOMENTUM_RATES = {"train.lr": (0.001, 0.003, 0.01, 0.03)}
GRIDS: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "random weights": {},
    MOMENTUM: MOMENTUM_RATES,
    "FedU": {**RATES, "method.mu": (0.03, 0.1, 0.4)},  # .4: the code of FedU's authors, for images
}
IN_ONE_PLACE: Mapping[str, Any] = {"method.name": "centralised", "train.keep_optimizer": True}
# On given data the scales say how it is trained: that does not make it what it is.
PAPER_CENTRE: Mapping[str, Any] = {
    "train.epochs": 1,
    "train.batch_size": 32,
    "train.momentum": 0.9,
    "train.schedule": "step",
    "train.milestones": [30, 60],
}
CENTRES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # of the playground and of given data
    "centralised": (IN_ONE_PLACE, IN_ONE_PLACE),
    "centralised, 30 %": ({**IN_ONE_PLACE, "round.rounds": 12}, {**IN_ONE_PLACE, "round.rounds": 27}),
}
PRETEXTS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # likewise
    "VCOP": ({"task.pretext": "vcop", "task.gap": 3}, {"task.pretext": "vcop", "task.gap": 8}),
    "Speed": ({"task.pretext": "speed"}, {"task.pretext": "speed", "task.jitter": 0.2}),
    "CtP": ({"task.pretext": "ctp"}, {"task.pretext": "ctp", "task.jitter": 0.5}),
}


def row(name: str, paper: Mapping[str, float], settings: Mapping[str, Any] = {}, **setting: str) -> list[Row]:
    """A method's row; training in one place differs between the playground and given data."""
    kept, by = _kept(name, setting), _chosen_by(name, settings, setting)
    if name not in CENTRES:
        grid = GRIDS.get(name, RATES)
        return [Row(name, {**METHODS[name], **settings}, setting, paper, grid=grid, usual=kept, chosen_by=by)]
    playground, given = ({**own, **settings} for own in CENTRES[name])
    return [
        Row(name, playground, setting, paper, only="playground", usual=kept),
        Row(name, given, setting, paper, only="data", grid=MOMENTUM_RATES, usual=kept, chosen_by=by),
    ]


def _chosen_by(name: str, settings: Mapping[str, Any], setting: Mapping[str, str]) -> Row | None:
    """The row whose tries say which rate all of its kind have: in one place, at clients with momentum, and without it,
    where that is FedAvg's or, for all mixtures, FedVSSL's; for each pretext, whatever the split. FedU's are its own: it
    has a threshold."""
    if not GRIDS.get(name, RATES) or name == "FedU":
        return None
    pretext = {key: value for key, value in setting.items() if key == "pretext"}
    model = "centralised" if name in CENTRES else name if name == MOMENTUM else BEST if name in MIXED else "FedAvg"
    own = CENTRES[model][1] if model in CENTRES else METHODS[model]
    return Row(model, {**own, **{key: settings[key] for key in settings if key != "data.partition"}}, pretext)


def _kept(name: str, setting: Mapping[str, str]) -> dict[str, Any]:
    """What Figs. 4 and 5 read of runs that tables show, too: so one run serves all of them."""
    if (
        name not in ("centralised", "FedAvg", *MIXED)
        or setting.get("pretext", "Speed") != "Speed"
        or setting.get("split", "none") != "none"
    ):
        return {}
    return {**KEPT, **({"round.divergence": True} if name == "FedAvg" else {})}


def rows_of(names: Sequence[str], columns: Sequence[str], printed: Mapping[str, Sequence[float]]) -> tuple[Row, ...]:
    return tuple(one for name in names for one in row(name, dict(zip(columns, printed.get(name, ())))))


def by_pretext(data: Path | None) -> tuple[Row, ...]:
    """Table 1."""
    rows = row("random weights", {}, pretext="none")
    return (*rows, *(one for pretext in PRETEXTS for one in _with_pretext(("centralised", "FedAvg"), pretext, data)))


def _with_pretext(names: Sequence[str], pretext: str, data: Path | None) -> list[Row]:
    settings = PRETEXTS[pretext][0 if data is None else 1]
    printed = {name: dict(zip(T1, BY_PRETEXT.get((pretext, name), ()))) for name in names}
    return [one for name in names for one in row(name, printed[name], settings, pretext=pretext)]


def by_split(data: Path | None) -> tuple[Row, ...]:
    """Table 2. Training in one place, which no division touches, is that of Tables 1 and 3, as in the paper."""
    return (*_split_up("FedAvg", data), *row("centralised", _printed(""), split="none"))


def with_momentum(data: Path | None) -> tuple[Row, ...]:
    """Ours: FedAvg of Tables 1 and 2 as it may have been run for them, beside what it is compared with."""
    names = ("centralised", "FedAvg", MOMENTUM)
    rows = [one for pretext in PRETEXTS for one in _with_pretext(names, pretext, data)]
    return (*rows, *_split_up(MOMENTUM, data), *row("centralised", _printed(""), split="none"))


def beyond_speed(data: Path | None) -> tuple[Row, ...]:
    """Ours: FedVSSL with the pretexts of Table 1 that its other tables do not have."""
    return tuple(one for pretext in ("VCOP", "CtP") for one in _with_pretext(("FedAvg", BEST), pretext, data))


def _split_up(name: str, data: Path | None) -> list[Row]:
    """Each class at one client, at two, or anywhere; as many clients in all. Kinetics' 400 classes make the paper's."""
    classes = len(CLASSES) if data is None else len({clip.label for clip in videos(data)})
    each = 8 if classes >= 80 and classes % 8 == 0 else 2
    clients = max(2 * classes // each, 2)
    splits: dict[str, dict[str, Any]] = {"IID": {"name": "iid", "num_partitions": clients}}
    if classes and classes % each == 0:
        splits[f"{each} classes"] = {"name": "paired-classes", "classes_per_client": each}
        splits["4 classes" if each == 8 else "1 class"] = whole_classes(clients, each // 2)
    if each == 8:
        splits["8 classes, as released"] = {**splits["8 classes"], "paper_released": True}
    parts = splits.items()
    return [one for split, part in parts for one in row(name, _printed(split), {"data.partition": part}, split=split)]


def _printed(split: str) -> dict[str, float]:
    return dict(zip(T2, BY_SPLIT.get(split, ())))
