"""The kernels run where no folder can be written, and keep their machine code where one can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedreel

RUN = "from fedreel.kernels import knapsack; print(knapsack.__file__, knapsack.knapsack([1, 2], [1, 1], 1).tolist())"


@pytest.mark.slow
@pytest.mark.parametrize("writable", [False, True])
def test_kernels_run_from_a_package_that_cannot_be_written(tmp_path: Path, writable: bool) -> None:
    package = tmp_path / "fedreel"
    shutil.copytree(Path(fedreel.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "kernels" / "__pycache__").write_text("a file where numba wants a folder")
    nowhere = str(package / "py.typed" / "nowhere")
    cache = tmp_path / "cache" if writable else Path(nowhere)
    homes = dict.fromkeys(("HOME", "XDG_CACHE_HOME"), nowhere)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | homes
    environment |= {"PYTHONPATH": str(tmp_path), "FEDREEL_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(package / "kernels" / "knapsack.py"), "[1]"], done.stderr
    assert bool(list(tmp_path.rglob("*.nbc"))) == writable
