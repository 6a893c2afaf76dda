"""Scripts in processes of their own that need not import torch first: they are forked from one that has."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["torch", "fedreel.runs.run", "fedreel.engines.local", "fedreel.tasks.recognition.task"]
)


def run_script(script: Path, said: Path, timeout: float = 300) -> int:
    """Run a script in its own folder; what it says goes to a file. Returns its exit code."""
    process = _processes.Process(target=_run, args=(script, said, dict(os.environ)))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(script: Path, said: Path, environment: dict[str, str]) -> None:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(script.parent)
    sys.argv, sys.path[0:0] = [script.name], [str(script.parent)]
    runpy.run_path(str(script), run_name="__main__")
