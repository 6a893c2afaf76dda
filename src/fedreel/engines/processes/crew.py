"""How worker processes begin and end: forked where that is safe, else started afresh. They end with this process."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from fedreel.core.client import Worker
from fedreel.core.job import Job
from fedreel.engines.processes.messages import Channel, Ended, new_line
from fedreel.engines.processes.work import serve
from fedreel.errors import RunError
from fedreel.machine.device import pick_device
from fedreel.machine.processes import (
    PATIENCE,
    end_with_parent,
    is_interactive,
    keep_freed_memory,
    share_cores,
    without_script,
)

_START, _END = "start", "end"  # what the process that forks workers is told; a number asks how that one ended


class Crew(Protocol):
    """What starts workers. A worker is known by its process id."""

    def start(self) -> tuple[int, Channel]: ...

    def ended(self, pid: int) -> int:
        """How a worker ended that has ended or is about to: its exit code, or minus the signal that killed it."""
        ...

    def close(self) -> None:
        """End all that are left. One that is at work may put its files in order; after PATIENCE it is killed."""
        ...


class ForkedCrew:
    """Forks one process at once, before anything here has trained or started threads; that one forks the workers when
    they are wanted. So they begin within milliseconds, with the model and the clients' data as they are in memory, and
    a worker that died is replaced by one that is as clean."""

    def __init__(self, worker: Worker, share: int) -> None:
        """Each worker may have one part in `share` of the memory for clients' data."""
        self._line, there = new_line()

        def begin() -> None:
            self._line.close()
            gc.freeze()  # what is common stays common: the collector writes to what it looks at
            _Nursery(Channel(there), worker, share).run()

        self._pid = _fork(begin)
        there.close()

    def start(self) -> tuple[int, Channel]:
        channel, there = new_line()
        with there:
            pid = self._ask(_START, [there.fileno()])
        return pid, channel

    def able(self) -> bool:
        """Whether workers can train. Where this process has trained and the machine has a GPU, they cannot."""
        pid, channel = self.start()
        problem = "it died"
        with channel.line, contextlib.suppress(Ended):
            problem = channel.receive()[0]["problem"]
        self.ended(pid)
        return not problem

    def ended(self, pid: int) -> int:
        return self._ask(pid)

    def close(self) -> None:
        with contextlib.suppress(Ended):
            self._line.send({"what": _END})
        self._line.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _ask(self, what: object, files: list[int] | None = None) -> int:
        try:
            self._line.send({"what": what}, files or [])
            return int(self._line.receive()[0]["answer"])
        except Ended as error:
            raise RunError(
                "the process that starts workers was killed",
                hint="where memory is short, use fewer workers (engine.workers); then --resume",
            ) from error


class _Nursery:
    """In the process between: forks workers, and says how they ended."""

    def __init__(self, line: Channel, worker: Worker, share: int) -> None:
        self._line, self._worker, self._share = line, worker, share
        self._children: set[int] = set()

    def run(self) -> None:
        """Until it is told to end, or nobody is there."""
        with contextlib.suppress(Ended):
            told, files = self._line.receive()
            while told["what"] != _END:
                self._line.send({"answer": self._fork(files[0]) if files else self._wait(told["what"])})
                told, files = self._line.receive()
        self._end()

    def _fork(self, handle: int) -> int:
        pid = _fork(lambda: self._work(handle))
        self._children.add(pid)
        os.close(handle)
        return pid

    def _work(self, handle: int) -> None:
        self._line.close()
        _work(socket.socket(fileno=handle), lambda: self._worker, self._share)

    def _wait(self, pid: int) -> int:
        self._children.discard(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while self._children and time.monotonic() < deadline:
            self._children -= {pid for pid in self._children if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.002)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)


class SpawnedCrew:
    """Processes that begin from nothing and make task, model and data anew of the job. Needed on a GPU, which a process
    that was forked cannot use; they go round the GPUs if the job names none."""

    def __init__(self, job: Job, keep_trained: bool, share: int) -> None:
        self._job, self._keep_trained, self._share = job, keep_trained, share
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[int, BaseProcess] = {}
        self._started = 0

    def start(self) -> tuple[int, Channel]:
        device = self._job.device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", self._started % torch.cuda.device_count())
        channel, there = new_line()
        job = replace(self._job, device=device)
        arguments: tuple[Any, ...] = (there, job, self._keep_trained, self._share)
        process = self._context.Process(target=_begin_spawned, args=arguments, daemon=True)
        with there, without_script():
            try:
                process.start()
            except (TypeError, AttributeError) as error:  # what pickle says
                raise RunError(
                    "this job cannot be handed to another process",
                    found=str(error),
                    hint="its task and method must be classes of a module; or choose the engine local",
                ) from error
        assert process.pid is not None
        self._started += 1
        self._processes[process.pid] = process
        return process.pid, channel

    def ended(self, pid: int) -> int:
        process = self._processes.pop(pid)
        process.join()
        return process.exitcode or 0

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()


def can_fork(device: torch.device) -> bool:
    """Whether workers can be forked from here. macOS' own libraries do not survive it, and a notebook may not."""
    return device.type == "cpu" and sys.platform != "darwin" and hasattr(os, "fork") and not is_interactive()


def _begin_spawned(line: socket.socket, job: Job, keep_trained: bool, share: int) -> None:
    end_with_parent(signal.SIGKILL)

    def make() -> Worker:
        pick_device(str(job.device))
        if job.device.type == "cuda":
            torch.cuda.set_device(job.device)
        return job.worker(keep_trained)

    _work(line, make, share)


def _work(line: socket.socket, make: Callable[[], Worker], share: int) -> None:
    """In a worker: one thread, and Ctrl-C is for the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of whatever puts files in order
    torch.set_num_threads(1)
    share_cores(share)
    keep_freed_memory()
    serve(Channel(line), make, share)


def _fork(work: Callable[[], None]) -> int:
    """A child that does this work and nothing else: it never comes back to what its parent was doing."""
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()  # else both would write what is in there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, where other threads run
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getppid() == parent:  # else it died before we could ask to be told
            work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
