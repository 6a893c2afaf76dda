"""A page says in words that a result is no better than guessing, or was better before; and does not cry wolf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.report import write
from fedreel.report.verdict import falling
from support.report_pages import append, read_page

UP_AND_DOWN = [0.1, 0.3, 0.5, 0.6, 0.6, 0.6, 0.4, 0.3, 0.2]


def over(name: str, values: list[float | None]) -> str:
    return falling(name, range(1, len(values) + 1), values)


def test_a_metric_that_was_better_before_is_told_with_both_means() -> None:
    assert over("top1", UP_AND_DOWN) == (
        "top1 falls: 0.600 in rounds 4 to 6, 0.300 in the last 3 tests (means). "
        "The model of the last round is not the best one."
    )
    assert over("loss", [1 - v for v in UP_AND_DOWN]).startswith("loss rises: 0.400 in rounds 4 to 6, 0.700 in the")


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.5],
        [0.5, 0.4],  # two tests tell nothing
        [0.1, 0.3, 0.2],
        [0.4] * 12,
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.59],  # the best tests are the last ones
        [0.0, 0.3, 0.6, 0.9, 0.9, 0.9, 0.89, 0.88, 0.87, 0.86, 0.85],  # a small part of the way
        [2.0802, 2.0801, 2.0800],  # nobody could see it
        [None, None, 0.5, None],
    ],
)
def test_what_does_not_fall_is_not_said_to(values: list[float | None]) -> None:
    assert over("top1", values) == ""


def test_of_few_tests_each_must_be_worse_than_the_one_before() -> None:
    assert over("top1", [0.9, 0.5, None, 0.2]) == "top1 falls from test to test: 0.900 in round 1, 0.200 in round 4."


@pytest.mark.parametrize("tests", [6, 20, 100])
def test_noise_is_seldom_taken_for_a_fall(tests: int) -> None:
    drawn = np.random.default_rng(0).normal(0.5, 0.05, size=(500, tests))
    assert np.mean([over("top1", list(map(float, row))) != "" for row in drawn]) < 0.05


def written(folder: Path, near: Any) -> str:
    for r, value in enumerate(UP_AND_DOWN, 1):
        append(folder, {"round": r, "phase": "test", "metrics": {"top1": value, "top1_clients": value}, "clients": {}})
    overall = {"samples": 48, "score": 0.2, "chance": 0.125, "near_chance": near}
    append(folder, {"round": 9, "phase": "trust", "overall": overall})
    return " ".join(read_page(write(folder)).text.split())


def test_the_page_says_it_at_the_top_and_below_the_curve(tmp_path: Path) -> None:
    text = written(tmp_path, True)
    assert "The model is at chance: 0.200 on 48 held-out samples, where guessing gives 0.125." in text
    assert text.count("top1 falls: 0.600 in rounds 4 to 6") == 2
    assert "top1_clients falls" not in text


def test_a_model_that_beats_guessing_is_not_said_to_be_at_chance(tmp_path: Path) -> None:
    assert "at chance" not in written(tmp_path, False)


def test_a_simulated_attack_is_told_at_the_top(tmp_path: Path) -> None:
    said = "Some clients lied on purpose. A simulated attack: sign-flip by anna, ben."
    assert said not in written(tmp_path, False)
    append(tmp_path, {"round": 0, "phase": "note", "text": "simulated attack: sign-flip by anna, ben"})
    assert said in written(tmp_path, False)
