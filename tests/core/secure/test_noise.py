"""Noise in parts: what is on an opened sum, whoever got lost, what it counts for, and what it does not go with."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2, kstest, norm

from fedreel.config import PrivacyConfig, Recipe, RoundConfig, SecureConfig, TrainConfig
from fedreel.core.budget import Budget, PrivacyRules
from fedreel.core.discretion import PartDiscretion
from fedreel.core.ledger import departures
from fedreel.core.secure.journal import Journal
from fedreel.core.secure.noise import Parts
from fedreel.core.secure.rules import check_sums
from fedreel.core.update import TRAIN, Order
from fedreel.core.weights import Weights
from fedreel.errors import PolicyError, RecipeError, RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.privacy.accounting import Release, epsilon
from fedreel.privacy.noise import Secret
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import run
from support.sums import PHASES, federate_securely
from support.toy import PlainToy, make_worker

pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")
pytest.importorskip("cryptography", reason="needs the extra 'secure'")

WIDE = PlainToy(clients=10, width=1000)
STILL = TrainConfig(batch_size=4, lr=0.0)  # nobody learns anything: all that is left of a sum is its noise
THRESHOLD = 7  # of ten clients, each of a site of its own


def private(**changes: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"noise": 2.0, "clip": 0.5, "sampling": "known", "tests": "off", **changes})


def flat(weights: Weights) -> torch.Tensor:
    return torch.cat([weights[name].double().flatten() for name in weights])


def moved(folder: Path, **options: Any) -> torch.Tensor:
    """By how much the global model was moved in one round, in one vector."""
    options = {"task": WIDE, "train": STILL, "privacy": private(), **options}
    fed, _ = federate_securely(folder, FedAvg(), **options)
    return flat(fed.weights) - flat(make_worker(folder / "other", FedAvg(), options["task"]).start)


def test_an_opened_sum_has_the_noise_that_is_claimed(tmp_path: Path) -> None:
    """Ten parts of 2 * 0.5 / sqrt(7) each; their sum is divided by ten."""
    found = moved(tmp_path) * 10
    spread = 2.0 * 0.5 * math.sqrt(10 / THRESHOLD)
    assert kstest(found.numpy() / spread, norm.cdf).pvalue > 1e-3


@pytest.mark.parametrize("phase", PHASES)
def test_whoever_gets_lost_the_noise_is_at_least_what_is_claimed(tmp_path: Path, phase: str) -> None:
    """Three of ten lost, as many as may be: before agree their parts are not in the sum, from then on they are."""
    left = 7 if phase in ("keys", "shares", "masked") else 10
    found = moved(tmp_path, lost=[(phase, f"c{i}") for i in (0, 4, 9)]) * left
    ratio = float(found.square().sum()) / (2.0 * 0.5) ** 2
    low, high = (chi2.ppf(p, len(found)) for p in (1e-4, 1 - 1e-4))
    assert low <= ratio * THRESHOLD / left <= high
    assert ratio >= low


def test_with_fewer_than_that_there_is_no_sum(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="round 1"):
        moved(tmp_path, lost=[("masked", f"c{i}") for i in range(4)])


def test_without_noise_to_speak_of_it_is_the_mean_of_clipped_changes(tmp_path: Path) -> None:
    task, train = PlainToy(clients=10), TrainConfig(batch_size=4, lr=0.1)
    found = moved(tmp_path, task=task, train=train, privacy=private(noise=1e-4, clip=0.01, accountant="rdp"))
    worker = make_worker(tmp_path / "plain", FedAvg(), task, train, rounds=1)
    total = torch.zeros_like(found)
    for client in worker.population.clients:
        made = worker.execute(Order(1, 1, client, TRAIN, {"global": worker.start})).weights  # type: ignore[union-attr]
        change = flat(made) - flat(worker.start)
        total += change * min(1.0, 0.01 / float(change.norm()))
    assert torch.allclose(found, total / 10, atol=1e-5)


def test_a_part_is_drawn_anew_for_another_client_round_or_model_and_not_for_a_repetition(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), PlainToy())
    discretion = PartDiscretion(private(), RoundConfig(rounds=3), Secret.of_seed(1), None)

    def part(client: str = "c0", round: int = 1, sent: bytes = b"a") -> torch.Tensor:
        opened = worker.open(Order(round, 1, client, TRAIN, {"global": worker.start}))
        return flat(discretion.part(opened, worker.start, 4, sent))

    assert torch.equal(part(), part())
    for other in (part(client="c1"), part(round=2), part(sent=b"b")):
        assert not torch.isclose(other, part(), rtol=0, atol=1e-4).any()


def recipe(privacy: PrivacyConfig | None = None, **changes: Any) -> Recipe:
    given = {
        "device": "cpu",
        "task": {"name": "toy"},
        "method": {"name": "fedavg"},
        "train": TrainConfig(batch_size=4, lr=0.1),
        "round": RoundConfig(rounds=3, evaluate_every=0),
        "secure": SecureConfig(sums=True),
        "privacy": privacy or private(),
    }
    return Recipe(**{**given, **changes})


def test_it_counts_for_what_noise_of_the_server_counts_for(tmp_path: Path) -> None:
    """And the log tells neither losses nor counts."""
    spent = {}
    for name, secure in (("parts", SecureConfig(sums=True)), ("server", SecureConfig())):
        run(recipe(secure=secure), tmp_path / name, quiet=True, task=PlainToy(), method=FedAvg())
        spent[name] = [row["epsilon"] for row in read_metrics(tmp_path / name, "privacy")]
    assert spent["parts"] == spent["server"] == [epsilon([Release(2.0, n)], 1e-5) for n in (1, 2, 3)]
    assert not [row for row in read_metrics(tmp_path / "parts", "train") if {"loss", "samples"} & {*row}]
    kinds = {kind for row in departures(tmp_path / "parts" / "ledger.jsonl") for kind in row["kinds"]}
    assert kinds <= {"name", "masked-sum"}


def test_seeded_noise_is_the_same_again_and_other_noise_is_not(undisturbed: bytes, tmp_path: Path) -> None:
    for name, config in (("seeded", private(seeded=True)), ("secret", private())):
        run(recipe(config), tmp_path / name, quiet=True, task=PlainToy(), method=FedAvg())
        model = (tmp_path / name / "model" / "global.safetensors").read_bytes()
        assert (model == undisturbed) == (name == "seeded")


@pytest.mark.parametrize("phase", PHASES)
def test_a_server_that_is_killed_in_any_phase_goes_on_with_the_same_noise(
    phase: str, undisturbed: bytes, tmp_path: Path
) -> None:
    """Killed when a phase of round 2 is over, before that is noted: its clients are asked again, and answer the same.
    The same model and the same budget come of it."""
    child = os.fork()
    if child == 0:
        note = Journal.note

        def dying(self: Journal, name: str, *args: Any) -> None:
            if (name, self.folder.name) == (phase, "round-000002"):
                os.kill(os.getpid(), signal.SIGKILL)
            note(self, name, *args)

        Journal.note = dying  # type: ignore[method-assign]
        try:
            run(recipe(private(seeded=True)), tmp_path / "run", quiet=True, task=PlainToy(), method=FedAvg())
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    run(recipe(private(seeded=True)), tmp_path / "run", resume=True, quiet=True, task=PlainToy(), method=FedAvg())
    assert (tmp_path / "run" / "model" / "global.safetensors").read_bytes() == undisturbed
    spent = [row["epsilon"] for row in read_metrics(tmp_path / "run", "privacy")]
    assert spent == [epsilon([Release(2.0, n)], 1e-5) for n in (1, 2, 3)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run(recipe(private(seeded=True)), out, quiet=True, task=PlainToy(), method=FedAvg())
    return (out / "model" / "global.safetensors").read_bytes()


def test_a_sites_budget_counts_rounds_in_full_and_the_job_ends_with_its_rounds(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), PlainToy())
    budget = Budget(tmp_path / "budget.json", "r", PrivacyRules(max_epsilon=2.6, unit="client"))
    discretion = PartDiscretion(private(), RoundConfig(rounds=3, fraction=0.1), Secret.of_seed(1), budget)
    orders = [worker.open(Order(n, 1, "c0", TRAIN, {"global": worker.start})) for n in (1, 2, 4)]
    discretion.begin(orders[0])
    assert discretion.spent(orders[0]) == pytest.approx(epsilon([Release(2.0, 1)], 1e-5))
    with pytest.raises(PolicyError, match="budget of this site's data would be exceeded"):
        discretion.begin(orders[1])
    with pytest.raises(PolicyError, match="epsilon of this job is spent"):
        discretion.begin(orders[2])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": PrivacyConfig(unit="example", epsilon=4.0)}, "changes of whole clients"),
        ({"privacy": private(sampling="poisson")}, "told who takes part"),
        ({"privacy": private(clip_quantile=0.5)}, "within the clip"),
        ({"privacy": private(tests="noised")}, "before it adds noise"),
        ({"secure": SecureConfig(sums=True, clip=2.0)}, "does nothing"),
        ({"secure": SecureConfig(sums=True, weight_cap=5.0)}, "does nothing"),
    ],
)
def test_what_it_does_not_go_with_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        check_sums(recipe(**changes), PlainToy(), FedAvg())
    check_sums(recipe(), PlainToy(), FedAvg())


def test_a_number_has_room_for_the_clip_and_eight_deviations() -> None:
    for noise in (0.1, 1.0, 30.0):
        parts = Parts(0.5, noise)
        assert 1.0 <= parts.reach(THRESHOLD) / (0.5 + 8 * 0.5 * noise / math.sqrt(THRESHOLD)) < 2.0
        assert math.log2(parts.reach(THRESHOLD)).is_integer()
