"""Programs that tests start: they end with the test, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fedreel.machine.processes import end_with_parent
from support.descendants import descendants, running

PATIENCE = 60.0  # seconds that a program has to end after it was asked to


@contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program, with the options of `subprocess.Popen`, for as long as this lasts."""
    process = start(command, **options)
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def start(command: Sequence[object], **options: Any) -> subprocess.Popen[Any]:
    """A program in a session of its own. Ctrl-C does not reach it, but it is asked to end when this process dies, even
    by kill -9. Whoever starts it has to `end` it."""
    words = [str(word) for word in command]
    return subprocess.Popen(words, start_new_session=True, preexec_fn=end_with_parent, **options)


def end(*processes: subprocess.Popen[Any]) -> None:
    """Ask all of them to end, and wait until they have. One that does not is killed, with all that it has started."""
    begun = {process: descendants(process.pid) for process in processes if process.poll() is None}
    for process in begun:
        process.terminate()
    for process, its in begun.items():
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            for pid in running(its):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
