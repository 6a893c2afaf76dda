"""What of the clients' answers the method and the log get to know: openly all of it. `core.privacy` tells less."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedreel.config import PrivacyConfig
from fedreel.core.aggregate import Aggregator, Average
from fedreel.core.update import Update
from fedreel.core.weights import Weights

Numbers = Mapping[str, Mapping[str, float]]  # by client


class Disclosure:
    """Nothing is held back."""

    tests = True  # whether clients may be tested
    alike = False  # whether clients count alike, however a method weighs them
    privacy: PrivacyConfig | None = None

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, memory: dict[str, Any]) -> None:
        """The server's memory, in which a state is kept if there is one."""

    def reason_to_end(self, round: int) -> str:
        """Why this round may not begin, if it may not."""
        return ""

    def drawn(self, pool: Sequence[str], count: int, round: int) -> list[str]:
        """So many of the pool without replacement; the same for every method with the same seed."""
        if count == len(pool):
            return [*pool]
        chosen = np.random.default_rng([self.seed, 0x5A3B1E, round]).choice(len(pool), count, replace=False)
        return [pool[i] for i in sorted(chosen.tolist())]

    def averages(
        self, updates: Iterable[Update], sent: Weights, by: Sequence[str], make: Callable[[], Aggregator], round: int
    ) -> list[Average]:
        """Means of the same updates, one for each way to weigh them. `make` gives an empty mean."""
        sums = [Average(name, make) for name in by]
        for update in updates:
            for average in sums:
                average.add(update)
        return sums

    def of_sums(self, means: list[Average], by: Sequence[str], round: int) -> list[Average]:
        """What a method gets of means that were taken without a look at single updates; one for each way to weigh."""
        return means

    def was_tested(self, numbers: Mapping[str, float]) -> bool:
        """Whether a client that answers so had anything to test with."""
        return numbers.get("n", 0) > 0

    def test_means(self, answers: Numbers, counted: Sequence[str], round: int) -> dict[str, float]:
        """Means over the samples of the clients that count, and over these clients as `NAME_clients`."""
        overall: dict[str, float] = {}
        for name in sorted({name for client in counted for name in answers[client]} - {"n"}):
            have = [(answers[c][name], answers[c]["n"]) for c in counted if name in answers[c]]
            overall[name] = sum(v * n for v, n in have) / sum(n for _, n in have)
            overall[f"{name}_clients"] = sum(v for v, _ in have) / len(have)
        return overall

    def of_training(self, summary: dict[str, Any]) -> dict[str, Any]:
        """What the log says of a round's training."""
        return summary

    def of_test(self, answers: Numbers, counted: Sequence[str] | None) -> dict[str, Any]:
        """What the log says of a test beside its means; `counted` where not all who answered count."""
        return {"clients": answers, **({} if counted is None else {"counted": counted})}

    def of_partition(self, described: dict[str, Any]) -> dict[str, Any]:
        """What the log says of the clients' data."""
        return described

    def of_round(self) -> dict[str, Any]:
        """What has been given away so far, if that is counted."""
        return {}


def testers(clients: Sequence[str], most: int, seed: int, round: int) -> list[str]:
    """So many of these clients are asked to test in a round (0: all); the same for every method with the same seed."""
    if not 0 < most < len(clients):
        return [*clients]
    draw = np.random.default_rng([seed, 0x7E575, round])
    return [clients[i] for i in sorted(draw.choice(len(clients), most, replace=False))]
