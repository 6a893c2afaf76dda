"""Identities of aggregation: weights sum to one, equal models are a fixed point, order does not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.core.aggregate import Krum, Mean, Median, TrimmedMean
from fedreel.core.weights import Weights
from fedreel.errors import RunError


def model(value: float, count: int = 0, dtype: torch.dtype = torch.float32) -> Weights:
    return Weights.of({"w": torch.full((3,), value, dtype=dtype), "n": torch.tensor(count)})


def random_models(n: int, seed: int) -> list[Weights]:
    g = torch.Generator().manual_seed(seed)
    return [
        Weights.of({"w": torch.randn(17, generator=g), "half": torch.randn(5, generator=g).bfloat16(),
                    "count": torch.randint(0, 99, (2,), generator=g)})
        for _ in range(n)
    ]  # fmt: skip


_WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@given(_WEIGHTS, st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_mean_equals_the_closed_form_in_double_precision(weights: list[float], seed: int) -> None:
    models = random_models(len(weights), seed)
    average = Mean()
    for m, w in zip(models, weights):
        average.add(m, w)
    p = np.array(weights) / sum(weights)
    assert average.total == pytest.approx(sum(weights))
    exact = sum(pi * m["w"].double() for pi, m in zip(p, models))
    got = average.value
    assert torch.allclose(got["w"].double(), exact, atol=1e-5)
    counts = sum(pi * m["count"].double() for pi, m in zip(p, models))
    assert (got["count"].double() - counts).abs().max() <= 0.5 + 1e-6
    assert got["count"].dtype == torch.int64
    assert got["half"].dtype == torch.bfloat16


@given(_WEIGHTS, st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_equal_models_are_a_fixed_point_to_the_bit(weights: list[float], seed: int) -> None:
    one = random_models(1, seed)[0]
    average = Mean()
    for w in weights:
        average.add(one, w)
    assert average.value.equal(one)


@given(st.permutations(range(6)), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_order_of_clients_changes_nothing(order: list[int], seed: int) -> None:
    models = random_models(6, seed)
    for rule in (Mean, Median, lambda: TrimmedMean(0.2), Krum):
        first, second = rule(), rule()
        for i in range(6):
            first.add(models[i], i + 1.0)
            second.add(models[order[i]], order[i] + 1.0)
        a, b = first.value, second.value
        assert torch.allclose(a["w"], b["w"], atol=1e-6)
        assert torch.equal(a["count"], b["count"])


def test_loss_weights_are_a_softmax_of_minus_loss_at_any_scale() -> None:
    losses = [0.5, 1.5, 4.0]
    for shift in (0.0, 1000.0, -1000.0):
        average = Mean()
        for i, loss in enumerate(losses):
            average.add_log(model(float(i)), -(loss + shift))
        soft = [math.exp(-x) for x in losses]
        expected = sum(i * s for i, s in enumerate(soft)) / sum(soft)
        assert average.value["w"][0].item() == pytest.approx(expected, rel=1e-5)


def test_zero_weight_counts_for_nothing_and_nothing_has_no_mean() -> None:
    average = Mean()
    average.add(model(5.0), 0.0)
    with pytest.raises(ValueError, match="no updates"):
        _ = average.value
    average.add(model(2.0), 3.0)
    average.add(model(9.0), 0.0)
    assert average.value["w"].tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="already taken"):
        average.add(model(1.0))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="aggregation weight"):
            Mean().add(model(1.0), bad)


def test_half_precision_accumulates_in_single() -> None:
    """A running mean in bfloat16 would stick at a power of two; in float32 it comes to the middle."""
    average = Mean()
    for i in range(1000):
        average.add(model(1.0 if i % 2 else 256.0, dtype=torch.bfloat16))
    assert average.value["w"][0].item() == pytest.approx(128.5, abs=0.5)


def test_median_and_trimmed_mean_by_hand() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 1000.0]
    median, trimmed, even = Median(), TrimmedMean(0.2), Median()
    for v in values:
        median.add(model(v))
        trimmed.add(model(v))
    for v in values[:4]:
        even.add(model(v))
    assert median.value["w"][0] == 3.0
    assert trimmed.value["w"][0] == 3.0
    assert even.value["w"][0] == 2.5
    assert Median.needs_all
    assert not Mean.needs_all


def test_krum_takes_one_of_the_cluster_and_matches_brute_force() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 50.0]
    krum = Krum(byzantine=1)
    for v in values:
        krum.add(model(v))
    n, f = len(values), 1
    scores = []
    for i, a in enumerate(values):
        others = sorted(3 * (a - b) ** 2 for j, b in enumerate(values) if j != i)
        scores.append(sum(others[: n - f - 2]))
    assert krum.chosen()[0] == int(np.argmin(scores))
    assert krum.value["w"][0].item() == pytest.approx(values[int(np.argmin(scores))])
    small = Krum(byzantine=1)
    for v in values[:3]:
        small.add(model(v))
    with pytest.raises(RunError, match="at least 4 updates"):
        small.chosen()


def test_krum_takes_the_model_that_has_not_moved_where_all_others_pull_their_own_way() -> None:
    """Nine clients move by 1, each along an axis of its own: their models are sqrt(2) apart, and 1 from the old one."""
    rule = Krum(byzantine=3)
    for axis in range(9):
        rule.add(Weights.of({"w": torch.eye(9)[axis]}))
    rule.add(Weights.of({"w": torch.zeros(9)}))
    assert rule.chosen() == [9]
    assert torch.equal(rule.value["w"], torch.zeros(9))
