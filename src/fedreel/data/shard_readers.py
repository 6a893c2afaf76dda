"""Frames of shards, decoded by processes of their own into memory that both sides see. Threads will not do beside a
GPU: all of them take Python's lock again and again, and the one that trains waits for it."""

from __future__ import annotations

import mmap
import os
import signal
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from threading import Lock

import numpy as np

from fedreel.data.shard_parts import Parts, ShardClip
from fedreel.data.shards import Shards
from fedreel.errors import RunError
from fedreel.machine.processes import Pool, own_cores

READERS = 8  # processes, at most
TRIES = 3  # how often a batch is begun whose readers die
MAPPED_SHEETS = 64  # that a reader keeps in sight

Cut = tuple[ShardClip, np.ndarray, tuple[int, int]]  # a clip, which of its frames, where the square begins
Wanted = Cut | ShardClip  # or all frames of a clip in its own shape


def readers_of(shards: Shards) -> Readers:
    """The processes that read these shards. They begin when they are first needed, serve everybody here who reads them,
    and end with the shards or with this process, however it ends."""
    with _finding:
        if shards not in _known:
            _known[shards] = found = Readers(shards.parts)
            weakref.finalize(shards, found.stop, wait=False)
        return _known[shards]


def can_share() -> bool:
    """Whether this system has memory without a name, which other processes find by this one's number."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


class Sheet:
    """Memory for a batch, which readers write to. It has no name: however processes end, nothing of it stays behind."""

    _numbers = count()

    def __init__(self, size: int) -> None:
        file = os.memfd_create("fedreel")
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, size)
        self.bytes = np.frombuffer(mmap.mmap(file, size), np.uint8)
        self.place = _Place(os.getpid(), file, next(self._numbers), size)


class Readers:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pool: Pool | None = None
        self._changing = Lock()

    def begin(self, sheet: Sheet, wanted: Sequence[Wanted]) -> Reading:
        """Have cuts of the same length, or clips of the same shape, read into a sheet, one after another."""
        return Reading(self, sheet, tuple(wanted))

    def stop(self, wait: bool = True) -> None:
        """End the processes; the next batch would get new ones."""
        with self._changing:
            if self._pool is not None:
                self._pool.shutdown(wait)
                self._pool = None

    def submit(self, place: _Place, wanted: tuple[Wanted, ...]) -> tuple[Pool, Future[None]]:
        with self._changing:
            for _ in range(TRIES):
                if self._pool is None:
                    own = self._parts
                    prepare = partial(_prepare, own.folder, own.side, own.quality)
                    self._pool = Pool(min(READERS, own_cores()), prepare)
                try:
                    return self._pool, self._pool.submit(_fill, place, wanted)
                except BrokenProcessPool as error:
                    why = error
                    self._pool.shutdown()
                    self._pool = None
        raise self.dying(why)

    def leave(self, broken: Pool) -> None:
        """Have others read from now on; when this returns, the old ones have ended and write nothing any more."""
        with self._changing:
            broken.shutdown()
            if self._pool is broken:
                self._pool = None

    def dying(self, why: BaseException) -> RunError:
        return RunError(
            "the processes that read clips die again and again",
            where=str(self._parts.folder),
            found=str(why),
            hint="memory may be short: a smaller train.batch_size needs less",
        )


class Reading:
    """A batch that is being read."""

    def __init__(self, readers: Readers, sheet: Sheet, wanted: tuple[Wanted, ...]) -> None:
        self._readers, self._sheet, self._wanted = readers, sheet, wanted
        self._pool, self._future = readers.submit(sheet.place, wanted)

    def wait(self) -> None:
        """Until it is there. If readers are killed, others do it again: the same bytes come of it."""
        for _ in range(TRIES - 1):
            try:
                return self._future.result()
            except BrokenProcessPool:
                self._readers.leave(self._pool)
                self._pool, self._future = self._readers.submit(self._sheet.place, self._wanted)
        try:
            self._future.result()
        except BrokenProcessPool as error:
            self._readers.leave(self._pool)
            raise self._readers.dying(error) from error

    def give_up(self) -> None:
        """Nobody wants it any more; after this nothing is written to its sheet."""
        if not self._future.cancel() and isinstance(self._future.exception(), BrokenProcessPool):
            self._readers.leave(self._pool)


@dataclass(frozen=True)
class _Place:
    """Where another process finds a sheet."""

    process: int
    file: int
    number: int  # no two sheets of a process have the same, as files may
    size: int


_known: weakref.WeakKeyDictionary[Shards, Readers] = weakref.WeakKeyDictionary()
_finding = Lock()
_parts: Parts  # in a reader


def _prepare(folder: Path, side: int, quality: int) -> None:
    """In a reader. Ctrl-C reaches it too, but it ends with the process that it reads for."""
    global _parts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _parts = Parts(folder, side, quality)


def _fill(place: _Place, wanted: tuple[Wanted, ...]) -> None:
    """In a reader: the whole batch."""
    sheet, end = _sheet(place), 0
    for one in wanted:
        found = _parts.whole(one) if isinstance(one, ShardClip) else _parts.frames(*one)
        sheet[end : end + found.size].reshape(found.shape)[...] = found
        end += found.size


@lru_cache(maxsize=MAPPED_SHEETS)
def _sheet(place: _Place) -> np.ndarray:
    file = os.open(f"/proc/{place.process}/fd/{place.file}", os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(file, place.size), np.uint8)
    finally:
        os.close(file)
