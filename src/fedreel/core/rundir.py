"""The run directory: recipe, metrics, summary, ledger, checkpoints, model, report. Only ever added to."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import tomli_w
import torch

from ..config import Recipe, as_table, build, read_toml
from ..errors import RunError
from .checkpoint import Checkpoints, Snapshot
from .federation import Progress, Watcher
from .files import write_atomic


class RunDir(Watcher):
    """Writes a run. On resume `metrics.jsonl` is cut back to where the checkpoint saw it: no round is there twice."""

    def __init__(self, path: Path, recipe: Recipe, *, resume: bool = False) -> None:
        self.path, self.recipe = path, recipe
        self._lock: IO[str] | None = None
        recipe_file = path / "recipe.toml"
        used = path.exists() and any(not p.name.startswith(".") for p in path.iterdir())
        if used and not recipe_file.exists():
            raise RunError("this folder holds something else than a run", where=str(path), hint="choose another --out")
        if used and not resume:
            raise RunError(
                "this folder already holds a run",
                where=str(path),
                hint="add --resume to go on with it, or choose another --out",
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError("the run's folder cannot be made", where=str(path), found=str(error)) from error
        self._hold_lock()
        if used:
            self._same_recipe(build(Recipe, read_toml(recipe_file), str(recipe_file)))
        else:
            write_atomic(recipe_file, tomli_w.dumps(as_table(recipe)))
        self.checkpoints = Checkpoints(path / "checkpoint")
        self.checkpoints.folder.mkdir(exist_ok=True)
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._metrics: IO[bytes] = open(path / "metrics.jsonl", "ab")

    def restore(self, device: torch.device) -> Progress | None:
        """The state to go on from, with the metrics cut back to it."""
        found = self.checkpoints.load(device)
        progress, marks = found if found else (None, {"metrics": 0})
        self._metrics.truncate(marks["metrics"])
        self._metrics.seek(0, os.SEEK_END)
        return progress

    def record(self, round: int, phase: str, values: Mapping[str, Any]) -> None:
        self._metrics.write(json.dumps({"round": round, "phase": phase, **values}).encode() + b"\n")

    def round_done(self, progress: Progress, sync: Callable[[], None]) -> None:
        """The checkpoint is the moment at which a round counts. It is written while the next round is under way; before
        it, what the clients wrote (`sync`). A round more than that is never ahead of the disk."""
        self.settle()
        self._metrics.flush()
        snapshot = Snapshot.of(progress, {"metrics": self._metrics.tell()})

        def commit() -> None:
            sync()
            os.fsync(self._metrics.fileno())
            self.checkpoints.save(snapshot)

        self._writing = self._writer.submit(commit)

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise RunError(
                "the disk is full" if full else "the checkpoint cannot be written",
                where=str(self.path),
                found=str(error),
                hint="the checkpoint of the round before stands: make room, then --resume",
            ) from error

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomic(self.path / name, json.dumps(content, indent=1) + "\n")

    @property
    def complete(self) -> bool:
        return bool(read_summary(self.path).get("complete"))

    def close(self) -> None:
        self._writer.shutdown()
        self._metrics.close()
        if self._lock:
            self._lock.close()

    def _hold_lock(self) -> None:
        self._lock = open(self.path / ".lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                "another process is running in this folder",
                where=str(self.path),
                hint="wait for it to end, or choose another --out",
            ) from error

    def _same_recipe(self, before: Recipe) -> None:
        old, new = _flat(as_table(before)), _flat(as_table(self.recipe))
        differ = [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in sorted({*old, *new}) if old.get(k) != new.get(k)]
        if differ:
            raise RunError(
                "this folder's run has another recipe",
                where=str(self.path),
                found="; ".join(differ[:5]),
                hint="resume with the recipe the run began with, or choose another --out",
            )


def read_summary(run: Path) -> dict[str, Any]:
    try:
        return json.loads((run / "summary.json").read_text())
    except (OSError, ValueError):
        return {}


def read_metrics(run: Path, phase: str | None = None) -> Iterator[dict[str, Any]]:
    """The run's records, or those of one phase."""
    with open(run / "metrics.jsonl", encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a run that is still being written
            if phase is None or row.get("phase") == phase:
                yield row


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out
