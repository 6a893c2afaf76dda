"""Numbers made of a secret: repeatable, independent of each other, of the distribution that is claimed."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest, norm

from fedreel.privacy.noise import Secret


def test_numbers_follow_from_the_secret_and_the_label_alone() -> None:
    a = Secret(b"k" * 32).normal(1000, "round", 1)
    assert np.array_equal(a, Secret(b"k" * 32).normal(1000, "round", 1))
    for other in (Secret(b"l" * 32).normal(1000, "round", 1), Secret(b"k" * 32).normal(1000, "round", 2)):
        assert abs(np.corrcoef(a, other)[0, 1]) < 0.2
    assert not np.array_equal(Secret(b"k").uniform(5, "a", "bc"), Secret(b"k").uniform(5, "ab", "c"))


def test_a_long_stream_begins_as_a_short_one_of_uniform_numbers() -> None:
    secret = Secret.of_seed(3)
    assert np.array_equal(secret.uniform((1 << 20) + 7, "a")[:100], secret.uniform((1 << 20) + 900, "a")[:100])
    assert len(secret.uniform(0, "a")) == len(secret.normal(0, "a")) == 0
    assert len(secret.normal(3, "a")) == 3


@pytest.mark.parametrize("seed", range(3))
def test_the_distributions_are_those_that_are_claimed(seed: int) -> None:
    secret = Secret.of_seed(seed)
    uniform = secret.uniform(200_000, "u")
    assert uniform.min() > 0
    assert uniform.max() <= 1
    assert kstest(uniform, "uniform").pvalue > 1e-3
    normal = secret.normal(200_001, "n")
    assert kstest(normal, norm.cdf).pvalue > 1e-3
    assert abs(normal.std() - 1) < 4 / np.sqrt(2 * len(normal))
    halves = np.corrcoef(normal[:100_000], normal[100_000:-1])[0, 1]
    assert abs(halves) < 4 / np.sqrt(100_000)


def test_the_key_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "place" / "server.key"
    with ThreadPoolExecutor(8) as pool:
        found = [s.uniform(4, "a").tolist() for s in pool.map(lambda _: Secret.kept(path), range(8))]
    assert all(one == found[0] for one in found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["server.key"]
    assert Secret.kept(tmp_path / "other.key").uniform(4, "a").tolist() != found[0]
