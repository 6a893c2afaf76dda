"""Differential privacy of a run: what the method and the log get to know, with noise, and what that comes to.

Clients as units: the server clips each client's change and adds noise to their sum, once a round; it is trusted to.
Under secure sums the clients do both (`core.discretion`).
Examples as units: each client adds noise to its own gradients (`core.private_training`) and trusts nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.config import PrivacyConfig, Recipe
from fedreel.core.aggregate import Aggregator, Average
from fedreel.core.blueprint import Blueprint
from fedreel.core.clipped import ClippedSum
from fedreel.core.disclosure import Disclosure, Numbers
from fedreel.core.method import Method
from fedreel.core.plan import Plan
from fedreel.core.task import Task
from fedreel.core.update import Update
from fedreel.core.weights import Weights
from fedreel.errors import FedreelError, RecipeError
from fedreel.privacy.noise import Secret

MEMORY = "privacy"  # in the server's memory: what has been given away so far
_CLIP_RATE = 0.2  # how fast a clip follows its quantile (Andrew et al. 2021)
_CLIP_NOISE = 20.0  # the noise on how many changes are within the clip: the clients of a round over this
Ranges = Mapping[str, tuple[float, float]]  # of metrics that have one


class _Telling(Disclosure):
    """What both units have in common: who took part, and single clients' numbers, are told to nobody, so that clients
    count alike."""

    alike = True

    def __init__(self, config: PrivacyConfig, seed: int) -> None:
        super().__init__(seed)
        self.config = self.privacy = config
        self.tests = config.tests != "off"

    def of_training(self, summary: dict[str, Any]) -> dict[str, Any]:
        return {key: summary[key] for key in ("bytes_up", "bytes_down", "bytes_testing")}

    def of_test(self, answers: Numbers, counted: Sequence[str] | None) -> dict[str, Any]:
        return {} if self.config.tests == "noised" else super().of_test(answers, counted)

    def of_partition(self, described: dict[str, Any]) -> dict[str, Any]:
        """Who there is, and the names of the classes; not who has how many of them."""
        return {key: described[key] for key in ("classes", "sites", "attack") if key in described}


class ExamplePrivacy(_Telling):
    """Clients add the noise themselves; the server is told neither losses nor how many examples there are, so clients
    count alike."""

    def was_tested(self, numbers: Mapping[str, float]) -> bool:
        return bool(numbers) if self.config.tests == "noised" else super().was_tested(numbers)

    def averages(
        self, updates: Iterable[Update], sent: Weights, by: Sequence[str], make: Callable[[], Aggregator], round: int
    ) -> list[Average]:
        return super().averages(updates, sent, ["equal"], make, round) * len(by)

    def test_means(self, answers: Numbers, counted: Sequence[str], round: int) -> dict[str, float]:
        if self.config.tests == "open":
            return super().test_means(answers, counted, round)
        names = sorted({name for client in counted for name in answers[client]})
        have = {name: [answers[c][name] for c in counted if name in answers[c]] for name in names}
        return {name: sum(values) / len(values) for name, values in have.items()}

    def of_round(self) -> dict[str, Any]:
        """The budget: each client makes its noise so that the whole run comes to no more."""
        return {"unit": "example", "epsilon": self.config.epsilon, "delta": self.config.delta}


class ClientPrivacy(_Telling):
    """The mean change of a round's clients, each clipped, with noise: at a rate q of N clients
    w <- w + (sum of clip(w_k - w, C) + noise C N(0, 1)) / (q N)."""

    def __init__(self, plan: Plan, ranges: Ranges, secret: Secret, seed: int) -> None:
        """`ranges` are those of the metrics that have any."""
        super().__init__(plan.config, seed)
        self.plan, self.ranges, self._secret = plan, ranges, secret
        self.expected = round(plan.rate * plan.pool)  # how many clients a round draws, on average
        self.state: dict[str, Any] = {}

    def begin(self, memory: dict[str, Any]) -> None:
        if MEMORY not in memory:
            memory[MEMORY] = {"rounds": 0, "tests": 0, "clip": self.config.clip, "noise": self.plan.noise}
        self.state = memory[MEMORY]

    @property
    def noise(self) -> float:
        return float(self.state["noise"])

    def reason_to_end(self, round: int) -> str:
        """A round more, with a test if one may come, must keep within the budget."""
        tests = min(self.state["tests"] + 1, self.plan.tests)
        budget = self.config.epsilon
        if not budget or self.plan.epsilon(self.noise, round, tests) <= budget:
            return ""
        return f"the budget is spent: with round {round} epsilon would be above {budget:g}"

    def drawn(self, pool: Sequence[str], count: int, round: int) -> list[str]:
        if len(pool) != self.plan.pool or count != self.expected:
            raise FedreelError("under [privacy] a round's clients are drawn from all of them, at the recipe's rate")
        if self.config.sampling == "known":
            return super().drawn(pool, count, round)
        lots = self._secret.uniform(len(pool), "clients", round)
        if self.config.sampling == "fixed":
            return [pool[i] for i in sorted(np.argsort(lots, kind="stable")[:count])]
        return [client for client, lot in zip(pool, lots) if lot <= self.plan.rate]

    def averages(
        self, updates: Iterable[Update], sent: Weights, by: Sequence[str], make: Callable[[], Aggregator], round: int
    ) -> list[Average]:
        self._check_once(round)
        clip, within = float(self.state["clip"]), 0
        total = ClippedSum(sent, clip)
        for update in updates:
            within += total.add(update.weights)
        noise = self._noise_on_changes()
        mean = total.mean(self.expected, noise * clip, self._secret, "mean", round)
        self.state["rounds"] = round
        if self.config.clip_quantile:
            self._move_clip(within, total.count, round)
        return [NoisyAverage(mean)] * len(by)

    def of_sums(self, means: list[Average], by: Sequence[str], round: int) -> list[Average]:
        """Clients have clipped their changes, and made the noise in parts."""
        self._check_once(round)
        self.state["rounds"] = round
        return [NoisyAverage(means[0].weights)] * len(by)

    def _check_once(self, round: int) -> None:
        if self.state["rounds"] >= round:
            raise FedreelError("under [privacy] a method asks its clients for one mean a round")

    def test_means(self, answers: Numbers, counted: Sequence[str], round: int) -> dict[str, float]:
        """Over all clients, whoever answered: of each metric that has a range, with noise."""
        if self.config.tests == "open":
            return super().test_means(answers, counted, round)
        names = sorted(self.ranges)
        draws = self._secret.normal(len(names), "test", round)
        self.state["tests"] += 1
        means = {}
        for name, draw in zip(names, draws):
            low, high = self.ranges[name]
            shares = [(min(max(own[name], low), high) - low) / (high - low) for own in answers.values() if name in own]
            share = sum(shares) / self.plan.pool + self._test_error * float(draw)
            means[name] = low + (high - low) * min(max(share, 0.0), 1.0)
        return means

    @property
    def _test_error(self) -> float:
        """The noise on a metric, in the width of its range."""
        return self.config.test_noise * math.sqrt(len(self.ranges)) / self.plan.pool

    def of_round(self) -> dict[str, Any]:
        spent = self.plan.epsilon(self.noise, self.state["rounds"], self.state["tests"])
        told = {"unit": "client", "epsilon": spent, "delta": self.config.delta, "noise": self.noise}
        told |= {"clip": self.state["clip"], "rate": self.plan.rate, "sampling": self.config.sampling}
        return told | ({"test_error": self._test_error} if self.plan.tests else {})

    def _noise_on_changes(self) -> float:
        """Where the clip follows a quantile, a part of the noise's worth goes into counting who is within it."""
        if not self.config.clip_quantile:
            return self.noise
        count_noise = self.expected / _CLIP_NOISE
        left = self.noise**-2 - (2 * count_noise) ** -2
        if left <= 0:
            raise RecipeError(
                "too few clients take part in a round for a clip that follows them",
                where="[privacy] clip_quantile",
                expected=f"more than {self.noise * _CLIP_NOISE / 2:.0f} clients a round, or 0",
                found=f"{self.expected:g}",
            )
        return left**-0.5

    def _move_clip(self, within: int, count: int, round: int) -> None:
        """Andrew et al. 2021: clip <- clip exp(-rate (share within it - quantile)), the share with noise."""
        draw = float(self._secret.normal(1, "within", round)[0])
        noisy = within - count / 2 + self.expected / _CLIP_NOISE * draw
        share = noisy / self.expected + 0.5
        self.state["clip"] *= math.exp(-_CLIP_RATE * (share - self.config.clip_quantile))


