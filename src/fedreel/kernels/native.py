"""Compiles inner loops with numba when they are first called, and keeps the machine code where a folder allows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fedreel.machine.cache import cache_folder

# Data is checked to be finite, so comparisons need no care for NaN. Nothing here changes how a sum is rounded.
COMPARE = frozenset({"nnan", "nsz"})
# Sums may also be taken in another order, which lets them run in vector registers.
SUM = frozenset({"nsz", "reassoc", "contract"})


def native(fastmath: frozenset[str] = COMPARE) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a loop over arrays. It runs without the interpreter lock, so Python threads run it side by side.

    Machine code is kept where numba keeps it (NUMBA_CACHE_DIR, beside the source, the user's cache folder), or
    else in fedreel's cache folder. Where none of them can be written, every process compiles for itself.
    """

    def compile_later(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(fastmath=set(fastmath), nogil=True, error_model="numpy")(function)
        _keep_machine_code(dispatcher)
        return dispatcher

    return compile_later


def plain(data: ArrayLike, dtype: DTypeLike = np.float64) -> np.ndarray:
    """An array in the one form the loops are compiled for; a read-only one would be compiled for all over again."""
    return np.require(data, dtype, ["C", "A", "W", "E"])


def _keep_machine_code(dispatcher: Any) -> None:
    with suppress(RuntimeError):  # numba knows no folder that can be written
        dispatcher.enable_caching()
        return
    config: Any = numba.config  # filled at run time, so unknown to a type checker
    chosen = config.CACHE_DIR
    with suppress(RuntimeError):  # nor can ours, or there is no home folder to put it in
        config.CACHE_DIR = str(cache_folder() / "kernels")
        dispatcher.enable_caching()
    config.CACHE_DIR = chosen
