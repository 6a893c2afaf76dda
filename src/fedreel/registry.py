"""Which tasks, methods and engines there are: names to classes, imported only when used."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from fedreel.errors import RecipeError, nearest
from fedreel.systems import System, built_in, resolve

METHODS = {
    "fedavg": "fedreel.methods.fedavg:FedAvg",
    "fedprox": "fedreel.methods.fedprox:FedProx",
    "fedbn": "fedreel.methods.fedbn:FedBN",
    "fedavgm": "fedreel.methods.fedavgm:FedAvgM",
    "fedadam": "fedreel.methods.fedopt:FedAdam",
    "fedyogi": "fedreel.methods.fedopt:FedYogi",
    "fedadagrad": "fedreel.methods.fedopt:FedAdagrad",
    "scaffold": "fedreel.methods.scaffold:SCAFFOLD",
    "fednova": "fedreel.methods.fednova:FedNova",
    "feddyn": "fedreel.methods.feddyn:FedDyn",
    "ditto": "fedreel.methods.ditto:Ditto",
    "fedper": "fedreel.methods.fedper:FedPer",
    "fedrep": "fedreel.methods.fedrep:FedRep",
    "fedagm": "fedreel.methods.fedagm:FedAGM",
    "moon": "fedreel.methods.moon:MOON",
    "loss": "fedreel.methods.loss:LossWeighted",
    "fedu": "fedreel.methods.fedu:FedU",
    "cfedvs": "fedreel.methods.cfedvs:CFedVS",
    "ifca": "fedreel.methods.ifca:IFCA",
    "fedgroup": "fedreel.methods.fedgroup:FedGroup",
    "fsar": "fedreel.methods.fsar:FSAR",
    "fedvmr": "fedreel.methods.fedvmr:FedVMR",
    "fedcmr": "fedreel.methods.fedcmr:FedCMR",
    "cyclic": "fedreel.methods.cyclic:Cyclic",
    "fedvssl": "fedreel.methods.fedvssl:FedVSSL",
    "fedlid": "fedreel.methods.fedlid:FedLID",
    "fedsimclr": "fedreel.methods.fedsimclr:FedSimCLR",
    "fedca": "fedreel.methods.fedca:FedCA",
    "centralised": "fedreel.methods.baselines:Centralised",
    "local-only": "fedreel.methods.baselines:LocalOnly",
}
TASKS = {system.task: system.cls for system in built_in()}
ENGINES = {
    "local": "fedreel.engines.local:LocalEngine",
    "vector": "fedreel.engines.vector:VectorEngine",
    "streams": "fedreel.engines.streams:StreamsEngine",
    "flower-sim": "fedreel.engines.flower.engine:FlowerSimEngine",
    "flower": "fedreel.engines.flower.engine:FlowerEngine",
}

_GROUPS = {id(METHODS): "fedreel.methods", id(TASKS): "fedreel.tasks", id(ENGINES): "fedreel.engines"}


def names(table: dict[str, str]) -> list[str]:
    """Built-in names and those of installed packages (entry points `fedreel.methods`, `.tasks`, `.engines`)."""
    return sorted({*table, *_installed(table)})


def lookup(table: dict[str, str], name: str) -> type[Any]:
    """The class of that name. Only registered names are imported: a recipe cannot name code."""
    target = table.get(name) or _installed(table).get(name)
    if target is None:
        raise RecipeError(f"there is no '{name}'", where=_GROUPS[id(table)], hint=nearest(name, names(table)))
    named = resolve(target)
    return resolve(named.cls) if isinstance(named, System) else named


def _installed(table: dict[str, str]) -> dict[str, str]:
    return {e.name: e.value for e in entry_points(group=_GROUPS[id(table)])}
