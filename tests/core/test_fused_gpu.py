"""Fused steps on a GPU: compiled, recorded, and what comes of them is what comes without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedreel.core.fused as fused
from fedreel.config import RoundConfig, TrainConfig
from fedreel.core.capture import Recorder
from fedreel.core.method import Method
from fedreel.engines.local import LocalEngine
from fedreel.engines.streams import StreamsEngine
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import run
from support.conformance_jobs import CASES, recipe_of, write_data
from support.stacked import Maps, assert_close, federate
from support.toy import Random, Toy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NEAR = 1e-3  # sums are taken in another order, and products are of TF32


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Which attempts to compile and to record a step succeeded."""
    found: dict[str, list[bool]] = {"compiled": [], "recorded": []}
    for name, owner, what in (("compiled", fused.Fuser, "_compile"), ("recorded", Recorder, "record")):
        old = getattr(owner, what)

        def noting(self: Any, *args: Any, name: str = name, old: Any = old) -> Any:
            made = old(self, *args)
            found[name].append(made is not None)
            return made

        monkeypatch.setattr(owner, what, noting)
    return found


@pytest.mark.parametrize(
    ("method", "steps"),
    [(FedAvg(), 1), (MOON(mu=0.5), 2), (FSAR(mu=0.1, blocks=2), 1), (SCAFFOLD(), 1)],
    ids=lambda m: type(m).__name__ if isinstance(m, Method) else "",
)
def test_fused_and_recorded_steps_end_as_others(
    tmp_path: Path, noted: dict[str, list[bool]], method: Method, steps: int
) -> None:
    own = {"task": Toy(clients=3), "device": "cuda"}
    one, other = (
        federate(
            tmp_path / str(fuse),
            LocalEngine,
            method,
            RoundConfig(rounds=3),
            train=TrainConfig(batch_size=4, lr=0.02, momentum=0.9, epochs=6, clip_norm=1.0, fuse=fuse),
            **own,
        )[0]
        for fuse in (False, True)
    )
    assert_close(one.weights, other.weights, NEAR)
    assert noted["compiled"] == [True] * steps
    assert noted["recorded"]
    assert all(noted["recorded"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_norms_of_maps_are_the_compiler_s(tmp_path: Path, noted: dict[str, list[bool]], precision: Any) -> None:
    """Kernels of our own are left out of what is written down."""
    train = {"batch_size": 4, "lr": 0.02, "epochs": 4, "precision": precision}
    one, other = (
        federate(
            tmp_path / str(fuse),
            LocalEngine,
            FedAvg(),
            RoundConfig(rounds=2),
            task=Maps(clients=2),
            device="cuda",
            train=TrainConfig(**train, fuse=fuse),
        )[0]
        for fuse in (False, True)
    )
    assert_close(one.weights, other.weights, NEAR if precision == "fp32" else 0.05)
    assert noted["compiled"] == [True]


def test_lanes_share_what_is_compiled_and_draw_their_own_random_numbers(
    tmp_path: Path, noted: dict[str, list[bool]]
) -> None:
    train = TrainConfig(batch_size=4, lr=0.02, epochs=4, fuse=True)
    own = {"task": Random(clients=4), "device": "cuda", "train": train}
    one = federate(tmp_path / "local", LocalEngine, FedAvg(), RoundConfig(rounds=2), **own)[0]
    other = federate(tmp_path / "streams", StreamsEngine, FedAvg(), RoundConfig(rounds=2), **own)[0]
    assert_close(one.weights, other.weights, NEAR)
    assert noted["compiled"] == [True, True]  # once for each engine


@pytest.mark.parametrize("name", ["fsar", "fedlid-image", "lora", "head", "task-pretrain"])
def test_jobs_end_as_without(tmp_path: Path, noted: dict[str, list[bool]], name: str) -> None:
    losses = [losses_of(name, tmp_path / str(fuse), fuse, "cuda") for fuse in (False, True)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert noted["compiled"]
    assert all(noted["compiled"])


def losses_of(name: str, folder: Path, fuse: bool, device: str) -> list[float]:
    """Of two rounds of a job of the conformance suite."""
    case = CASES[name]
    data = write_data(folder / "data", case.task)
    recipe = recipe_of(case, data, {"name": "local"}, 2)
    recipe = replace(recipe, device=device, train=replace(recipe.train, fuse=fuse, lr=0.01))
    run(recipe, folder / "run", quiet=True)
    return [row["loss"] for row in read_metrics(folder / "run") if row["phase"] == "train"]
