"""Which tasks, methods, engines and backbones there are: names to classes, imported only when used."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fedreel.errors import RecipeError, nearest
from fedreel.systems import System, built_in, resolve


class Registry(dict[str, str]):
    """What comes with fedreel, name -> `module:class`; packages add to it by entry points of its group. `section` is
    the recipe's section that names one of them and holds its settings."""

    def __init__(self, group: str, section: str) -> None:
        super().__init__()
        self.group, self.section = group, section

    def names(self) -> list[str]:
        """Built-in names and those of installed packages."""
        return sorted({*self, *self._installed()})

    def lookup(self, name: str) -> type[Any]:
        """The class of that name. Only registered names are imported: a recipe cannot name code."""
        target = self.get(name) or self._installed().get(name)
        if target is None:
            what = self.section.rpartition(".")[2]
            raise RecipeError(f"there is no {what} '{name}'", where=self.group, hint=nearest(name, self.names()))
        named = resolve(target)
        return resolve(named.cls) if isinstance(named, System) else named  # a package may name its declaration

    def name_of(self, cls: type) -> str:
        """The name that a class is registered under; of one that is not registered, its own."""
        here = f"{cls.__module__}:{cls.__qualname__}"
        for name, target in (*self.items(), *self._installed().items()):
            if target == here:
                return name
        return next((name for name in self._installed() if self.lookup(name) is cls), cls.__name__)

    def _installed(self) -> dict[str, str]:
        return _installed(self.group, tuple(sys.path))


@cache
def _installed(group: str, path: tuple[str, ...]) -> dict[str, str]:
    """Looking through all packages takes as long as the rest of reading a recipe ten times, so once for every path."""
    return {e.name: e.value for e in entry_points(group=group)}


METHODS = Registry("fedreel.methods", "method")
METHODS |= {
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
    "fedasync": "fedreel.methods.fedasync:FedAsync",
    "fedbuff": "fedreel.methods.fedbuff:FedBuff",
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
TASKS = Registry("fedreel.tasks", "task")
TASKS |= {system.task: system.cls for system in built_in()}
ENGINES = Registry("fedreel.engines", "engine")
ENGINES |= {
    "auto": "fedreel.engines.auto:AutoEngine",
    "local": "fedreel.engines.local:LocalEngine",
    "processes": "fedreel.engines.processes.engine:ProcessesEngine",
    "vector": "fedreel.engines.vector:VectorEngine",
    "streams": "fedreel.engines.streams:StreamsEngine",
    "flower-sim": "fedreel.engines.flower.cluster:FlowerSimEngine",
    "flower": "fedreel.engines.flower.engine:FlowerEngine",
}
BACKBONES = Registry("fedreel.backbones", "task.backbone")
BACKBONES |= {
    "r3d": "fedreel.models.r3d:R3DConfig",
    "frames": "fedreel.models.frames:FramesConfig",
    "resnet10": "fedreel.models.resnet:ResNet10Config",
    "resnet18": "fedreel.models.resnet:ResNet18Config",
    "resnet34": "fedreel.models.resnet:ResNet34Config",
    "resnet50": "fedreel.models.resnet:ResNet50Config",
    "efficientnet-lite0": "fedreel.models.efficientnet:EfficientNetLite0Config",
    "videomae": "fedreel.models.videomae:VideoMAEConfig",
    "vjepa2": "fedreel.models.vjepa2:VJEPA2Config",
    "vit": "fedreel.models.vit:ViTConfig",
    "dinov2": "fedreel.models.vit:DINOv2Config",
    "clip-image": "fedreel.models.clip:ClipImageConfig",
    "stgcn": "fedreel.tasks.skeleton.stgcn:STGCNConfig",
    "ctrgcn": "fedreel.tasks.skeleton.ctrgcn:CTRGCNConfig",
    "mstgcn": "fedreel.tasks.skeleton.mstgcn:MSTGCNConfig",
    "msg3d": "fedreel.tasks.skeleton.msg3d:MSG3DConfig",
}
