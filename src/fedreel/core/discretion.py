"""What of a client's work leaves it: all that the method declares; under [privacy] less, and some of it with noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedreel.config import PrivacyConfig, Recipe, RoundConfig
from fedreel.core.batchnorm import active_norms
from fedreel.core.budget import Budget, Kind
from fedreel.core.clipped import ClippedSum
from fedreel.core.declared import TESTED
from fedreel.core.plan import Plan
from fedreel.core.private_training import Noise, fit_privately, steps_of
from fedreel.core.secure.noise import Parts
from fedreel.core.task import Task
from fedreel.core.training import Fitted, fit
from fedreel.core.update import EVALUATE, TRAIN, Order, content_of
from fedreel.core.weights import Weights
from fedreel.errors import PolicyError, RecipeError, RunError
from fedreel.machine.files import file_name, write_atomic
from fedreel.machine.records import parse_json
from fedreel.privacy.accounting import Release, epsilon, noise_for
from fedreel.privacy.noise import Secret

if TYPE_CHECKING:
    from fedreel.core.client import Client


class Discretion:
    """Openly: a client trains as the recipe says, and sends what was declared."""

    kind = "weights"  # what a trained model is when it leaves
    sends = True  # numbers and tensors beside the model
    asks = True  # whether the server may ask questions
    parts: Parts | None = None  # of the noise on a secure sum, where clients make it

    def check(self, model: nn.Module, task: Task) -> None:
        """Raise, before any work is done, if this task's model cannot be trained so."""

    def fit(self, client: Client, *args: Any, **settings: Any) -> Fitted:
        return fit(*args, **settings)

    def part(self, client: Client, trained: Weights, threshold: int, sent: bytes) -> Weights:
        """What of a trained model is added to a secure sum that is opened if so many are in it; `sent` is a digest of
        what it was trained from."""
        return trained

    def tested(self, client: Client, metrics: Mapping[str, float]) -> dict[str, float]:
        """What leaves of a test's results."""
        return dict(metrics)

    def begin(self, client: Client) -> None:
        """Before any work is done for an order."""

    def spent(self, client: Client) -> float | None:
        """What has been given away so far, where that is counted here."""
        return None


class ClientDiscretion(Discretion):
    """The server makes the noise and is told what it needs for that: trained models and test results. A site with a
    budget counts what comes of it."""

    sends = asks = False

    def __init__(self, config: PrivacyConfig, rounds: RoundConfig, budget: Budget | None) -> None:
        self.config, self._rounds, self._budget = config, rounds, budget
        self._spent: float | None = None

    def begin(self, client: Client) -> None:
        order = client.order
        if order.kind == EVALUATE and self.config.tests == "off":
            raise PolicyError("this job's [privacy] has tests switched off")
        if self._budget is not None:
            self._spent = self._budget.charge(client.name, *self._drawn(order), "client")

    def _drawn(self, order: Order) -> tuple[Kind, Release]:
        """What the run has come to with this order. A sample that a site cannot vouch for hides nobody."""
        if order.kind == EVALUATE:
            every = self._rounds.evaluate_every or 1
            return "evaluate", Release(self.config.test_noise, math.ceil(order.round / every))
        rate = self._rounds.fraction if self.config.sampling == "poisson" else 1.0
        return "train", Release(self._noise_of_round, order.round, rate)

    @cached_property
    def _noise_of_round(self) -> float:
        return Plan.of(self.config, self._rounds).noise

    def spent(self, client: Client) -> float | None:
        return self._spent


class PartDiscretion(ClientDiscretion):
    """Under secure sums the server sees no change that it could clip: clients clip theirs, and make the noise in parts,
    of secrets of their places. An order that comes again draws the same."""

    def __init__(self, config: PrivacyConfig, rounds: RoundConfig, secret: Secret, budget: Budget | None) -> None:
        super().__init__(config, rounds, budget)
        self._secret = secret

    @cached_property
    def parts(self) -> Parts:  # type: ignore[override]
        return Parts(self.config.clip, self._noise_of_round)

    def begin(self, client: Client) -> None:
        if client.order.kind == TRAIN and client.order.round > self._rounds.rounds:
            raise PolicyError(
                "the epsilon of this job is spent here",
                expected=f"{self._rounds.rounds} rounds",
                found=f"an order of round {client.order.round}",
            )
        super().begin(client)

    def part(self, client: Client, trained: Weights, threshold: int, sent: bytes) -> Weights:
        total = ClippedSum(client.received, self.config.clip)
        total.add(trained)
        label = "part", client.name, client.order.round, sent.hex()
        return total.mean(1.0, self.parts.spread(threshold), self._secret, *label)


