"""Gives tests one thread, a cache of their own, and the tiny videos."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["support.durations", "support.trained"]

# For processes that tests start: several tests run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
QUICK = str(Path(__file__).parent / "support" / "quick")
if QUICK not in (found := os.environ.get("PYTHONPATH", "")).split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join([QUICK, *([found] if found else [])])
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests press Ctrl-C; jobs in a shell's background ignore it


def pytest_collection_finish() -> None:
    """All that was imported stays: the garbage collector need not search it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """And the kernels that a run has: else the first run of a process would change them for the tests after it."""
    import torch

    from fedreel.machine.device import pick_device

    torch.set_num_threads(1)
    pick_device("cpu")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes to the user's cache. All processes of a session share one: a playground is made once."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREEL_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield


@pytest.fixture(scope="module")
def own_cache(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For modules that falsify what others would read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two owners' tiny videos. Tests that change them take a copy."""
    from support.tiny import videos

    return videos(tmp_path_factory.mktemp("data"))
