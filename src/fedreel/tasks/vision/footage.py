"""Where clips lie: held in the memory of a device, or in shards, to be read when their turn comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from fedreel.data.shard_readers import Reading, Sheet, Wanted, can_share, readers_of
from fedreel.data.shards import Shards
from fedreel.machine.device import pin, sent, unpin
from fedreel.machine.processes import own_cores

AHEAD = 8  # batches that are read before their turn
READERS = 8  # threads that read, at most: more of them would mostly wait for each other
MANY = 20_000  # pictures of clips to be held that are worth processes to decode them

Cut = tuple[int, Tensor, list[int]]  # which clip, which of its frames, where the square begins: row and column


@dataclass(frozen=True)
class Held:
    """Clips (T, H, W, 3) of bytes in the memory of a device."""

    clips: tuple[Tensor, ...]
    side: int
    device: torch.device

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Frames, height and width of each."""
        return [(c.shape[0], c.shape[1], c.shape[2]) for c in self.clips]

    def of(self, rows: Sequence[int]) -> Held:
        """Some of these clips, where they lie."""
        return replace(self, clips=tuple(self.clips[i] for i in rows))

    def read(self, batches: Iterable[list[Cut]]) -> Iterator[Tensor]:
        for cuts in batches:
            times = sent(torch.stack([times for _, times, _ in cuts]), self.device)
            squares = [
                self.clips[i].index_select(0, chosen)[:, top : top + self.side, left : left + self.side]
                for (i, _, (top, left)), chosen in zip(cuts, times)
            ]
            yield torch.stack(squares)


@dataclass(frozen=True)
class Stored:
    """Clips in shards. While a batch is worked with, the next ones are read, where that is more than to copy bytes from
    memory to memory."""

    source: Shards
    rows: tuple[int, ...]
    device: torch.device

    @property
    def side(self) -> int:
        return self.source.side

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        clips = [self.source.clips[i] for i in self.rows]
        return [(c.frames, c.height, c.width) for c in clips]

    def of(self, rows: Sequence[int]) -> Stored:
        """Some of these clips, as they are."""
        return replace(self, rows=tuple(self.rows[i] for i in rows))

    def read(self, batches: Iterable[list[Cut]]) -> Iterator[Tensor]:
        reader = _reader_of(self)
        try:
            yield from _ahead(reader, (partial(reader.begin, cuts) for cuts in batches))
        finally:
            reader.close()

    def held(self) -> Held:
        """These clips in the memory of their device, all their frames decoded."""
        many = sum(frames for frames, _, _ in self.shapes) > MANY
        clips = self._by_processes() if many and by_processes(self) else self._by_threads()
        return Held(tuple(clips), self.side, self.device)

    def _by_processes(self) -> list[Tensor]:
        reader = _ByProcesses(self)
        try:
            return [*_ahead(reader, (partial(reader.begin_whole, i) for i in range(len(self.rows))))]
        finally:
            reader.close()

    def _by_threads(self) -> list[Tensor]:
        def whole(i: int) -> Tensor:
            return torch.from_numpy(np.array(self.source.whole(i)))

        clips: list[Tensor] = []
        with ThreadPoolExecutor(min(READERS, own_cores())) as pool:
            for start in range(0, len(self.rows), READERS):  # a few at a time beside those on the device
                clips += [clip.to(self.device) for clip in pool.map(whole, self.rows[start : start + READERS])]
        return clips


def bytes_of(footage: Held | Stored) -> int:
    """All frames of all clips, where they are held."""
    return sum(3 * frames * height * width for frames, height, width in footage.shapes)


def at_hand(stored: Stored, budget: int) -> Held | Stored:
    """The clips on their device, if that takes no more than so many bytes; raw frames, which are mapped into memory,
    need not be copied to be at hand of a CPU."""
    return stored if _is_mapped(stored) or bytes_of(stored) > budget else stored.held()


def by_processes(stored: Stored) -> bool:
    """Whether clips are read by processes: where a GPU waits for the thread that trains, and there is much to do about
    each of them. Else threads do, which cost nothing to begin."""
    return stored.device.type == "cuda" and stored.source.quality > 0 and own_cores() > 1 and can_share()


def _is_mapped(stored: Stored) -> bool:
    """Whether the device sees the frames where they lie."""
    return stored.device.type == "cpu" and not stored.source.quality


def _reader_of(stored: Stored) -> _Reader:
    if by_processes(stored):
        return _ByProcesses(stored)
    return _InTurn(stored) if _is_mapped(stored) else _ByThreads(stored)


class _Reader(ABC):
    """Reads batches in the order in which they are begun."""

    @abstractmethod
    def begin(self, cuts: list[Cut]) -> None: ...

    @abstractmethod
    def end(self) -> Tensor:
        """The oldest batch that was begun, on the device."""

    @abstractmethod
    def close(self) -> None:
        """What was begun is not wanted any more."""


