"""FedBuff and FedAsync on two clients and one number, worked by hand: see support/pull.py for the task.

`near` takes one second, `far` three. From 0 `near` leads to 1 and `far` to 5.25; from w `near` leads to 1 + w / 2."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core.test_world import world
from fedreel.config import Recipe, RoundConfig, TrainConfig, WorldConfig, load_recipe
from fedreel.core.federation import Federation
from fedreel.errors import RecipeError
from fedreel.methods.fedasync import FedAsync
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbuff import FedBuff
from fedreel.runs.run import run
from support.pull import pulled
from support.toy import Toy


def test_a_buffer_of_all_who_began_together_is_federated_averaging(tmp_path: Path) -> None:
    late, _, notes = pulled(
        tmp_path / "a", FedBuff(buffer=2, in_flight=2, power=9.0), world=world({"near": 3, "far": 3})
    )
    assert late == pytest.approx(pulled(tmp_path / "b", FedAvg(weight_by="equal"))[0])
    assert notes.of("train")[0]["clock"] == 3.0


def test_old_updates_move_the_model_by_what_they_changed_less_for_each_step(tmp_path: Path) -> None:
    """near: 0 to 1; then 1 to 1.5; then `far`, due at the same moment as near's third, but ordered before: 5.25 from a
    model two steps old, counted (1 + 2)^-1."""
    ways: Any = {"buffer": 1, "in_flight": 2, "power": 1.0}
    assert pulled(tmp_path / "1", FedBuff(**ways), 1, world=world())[0] == pytest.approx(1.0)
    assert pulled(tmp_path / "2", FedBuff(**ways), 2, world=world())[0] == pytest.approx(1.5)
    where, _fed, notes = pulled(tmp_path / "3", FedBuff(**ways), 3, world=world())
    assert where == pytest.approx(1.5 + 5.25 / 3)
    assert [row["clock"] for row in notes.of("train")] == [1.0, 2.0, 3.0]
    assert [row["clients"] for row in notes.of("train")] == [["near"], ["near"], ["far"]]


def test_a_buffer_divides_by_its_size_and_the_server_has_a_rate(tmp_path: Path) -> None:
    """near from 0 to 1, and near again from 0 (the round is not over) to 1: half the rate of their mean."""
    method = FedBuff(buffer=2, in_flight=2, server_lr=0.5)
    assert pulled(tmp_path, method, world=world())[0] == pytest.approx(0.5)


def test_fedasync_mixes_each_update_in_as_it_comes(tmp_path: Path) -> None:
    """0.5 of 1; near from 0.5 to 1.25, mixed to 0.875; far's 5.25 to 3.0625."""
    ways: Any = {"alpha": 0.5, "staleness": "constant", "mu": 0.0, "in_flight": 2}
    wheres = [pulled(tmp_path / str(n), FedAsync(**ways), n, world=world())[0] for n in (1, 2, 3)]
    assert wheres == pytest.approx([0.5, 0.875, 3.0625])


def test_how_much_an_old_update_counts() -> None:
    assert [FedAsync(staleness="polynomial", power=0.5).discount(t) for t in (0, 3)] == [1.0, 0.5]
    assert [FedAsync(staleness="hinge", slope=10, patience=4).discount(t) for t in (0, 4, 5, 6)] == [
        1,
        1,
        1 / 11,
        1 / 21,
    ]
    assert FedAsync(staleness="constant").discount(99) == 1.0


def test_who_is_lost_is_followed_by_another(tmp_path: Path) -> None:
    _, _fed, notes = pulled(tmp_path, FedBuff(buffer=2, in_flight=2), 5, world=world(drop=0.5))
    assert {row["reason"] for row in notes.of("refused")} == {"offline"}
    assert [row["answered"] for row in notes.of("train")] == [2] * 5


