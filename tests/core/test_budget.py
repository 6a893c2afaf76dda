"""A site's privacy budget over all jobs on a role: counted there, refused before any training, never forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import PrivacyConfig, Recipe, RoundConfig, TrainConfig
from fedreel.core.budget import Budget, PrivacyRules
from fedreel.core.client import Worker
from fedreel.core.discretion import make_discretion
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.ledger import read_ledger
from fedreel.core.state import PrivateStore
from fedreel.core.update import EVALUATE, TRAIN, Failure, Order
from fedreel.engines.local import attempt
from fedreel.errors import PolicyError, RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.privacy.accounting import Release, epsilon
from support.toy import PlainToy

pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")
CLIENT = PrivacyConfig(noise=2.0, tests="off")
EXAMPLE = PrivacyConfig(unit="example", epsilon=3.0)
MOST = {"client": 4.5, "example": 3.5}  # epsilon: one job is within it, two are not


def recipe(privacy: PrivacyConfig | None, **rounds: Any) -> Recipe:
    config = RoundConfig(rounds=3, **rounds)
    return Recipe(task={"name": "toy"}, method={"name": "fedavg"}, round=config, privacy=privacy)


def worker(site: Path, run: str, privacy: PrivacyConfig, rules: PrivacyRules) -> Worker:
    """A job's at a site whose budget lies in its folder."""
    job, task = recipe(privacy), PlainToy()
    return Worker(
        task,
        FedAvg(),
        TrainConfig(batch_size=4, lr=0.1),
        task.population(None, 0),
        rounds=3,
        seed=0,
        device=torch.device("cpu"),
        store=PrivateStore(site / run / "clients"),
        ledger=Ledger(site / "ledger.jsonl", run),
        policy=Policy(privacy=rules),
        discretion=make_discretion(job, site / run, Budget(site / "budget.json", run, rules)),
    )


def order(made: Worker, round: int, kind: str = TRAIN) -> Order:
    return Order(round, 1, "c1", kind, {"global": made.start})


def test_jobs_on_the_same_data_are_counted_together(tmp_path: Path) -> None:
    rules = PrivacyRules(unit="client")
    first, second = (Budget(tmp_path / "b.json", run, rules) for run in ("a", "b"))
    one = first.charge("c", "train", Release(2.0, 5), "client")
    assert one == epsilon([Release(2.0, 5)], 1e-5)
    both = second.charge("c", "train", Release(3.0, 4, 0.5), "client")
    assert both == epsilon([Release(2.0, 5), Release(3.0, 4, 0.5)], 1e-5)
    assert first.charge("c", "train", Release(2.0, 5), "client") == both  # again: it is noted already
    assert second.charge("other", "train", Release(3.0, 4), "client") < both
    assert {*first.spent()} == {"c", "other"}


def test_an_example_is_trained_on_or_tested_on_and_noise_for_clients_counts_for_it(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "b.json", "a", PrivacyRules())
    trained = budget.charge("c", "train", Release(1.0, 3), "example")
    assert budget.charge("c", "evaluate", Release(9.0, 2), "example") == trained
    with_client = budget.charge("c", "train", Release(4.0, 2), "client")
    assert with_client == epsilon([Release(4.0, 2), Release(1.0, 3)], 1e-5)
    assert Budget(tmp_path / "b.json", "a", PrivacyRules(unit="client")).spent()["c"] == epsilon(
        [Release(4.0, 2)], 1e-5
    )


def test_an_order_beyond_the_budget_is_refused_and_nothing_is_noted(tmp_path: Path) -> None:
    rules = PrivacyRules(max_epsilon=3.0, unit="client")
    budget = Budget(tmp_path / "b.json", "a", rules)
    budget.charge("c", "train", Release(4.0, 2), "client")
    before = (tmp_path / "b.json").read_bytes()
    with pytest.raises(PolicyError, match="budget"):
        budget.charge("c", "train", Release(4.0, 50), "client")
    assert (tmp_path / "b.json").read_bytes() == before


def test_a_broken_budget_lets_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"c": {"a/train/client": [1.0]}}')
    with pytest.raises(RunError, match="nothing may leave"):
        Budget(tmp_path / "b.json", "a", PrivacyRules()).charge("c", "train", Release(4.0, 1), "client")


@pytest.mark.parametrize(("privacy", "unit"), [(CLIENT, "client"), (EXAMPLE, "example")])
def test_a_second_job_finds_what_the_first_has_left(tmp_path: Path, privacy: PrivacyConfig, unit: str) -> None:
    rules = PrivacyRules(max_epsilon=MOST[unit], unit=unit)  # type: ignore[arg-type]
    first = worker(tmp_path, "a", privacy, rules)
    for round in (1, 2, 3):
        first.execute(order(first, round))
    rows = [row["epsilon"] for row in read_ledger(tmp_path / "ledger.jsonl") if row["kind"] == "departure"]
    assert rows == sorted(rows)
    assert rows[-1] < MOST[unit]
    second = worker(tmp_path, "b", privacy, rules)
    refused = [attempt(order(second, round), second.execute) for round in (1, 2, 3)][-1]
    assert isinstance(refused, Failure)
    assert refused.reason == "policy"
    assert "budget" in refused.detail
    left = [row for row in read_ledger(tmp_path / "ledger.jsonl") if row["kind"] == "departure"]
    assert all(row["epsilon"] <= MOST[unit] for row in left)


def test_a_client_counts_rounds_that_it_was_not_drawn_in(tmp_path: Path) -> None:
    """It is hidden among those who might have been: epsilon is that of all rounds so far."""
    made = worker(tmp_path, "a", CLIENT, PrivacyRules(unit="client"))
    made.execute(order(made, 3))
    assert Budget(tmp_path / "budget.json", "", PrivacyRules(unit="client")).spent()["c1"] == epsilon(
        [Release(2.0, 3)], 1e-5
    )


def test_tests_that_are_off_are_refused_at_the_client(tmp_path: Path) -> None:
    for privacy in (CLIENT, replace(EXAMPLE, tests="off")):
        made = worker(tmp_path, "a", privacy, PrivacyRules())
        with pytest.raises(PolicyError, match="switched off"):
            made.execute(order(made, 1, EVALUATE))


@pytest.mark.parametrize(
    ("privacy", "rounds", "said"),
    [
        (None, {}, "only private jobs"),
        (EXAMPLE, {}, "its clients"),
        (replace(CLIENT, tests="open"), {}, "without noise"),
        (CLIENT, {"clients": 2}, "not known here"),
    ],
)
def test_jobs_that_cannot_be_counted_are_refused(
    privacy: PrivacyConfig | None, rounds: dict[str, object], said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        PrivacyRules(max_epsilon=1.0, unit="client").check(recipe(privacy, **rounds))


def test_noise_that_everybody_can_foresee_is_refused_at_every_site() -> None:
    with pytest.raises(PolicyError, match="seed"):
        PrivacyRules().check(recipe(replace(CLIENT, seeded=True)))
    PrivacyRules().check(recipe(None))
