"""Noise that the clients of a secure sum make in parts, so that nobody sees a change, or a sum, without any."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedreel.config import PrivacyConfig, RoundConfig
from fedreel.core.plan import Plan

_TAIL = 8.0  # standard deviations of its noise that a number has room for


@dataclass(frozen=True)
class Parts:
    """What is to be on the sum of changes of length `clip`: normal noise with a standard deviation of `noise` clips. A
    sum is opened only if at least as many clients are in it as its threshold says: their parts together are as much."""

    clip: float
    noise: float

    @staticmethod
    def of(config: PrivacyConfig, rounds: RoundConfig) -> Parts:
        return Parts(config.clip, Plan.of(config, rounds).noise)

    def spread(self, threshold: int) -> float:
        """The standard deviation of one client's part."""
        return self.noise * self.clip / math.sqrt(threshold)

    def reach(self, threshold: int) -> float:
        """How far a number of a client's part may be from 0: a power of two, so that everybody has the same, whatever
        the last digits of the noise are."""
        return 2.0 ** math.ceil(math.log2(self.clip + _TAIL * self.spread(threshold)))