def _ahead(reader: _Reader, begins: Iterable[Callable[[], None]]) -> Iterator[Tensor]:
    """What is begun, in order, while the next ones are under way."""
    under_way = 0
    for begin in begins:
        begin()
        under_way += 1
        if under_way > AHEAD:
            yield reader.end()
            under_way -= 1
    for _ in range(under_way):
        yield reader.end()


class _InTurn(_Reader):
    """In the thread that trains: to hand batches to another takes it longer than to copy them."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.begun: deque[list[Cut]] = deque()

    def begin(self, cuts: list[Cut]) -> None:
        self.begun.append(cuts)

    def end(self) -> Tensor:
        cuts = self.begun.popleft()
        batch = torch.empty(_shape(self.stored, cuts), dtype=torch.uint8)
        _fill(self.stored, batch.numpy(), cuts)
        return batch

    def close(self) -> None:
        self.begun.clear()


class _ByThreads(_Reader):
    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.threads = min(READERS, own_cores())
        self.pool = ThreadPoolExecutor(self.threads)
        self.begun: deque[tuple[Tensor, list[Future[None]]]] = deque()

    def begin(self, cuts: list[Cut]) -> None:
        batch = torch.empty(_shape(self.stored, cuts), dtype=torch.uint8, pin_memory=self.stored.device.type == "cuda")
        places = batch.numpy()
        shares = [slice(k, None, self.threads) for k in range(min(self.threads, len(cuts)))]
        parts = [self.pool.submit(_fill, self.stored, places[some], cuts[some]) for some in shares]
        self.begun.append((batch, parts))

    def end(self) -> Tensor:
        batch, parts = self.begun.popleft()
        for part in parts:
            part.result()
        return batch.to(self.stored.device, non_blocking=True)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class _ByProcesses(_Reader):
    """A batch is read by one process, into a sheet that the device copies from."""

    def __init__(self, stored: Stored) -> None:
        self.stored, self.readers = stored, readers_of(stored.source)
        self.begun: deque[tuple[Tensor, _Sheet, Reading]] = deque()

    def begin(self, cuts: list[Cut]) -> None:
        clips, rows = self.stored.source.clips, self.stored.rows
        wanted = [(clips[rows[i]], times.numpy(), (top, left)) for i, times, (top, left) in cuts]
        self._begin(_shape(self.stored, cuts), wanted)

    def begin_whole(self, i: int) -> None:
        """A clip by itself, all its frames in its own shape."""
        clip = self.stored.source.clips[self.stored.rows[i]]
        self._begin(torch.Size((clip.frames, clip.height, clip.width, 3)), [clip])

    def _begin(self, shape: torch.Size, wanted: Sequence[Wanted]) -> None:
        sheet = _sheets.take(shape.numel(), self.stored.device)
        batch = torch.from_numpy(sheet.memory.bytes[: shape.numel()]).view(shape)
        self.begun.append((batch, sheet, self.readers.begin(sheet.memory, wanted)))

    def end(self) -> Tensor:
        batch, sheet, reading = self.begun[0]
        reading.wait()
        self.begun.popleft()
        found = batch.clone() if self.stored.device.type == "cpu" else batch.to(self.stored.device, non_blocking=True)
        _sheets.put_back(sheet)
        return found

    def close(self) -> None:
        while self.begun:
            _, sheet, reading = self.begun.popleft()
            reading.give_up()
            _sheets.put_back(sheet)


class _Sheet:
    """Memory that readers write to and a device copies from."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory, self.device = Sheet(size), device
        self.pinned = device.type == "cuda" and pin(self.memory.bytes)
        self.copied = torch.cuda.Event() if device.type == "cuda" else None

    def drop(self) -> None:
        if self.pinned:
            unpin(self.memory.bytes)


class _Sheets:
    """Those that are free, the one that has been so for longest first. They are kept for the next client's clips:
    memory that a device copies from is slow to get."""

    def __init__(self) -> None:
        self._free: deque[_Sheet] = deque()
        self._lock = Lock()  # clients may train in threads

    def take(self, size: int, device: torch.device) -> _Sheet:
        with self._lock:
            found = self._free.popleft() if self._free else None
        if found is not None and found.copied is not None:
            found.copied.synchronize()
        if found is not None and found.memory.bytes.size >= size and found.device == device:
            return found
        if found is not None:
            found.drop()
        return _Sheet(size, device)

    def put_back(self, sheet: _Sheet) -> None:
        """Its copy may still be under way."""
        if sheet.copied is not None:
            sheet.copied.record(torch.cuda.current_stream(sheet.device))
        with self._lock:
            self._free.append(sheet)


_sheets = _Sheets()


def _fill(stored: Stored, places: np.ndarray, cuts: list[Cut]) -> None:
    for place, (i, times, (top, left)) in zip(places, cuts):
        place[...] = stored.source.frames(stored.rows[i], times.numpy(), (top, left))


def _shape(stored: Stored, cuts: list[Cut]) -> torch.Size:
    return torch.Size((len(cuts), len(cuts[0][1]), stored.side, stored.side, 3))
