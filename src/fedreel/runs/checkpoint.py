"""Checkpoints: safetensors + JSON in a folder that appears whole or not at all. What only grows, and models that do not
change any more, lie beside these folders and are written once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedreel.core.pool import Roll
from fedreel.core.server import ServerState
from fedreel.core.version import Version
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.errors import RunError
from fedreel.machine.files import new_folder
from fedreel.machine.records import parse_json
from fedreel.runs.written_once import Names, Versions, packed

_KEEP = 2
_DAMAGE = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError),
    *(RecursionError, StopIteration, SafetensorError),
)


@dataclass(frozen=True)
class Snapshot:
    """A federation at one moment, copied, so that it can be written while the next round is under way. The copies lie
    where the models do: whoever writes them brings them here from a GPU, and nobody else waits for that. Their memory
    is handed on from snapshot to snapshot: a system takes longer to find it than to fill it."""

    round: int
    copies: dict[str, Weights | Tensor]
    content: dict[str, Any]
    versions: dict[str, Version] = field(default_factory=dict)
    trained: Roll = field(default_factory=Roll)  # it goes on growing: `content` says how many names count
    brought: dict[str, Weights | Tensor] = field(default_factory=dict)  # on the host, of copies on a GPU
    stream: torch.cuda.Stream | None = None  # on which they are brought: always the same, PyTorch has few of them
    ready: torch.cuda.Event | None = None  # when the GPU has made the copies

    @staticmethod
    def of(progress: ServerState, marks: dict[str, int], before: Snapshot | None = None) -> Snapshot:
        """`marks` are positions in other files of the run (how long the metrics were at this moment); `before` is a
        snapshot that is written, and that nobody needs any more."""
        aside = _Aside({}, {} if before is None else before.copies)
        state = {
            "round": progress.round,
            "models": aside.strip(progress.models, "models"),
            "memory": aside.strip(progress.memory, "memory"),
            "totals": dict(progress.totals),
            "refused": dict(progress.refused),
            "metrics": dict(progress.metrics),
            "trained": len(progress.trained),
            "marks": marks,
        }
        content = {"state": state, "layouts": aside.layouts, "versions": [*aside.versions]}
        brought, stream = ({}, None) if before is None else (before.brought, before.stream)
        gpu = next((t.device for copy in aside.copies.values() for t in _flat(copy) if t.is_cuda), None)
        ready = None if gpu is None else torch.cuda.current_stream(gpu).record_event()
        stream = None if gpu is None else stream or torch.cuda.Stream(gpu)
        return Snapshot(progress.round, aside.copies, content, aside.versions, progress.trained, brought, stream, ready)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """On the host, by path and name."""
        here = self.copies if self.stream is None else self._from_gpu(self.stream)
        loose = {path: copy.contiguous() for path, copy in here.items() if isinstance(copy, Tensor)}
        packed = {path: copy for path, copy in here.items() if isinstance(copy, Weights)}
        return loose | {f"{path}/{name}": t for path, weights in packed.items() for name, t in weights.items()}

    def _from_gpu(self, stream: torch.cuda.Stream) -> dict[str, Weights | Tensor]:
        """The copies in memory that a GPU writes by itself, on a stream of its own: training is not held up."""
        for path in self.brought.keys() - self.copies.keys():
            del self.brought[path]
        assert self.ready is not None
        stream.wait_event(self.ready)
        with torch.cuda.stream(stream):
            for path, copy in self.copies.items():
                self.brought[path] = _copied(copy, self.brought.get(path), torch.device("cpu"))
        stream.synchronize()
        return self.brought


class Checkpoints:
    """Numbered folders; the newest that can be read counts, one older is kept in reserve. Beside them lie the versions
    of models that they name, and the names of clients that have trained, of which each checkpoint has the first so
    many."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._versions = folder, Versions(folder / "versions")
        self._names = Names(folder / "trained.jsonl")

    def save(self, snapshot: Snapshot) -> None:
        """Write it: afterwards it is there whole and durable, or, after an error, not at all."""
        self._versions.write(snapshot.versions)
        self._names.write(snapshot.trained, snapshot.content["state"]["trained"])
        with new_folder(self.folder / f"{snapshot.round:06d}") as temp:
            save_file(snapshot.tensors, temp / "tensors.safetensors")
            (temp / "state.json").write_text(json.dumps(snapshot.content))
        for old in self._numbers()[:-_KEEP]:
            shutil.rmtree(self.folder / f"{old:06d}", ignore_errors=True)
        self._versions.forget([self.folder / f"{number:06d}" for number in self._numbers()])

    def load(self, device: torch.device) -> tuple[ServerState, dict[str, int]] | None:
        """The newest readable checkpoint, or None if there is none at all."""
        problems = []
        for number in reversed(self._numbers()):
            path = self.folder / f"{number:06d}"
            try:
                return self._read(path, device)
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
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal() and name.isascii())

    def _read(self, path: Path, device: torch.device) -> tuple[ServerState, dict[str, int]]:
        tensors = load_file(path / "tensors.safetensors", device=str(device))
        content = parse_json((path / "state.json").read_text())
        state = content["state"]
        layouts = {i: Layout(TensorInfo.from_row(row) for row in rows) for i, rows in content["layouts"].items()}
        back = _Back(tensors, layouts, lambda name, layout: self._versions.read(name, layout, device))
        models, memory = (back.restore(state[part]) for part in ("models", "memory"))
        counts = {name: state[name] for name in ("totals", "refused", "metrics")}
        trained = state["trained"]  # a list in checkpoints of earlier versions
        trained = Roll(trained) if isinstance(trained, list) else self._names.read(trained)
        return ServerState(state["round"], models, memory, **counts, trained=trained), state["marks"]


