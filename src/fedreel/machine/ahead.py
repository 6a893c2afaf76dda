"""Work that threads do ahead of whoever wants it: several sequences at once, each a few items before its reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

from fedreel.machine.processes import own_cores

AHEAD = 2  # items of a sequence
PATIENCE = 0.1  # seconds after which a thread looks whether anybody still wants what it makes
T = TypeVar("T")


def ahead(sequences: Sequence[Callable[[], Iterator[T]]], threads: int | None = None) -> Iterator[Iterator[T]]:
    """What each of the sequences gives, in their order: the same as without threads, errors too. As many as there are
    cores are gone through at once. One alone, or one thread, needs no other."""
    threads = min(threads or own_cores(), len(sequences))
    if threads <= 1:
        yield from (make() for make in sequences)
        return
    under_way: deque[_Lane[T]] = deque()
    waiting = deque(sequences)
    try:
        while waiting or under_way:
            while waiting and len(under_way) < threads:
                under_way.append(_Lane(waiting.popleft()))
            yield under_way[0].items()
            under_way.popleft().stop()
    finally:
        for lane in under_way:
            lane.stop()


class _Lane(Generic[T]):
    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._made: Queue[tuple[T | None, BaseException | None, bool]] = Queue(AHEAD)
        self._unwanted = Event()
        self._thread = Thread(target=self._work, args=(make,), daemon=True)
        self._thread.start()

    def items(self) -> Iterator[T]:
        while True:
            item, error, more = self._made.get()
            if error is not None:
                raise error
            if not more:
                return
            yield item  # type: ignore[misc]

    def stop(self) -> None:
        """Nobody wants the rest; when this returns, nothing more is done."""
        self._unwanted.set()
        self._thread.join()

    def _work(self, make: Callable[[], Iterator[T]]) -> None:
        try:
            for item in make():
                if not self._put((item, None, True)):
                    return
            self._put((None, None, False))
        except BaseException as error:
            self._put((None, error, False))

    def _put(self, made: tuple[T | None, BaseException | None, bool]) -> bool:
        while not self._unwanted.is_set():
            try:
                self._made.put(made, timeout=PATIENCE)
                return True
            except Full:
                continue
        return False
