"""The run directory: recipe, metrics, summary, ledger, checkpoints, model, report. Only ever added to."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import tomli_w
import torch
from safetensors import SafetensorError

from fedreel.config import Recipe, as_table, build, read_toml
from fedreel.core.job import make_method, make_task, resolved
from fedreel.core.server import ServerState, Watcher
from fedreel.core.update import SECURE
from fedreel.errors import RecipeError, RunError
from fedreel.machine.files import hold_lock, write_atomic
from fedreel.runs.checkpoint import Checkpoints, Snapshot
from fedreel.runs.reading import read_json, read_summary


class RunDir(Watcher):
    """Writes a run. On resume `metrics.jsonl` is cut back to where the checkpoint saw it: no round is there twice.

    Making one checks and locks the folder; `begin` writes to it. A job that fails in between (no such data, say) leaves
    no run behind, and the mended one may have the folder."""

    def __init__(self, path: Path, recipe: Recipe, *, resume: bool = False) -> None:
        self.path, self.recipe = path, recipe
        self._check(resume)  # before anything is made in a folder that may be someone else's
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError("the run's folder cannot be created", where=str(path), found=str(error)) from error
        self._lock = self._hold_lock()
        try:
            self._used = self._check(resume)  # again: now nobody else is writing
        except BaseException:
            self._lock.close()
            raise
        before = read_json(path / "run.json")
        self.id: str = before.get("id") or secrets.token_hex(6)
        self.start: int = before.get("start", 0) + 1  # how often the run has begun, this time included
        self.checkpoints = Checkpoints(path / "checkpoint")
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._written: Snapshot | None = None  # the last one that was given to be written
        self._metrics: IO[bytes] = io.BytesIO()
        self.changed: list[str] = []

    def begin(
        self, device: torch.device, frozen: str = "", under: Mapping[str, str] | None = None
    ) -> ServerState | None:
        """Open the run's files. Returns the state to continue from, if any, with the metrics cut back to it. `frozen`
        is a digest of what of the model is in no checkpoint; `under` what else its numbers depend on, such as torch's
        version: `changed` has what of that was different when the run last began."""
        known = read_json(self.path / "run.json")
        before = known.get("frozen", frozen)
        if before != frozen:
            raise RunError(
                "the part of the model that is not trained has other weights than when this run began",
                where=str(self.path),
                expected=f"weights with the digest {before[:16]}",
                found=frozen[:16],
                hint="put the file back that task.backbone.init names, or choose another --out",
            )
        if not self._used:
            write_atomic(self.path / "recipe.toml", tomli_w.dumps(as_table(self.recipe)))
        now, was = dict(under or {}), known.get("under")
        told = {"frozen": frozen, "under": now}
        self.write_json("run.json", {"id": self.id, "start": self.start, **{k: v for k, v in told.items() if v}})
        was = was if isinstance(was, dict) else {}
        self.changed = [f"{k}: {was[k]} -> {v}" for k, v in now.items() if was.get(k, v) != v]
        self.checkpoints.folder.mkdir(exist_ok=True)
        self._metrics = open(self.path / "metrics.jsonl", "ab")
        checkpoint = self.checkpoints.load(device)
        progress, marks = checkpoint if checkpoint else (None, {"metrics": 0})
        self._metrics.truncate(marks["metrics"])
        self._metrics.seek(0, os.SEEK_END)
        return progress

    def record(self, round: int, phase: str, values: Mapping[str, Any]) -> None:
        self._metrics.write(json.dumps({"round": round, "phase": phase, **values}).encode() + b"\n")

    def work_begins(self, round: int, kind: str, clients: Sequence[str]) -> None:
        """Of a round's secure sum there is no second: it does not begin before the round before it is on disk, or a
        run that is killed would go back further than clients do."""
        if kind == SECURE:
            self.settle()

    def round_done(self, progress: ServerState, sync: Callable[[], None]) -> None:
        """The checkpoint is the moment at which a round counts. It is written while the next round is under way; before
        it, what the clients wrote (`sync`). A round more than that is never ahead of the disk."""
        self.settle()
        self._metrics.flush()
        snapshot = self._written = Snapshot.of(progress, {"metrics": self._metrics.tell()}, self._written)

        def commit() -> None:
            sync()
            os.fsync(self._metrics.fileno())
            self.checkpoints.save(snapshot)

        self._writing = self._writer.submit(commit)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """However the block ends, a checkpoint under way is let finish before the files that it syncs are closed."""
        try:
            yield
        finally:
            if self._writing is not None:
                wait([self._writing])

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except (OSError, SafetensorError) as error:
            if is_full(error):
                raise
            raise RunError(
                "the checkpoint cannot be written",
                where=str(self.path),
                found=str(error),
                hint="the previous round's checkpoint is intact: repair the disk, then --resume",
            ) from error

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomic(self.path / name, json.dumps(content, indent=1) + "\n")

    @property
    def complete(self) -> bool:
        return bool(read_summary(self.path).get("complete"))

    def close(self) -> None:
        self._writer.shutdown()
        try:
            self._metrics.close()
        finally:
            if not (self.path / "recipe.toml").exists():  # the job never began: leave the place as it was found
                (self.path / ".lock").unlink(missing_ok=True)
                with suppress(OSError):
                    self.path.rmdir()
            self._lock.close()

    def _check(self, resume: bool) -> bool:
        """Whether there is a run to continue; raises if this job may not have the folder."""
        used = check_place(self.path, resume)
        if used:
            self._same_recipe(_completed(recipe_of(self.path)))
        return used

    def _hold_lock(self) -> IO[str]:
        lock = hold_lock(self.path)
        if lock is None:
            raise RunError(
                "another process is running in this folder",
                where=str(self.path),
                hint="wait for it to end, or choose another --out",
            )
        return lock

    def _same_recipe(self, before: Recipe) -> None:
        old, new = (_flat({**as_table(r), "engine": _place(r.engine["name"])}) for r in (before, self.recipe))
        differ = [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in sorted({*old, *new}) if old.get(k) != new.get(k)]
        if differ:
            raise RunError(
                "the run in this folder has a different recipe",
                where=str(self.path),
                found="; ".join(differ[:5]),
                hint="resume with the recipe that the run started with, or choose another --out",
            )


def _completed(recipe: Recipe) -> Recipe:
    """With the defaults of settings that its task or method has got since the recipe was written."""
    try:
        return resolved(recipe, make_task(recipe), make_method(recipe))
    except RecipeError:  # of a task or method that is not registered here
        return recipe


def _place(engine: str) -> str:
    """Where clients are worked for. Whether that is one process or several makes no other run."""
    return "this machine" if engine in ("auto", "local", "processes") else engine


def check_place(path: Path, resume: bool) -> bool:
    """Whether there is something in a folder, which can only be a run to continue; raises if it is not."""
    used = path.is_dir() and any(not p.name.startswith(".") for p in path.iterdir())
    if used and not (path / "recipe.toml").exists():
        raise RunError("this folder holds something other than a run", where=str(path), hint="choose another --out")
    if used and not resume:
        raise RunError(
            "this folder already holds a run",
            where=str(path),
            hint="add --resume to continue it, or choose another --out",
        )
    return used


def recipe_of(path: Path) -> Recipe:
    """The recipe that a run began with."""
    return build(Recipe, read_toml(path / "recipe.toml"), str(path / "recipe.toml"))


@contextmanager
def room_to_write(path: Path) -> Iterator[None]:
    """Whatever finds the disk full in this block says so to the user."""
    try:
        yield
    except (OSError, SafetensorError, RunError) as error:
        cause = error.__cause__ if isinstance(error, RunError) else error  # the ledger has words of its own
        if not isinstance(cause, OSError | SafetensorError) or not is_full(cause):
            raise
        raise RunError(
            "the disk is full",
            where=str(path),
            found=str(error),
            hint="finished rounds are safe: free some space, then --resume",
        ) from error


def is_full(error: OSError | SafetensorError) -> bool:
    """safetensors tells the system's error number in words only."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in codes
    return any(f"(os error {code})" in str(error) for code in codes)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out