@dataclass(frozen=True)
class _Aside:
    """What of a state is no JSON, and goes aside."""

    copies: dict[str, Weights | Tensor]
    spare: Mapping[str, Weights | Tensor]  # copies of earlier, whose memory may be used
    layouts: dict[str, list] = field(default_factory=dict)
    versions: dict[str, Version] = field(default_factory=dict)

    def strip(self, value: Any, path: str) -> Any:
        """Plain JSON of a nested value; weights and tensors go aside under their path, versions under their name."""
        if isinstance(value, Version):
            self.versions[value.name] = value
            return {"$version": value.name, "layout": self._layout(value.weights)}
        if isinstance(value, Weights):
            self.copies[path] = _copied(value, self.spare.get(path))  # even if it is held twice: see `save_file`
            return {"$weights": path, "layout": self._layout(value)}
        if isinstance(value, Tensor):
            self.copies[path] = _copied(value.detach(), self.spare.get(path))
            return {"$tensor": path}
        if isinstance(value, dict):
            return {"$dict": [[k, self.strip(v, f"{path}/{k}")] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return [self.strip(v, f"{path}/{i}") for i, v in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(
            f"the server's memory holds a {type(value).__name__} at {path}: only numbers, text, lists, dicts,"
            " tensors and weights can be checkpointed"
        )

    def _layout(self, weights: Weights) -> str:
        self.layouts.setdefault(weights.layout.id, [t.row() for t in weights.layout.tensors])
        return weights.layout.id


@dataclass(frozen=True)
class _Back:
    """Puts together again what went aside."""

    tensors: dict[str, Tensor]
    layouts: dict[str, Layout]
    version: Callable[[str, Layout], Version]

    def restore(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.restore(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "$tensor" in value:
            return self.tensors[value["$tensor"]]
        if "$dict" in value:
            return {k: self.restore(v) for k, v in value["$dict"]}
        layout = self.layouts[value["layout"]]
        if "$version" in value:
            return self.version(value["$version"], layout)
        device = next(iter(self.tensors.values())).device if self.tensors else torch.device("cpu")
        return packed({n: self.tensors[f"{value['$weights']}/{n}"] for n in layout.place}, layout, device)


def _copied(value: Weights | Tensor, spare: Weights | Tensor | None, device: torch.device | None = None) -> Any:
    """A copy of the value, where it lies or on another device: in the memory of `spare`, if that is of this form."""
    if spare is None or _form(spare) != _form(value, device):
        spare = _like(value, device)
    for mine, given in zip(_flat(spare), _flat(value)):
        mine.copy_(given, non_blocking=True)
    return spare


def _like(value: Weights | Tensor, device: torch.device | None) -> Weights | Tensor:
    """Memory for a copy; on the host such that a GPU writes to it by itself."""

    def empty(t: Tensor) -> Tensor:
        there = device or t.device
        return torch.empty(t.shape, dtype=t.dtype, device=there, pin_memory=t.is_cuda and there.type == "cpu")

    if isinstance(value, Tensor):
        return empty(value)
    return Weights(value.layout, {dtype: empty(flat) for dtype, flat in value.flat.items()})


def _form(value: Weights | Tensor, device: torch.device | None = None) -> object:
    layout = "" if isinstance(value, Tensor) else value.layout.id
    return layout, [(t.shape, t.dtype, device or t.device) for t in _flat(value)]


def _flat(value: Weights | Tensor) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [*value.flat.values()]
