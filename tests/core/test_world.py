"""A clock that only clients' work moves: what it says of trips and rounds, and files of devices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.config import WorldConfig, make_recipe
from fedreel.core.disclosure import testers as drawn_testers
from fedreel.core.world import Device, World, make_world, read_devices, write_devices
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.run import engine_starter
from support.pull import SAMPLES, pulled
from support.toy import federate


def world(samples: Any = SAMPLES, devices: tuple[Device, ...] = (), seed: int = 0, **settings: Any) -> World:
    """Of equal devices that take a second for a sample, and lines that take no time, unless told otherwise."""
    config = WorldConfig(**{"seconds": 1.0, "spread": 0.0, "line": 1e30, "line_spread": 0.0, **settings})
    return World(config, seed, lambda client: float(samples[client]), 1, devices)


def test_a_trip_takes_what_device_samples_and_line_make_of_it() -> None:
    one = world(line=100.0).trip("far", (1, 1), nbytes=50.0, at=7.0)
    assert (one.begins, one.back, one.lost) == (7.0, 7.0 + 3 * 1.0 + 2 * 50 / 100, False)


def test_devices_are_drawn_by_seed_and_name_and_spread_as_told() -> None:
    apart = world(spread=0.5, line=1e6, line_spread=1.0)
    logs = np.log([[d.seconds, d.line / 1e6] for d in (apart.device(f"c{i}") for i in range(2000))])
    assert np.abs(logs.mean(0)).max() < 4 / math.sqrt(2000)
    assert logs.std(0) == pytest.approx([0.5, 1.0], rel=0.07)
    assert abs(np.corrcoef(logs.T)[0, 1]) < 4 / math.sqrt(2000)
    assert apart.device("c1") == world(spread=0.5, line=1e6, line_spread=1.0).device("c1")
    assert apart.device("c1") != world(spread=0.5, line=1e6, line_spread=1.0, seed=1).device("c1")


def test_who_is_away_begins_later_and_who_leaves_meanwhile_is_lost() -> None:
    nightly = Device(1.0, 1e30, ((2.0, 4.0), (8.0, 12.0)), 20.0)
    assert [nightly.next_reached(at) for at in (0, 3, 5, 12, 13, 23)] == [2, 3, 8, 12, 22, 23]
    placed = world(devices=(nightly,))
    assert placed.trip("near", (1, 1), 0.0, at=0.0).back == 3.0
    assert placed.trip("far", (1, 1), 0.0, at=3.0).lost  # it would be back at 6
    assert not placed.trip("far", (1, 1), 0.0, at=5.0).lost  # from 8 to 11


def test_so_many_are_lost_as_told() -> None:
    clients = {f"c{i}": 1 for i in range(3000)}
    lost = [world(clients, drop=0.3).trip(c, (1, 1), 0.0, 0.0).lost for c in clients]
    assert abs(np.mean(lost) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 3000)
    again = [world(clients, drop=0.3).trip(c, (2, 1), 0.0, 0.0).lost for c in clients]
    assert again != lost


def test_a_round_lasts_as_long_as_its_slowest_client(tmp_path: Path) -> None:
    where, _fed, notes = pulled(tmp_path, FedAvg(weight_by="equal"), rounds=2, world=world())
    assert [row["clock"] for row in notes.of("train")] == [3.0, 6.0]
    assert where == pulled(tmp_path / "plain", FedAvg(weight_by="equal"), rounds=2)[0]


def test_of_more_than_are_wanted_the_first_count(tmp_path: Path) -> None:
    """One of two is wanted, two are ordered: `near` is back after a second, and leads to 1."""
    where, _, notes = pulled(tmp_path, FedAvg(), fraction=0.5, world=world(over=1.0))
    assert (where, notes.of("train")[0]["clock"]) == (1.0, 1.0)
    assert not notes.of("refused")


def test_a_round_that_has_a_deadline_ends_then(tmp_path: Path) -> None:
    where, _, notes = pulled(tmp_path, FedAvg(), world=world(deadline=2.0))
    assert (where, notes.of("train")[0]["clock"]) == (1.0, 2.0)
    assert [(row["client"], row["reason"]) for row in notes.of("refused")] == [("far", "timeout")]


def test_too_few_in_time_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="too few answers") as caught:
        pulled(tmp_path, FedAvg(), min_answers=1.0, world=world(deadline=2.0))
    assert "far: timeout" in str(caught.value)


def test_clients_of_a_chain_take_their_times_one_after_another() -> None:
    one = world()
    assert one.round_trip([(["near", "far"], 0.0), (["near"], 0.0)], 1) == ([0, 1], [])
    assert one.now == 4.0


def test_some_clients_are_asked_to_test_others_each_time(tmp_path: Path) -> None:
    _, notes = federate(tmp_path, FedAvg(), rounds=4, test_clients=2, evaluate_every=1)
    asked = [tuple(row["clients"]) for row in notes.of("test")]
    assert {len(clients) for clients in asked} == {2}
    assert len({*asked}) > 1
    assert drawn_testers("abcd", 0, 0, 1) == drawn_testers("abcd", 9, 0, 1) == [*"abcd"]


def test_a_file_of_devices_is_read_as_it_was_written(tmp_path: Path) -> None:
    devices = (Device(0.5, 1e6), Device(0.25, 2e6, ((1.0, 2.0), (5.0, 9.0)), 10.0))
    file = tmp_path / "devices.json"
    file.write_text(write_devices(devices))
    assert read_devices(file) == devices
    found = make_world(WorldConfig(devices=str(file)), 0, {"train": {"a": [1, 2]}}, 2)
    assert found is not None
    assert found.device("a") in devices


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"devices": []}',
        '{"devices": [{"seconds": -1, "line": 1}]}',
        '{"devices": [{"seconds": 1, "line": 0}]}',
        '{"devices": [{"seconds": NaN, "line": 1}]}',
        '{"devices": [{"seconds": 1, "line": 1, "there": [[1]]}]}',
    ],
)
def test_what_are_no_devices_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "devices.json").write_text(text)
    with pytest.raises(DataError, match="no devices"):
        read_devices(tmp_path / "devices.json")


def test_a_clock_does_not_go_with_what_hides_who_took_part() -> None:
    table = {"task": "image", "method": "fedavg", "world": {}}
    with pytest.raises(RecipeError, match="who came when"):
        make_recipe({**table, "privacy": {"epsilon": 8.0}})
    with pytest.raises(RecipeError, match="who came when"):
        make_recipe({**table, "secure": {"sums": True}})
    with pytest.raises(RecipeError, match="tests of all clients"):
        make_recipe({**table, "world": None, "round": {"test_clients": 3}, "privacy": {"epsilon": 8.0}})
    with pytest.raises(RecipeError, match="real sites take the time they take"):
        engine_starter(make_recipe({**table, "engine": "flower"}))


def test_without_counts_of_samples_there_is_no_clock() -> None:
    with pytest.raises(RunError, match="how many samples"):
        make_world(WorldConfig(), 0, {}, 1)
