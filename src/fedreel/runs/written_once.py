"""What checkpoints need and do not write anew each time: models that do not change any more, and names that only become
more."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedreel.core.pool import Roll
from fedreel.core.version import Version
from fedreel.core.weights import Layout, Weights
from fedreel.machine.files import new_file, sync_path
from fedreel.machine.records import parse_json


class Versions:
    """A folder of models, each called by what it holds. One that no checkpoint needs is gone after the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._needed: dict[str, frozenset[str]] = {}  # by checkpoint

    def write(self, versions: Mapping[str, Version]) -> None:
        """Those that are not there yet; then all are there, whole and durable."""
        new = [name for name in versions if not self._file(name).exists()]
        for name in new:
            with new_file(self._file(name)) as temp:
                weights = versions[name].weights.to("cpu")
                save_file({n: t.clone() for n, t in weights.items()}, temp)
                sync_path(temp)
        if new:
            sync_path(self.folder)

    def read(self, name: str, layout: Layout, device: torch.device) -> Version:
        """ValueError if the file does not hold what its name says, or if that is no such name."""
        if not name.isalnum():
            raise ValueError(f"no version is called {name[:40]!r}")
        found = Version(packed(load_file(self._file(name), device=str(device)), layout, device))
        if found.name != name:
            raise ValueError(f"{self._file(name).name} is damaged: it holds {found.name}")
        return found

    def forget(self, checkpoints: Sequence[Path]) -> None:
        """All that is not needed by one of these checkpoints."""
        if not self.folder.is_dir():
            return
        known = self._needed
        self._needed = {path.name: known.get(path.name) or _needed_by(path) for path in checkpoints}
        needed = {f"{name}.safetensors" for names in self._needed.values() for name in names}
        for file in self.folder.iterdir():
            if file.name not in needed:
                file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


class Names:
    """A file to which names are added; of the names in it, each checkpoint has the first so many."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._roll: Roll | None = None
        self._count = self._length = 0  # names that are in the file and count, and how long it is with them

    def write(self, roll: Roll, count: int) -> None:
        """So many names of this roll, as far as they are not there yet, durable."""
        if self._roll is not roll:
            self._roll, self._count, self._length = roll, 0, 0
        if count == self._count:
            return
        line = json.dumps(roll.part(self._count, count)).encode() + b"\n"
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self._length)  # what came after the checkpoint that the run went on from does not count
            file.seek(self._length)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if not self._count:
            sync_path(self.path.parent)
        self._count, self._length = count, self._length + len(line)

    def read(self, count: int) -> Roll:
        """The first so many names; ValueError if there are fewer, or a line of them ends later."""
        found: list[str] = []
        length = 0
        if count:
            with open(self.path, "rb") as file:
                while len(found) < count and (line := file.readline()):
                    found += map(str, parse_json(line.decode()))
                    length += len(line)
        if len(found) != count:
            raise ValueError(f"{self.path.name} has {len(found)} names, the checkpoint {count}")
        self._roll, self._count, self._length = Roll(found), count, length
        return self._roll


def packed(tensors: Mapping[str, Tensor], layout: Layout, device: torch.device) -> Weights:
    """Loose tensors as weights; ValueError if they have other shapes than the layout says."""
    if any(tensors[n].shape != t.shape for n, (t, _) in layout.place.items()):
        raise ValueError("the tensors of a model have other shapes than their layout says")
    weights = Weights.zeros(layout, device)
    weights.fill({n: tensors[n] for n in layout.place})
    return weights


def _needed_by(checkpoint: Path) -> frozenset[str]:
    try:
        return frozenset(map(str, parse_json((checkpoint / "state.json").read_text()).get("versions", ())))
    except (OSError, ValueError, TypeError, AttributeError):
        return frozenset()  # a damaged one: nobody can go on from it