class NoisyAverage(Average):
    """A mean that is known, and nothing beside it."""

    def __init__(self, mean: Weights) -> None:
        self._mean = mean
        self.numbers = {}

    @property
    def weights(self) -> Weights:
        return self._mean

    def tensors(self, name: str) -> Weights:
        raise FedreelError(f"under [privacy] clients send no '{name}'")

    def number(self, name: str) -> float:
        raise FedreelError(f"under [privacy] clients send no '{name}'")

    @property
    def count(self) -> int:
        raise FedreelError("under [privacy] nobody is told how many clients took part")


def make_disclosure(recipe: Recipe, task: Task, clients: int, out: Path) -> Disclosure:
    """What the recipe's [privacy] section asks of the server, whose secret lies in the run's folder `out`."""
    config = recipe.privacy
    if config is None:
        return Disclosure(recipe.seed)
    if config.unit == "example":
        return ExamplePrivacy(config, recipe.seed)
    secret = Secret.of_seed(recipe.seed) if config.seeded else Secret.kept(out / "server.key")
    return ClientPrivacy(Plan.of(config, recipe.round, clients), task.ranges, secret, recipe.seed)


def check_private(recipe: Recipe, method: Method, made: Blueprint) -> None:
    """Raise if something would leave that no noise of the recipe's [privacy] section is for."""
    if recipe.privacy is None:
        return
    name, rounds = type(method).__name__, recipe.round
    beside = sorted({*method.sends} - {*Method.sends})
    if method.sees != "sum":
        raise RecipeError(
            f"{name} looks at the model of each single client, and [privacy] hides these",
            where="[method] name",
            expected="a method that sees sums: fedreel list methods",
        )
    if beside:
        raise RecipeError(
            f"{name} has clients send {', '.join(beside)} beside the model, and no noise of [privacy] is for that",
            where="[method] name",
            expected="a method whose clients send a model alone, such as fedavg, fedavgm, fedadam or fedprox",
        )
    if rounds.aggregation != "mean":
        raise RecipeError("noise is for a mean", where="[round] aggregation", expected="mean", found=rounds.aggregation)
    for setting, value in (("divergence", rounds.divergence), ("mean_over", rounds.mean_over != "all")):
        if value:
            raise RecipeError(
                "this tells of single clients", where=f"[round] {setting}", expected="as it is by default"
            )
    if recipe.privacy.unit == "client" and recipe.transfer is not None and recipe.transfer.together:
        raise RecipeError(
            "the server clips the change of each client, and would be sent a mean of several",
            where="[transfer] together",
            expected='false, or [privacy] unit = "example"',
        )
    statistics = [t.name for t in made.travelling.tensors if t.role == "statistics"]
    if statistics:
        raise RecipeError(
            "batch norm's statistics would leave the clients, and no noise is for these",
            where=f"[task]: {statistics[0]} and {len(statistics) - 1} more",
            expected='task.backbone.norm = "group"; or method = "fedbn", which leaves them at home; or tune = "head"',
        )
