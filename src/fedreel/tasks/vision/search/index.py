"""The vectors of a folder's videos, kept between searches: only what is new or has changed is decoded again."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder
from fedreel.machine.files import new_file
from fedreel.media.excerpts import Excerpts
from fedreel.media.frames import Tell
from fedreel.tasks.vision.search.embed import Looks

VERSION = 1
OFTEN, SHARE = 50, 20  # saved after so many new files, but no more than one in SHARE of those that are there
WORKERS = 8


@dataclass(frozen=True)
class Entry:
    """A file as it was when it was looked at. One with a `fault` and no vector cannot be read."""

    size: int
    mtime_ns: int
    seconds: float = 0.0
    fault: str = ""  # why nothing, or only the beginning, of it is in the index


class Index:
    """Files below a folder and their vectors, by their paths. `place` is the file it is kept in."""

    def __init__(self, folder: Path, state: Mapping[str, Any], *, rebuild: bool = False) -> None:
        """What was kept for this folder and a model of this state; nothing if it is not there or to be rebuilt."""
        self.folder = folder.resolve()
        self.head = {"version": VERSION, "folder": str(self.folder), **state}
        name = hashlib.sha256(json.dumps(self.head, sort_keys=True).encode()).hexdigest()[:32]
        self.place = cache_folder() / "search" / f"{name}.safetensors"
        self.entries: dict[str, Entry] = {}
        self.vectors: dict[str, np.ndarray] = {}
        if not rebuild:
            self._read()

    def current(self, path: str) -> bool:
        """Whether a file has been looked at and not changed since."""
        known = self.entries.get(path)
        return known is not None and (known.size, known.mtime_ns) == self._stamp(path)

    def refresh(self, paths: Sequence[str], embedder: Looks, tell: Tell | None = None) -> int:
        """Bring the index to these files; how many were looked at. An interruption keeps those that are done."""
        gone = {*self.entries} - {*paths}
        for path in gone:
            self._forget(path)
        todo = [path for path in paths if not self.current(path)]
        unsaved = 0
        try:
            for done, (path, entry, seen) in enumerate(self._looked_at(todo, embedder), 1):
                self._forget(path)
                if seen is not None:
                    self.vectors[path] = embedder.vector(seen)
                self.entries[path] = entry
                unsaved += 1
                if unsaved >= max(OFTEN, len(self.entries) // SHARE):
                    self.save()
                    unsaved = 0
                if tell:
                    tell("looking at new videos", done / len(todo))
        finally:
            if unsaved or gone:
                self.save()
        return len(todo)

    def save(self) -> None:
        """All in one file, which is the old one or the new one at any moment."""
        names = sorted(self.vectors)
        told = {"head": self.head, "names": names, "entries": {path: asdict(e) for path, e in self.entries.items()}}
        rows = [self.vectors[name] for name in names]
        tensors = {
            "vectors": np.stack(rows) if rows else np.zeros((0, 0), np.float32),
            "told": np.frombuffer(
                json.dumps(told).encode(), np.uint8
            ),  # a header of metadata has a limit, this has none
        }
        try:
            with new_file(self.place) as temporary:
                save_file(tensors, temporary)
        except (OSError, SafetensorError) as error:
            raise DataError("the index cannot be kept", where=str(self.place), found=str(error)) from error

    def _read(self) -> None:
        """A file that is damaged counts as none: it can be made again."""
        try:
            tensors = load_file(self.place)
            told = json.loads(tensors["told"].tobytes())
            entries = {path: Entry(**entry) for path, entry in told["entries"].items()}
            vectors, names = tensors["vectors"], told["names"]
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
            return
        sound = vectors.ndim == 2 and vectors.dtype == np.float32 and np.isfinite(vectors).all()
        if sound and told["head"] == self.head and len(vectors) == len(names) and {*names} <= {*entries}:
            self.entries, self.vectors = entries, dict(zip(names, vectors))

    def _looked_at(self, paths: list[str], embedder: Looks) -> Iterator[tuple[str, Entry, Excerpts | None]]:
        """Files one after another. The next ones are decoded meanwhile, in threads: decoding leaves Python's lock."""
        workers = min(WORKERS, os.cpu_count() or 1)
        pool = ThreadPoolExecutor(workers)
        waiting: deque[tuple[str, Future[tuple[Entry, Excerpts | None]]]] = deque()
        try:
            for path in paths:
                waiting.append((path, pool.submit(self._look, path, embedder)))
                if len(waiting) > workers:
                    done, future = waiting.popleft()
                    yield (done, *future.result())
            while waiting:
                done, future = waiting.popleft()
                yield (done, *future.result())
        finally:
            pool.shutdown(cancel_futures=True)

    def _look(self, path: str, embedder: Looks) -> tuple[Entry, Excerpts | None]:
        stamp = self._stamp(path)  # before it is read: what changes meanwhile is looked at again next time
        try:
            seen = embedder.look(self.folder / path)
        except DataError as error:
            return Entry(*stamp, fault=error.found or error.problem), None
        return Entry(*stamp, seen.seconds, seen.fault), seen

    def _stamp(self, path: str) -> tuple[int, int]:
        try:
            status = (self.folder / path).stat()
        except OSError:
            return -1, -1  # named by an index.csv, but not there
        return status.st_size, status.st_mtime_ns

    def _forget(self, path: str) -> None:
        self.entries.pop(path, None)
        self.vectors.pop(path, None)
