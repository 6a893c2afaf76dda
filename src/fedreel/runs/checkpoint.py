"""Checkpoints: safetensors + JSON in a folder that appears whole or not at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedreel.core.server import ServerState
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.errors import RunError
from fedreel.machine.files import new_folder
from fedreel.machine.records import parse_json

_KEEP = 2
_DAMAGE = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError),
    *(RecursionError, StopIteration, SafetensorError),
)


@dataclass(frozen=True)
class Snapshot:
    """A federation at one moment, copied, so that it can be written while the next round is under way."""

    round: int
    tensors: dict[str, Tensor]
    content: dict[str, Any]

    @staticmethod
    def of(progress: ServerState, marks: dict[str, int]) -> Snapshot:
        """`marks` are positions in other files of the run (how long the metrics were at this moment)."""
        tensors: dict[str, Tensor] = {}
        layouts: dict[str, list] = {}
        state = {
            "round": progress.round,
            "models": _strip(progress.models, "models", tensors, layouts),
            "memory": _strip(progress.memory, "memory", tensors, layouts),
            "totals": dict(progress.totals),
            "refused": dict(progress.refused),
            "metrics": dict(progress.metrics),
            "trained": sorted(progress.trained),
            "marks": marks,
        }
        return Snapshot(progress.round, tensors, {"state": state, "layouts": layouts})


class Checkpoints:
    """Numbered folders; the newest that can be read counts, one older is kept in reserve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, snapshot: Snapshot) -> None:
        """Write it: afterwards it is there whole and durable, or, after an error, not at all."""
        with new_folder(self.folder / f"{snapshot.round:06d}") as temp:
            save_file(snapshot.tensors, temp / "tensors.safetensors")
            (temp / "state.json").write_text(json.dumps(snapshot.content))
        for old in self._numbers()[:-_KEEP]:
            shutil.rmtree(self.folder / f"{old:06d}", ignore_errors=True)

    def load(self, device: torch.device) -> tuple[ServerState, dict[str, int]] | None:
        """The newest readable checkpoint, or None if there is none at all."""
        problems = []
        for number in reversed(self._numbers()):
            path = self.folder / f"{number:06d}"
            try:
                return _read(path, device)
            except _DAMAGE as error:
                problems.append(f"{path.name}: {type(error).__name__}: {error}")
        if problems:
            raise RunError(
                "no checkpoint of this run can be read",
                where=str(self.folder),
                found="; ".join(problems),
                hint="start again in a new folder",
            )
        return None

    def _numbers(self) -> list[int]:
        return sorted(int(p.name) for p in self.folder.glob("*") if p.name.isdecimal() and p.name.isascii())


def _read(path: Path, device: torch.device) -> tuple[ServerState, dict[str, int]]:
    tensors = load_file(path / "tensors.safetensors", device=str(device))
    content = parse_json((path / "state.json").read_text())
    state = content["state"]
    layouts = {i: Layout(TensorInfo.from_row(row) for row in rows) for i, rows in content["layouts"].items()}
    models, memory = (_restore(state[part], tensors, layouts) for part in ("models", "memory"))
    counts = {name: state[name] for name in ("totals", "refused", "metrics")}
    progress = ServerState(state["round"], models, memory, **counts, trained={*state["trained"]})
    return progress, state["marks"]


def _strip(value: Any, path: str, tensors: dict[str, Tensor], layouts: dict[str, list]) -> Any:
    """Plain JSON of a nested value; weights and tensors go aside under their path."""
    if isinstance(value, Weights):
        layouts.setdefault(value.layout.id, [t.row() for t in value.layout.tensors])
        own = value.clone().to("cpu")  # the same weights may be held twice; a file's tensors must not share memory
        tensors.update({f"{path}/{n}": t for n, t in own.items()})
        return {"$weights": path, "layout": value.layout.id}
    if isinstance(value, Tensor):
        tensors[path] = value.detach().clone().cpu().contiguous()
        return {"$tensor": path}
    if isinstance(value, dict):
        return {"$dict": [[k, _strip(v, f"{path}/{k}", tensors, layouts)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_strip(v, f"{path}/{i}", tensors, layouts) for i, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the server's memory holds a {type(value).__name__} at {path}: only numbers, text, lists, dicts,"
        " tensors and weights can be checkpointed"
    )


def _restore(value: Any, tensors: dict[str, Tensor], layouts: dict[str, Layout]) -> Any:
    if isinstance(value, list):
        return [_restore(v, tensors, layouts) for v in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$dict" in value:
        return {k: _restore(v, tensors, layouts) for k, v in value["$dict"]}
    layout = layouts[value["layout"]]
    device = next(iter(tensors.values())).device if tensors else "cpu"
    found = {n: tensors[f"{value['$weights']}/{n}"] for n in layout.place}
    if any(found[n].shape != t.shape for n, (t, _) in layout.place.items()):
        raise ValueError(f"the tensors of {value['$weights']} have other shapes than their layout says")
    weights = Weights.zeros(layout, device)
    weights.fill(found)
    return weights
