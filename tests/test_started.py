"""What a test starts ends with it: also where the test fails, and also a program that will not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from support import started as module
from support.descendants import descendants, running
from support.started import started

STAY = "print('here', flush=True); import time; time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {STAY}"
CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]).wait()"
PIPE: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}


def test_a_program_ends_where_the_test_fails() -> None:
    found = []

    def fail() -> None:
        with started([sys.executable, "-c", STAY], **PIPE) as process:
            found.append(process)
            assert process.stdout.readline() == ""

    with pytest.raises(AssertionError, match="here"):
        fail()
    assert [process.returncode for process in found] == [-signal.SIGTERM]


def test_one_that_does_not_end_is_killed_with_all_that_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    with started([sys.executable, "-c", f"{DEAF.partition('print')[0]}{CHILD}"], **PIPE) as process:
        assert process.stdout.readline() == "here\n"  # its child
        begun = descendants(process.pid)
    assert process.returncode == -signal.SIGKILL
    assert len(begun) == 1
    deadline = time.monotonic() + 60
    while running(begun):  # for the moment that it takes
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    code = (
        "import sys\nfrom support.started import start\n"
        f"print(start([sys.executable, '-c', {STAY!r}]).pid, flush=True)\nsys.stdin.read()"
    )
    path = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    with started([sys.executable, "-c", code], stdin=subprocess.PIPE, env=path, **PIPE) as process:
        assert process.stdout.readline().strip().isdigit()
        assert process.stdout.readline() == "here\n"
        begun = descendants(process.pid)
        assert len(begun) == 1
        process.kill()
        assert process.stdout.read() == ""  # ends when the other has ended too
