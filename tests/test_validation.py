"""data.validate: settings are chosen on a part of the training data; what is for testing is not looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from fedreel.config import DataConfig, load_recipe
from fedreel.core.job import make_task
from fedreel.core.task import Population
from fedreel.data.clip_index import Clip
from fedreel.systems import System, built_in
from fedreel.tasks.vision.clips import Division

RECIPES = [system for system in built_in() if system.recipe]


def rows(examples: Any) -> list[bytes]:
    """Each sample as bytes, so that it can be found elsewhere."""
    batches = list(examples.batches(1))
    flat = [[part for part in batch if isinstance(part, torch.Tensor)] for batch in batches]
    return [b"".join(part.contiguous().numpy().tobytes() for part in parts) for parts in flat]


def opened(system: System, **changes: Any) -> Population:
    recipe = load_recipe(system.recipe, {"data.size": "tiny"})
    data = replace(recipe.data, **changes)
    return make_task(recipe).for_data(data, here=True).population(data, data.seed)


@pytest.mark.parametrize("system", RECIPES, ids=lambda system: system.task)
def test_what_validates_was_trained_on_and_nothing_of_the_test_is_there(system: System) -> None:
    plain, validating = opened(system), opened(system, validate=True)
    assert validating.clients == plain.clients
    held = 0
    for client in plain.clients:
        before, after = plain.data(client), validating.data(client)
        trained = len(after.train) + (len(after.test) if system.task != "image" else 0)  # all have images' in common
        assert trained <= len(before.train)
        assert 0 < len(after.train) < len(before.train)
        held += len(after.test)
    assert held > 0


@pytest.mark.parametrize("system", [s for s in RECIPES if s.task in ("skeleton", "recognition")], ids=lambda s: s.task)
def test_the_samples_are_those_of_the_training_part(system: System) -> None:
    plain, validating = opened(system), opened(system, validate=True)
    for client in plain.clients:
        trained = {*rows(plain.data(client).train)}
        tested = {*rows(plain.data(client).test)}
        for part in (validating.data(client).train, validating.data(client).test):
            assert {*rows(part)} <= trained
            assert not {*rows(part)} & (tested - trained)
        assert not {*rows(validating.data(client).train)} & {*rows(validating.data(client).test)}


@pytest.mark.parametrize("validate", [False, True])
def test_of_clips_the_last_can_be_held_out(validate: bool) -> None:
    """Of an owner's clips of a class none that is learned from comes after one that is tested on."""
    clips = [Clip(f"{o}/{c}/{n}", c, o) for o in "ab" for c in "xy" for n in range(8)]
    ways: tuple[Literal["drawn", "last"], ...] = ("drawn", "last")
    drawn, last = (Division(clips, ["x", "y"], DataConfig(hold_out=way, validate=validate), 0, True) for way in ways)
    for owner, (train, test) in last.parts.items():
        assert len(test) == len(drawn.parts[owner][1]) > 0
        for label in "xy":
            end = max(clips[i].path for i in train if clips[i].label == label)
            assert all(clips[i].path > end for i in test if clips[i].label == label)
    assert any([*last.parts[owner][1]] != [*drawn.parts[owner][1]] for owner in "ab")
