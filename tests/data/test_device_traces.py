"""FedScale's traces of devices: read, and never run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedreel.cli import app
from fedreel.core.world import Device, read_devices
from fedreel.data.device_traces import read_fedscale
from fedreel.errors import DataError

CAPACITIES: dict[int, Any] = {
    1: {"computation": 20.0, "communication": 8000.0},
    2: {"computation": 100, "communication": 800.0},
    3: {"computation": 50.0, "communication": 1600.0},
}
TRACES = {
    7: {"duration": 5, "inactive": [40, 90], "finish_time": 100, "active": [10, 60], "model": "a phone"},
    8: {"duration": 0, "inactive": [], "finish_time": 100, "active": [], "model": "another"},
}


def written(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_three_times_the_milliseconds_and_an_eighth_of_the_kilobits(tmp_path: Path, protocol: int) -> None:
    found = read_fedscale(written(tmp_path / "c", CAPACITIES, protocol))
    assert found == [Device(0.06, 1e6), Device(0.3, 1e5), Device(0.15, 2e5)]


def test_devices_come_and_go_as_those_of_the_second_file(tmp_path: Path) -> None:
    found = read_fedscale(written(tmp_path / "c", CAPACITIES), written(tmp_path / "b", TRACES))
    there = ((10.0, 40.0), (60.0, 90.0))
    assert [d.there for d in found] == [there, (), there]
    assert [found[0].reached(t) for t in (5, 20, 50, 120, 160)] == [False, True, False, True, True]


OTHERS: list[Any] = [
    [1, 2],
    {1: 2},
    {},
    {1: {"computation": 1}},
    {1: {"computation": "x", "communication": 1}},
    {1: {"computation": -1, "communication": 1}},
    {1: {"computation": 1, "communication": 0}},
    Path("/"),
]


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_other_pickles_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(DataError):
        read_fedscale(written(tmp_path / "c", value))


def test_the_command_writes_what_a_recipe_reads(tmp_path: Path) -> None:
    out = tmp_path / "devices.json"
    given = [str(written(tmp_path / "c", CAPACITIES)), "--out", str(out)]
    assert "3 devices" in CliRunner().invoke(app, ["data", "devices", *given]).output
    assert [*read_devices(out)] == read_fedscale(tmp_path / "c")