def test_without_a_clock_it_is_said_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="needs to know how long each takes"):
        pulled(tmp_path, FedBuff())
    recipe = load_recipe("cfedvs", {"method.name": "fedasync", "data.size": "tiny"})
    with pytest.raises(RecipeError, match="needs to know how long each takes"):
        run(recipe, tmp_path / "run")
    with pytest.raises(RecipeError, match="adds updates as they come"):
        run(replace(recipe, world=WorldConfig(), round=RoundConfig(aggregation="median")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("round.fraction=0.5", "in_flight"),
        ("round.clients=3", "in_flight"),
        ("round.min_answers=0.9", "followed by another"),
        ("round.repeat=0", "followed by another"),
        ("world.over=0.5", "in_flight"),
        ("world.deadline=60", "when its updates have come"),
    ],
)
def test_what_only_rounds_that_wait_can_do_is_refused_by_name(tmp_path: Path, setting: str, instead: str) -> None:
    recipe = load_recipe("cfedvs", ["method=fedbuff", "data.size=tiny", "world.seconds=0.1", setting])
    with pytest.raises(RecipeError, match=instead) as caught:
        run(recipe, tmp_path / "run")
    section, name = setting.partition("=")[0].split(".")
    assert f"[{section}] {name}" in str(caught.value)
    usual = WorldConfig() if section == "world" else RoundConfig()
    mended = load_recipe("cfedvs", [str(caught.value.hint).rpartition("--set ")[2]])
    assert getattr(getattr(mended, section), name) == getattr(usual, name)
    assert not (tmp_path / "run").exists()


def test_how_far_models_are_from_the_global_one_is_noted_as_they_come(tmp_path: Path) -> None:
    """near: 1 from 0; then 1.5 from 1; then far: 5.25 from 1.5, the global model as it is by then."""
    method = FedBuff(buffer=1, in_flight=2, power=1.0)
    _, _, notes = pulled(tmp_path, method, 3, world=world(), divergence=True)
    found = [(client, parts["backbone"]) for row in notes.of("divergence") for client, parts in row["clients"].items()]
    assert found == [("near", 1.0), ("near", 0.5), ("far", pytest.approx(3.75))]


@dataclass(frozen=True)
class Sleepy(FedBuff):
    """`far` takes for ever."""

    def local_training(self, client: Any) -> None:
        if client.name == "far":
            time.sleep(60)
        super().local_training(client)


def test_who_takes_longer_than_the_limit_is_followed_by_another(tmp_path: Path) -> None:
    _, _, notes = pulled(tmp_path, Sleepy(buffer=1, in_flight=2), 3, world=world(), time_limit=2.0)
    assert [row["clients"] for row in notes.of("train")] == [["near"]] * 3
    assert [(row["client"], row["reason"]) for row in notes.of("refused")] == [("far", "timeout")]


@dataclass(frozen=True)
class Stopped(FedBuff):
    """Somebody presses Ctrl-C between two arrivals of round 4."""

    def run(self, fed: Federation) -> None:
        given = fed.arrivals

        def arrivals(count: int, in_flight: int, **args: Any) -> Any:
            for number, arrival in enumerate(given(count, in_flight, **args)):
                if fed.round == 4 and number == 1:
                    raise KeyboardInterrupt
                yield arrival

        fed.arrivals = arrivals  # type: ignore[method-assign]
        super().run(fed)


def test_orders_under_way_outlive_the_server(tmp_path: Path) -> None:
    method = {"buffer": 2, "in_flight": 3}
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedbuff", **method},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=7, evaluate_every=3),
        world=WorldConfig(drop=0.2),
    )
    run(recipe, tmp_path / "whole", quiet=True, task=Toy(), method=FedBuff(**method))
    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "cut", quiet=True, task=Toy(), method=Stopped(**method))
    run(recipe, tmp_path / "cut", resume=True, quiet=True, task=Toy(), method=FedBuff(**method))
    whole, cut = ((tmp_path / name / "model" / "global.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut
    for folder in (tmp_path / "whole" / "checkpoint", tmp_path / "cut" / "checkpoint"):
        states = [json.loads((folder / f"{number:06}" / "state.json").read_text()) for number in (6, 7)]
        held = [dict(dict(dict(s["state"]["memory"]["$dict"])["flight"]["$dict"])["models"]["$dict"]) for s in states]
        orders = [dict(dict(s["state"]["memory"]["$dict"])["flight"]["$dict"])["orders"] for s in states]
        assert [{*models} for models in held] == [{str(order[1]) for order in row} for row in orders]
        named = {model["$version"] for models in held for model in models.values()}
        assert {file.stem for file in (folder / "versions").iterdir()} == named
