"""Work in several processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar, cast

from fedreel.errors import RunError

PATIENCE = 5.0  # seconds
_PR_SET_PDEATHSIG = 1

Task = TypeVar("Task")
Result = TypeVar("Result")


class Pool(ProcessPoolExecutor):
    """Fresh processes: forked children of a process that has started threads (torch, CUDA) may hang. They end with this
    process, however it ends. They never run the caller's script again, so it needs no `if __name__ == "__main__"`; what
    they are to do must be defined in a module. `prepare` is called first in each."""

    def __init__(self, workers: int, prepare: Callable[[], None] | None = None) -> None:
        super().__init__(workers, multiprocessing.get_context("spawn"), _begin, (prepare,))

    def submit(self, *job: Any, **named: Any) -> Future[Any]:
        with without_script():  # processes are started here
            return super().submit(_job, *job, **named)

    def stop(self) -> None:
        """End the processes. Ctrl-C has reached them, too, and they clean up after themselves; those that are still at
        work when PATIENCE is over are ended by force."""
        manager = cast(threading.Thread | None, self._executor_manager_thread)
        processes = [*self._processes.values()]
        self.shutdown(wait=False, cancel_futures=True)
        if manager is None:
            return
        manager.join(PATIENCE)  # it ends when they have
        for process in processes:
            process.terminate()
        manager.join()


def in_processes(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int | None = None,
    prepare: Callable[[], None] | None = None,
) -> Iterator[tuple[int, Result]]:
    """(task number, result) of each task as it gets ready; one worker or one task needs no other process. If a task
    fails, or no more is asked for, the others are ended where they are."""
    workers = min(workers or cores(), len(tasks))
    if workers <= 1:
        yield from enumerate(map(function, tasks))
        return
    with Pool(workers, prepare) as pool:
        try:
            futures = {pool.submit(function, task): number for number, task in enumerate(tasks)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunError(
                "a process died",
                found=str(error),
                hint="where memory is short, use fewer workers; what is finished is kept",
            ) from error
        except BaseException as error:
            pool.stop()
            if isinstance(error.__context__, KeyboardInterrupt):  # by a second Ctrl-C: wait() gave back what it had not
                raise error.__context__ from None
            raise


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_interactive() -> bool:
    """Whether somebody types at a prompt of this interpreter, or in a notebook. There other threads run and the caller
    has done who knows what before, so that a forked child may wait for ever for what a thread held."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


_sharing = 1  # processes like this one that are at work on this machine at once


def share_cores(processes: int) -> None:
    """So many processes like this one work side by side from now on: each is to start no more threads and processes
    than its part of the cores."""
    global _sharing
    _sharing = processes


def own_cores() -> int:
    """This process's part of the cores that it may use."""
    return max(1, cores() // _sharing)


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_MOST_KEPT, _MOST_MAPPED = 1 << 29, 1 << 25  # bytes; more than the second glibc does not take


def keep_freed_memory() -> bool:
    """In a process that trains step by step: memory that a step has freed stays for the next one instead of going back
    to the system, from where it comes anew, zeroed, page by page. For glibc's allocator, which torch has on x86; false
    where there is another C library, or a user has set it by the environment."""
    own = any(os.environ.get(name) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"))
    if own or _libc is None or not hasattr(_libc, "mallopt"):
        return False
    kept = _libc.mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT)
    return bool(_libc.mallopt(_M_MMAP_THRESHOLD, _MOST_MAPPED) and kept)


def end_with_parent(by: int = signal.SIGTERM) -> None:
    """In a child: be ended by this signal when the parent dies, even by kill -9. (Linux alone knows this.)"""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, by)


@contextmanager
def without_script() -> Iterator[None]:
    """Within this, processes that are started find no script to run again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


_interrupted = False  # in a pool's process: Ctrl-C has reached it


def _job(function: Callable[..., Result], *given: Any, **named: Any) -> Result:
    """One job; after an interrupted one no other is begun, though a few have been sent ahead."""
    global _interrupted
    if _interrupted:
        raise KeyboardInterrupt
    try:
        return function(*given, **named)
    except KeyboardInterrupt:
        _interrupted = True
        raise


def _begin(prepare: Callable[[], None] | None) -> None:
    """Sees to it that this process ends with its parent: a pool's processes outlive one that was killed, and wait for
    work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if prepare is not None:
        prepare()
