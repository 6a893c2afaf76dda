"""Pools of processes: they leave the caller's script alone, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedreel.errors import RunError
from fedreel.machine import processes
from fedreel.machine.processes import Pool, in_processes
from support.started import started


def test_results_carry_the_number_of_their_task() -> None:
    assert dict(in_processes(abs, [-3, 4, -5], workers=1)) == {0: 3, 1: 4, 2: 5}
    assert dict(in_processes(abs, [-3, 4, -5], workers=2)) == {0: 3, 1: 4, 2: 5}


def test_a_worker_that_dies_is_an_error_that_says_so() -> None:
    with pytest.raises(RunError, match="process died"):
        dict(in_processes(os._exit, [1, 1], workers=2))


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(processes._libc, "mallopt"), reason="glibc's allocator")
def test_freed_memory_stays_unless_a_user_has_set_it() -> None:
    """Blocks as a training step takes and frees; before, each comes anew from the system."""
    code = """
import ctypes, resource
from fedreel.machine.processes import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        blocks = [libc.malloc(size << 20) for size in (2, 6, 3, 6, 8, 1)]
        for block in blocks:
            ctypes.memset(block, 1, 1 << 20)
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(3)
print(faults(5), keep_freed_memory(), (faults(3), faults(5))[1])
"""
    env = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    told = []
    for own in ({}, {"MALLOC_TRIM_THRESHOLD_": "131072"}):
        done = subprocess.run([sys.executable, "-c", code], env=env | own, capture_output=True, text=True, check=True)
        told.append(done.stdout.split())
    (before, kept, after), (_, kept_too, after_too) = told
    assert (kept, kept_too) == ("True", "False")
    assert int(after) < int(before) / 10
    assert int(after_too) > int(before) / 10


def test_a_worker_s_error_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        dict(in_processes(divided_by_zero, [1, 2], workers=2))


def divided_by_zero(number: int) -> int:
    return number // 0


def test_those_still_at_work_are_ended_when_no_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.1)
    before = {*multiprocessing.active_children()}
    found = in_processes(time.sleep, [0, 3600], workers=2)
    assert next(found) == (0, None)
    found.close()  # type: ignore[attr-defined]
    assert {*multiprocessing.active_children()} <= before


def test_after_ctrl_c_every_job_cleans_up_and_no_other_is_begun(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def work(name):\n"
        "    begun = Path(name)\n    begun.touch()\n"
        "    try:\n        time.sleep(3600)\n"
        "    finally:\n        begun.rename(name + '.ended')\n"
    )
    (tmp_path / "script.py").write_text(
        "from fedreel.machine.processes import in_processes\nfrom helper import work\n"
        "list(in_processes(work, ['a', 'b', 'c', 'd'], workers=2))\n"
    )
    with started([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
    assert sorted(p.name for p in tmp_path.glob("?*") if p.suffix not in (".py", "")) == ["a.ended", "b.ended"]
    assert not [name for name in "abcd" if (tmp_path / name).exists()]


def test_ctrl_c_twice_is_an_interruption_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(futures: Any) -> Any:
        try:
            raise KeyboardInterrupt
        finally:  # as in Condition.wait(), where the second has come before the lock was taken again
            threading.Lock().release()

    monkeypatch.setattr(processes, "as_completed", waits)
    with pytest.raises(KeyboardInterrupt):
        dict(in_processes(abs, [1, 2], workers=2))


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from fedreel.machine.processes import in_processes\n"
        "print('run')\n"
        "print(sorted(in_processes(abs, [-1, -2], workers=2)), sys.modules['__main__'].__file__ == __file__)\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout == "run\n[(0, 1), (1, 2)] True\n"
    assert not out.stderr


def test_every_process_is_prepared_first(tmp_path: Path) -> None:
    with Pool(1, partial(os.chdir, tmp_path)) as pool:
        assert pool.submit(os.getcwd).result() == str(tmp_path)
    assert os.getcwd() != str(tmp_path)


def test_processes_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 16)
    monkeypatch.setattr(processes, "_sharing", 1)
    assert processes.own_cores() == 16
    for many, own in ((5, 3), (16, 1), (40, 1)):
        processes.share_cores(many)
        assert processes.own_cores() == own
