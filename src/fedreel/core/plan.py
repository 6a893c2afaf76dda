"""What clients as units of privacy have to expect of a run, before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedreel.config import PrivacyConfig, RoundConfig
from fedreel.privacy.accounting import Release, epsilon, noise_for


@dataclass(frozen=True)
class Plan:
    """What clients as units have to expect of a run: noise, and how often it is drawn upon. `rate` is the share of the
    `pool` that a round draws."""

    config: PrivacyConfig
    rounds: int
    tests: int
    rate: float
    pool: int

    @staticmethod
    def of(config: PrivacyConfig, rounds: RoundConfig, clients: int = 0) -> Plan:
        """Where it is not known how many `clients` there are, the recipe's fraction is the rate."""
        every = rounds.evaluate_every if config.tests == "noised" else 0
        tests = math.ceil(rounds.rounds / every) if every else 0
        if not clients:
            return Plan(config, rounds.rounds, tests, rounds.fraction, 0)
        drawn = min(clients, rounds.clients or max(1, round(rounds.fraction * clients)))
        return Plan(config, rounds.rounds, tests, drawn / clients, clients)

    def releases(self, noise: float, rounds: int, tests: int) -> list[Release]:
        """So many rounds and tests."""
        fixed = self.pool if self.config.sampling == "fixed" else 0
        rate = 1.0 if self.config.sampling == "known" else self.rate
        return [Release(noise, rounds, rate, fixed), Release(self.config.test_noise, tests)]

    @property
    def noise(self) -> float:
        """The recipe's, or as little as its budget allows."""
        config = self.config
        if config.noise:
            return config.noise
        return noise_for(
            config.epsilon,
            config.delta,
            lambda noise: self.releases(noise, self.rounds, self.tests),
            config.accountant,
        )

    def epsilon(self, noise: float, rounds: int, tests: int) -> float:
        """What so many rounds and tests come to."""
        return epsilon(self.releases(noise, rounds, tests), self.config.delta, self.config.accountant)
