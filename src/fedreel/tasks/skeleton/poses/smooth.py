"""The one-euro filter: heavy smoothing where little moves, little delay where much does."""

from __future__ import annotations

import math

import numpy as np


class OneEuro:
    """Call it with values of any one shape and their times, in order. The cut-off frequency in Hz is `floor` at rest
    and grows by `slope` for each unit a second of speed; speeds are smoothed with the cut-off `speed`."""

    def __init__(self, floor: float, slope: float, speed: float = 1.0) -> None:
        self.floor, self.slope, self.speed = floor, slope, speed
        self._time = 0.0
        self._raw: np.ndarray | None = None
        self._value = self._change = np.zeros(0)

    def __call__(self, values: np.ndarray, time: float, unit: float = 1.0) -> np.ndarray:
        """The smoothed values; speeds are counted in `unit`s a second. The first values stay as they are."""
        if self._raw is None:
            self._value, self._change = values, np.zeros_like(values)
        elif time > self._time:
            step = time - self._time
            change = (values - self._raw) / unit / step
            self._change = _towards(self._change, change, weight(self.speed, step))
            share = weight(self.floor + self.slope * np.abs(self._change), step)
            self._value = _towards(self._value, values, share)
        self._raw, self._time = values, time
        return self._value


def weight(cutoff: np.ndarray | float, step: float) -> np.ndarray | float:
    """Of a new value against the one before, for a cut-off frequency in Hz and the seconds between the two."""
    return 1 / (1 + 1 / (2 * math.pi * cutoff * step))


def _towards(old: np.ndarray, new: np.ndarray, share: np.ndarray | float) -> np.ndarray:
    return old + share * (new - old)
