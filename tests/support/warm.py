"""Python in processes of their own that need not import torch and fedreel first: they are forked from one that has."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any
from unittest import mock

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["support.preload"])


def run_python(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    own_fedreel: bool = True,
) -> CompletedProcess[str]:
    """`python WORDS` to its end, as `subprocess.run` does it: a script, `-m MODULE` or `-c CODE`, and its arguments. It
    has the fedreel of the tests or, if not `own_fedreel`, the one on its path."""
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("out", "err")]
        given = (command, said, cwd or Path(), dict(env or os.environ), own_fedreel)
        process = warm_process(_run, *given)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutExpired(command, timeout, *(path.read_bytes() for path in said))
        return CompletedProcess(command, process.exitcode, *(path.read_text() for path in said))


def warm_process(target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """A process that is yet to be started. Who forks it looks for what it has to import where Python looks by itself,
    and not where this process does; what is not found there it leaves out without a word."""
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)):
        forkserver.ensure_running()
    return _processes.Process(target=target, args=arguments)


def _run(command: list[str], said: list[Path], cwd: Path, env: dict[str, str], own_fedreel: bool) -> None:
    for number, path in enumerate(said, 1):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), number)
    if not own_fedreel:
        for name in [name for name in sys.modules if name.partition(".")[0] == "fedreel"]:
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    first, *rest = command
    path = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [str(Path(first).parent.resolve()) if first not in ("-m", "-c") else "", *path]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(first, run_name="__main__")
