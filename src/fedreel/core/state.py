"""Private client state: what a client keeps between orders, on its own disk, safe when an order is repeated."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedreel.core.weights import Weights
from fedreel.errors import RunError
from fedreel.machine.files import file_name, sync_path

Key = tuple[int, int]
TRAINED = "trained"  # the folder of a run for models as clients trained them
KEEP_ROUNDS = 2  # generations this many rounds back stay, so that a server may fall back to an older checkpoint


_MOST_UNDONE = 100  # generations of a client
_GENERATION = re.compile(r"(\d{6,})-(\d{6,})\.safetensors")


@dataclass
class State:
    """Tensors of the model that never travel, and whatever else the method remembers at the client."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float | str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.numbers)

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors kept under this name; none if there are none."""
        prefix = f"{name}/"
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors under this name, in place of those that were."""
        self.tensors = {n: t for n, t in self.tensors.items() if not n.startswith(f"{name}/")}
        self.tensors |= {f"{name}/{n}": t for n, t in tensors.items()}

    def weights(self, name: str, like: Weights) -> Weights:
        """The group of this name with the tensors of `like`; zeros if nothing was kept."""
        kept, weights = self.group(name), 0.0 * like
        if kept:
            weights.fill(kept)
        return weights


class PrivateStore:
    """One folder a client, one file a generation. An order (round, step) starts from the newest generation before it
    and writes its own: run twice, it starts twice from the same and writes the same."""

    def __init__(self, folder: Path, *, shared: bool = False, undone: Path | None = None) -> None:
        """`shared`: other processes write here too, so nothing is remembered of what lies on disk. `undone` is a folder
        for generations that a server takes back; without it they are removed."""
        self.folder, self.shared, self.undone = folder, shared, undone
        self._newest: dict[str, tuple[Key, State]] = {}  # a warm cache; right when cold
        self._unsynced: deque[Path] = deque()
        self._folders: set[str] | None = None

    def load(self, client: str, before: Key) -> State:
        """The state with which the order `before` starts. Generations of that order or later are stale and taken out
        of the way."""
        cached = self._newest.get(client)
        if cached and cached[0] < before and not self.shared:
            return cached[1]
        self._newest.pop(client, None)
        keys = self._generations(client)
        for key in [k for k in keys if k >= before]:
            self._undo(client, key)
        older = [k for k in keys if k < before]
        if not older:
            return State()
        state = _read(self._file(client, older[-1]))
        self._newest[client] = (older[-1], state)
        return state

    def newest(self, client: str) -> State:
        """What the client kept last; empty if it has nothing here."""
        keys = self._generations(client)
        return _read(self._file(client, keys[-1])) if keys else State()

    def has(self, client: str) -> bool:
        """Whether the client has kept something here."""
        return bool(self._generations(client))

    def clients(self) -> list[str]:
        """Who has kept something here."""
        return sorted(map(unquote, os.listdir(self.folder))) if self.folder.is_dir() else []

    def save(self, client: str, key: Key, state: State) -> None:
        """Write the state after the order `key`: atomic at once, durable after `sync`."""
        path = self._file(client, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._folders is not None:
            self._folders.add(path.parent.name)
        temp = path.with_suffix(".tmp")
        tensors = {n: t.detach().cpu().contiguous() for n, t in state.tensors.items()}
        try:
            save_file(tensors, temp, metadata={"numbers": json.dumps(state.numbers)})
            os.replace(temp, path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        self._newest[client] = (key, state)
        self._unsynced.append(path)
        keys = [k for k in self._generations(client) if k < key]
        for old in keys[:-1]:  # the newest before this one stays in any case: a repetition starts from it
            if old[0] < key[0] - KEEP_ROUNDS and keys[keys.index(old) + 1][0] < key[0] - KEEP_ROUNDS:
                self._file(client, old).unlink(missing_ok=True)

    def sync(self) -> None:
        """Force what was saved to disk. May run beside `save` in another thread."""
        while self._unsynced:
            with contextlib.suppress(FileNotFoundError):  # replaced by a newer generation meanwhile
                sync_path(self._unsynced.popleft())

    def taken_unsynced(self) -> list[str]:
        """The files that `sync` would force to disk, for a process that does it in place of this one."""
        return [str(self._unsynced.popleft()) for _ in range(len(self._unsynced))]

    def add_unsynced(self, files: Iterable[str]) -> None:
        """Files that another process has saved: `sync` forces them to disk as well."""
        self._unsynced.extend(map(Path, files))

    def _generations(self, client: str) -> list[Key]:
        if self._folders is None or self.shared:  # who has state here, looked up once: most methods keep none
            self._folders = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        if not self._folders or (name := file_name(client)) not in self._folders:
            return []
        found = map(_GENERATION.fullmatch, os.listdir(self.folder / name))
        return sorted((int(file[1]), int(file[2])) for file in found if file is not None)

    def _undo(self, client: str, key: Key) -> None:
        path = self._file(client, key)
        if self.undone is None:
            path.unlink(missing_ok=True)
            return
        folder = self.undone / file_name(client)
        folder.mkdir(parents=True, exist_ok=True)
        kept = len(os.listdir(folder))
        if kept >= _MOST_UNDONE:
            raise RunError(
                f"the server has taken back more than {_MOST_UNDONE} states of this client",
                where=str(folder),
                hint="look at what the server does; what lies there may be moved elsewhere",
            )
        os.replace(path, folder / f"{path.stem}.{kept + 1}.safetensors")

    def _file(self, client: str, key: Key) -> Path:
        return self.folder / file_name(client) / f"{key[0]:06d}-{key[1]:06d}.safetensors"


class TrainedModels:
    """Clients' whole models as they came out of training, private tensors and all, of some rounds: to look at
    afterwards, where the clients work. Nobody trains on with them."""

    def __init__(self, folder: Path, rounds: Sequence[int] = ()) -> None:
        self.folder, self.rounds = folder, rounds

    def keep(self, client: str, round: int, weights: Weights) -> None:
        """Write a model, if it is one of these rounds'; a repeated order writes the same again."""
        if round not in self.rounds:
            return
        path = self._file(client, round)
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_suffix(".tmp")
        save_file({n: t.detach().cpu().contiguous() for n, t in weights.items()}, temp)
        os.replace(temp, path)

    def read(self, client: str, round: int) -> dict[str, Tensor]:
        path = self._file(client, round)
        if not path.is_file():
            raise RunError(
                f"the model that client '{client}' trained in round {round} was not kept",
                where=str(path),
                hint="run it with --set engine.keep_trained=true, which keeps those of the first and the last round",
            )
        return _read(path).tensors

    def _file(self, client: str, round: int) -> Path:
        return self.folder / f"round-{round:04d}" / f"{file_name(client)}.safetensors"


def _read(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return State(tensors, json.loads((file.metadata() or {}).get("numbers", "{}")))
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(
            "a client's private state cannot be read",
            where=str(path),
            found=str(error),
            hint="restore the file from a backup, or delete it to let this client start anew",
        ) from error
