"""Pools of processes: they leave the caller's script alone, and end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedreel.core.processes import Pool, in_processes
from fedreel.errors import RunError


def test_results_carry_the_number_of_their_task() -> None:
    assert dict(in_processes(abs, [-3, 4, -5], workers=1)) == {0: 3, 1: 4, 2: 5}
    assert dict(in_processes(abs, [-3, 4, -5], workers=2)) == {0: 3, 1: 4, 2: 5}


def test_a_worker_that_dies_is_an_error_that_says_so() -> None:
    with pytest.raises(RunError, match="process died"):
        dict(in_processes(os._exit, [1, 1], workers=2))


def test_a_worker_s_error_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        dict(in_processes(divided_by_zero, [1, 2], workers=2))


def divided_by_zero(number: int) -> int:
    return number // 0


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from fedreel.core.processes import in_processes\n"
        "print('run')\n"
        "print(sorted(in_processes(abs, [-1, -2], workers=2)), sys.modules['__main__'].__file__ == __file__)\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout == "run\n[(0, 1), (1, 2)] True\n"
    assert not out.stderr


def test_every_process_is_prepared_first(tmp_path: Path) -> None:
    with Pool(1, os.chdir, tmp_path) as pool:
        assert pool.submit(os.getcwd).result() == str(tmp_path)
    assert os.getcwd() != str(tmp_path)
