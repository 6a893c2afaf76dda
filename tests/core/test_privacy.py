"""Differential privacy of a run: clipping, noise, budgets, what is told and what is not, resume, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from fedreel.config import PrivacyConfig, Recipe, RoundConfig, TrainConfig
from fedreel.core.ledger import read_ledger
from fedreel.core.method import Method
from fedreel.core.plan import Plan
from fedreel.core.privacy import MEMORY, ClientPrivacy, ClippedSum
from fedreel.core.task import Task
from fedreel.core.update import Update
from fedreel.core.weights import Weights
from fedreel.errors import FedreelError, RecipeError, RunError
from fedreel.methods.cyclic import Cyclic
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fedvssl import FedVSSL
from fedreel.methods.scaffold import SCAFFOLD
from fedreel.privacy.noise import Secret
from fedreel.runs import run as core
from fedreel.runs.reading import read_metrics
from support.toy import PlainToy, Toy

pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")


IDLE = {"noise": 1.0, "clip_quantile": 0.5, "sampling": "known", "test_noise": 3.0}  # where examples are units


def recipe(privacy: PrivacyConfig | None, **rounds: Any) -> Recipe:
    return Recipe(
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedavg"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(**{"rounds": 4, **rounds}),
        privacy=privacy,
    )


def toy_run(
    out: Path, privacy: PrivacyConfig | None, method: Method | None = None, task: Task | None = None, **options: Any
) -> core.Result:
    resume = options.pop("resume", False)
    return core.run(
        recipe(privacy, **options), out, resume=resume, quiet=True, task=task or PlainToy(), method=method or FedAvg()
    )


def global_model(out: Path) -> bytes:
    return (out / "model" / "global.safetensors").read_bytes()


def rows(out: Path, phase: str) -> list[dict[str, Any]]:
    return [row for row in read_metrics(out) if row["phase"] == phase]


def disclosure(memory: dict[str, Any], pool: int = 10, **config: Any) -> ClientPrivacy:
    chosen = PrivacyConfig(**{"noise": 1.0, "tests": "off", **config})
    made = ClientPrivacy(Plan(chosen, 5, 0, 0.5, pool), {"top1": (0.0, 1.0)}, Secret.of_seed(1), 0)
    made.begin(memory)
    return made


def update(weights: Weights, client: str = "c") -> Update:
    return Update(1, 1, client, weights, {})


# clipping and noise


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_no_change_adds_more_than_the_clip(change: list[float], clip: float) -> None:
    sent = Weights.of({"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5])})
    moved = Weights.of({"a": sent["a"] + torch.tensor(change[:2]), "b": sent["b"] + torch.tensor(change[2:])})
    total = ClippedSum(sent, clip)
    within = total.add(moved)
    found = total._total
    true = torch.cat([(moved[n].double() - sent[n].double()).flatten() for n in ("a", "b")])
    assert float(found.norm()) <= clip * (1 + 1e-12)
    assert within == (float(true.norm()) <= clip)
    if within:
        assert torch.equal(found, true)
    elif true.norm() > 0:
        assert torch.allclose(found / found.norm(), true / true.norm(), atol=1e-9)


def test_without_noise_and_with_a_wide_clip_it_is_the_plain_mean() -> None:
    sent = Weights.of({"a": torch.randn(5, generator=torch.Generator().manual_seed(0))})
    others = [Weights.of({"a": sent["a"] + k}) for k in (1.0, 2.0, 6.0)]
    total = ClippedSum(sent, 1e9)
    for other in others:
        total.add(other)
    assert torch.allclose(total.mean(3, 0.0, Secret.of_seed(0), 1)["a"], sent["a"] + 3.0)


def test_the_noise_on_a_mean_is_what_is_claimed() -> None:
    """Clients that change nothing: all that is left is noise * clip / (rate * pool) times a normal number."""
    sent = Weights.of({"a": torch.zeros(20_000)})
    found = disclosure({}, noise=2.0, clip=0.5).averages([update(sent)] * 3, sent, ["equal"], None, 1)[0].weights["a"]  # type: ignore[arg-type]
    spread = 2.0 * 0.5 / 5
    assert kstest(found.numpy() / spread, norm.cdf).pvalue > 1e-3
    again = disclosure({}, noise=2.0, clip=0.5).averages([], sent, ["equal"], None, 2)[0].weights["a"]  # type: ignore[arg-type]
    assert abs(float(torch.corrcoef(torch.stack([found, again]))[0, 1])) < 0.03


def test_what_no_gradient_moves_stays_as_the_server_has_it(tmp_path: Path) -> None:
    from fedreel.core.weights import bind

    net = torch.nn.Module()
    net.a, _ = torch.nn.Parameter(torch.ones(2)), net.register_buffer("b", torch.ones(2))
    sent = bind(net).clone()
    total = ClippedSum(sent, 1.0)
    total.add(sent.map(lambda x: x + 3))
    mean = total.mean(1, 0.0, Secret.of_seed(0), 1)
    assert torch.equal(mean["b"], torch.ones(2))
    assert float((mean["a"] - 1).norm()) == pytest.approx(1.0)


# who takes part


def test_every_client_is_drawn_with_the_rate_and_apart_from_the_others() -> None:
    privacy = disclosure({}, pool=40)
    pool = [f"c{i}" for i in range(40)]
    drawn = np.array([[c in set(privacy.drawn(pool, 20, r)) for c in pool] for r in range(1, 401)])
    assert abs(drawn.mean() - 0.5) < 4 * 0.5 / math.sqrt(drawn.size)
    sizes = drawn.sum(axis=1)
    assert abs(sizes.var() / (40 * 0.25) - 1) < 0.25  # binomial; of a fixed size it were 0
    assert len({*sizes}) > 5


def test_a_sample_of_fixed_size_has_it(tmp_path: Path) -> None:
    privacy = disclosure({}, sampling="fixed", accountant="rdp")
    pool = [f"c{i}" for i in range(10)]
    assert {len(privacy.drawn(pool, 5, r)) for r in range(1, 50)} == {5}
    with pytest.raises(FedreelError, match="drawn from all of them"):
        privacy.drawn(pool[:4], 2, 1)


def test_the_secret_decides_who_takes_part_unless_it_is_an_experiment(tmp_path: Path) -> None:
    """The recipe is the same; only of the seeded runs do two end alike."""
    privacy = PrivacyConfig(noise=0.5, tests="off")
    for name, config in (
        ("a", privacy),
        ("b", privacy),
        ("c", replace(privacy, seeded=True)),
        ("d", replace(privacy, seeded=True)),
    ):
        toy_run(tmp_path / name, config, fraction=0.5)
    assert global_model(tmp_path / "a") != global_model(tmp_path / "b")
    assert global_model(tmp_path / "c") == global_model(tmp_path / "d")
    assert (tmp_path / "a" / "server.key").exists()
    assert not (tmp_path / "c" / "server.key").exists()


# the clip that follows a quantile


def test_the_clip_comes_to_the_quantile_of_the_changes() -> None:
    """100 clients whose changes are 1, 2, ..., 100 long: half of them are within a clip of 50."""
    sent = Weights.of({"a": torch.zeros(4)})
    plan = Plan(PrivacyConfig(noise=0.5, clip=5.0, clip_quantile=0.5, tests="off"), 60, 0, 1.0, 100)
    privacy, memory = ClientPrivacy(plan, {}, Secret.of_seed(4), 0), {}
    privacy.begin(memory)
    updates = [update(Weights.of({"a": torch.full((4,), (k + 1) / 2.0)})) for k in range(100)]
    for round in range(1, 61):
        privacy.averages(updates, sent, ["equal"], None, round)  # type: ignore[arg-type]
    assert 44 < memory[MEMORY]["clip"] < 56


def test_counting_who_is_within_the_clip_costs_noise_on_the_changes() -> None:
    privacy = disclosure({}, pool=400, clip_quantile=0.5)  # 200 a round: the count's noise is 10
    assert privacy._noise_on_changes() == pytest.approx((1 - 1 / 20**2) ** -0.5)
    few = disclosure({}, pool=10, clip_quantile=0.5)
    with pytest.raises(RecipeError, match="too few clients"):
        few._noise_on_changes()


# budgets


def test_a_run_keeps_within_its_epsilon_and_says_so_every_round(tmp_path: Path) -> None:
    config = PrivacyConfig(epsilon=5.0, test_noise=20.0, seeded=True)
    toy_run(tmp_path / "run", config, fraction=0.5, evaluate_every=2)
    told = rows(tmp_path / "run", "privacy")
    assert [row["round"] for row in told] == [1, 2, 3, 4]
    spent = [row["epsilon"] for row in told]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert 4.9 < spent[-1] <= 5.0
    assert len({row["noise"] for row in told}) == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["epsilon"] == spent[-1]


def test_a_run_ends_before_the_round_that_would_exceed_the_budget(tmp_path: Path) -> None:
    config = PrivacyConfig(epsilon=12.0, noise=1.0, tests="off", seeded=True)
    toy_run(tmp_path / "run", config, rounds=50)
    told = rows(tmp_path / "run", "privacy")
    assert 1 < len(told) < 50
    assert told[-1]["epsilon"] <= 12.0
    plan = Plan(config, 50, 0, 1.0, 4)
    assert plan.epsilon(1.0, len(told) + 1, 0) > 12.0
    assert any("budget" in row["text"] for row in rows(tmp_path / "run", "note"))


def test_a_killed_run_goes_on_with_the_same_bits_and_the_same_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PrivacyConfig(epsilon=5.0, clip_quantile=0.0, test_noise=20.0, seeded=False)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    monkeypatch.setattr("fedreel.privacy.noise.secrets.token_bytes", lambda n: b"k" * n)
    toy_run(whole, config, fraction=0.5)
    real, calls = ClientPrivacy.averages, []

    def dies_in_round_three(self: ClientPrivacy, *args: Any) -> Any:
        calls.append(args[-1])
        if args[-1] == 3:
            raise RunError("killed")
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ClientPrivacy, "averages", dies_in_round_three)
        with pytest.raises(RunError, match="killed"):
            toy_run(cut, config, fraction=0.5)
    toy_run(cut, config, fraction=0.5, resume=True)
    assert global_model(cut) == global_model(whole)
    assert rows(cut, "privacy") == rows(whole, "privacy")


def test_a_method_gets_one_mean_a_round() -> None:
    sent = Weights.of({"a": torch.zeros(2)})
    privacy = disclosure({})
    privacy.averages([], sent, ["equal"], None, 1)  # type: ignore[arg-type]
    with pytest.raises(FedreelError, match="one mean a round"):
        privacy.averages([], sent, ["equal"], None, 1)  # type: ignore[arg-type]


# what is told


def test_nobody_is_told_who_took_part_with_which_loss_or_how_many_samples(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", PrivacyConfig(noise=1.0), fraction=0.5)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    (told,) = rows(tmp_path / "run", "partition")
    assert told == {"round": 0, "phase": "partition", "classes": ["no", "yes"]}
    assert {*rows(tmp_path / "run", "train")[0]} == {
        "round",
        "phase",
        "bytes_up",
        "bytes_down",
        "bytes_testing",
        "seconds",
    }
    for word in ('"c0"', '"c1"', "loss", "samples", '"n"', "answered"):
        assert word not in text, word
    numbers = [
        row["numbers"] for row in read_ledger(tmp_path / "run" / "ledger.jsonl") if row.get("purpose") == "train"
    ]
    assert numbers
    assert not any(numbers)
    assert "trust" not in json.loads((tmp_path / "run" / "model" / "card.json").read_text())


def test_noise_on_a_test_is_what_is_claimed_and_results_stay_in_range() -> None:
    answers = {f"c{i}": {"top1": 0.5, "loss": 9.0, "n": 3.0} for i in range(1000)}
    found = []
    for round in range(1, 301):
        privacy = disclosure({}, pool=1000, tests="noised", test_noise=20.0)
        means = privacy.test_means(answers, [*answers], round)
        assert {*means} == {"top1"}
        found.append(means["top1"])
    assert np.mean(found) == pytest.approx(0.5, abs=4 * 0.02 / math.sqrt(300))
    assert np.std(found) == pytest.approx(0.02, rel=0.2)
    privacy = disclosure({}, pool=2, tests="noised", test_noise=1000.0)
    assert {privacy.test_means({}, [], r)["top1"] for r in range(1, 9)} == {0.0, 1.0}


def test_tests_can_be_off_or_open(tmp_path: Path) -> None:
    toy_run(tmp_path / "off", PrivacyConfig(noise=1.0, tests="off"))
    assert not rows(tmp_path / "off", "test")
    toy_run(tmp_path / "open", PrivacyConfig(noise=1.0, tests="open"))
    assert {*rows(tmp_path / "open", "test")[0]["clients"]} == {"c0", "c1", "c2", "c3"}


# what cannot be private


@pytest.mark.parametrize(
    ("method", "task", "said"),
    [
        (SCAFFOLD(), PlainToy(), "control"),
        (Cyclic(), PlainToy(), "each single client"),
        (FedAvg(), Toy(), "batch norm"),
    ],
)
def test_what_noise_is_not_for_is_refused_before_the_first_round(
    tmp_path: Path, method: Method, task: Task, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        toy_run(tmp_path / "run", PrivacyConfig(noise=1.0), method, task)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("settings", [{"aggregation": "median"}, {"divergence": True}, {"mean_over": "trained"}])
def test_rules_that_look_at_single_clients_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(settings))):
        toy_run(tmp_path / "run", PrivacyConfig(noise=1.0), **settings)


@pytest.mark.parametrize("method", [FedBN(), FedProx(mu=0.1), FedVSSL()])
def test_methods_that_see_sums_work_with_statistics_at_home(tmp_path: Path, method: Method) -> None:
    task = Toy() if isinstance(method, FedBN) else PlainToy()
    assert toy_run(tmp_path / "run", PrivacyConfig(noise=0.3, tests="off"), method, task).summary["complete"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"unit": "example", "noise": 1.0},
        *({"unit": "example", "epsilon": 1.0, name: value} for name, value in IDLE.items()),
    ],
)
def test_a_section_without_a_budget_or_with_what_changes_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="privacy"):
        PrivacyConfig(**wrong)