class ExampleDiscretion(ClientDiscretion):
    """The noise is made here, of a secret of this place, so that all that leaves of a client in the whole run keeps
    within the recipe's epsilon. An example is trained on or tested on, never both, so each has the whole of it."""

    kind = "noisy-weights"

    def __init__(
        self,
        config: PrivacyConfig,
        rounds: RoundConfig,
        secret: Secret,
        spending: Spending,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(config, rounds, budget)
        self._secret, self._spending = secret, spending
        self._tests = math.ceil(rounds.rounds / rounds.evaluate_every) if rounds.evaluate_every else 0
        self._checked = False
        self._known: dict[tuple[float, float], float] = {}  # noise, by how often it is drawn and at which rate

    def check(self, model: nn.Module, task: Task) -> None:
        if any(True for _ in active_norms(model)):
            raise RecipeError(
                "batch norm makes of an example what the others of its batch are like: nobody's gradient is its own",
                where="[privacy] unit",
                expected='client; or no batch norm: task.backbone.norm = "group", or tune = "head" with a head without',
                found="example",
            )
        if type(task).before_test is not Task.before_test and self.config.tests == "noised":
            raise RecipeError(
                "before a test this task looks at training data again, which the noise on tests does not cover",
                where="[privacy] tests",
                expected="off, or open",
                found="noised",
            )

    def fit(self, client: Client, *args: Any, **settings: Any) -> Fitted:
        if settings["terms"] or settings["adjust"] is not None:
            raise RecipeError(
                "this method changes the loss or the gradients, and the noise is for those of the task alone",
                where="[method] name",
                expected='one that only trains, such as fedavg, or [privacy] unit = "client"',
            )
        examples, config = args[2], args[4]
        rate, each = steps_of(len(examples), config, config.epochs)
        steps = steps_of(len(examples), config, settings["epochs"])[1]
        spread = self._noise(self._rounds.rounds * each, rate)
        label = self._spending.charge(client.name, client.order, steps, self._rounds.rounds * each)
        release = Release(spread, self._spending.of(client.name, TRAIN), rate)
        self._spent = self._counted(client, "train", release)
        noise = Noise(self._secret, (client.name, label), spread, self.config.clip, rate)
        fitted = fit_privately(*args, noise=noise, steps=steps, check=not self._checked, **settings)
        self._checked = True
        return fitted

    def tested(self, client: Client, metrics: Mapping[str, float]) -> dict[str, float]:
        """Means of what lies in a range, with noise for what one sample more or less could change; not how many."""
        told = dict(metrics)
        if self.config.tests == "open":
            return told
        label = self._spending.charge(client.name, client.order, 1, self._tests)
        ranges, n = client.task.ranges, metrics[TESTED]
        names = sorted(name for name in told if name in ranges)
        noise = self._noise(self._tests, 1.0)
        self._counted(client, "evaluate", Release(noise, self._spending.of(client.name, EVALUATE)))
        spread = noise * math.sqrt(len(names)) / n if n else 0.0
        draws = self._secret.normal(len(names), "test", client.name, label)
        noisy = {}
        for name, draw in zip(names, draws):
            low, high = ranges[name]
            noisy[name] = min(max(told[name], low), high) + (high - low) * spread * float(draw)
        return noisy

    def _counted(self, client: Client, kind: Kind, release: Release) -> float:
        """What this comes to: with all jobs, where the site has a budget for them."""
        if self._budget is not None:
            return self._budget.charge(client.name, kind, release, "example")
        return epsilon([release], self.config.delta, self.config.accountant)

    def begin(self, client: Client) -> None:
        if client.order.kind == EVALUATE and self.config.tests == "off":
            raise PolicyError("this job's [privacy] has tests switched off")

    def _noise(self, times: int, rate: float) -> float:
        """As much as the budget needs. Clients of about the same size share one, that of the smallest."""
        key = _upward(times), min(1.0, _upward(rate))
        if key not in self._known:
            config, (most, highest) = self.config, key
            self._known[key] = noise_for(
                config.epsilon, config.delta, lambda z: [Release(z, math.ceil(most), highest)], config.accountant
            )
        return self._known[key]


def _upward(number: float) -> float:
    """A little more than this, so that numbers near each other become one."""
    return 1.03 ** math.ceil(math.log(number, 1.03) - 1e-9)


class Spending:
    """How often noise was drawn for each client, in files that nothing rolls back. An order that comes again is charged
    once and draws the same noise; one that differs in anything is another, and draws other noise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def charge(self, client: str, order: Order, times: int, most: int) -> str:
        """Note, before any work is done, that an order draws so often; its label. Raises beyond `most`."""
        label = f"{order.kind}/{content_of(order)}"
        noted = self._read(client)
        if label not in noted:
            before = sum(n for known, n in noted.items() if known.startswith(f"{order.kind}/"))
            if before + times > most:
                raise PolicyError(
                    "the epsilon of this job is spent here",
                    expected=f"noise drawn {most} times at most to {order.kind}",
                    found=f"{before} times before, and {times} now",
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file(client), json.dumps({**noted, label: times}))
        return label

    def of(self, client: str, kind: str) -> int:
        """How often, for orders of a kind."""
        return sum(n for label, n in self._read(client).items() if label.startswith(f"{kind}/"))

    def _read(self, client: str) -> dict[str, int]:
        path = self._file(client)
        try:
            return {str(label): int(n) for label, n in parse_json(path.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise RunError("what a client has spent cannot be read", where=str(path), found=str(error)) from error

    def _file(self, client: str) -> Path:
        return self.folder / f"{file_name(client)}.json"


def make_discretion(recipe: Recipe, place: Path, budget: Budget | None) -> Discretion:
    """What the recipe's [privacy] section asks of clients; what they keep for it lies in `place`."""
    config, rounds = recipe.privacy, recipe.round
    if config is None:
        return Discretion()
    if config.unit == "client" and not recipe.secure.sums:
        return ClientDiscretion(config, rounds, budget)
    secret = Secret.of_seed(recipe.seed) if config.seeded else Secret.kept(place / "clients.key")
    if config.unit == "client":
        return PartDiscretion(config, rounds, secret, budget)
    return ExampleDiscretion(config, rounds, secret, Spending(place / "spent"), budget)
