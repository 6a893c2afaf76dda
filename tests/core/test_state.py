"""Private state: durable, atomic, idempotent when an order is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedreel.core.state import PrivateStore, State
from fedreel.errors import RunError
from fedreel.machine.files import file_name


def state(value: float) -> State:
    return State({"t": torch.tensor([value])}, {"n": value, "text": "x"})


@pytest.mark.parametrize("cold", [False, True])
def test_a_repeated_order_starts_from_the_same_state(tmp_path: Path, cold: bool) -> None:
    store = PrivateStore(tmp_path)

    def act(key: tuple[int, int]) -> float:
        nonlocal store
        if cold:
            store = PrivateStore(tmp_path)  # a fresh process
        before = store.load("a", key)
        value = float(before.numbers.get("n", 0.0)) + key[0]
        store.save("a", key, state(value))
        return value

    assert [act((1, 1)), act((2, 1)), act((2, 1)), act((2, 1)), act((3, 5))] == [1.0, 3.0, 3.0, 3.0, 6.0]


def test_a_server_that_falls_back_finds_the_older_generation(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    for r in range(1, 6):
        store.save("a", (r, 1), state(float(r)))
    assert store.load("a", (4, 1)).numbers["n"] == 3.0  # round 4 is done again after a resume
    assert store.load("a", (5, 1)).numbers["n"] == 3.0  # the future that was undone is gone


def test_what_a_server_takes_back_is_kept_apart_where_it_is_somebody_elses(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path / "kept", undone=tmp_path / "undone")
    for _ in range(3):
        store.save("a", (1, 1), state(1.0))
        store.save("a", (2, 1), state(2.0))
        assert store.load("a", (2, 0)).numbers["n"] == 1.0
    assert not store.load("b", (0, 0))
    kept = sorted((tmp_path / "undone" / "a").iterdir())
    assert [path.name for path in kept] == [f"000002-000001.{n}.safetensors" for n in (1, 2, 3)]


def test_a_server_takes_back_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedreel.core.state._MOST_UNDONE", 2)
    store = PrivateStore(tmp_path / "kept", undone=tmp_path / "undone")
    for r in (1, 2, 3):
        store.save("a", (r, 1), state(float(r)))
    with pytest.raises(RunError, match="taken back more than 2 states"):
        store.load("a", (1, 0))
    assert store.has("a")


def test_a_file_of_another_name_is_no_generation(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    store.save("a", (1, 1), state(1.0))
    for name in ("-00001-000000.safetensors", "x.safetensors", "000001.safetensors", "000009-000001.safetensors.tmp"):
        (tmp_path / "a" / name).write_bytes(b"")
    assert PrivateStore(tmp_path).load("a", (2, 1)).numbers["n"] == 1.0


def test_old_generations_are_removed(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    for r in range(1, 40):
        store.save("a", (r, 1), state(float(r)))
    assert len(list((tmp_path / "a").iterdir())) <= 5
    assert PrivateStore(tmp_path).load("a", (40, 1)).tensors["t"].item() == 39.0


def test_a_client_that_was_away_for_long_keeps_its_state(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    store.save("a", (1, 1), state(1.0))
    store.save("a", (50, 1), state(50.0))
    assert PrivateStore(tmp_path).load("a", (50, 1)).numbers["n"] == 1.0  # round 50 repeated: starts from round 1's


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", ".", "", "x" * 300, "naïve ☃", "a\0b", "con\n"])
def test_no_client_name_escapes_the_folder(tmp_path: Path, name: str) -> None:
    safe = file_name(name)
    assert "/" not in safe
    assert not safe.startswith(".")
    assert 0 < len(safe) <= 120
    store = PrivateStore(tmp_path / "store")
    store.save(name, (1, 1), state(2.0))
    assert PrivateStore(tmp_path / "store").load(name, (2, 1)).numbers["n"] == 2.0
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    assert len({file_name(n) for n in ("a/b", "a%2Fb", "a.b", "a_b", "A/b")}) == 5


def test_damage_is_named(tmp_path: Path) -> None:
    store = PrivateStore(tmp_path)
    store.save("a", (1, 1), state(1.0))
    next((tmp_path / "a").iterdir()).write_bytes(b"rubbish")
    with pytest.raises(RunError, match="private state cannot be read"):
        PrivateStore(tmp_path).load("a", (2, 1))
