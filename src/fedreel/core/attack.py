"""Simulated attacks: clients that lie in every round, so that rules against them can be compared. Nothing here runs at
a real site: what is wrapped is an engine whose clients work in this process, and the labels of its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from fedreel.config import AttackConfig, Recipe
from fedreel.core.abilities import Flippable, able
from fedreel.core.engine import Engine
from fedreel.core.task import EVERYONE, ClientData, Population, Task
from fedreel.core.update import TRAIN, Order, Result, Update
from fedreel.core.weights import Weights
from fedreel.errors import RecipeError

LABELS = "label-flip"


def attacked(engine: Engine, recipe: Recipe) -> Engine:
    """The engine, with hostile clients if the recipe has an [attack] section."""
    if recipe.attack is None:
        return engine
    if recipe.secure.sums or (recipe.transfer is not None and recipe.transfer.up != "full"):
        raise RecipeError(
            "an attack changes models on their way, and under [secure] or in few bytes they are not seen there",
            where="[attack]",
            expected='secure.sums = false and transfer.up = "full"',
        )
    return cast(Engine, Attacked(engine, recipe.attack, recipe.seed))


def hostile_clients(clients: Sequence[str], attack: AttackConfig, seed: int) -> tuple[str, ...]:
    """Who lies, drawn by the run's seed: all rules meet the same, and a larger number has those of a smaller one."""
    if attack.clients > len(clients):
        raise RecipeError(
            "there are fewer clients than are to be hostile",
            where="[attack] clients",
            expected=f"{len(clients)} or fewer",
            found=str(attack.clients),
        )
    drawn = np.random.default_rng([seed, 0xA77AC]).permutation(len(clients))[: attack.clients]
    return tuple(clients[i] for i in sorted(drawn))


def forged(attack: AttackConfig, sent: Weights, trained: Weights) -> Weights:
    """What a hostile client sends in place of the model that it has trained from the one that was sent. Statistics,
    buffers and counters are the trained model's: a variance times -1 would be seen at once."""
    if attack.kind == "sign-flip":
        return (sent - (trained - sent)).with_state_of(trained)
    if attack.kind == "scaled":
        return (sent + attack.scale * (trained - sent)).with_state_of(trained)
    return sent.clone() if attack.kind == "free-rider" else trained


class Attacked:
    """An engine that has begun, some of whose clients lie about their models. What comes beside a model (how many
    samples, the loss) is what an honest client would say. Tests are everybody's own, and honest."""

    def __init__(self, engine: Engine, attack: AttackConfig, seed: int) -> None:
        self._engine, self._attack = engine, attack
        self.slots, self.clients, self.blueprint = engine.slots, engine.clients, engine.blueprint
        self.hostile = hostile_clients(engine.clients, attack, seed)
        self._sent: dict[tuple[int, int], Order] = {}

    def describe(self) -> dict[str, Any]:
        said = f"simulated attack: {self._attack.kind} by {', '.join(self.hostile)}"
        return {**self._engine.describe(), "attack": said}

    def submit(self, order: Order) -> None:
        if order.client == EVERYONE:
            raise RecipeError("training in one place has no clients that could lie", where="[attack]")
        if order.kind == TRAIN and order.client in self.hostile:
            self._sent[order.key] = order
        self._engine.submit(order)

    def next(self) -> Result | None:
        result = self._engine.next()
        order = self._sent.pop((result.round, result.step), None) if result is not None else None
        if order is not None and isinstance(result, Update) and order.models:
            received = min(order.models.values(), key=result.weights.distance)  # of several, the one it trained
            result.weights = forged(self._attack, received.to(_device(result.weights)), result.weights)
        return result

    def sync(self) -> None:
        self._engine.sync()

    def close(self) -> None:
        self._engine.close()


class FlippedLabels(Population):
    """Clients of whom some learn from labels that are turned round; their tests are as they were."""

    def __init__(self, population: Population, task: Flippable, hostile: Sequence[str]) -> None:
        self._population, self._task, self.hostile = population, task, hostile
        self.clients = population.clients

    @staticmethod
    def among(population: Population, task: Task, recipe: Recipe) -> Population:
        """The population, with turned labels if the recipe's attack is that."""
        if recipe.attack is None or recipe.attack.kind != LABELS:
            return population
        hostile = hostile_clients(population.clients, recipe.attack, recipe.seed)
        return FlippedLabels(population, able(task, Flippable), hostile)

    def data(self, client: str) -> ClientData:
        own = self._population.data(client)
        if client not in self.hostile:
            return own
        return ClientData(lambda: self._task.flipped(own.train), lambda: own.test, own.numbers)

    def agreement(self) -> dict[str, Any]:
        return self._population.agreement()

    def describe(self) -> dict[str, Any]:
        return self._population.describe()


def _device(weights: Weights) -> Any:
    return next(iter(weights.flat.values())).device if weights.flat else "cpu"
