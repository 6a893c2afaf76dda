"""Checkpoints: whole or absent, the same to the bit, the older one when the newest is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.pool import Roll
from fedreel.core.server import ServerState
from fedreel.core.version import Version
from fedreel.core.weights import Layout, Weights
from fedreel.errors import RunError
from fedreel.runs.checkpoint import Checkpoints, Snapshot

CPU = torch.device("cpu")


def progress(round: int) -> ServerState:
    w = Weights.of({"a.w": torch.randn(3, 4), "a.n": torch.tensor(round), "b": torch.randn(2).bfloat16()})
    memory = {
        "past": [w, 2.0 * w],
        "groups": {"x": ["c0", "c1"], "3": []},
        "t": torch.eye(2),
        "none": None,
        "ok": True,
        "nested": {"deep": [{"w": w}]},
        "empty": Weights.zeros(Layout([])),
    }
    return ServerState(round, {"global": w, "group 1/x": 3.0 * w}, memory, {"bytes_up": 5}, {"nan": 2}, {"top1": 0.5})


def same(a: object, b: object) -> bool:
    if isinstance(a, Weights):
        return isinstance(b, Weights) and a.equal(b) and a.layout.tensors == b.layout.tensors
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_everything_comes_back(tmp_path: Path) -> None:
    store, before = Checkpoints(tmp_path), progress(7)
    store.save(Snapshot.of(before, {"metrics": 123}))
    loaded = Checkpoints(tmp_path).load(CPU)
    assert loaded is not None
    after, marks = loaded
    assert marks == {"metrics": 123}
    assert same(vars(before), vars(after))


def test_only_the_last_two_stay_and_damage_falls_back(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load(CPU) is None
    for r in range(1, 6):
        store.save(Snapshot.of(progress(r), {}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000004", "000005"]
    (tmp_path / "000005" / "tensors.safetensors").write_bytes(b"\0" * 100)
    loaded = store.load(CPU)
    assert loaded is not None
    assert loaded[0].round == 4
    (tmp_path / "000004" / "state.json").write_text("{")
    with pytest.raises(RunError, match="no checkpoint of this run can be read"):
        store.load(CPU)


def test_a_failed_write_leaves_the_old_one_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(tmp_path)
    store.save(Snapshot.of(progress(1), {}))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedreel.runs.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(Snapshot.of(progress(2), {}))
    assert [p.name for p in tmp_path.iterdir()] == ["000001"]


def test_memory_of_a_strange_kind_is_refused_with_its_place() -> None:
    strange = progress(1)
    strange.memory["clock"] = {"hand": object()}
    with pytest.raises(TypeError, match="memory/clock/hand"):
        Snapshot.of(strange, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("float32", "floet32"),
        lambda text: text.replace('"layouts"', '"layout"'),
        lambda text: text.replace("[3]", "[99999999999]"),
        lambda text: "[" * 100_000,
        lambda text: "null",
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, change: Callable[[str], str]) -> None:
    store = Checkpoints(tmp_path)
    for number in (1, 2):
        state = ServerState(round=number, models={"global": Weights.of({"w": torch.ones(3)})})
        store.save(Snapshot.of(state, {}))
    newest = sorted(tmp_path.iterdir())[-1] / "state.json"
    newest.write_text(change(newest.read_text()))
    found = store.load(torch.device("cpu"))
    assert found is not None
    assert found[0].round == 1


def with_versions(round: int, versions: dict[str, Version], trained: Roll) -> ServerState:
    model = Weights.of({"w": torch.tensor([float(round)])})
    return ServerState(round, {"global": model}, {"flight": {"models": versions}}, trained=trained)


def version(*numbers: float) -> Version:
    return Version(Weights.of({"w": torch.tensor(numbers), "n": torch.tensor(3)}))


def test_a_version_is_written_once_and_stays_as_long_as_a_checkpoint_needs_it(tmp_path: Path) -> None:
    store, folder = Checkpoints(tmp_path), tmp_path / "versions"
    a, b, c = version(1.0), version(2.0), version(3.0)
    written: dict[str, set[int]] = {}
    there = []
    for number, held in enumerate(([a], [a, b], [b], [b, version(2.0)], [c], [], []), 1):
        store.save(Snapshot.of(with_versions(number, {str(i): v for i, v in enumerate(held)}, Roll()), {}))
        files = [*folder.iterdir()]
        there.append({next(n for n, v in zip("abc", (a, b, c)) if v.name == file.stem) for file in files})
        for file in files:
            written.setdefault(file.name, set()).add(file.stat().st_mtime_ns)
    assert there == [{*"a"}, {*"ab"}, {*"ab"}, {*"b"}, {*"bc"}, {*"c"}, set()]  # two checkpoints are kept
    assert all(len(moments) == 1 for moments in written.values())


def test_versions_and_names_come_back_and_a_damaged_version_leads_to_the_checkpoint_before(tmp_path: Path) -> None:
    store, roll, a, b = Checkpoints(tmp_path), Roll(["x"]), version(1.5), version(-0.0, float("nan"))
    store.save(Snapshot.of(with_versions(1, {"1": a}, roll), {}))
    roll |= {"y"}
    store.save(Snapshot.of(with_versions(2, {"1": a, "2": b}, roll), {}))
    found = Checkpoints(tmp_path).load(CPU)
    assert found is not None
    assert {n: v.name for n, v in found[0].memory["flight"]["models"].items()} == {"1": a.name, "2": b.name}
    assert [*found[0].trained] == ["x", "y"]
    file = tmp_path / "versions" / f"{b.name}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    found = Checkpoints(tmp_path).load(CPU)
    assert found is not None
    assert (found[0].round, [*found[0].trained]) == (1, ["x"])


def test_names_are_added_to_and_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    store, roll, file = Checkpoints(tmp_path), Roll("ab"), tmp_path / "trained.jsonl"
    for number in (1, 2, 3):
        store.save(Snapshot.of(with_versions(number, {}, roll), {}))
        roll.add(f"n{number}")
    assert file.read_text() == '["a", "b"]\n["n1"]\n["n2"]\n'
    (tmp_path / "000003" / "state.json").write_text("{")
    again = Checkpoints(tmp_path)
    found = again.load(CPU)
    assert found is not None
    found[0].trained.add("other")
    found[0].round = 3
    again.save(Snapshot.of(found[0], {}))
    assert file.read_text() == '["a", "b"]\n["n1"]\n["other"]\n'


def test_a_checkpoint_of_an_earlier_version_lists_its_names(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(Snapshot.of(progress(1), {}))
    state = tmp_path / "000001" / "state.json"
    state.write_text(state.read_text().replace('"trained": 0', '"trained": ["a", "b"]'))
    store = Checkpoints(tmp_path)
    found = store.load(CPU)
    assert found is not None
    assert found[0].trained == {"a", "b"}
    found[0].round = 2
    store.save(Snapshot.of(found[0], {}))
    again = Checkpoints(tmp_path).load(CPU)
    assert again is not None
    assert again[0].trained == {"a", "b"}


def test_snapshots_that_share_memory_are_those_of_their_own_moments(tmp_path: Path) -> None:
    """Whatever becomes of the federation between two moments: values change in place, others come, forms change."""
    store, before = Checkpoints(tmp_path), None
    for r in range(1, 6):
        now = progress(r)
        now.memory |= {f"new {r}": torch.arange(r), "grows": torch.arange(r), "t": torch.eye(2).t() * r}
        before = Snapshot.of(now, {"metrics": r}, before)
        expected = progress_copied(now)
        for value in (*now.models.values(), *now.memory["past"]):
            value.put(0.0 * value)  # after that moment
        now.memory["grows"].zero_()
        store.save(before)
        loaded = Checkpoints(tmp_path).load(CPU)
        assert loaded is not None
        assert same(vars(expected), vars(loaded[0]))


def test_the_memory_of_a_snapshot_is_used_again() -> None:
    first = Snapshot.of(progress(1), {"metrics": 1})
    places = {path: [t.data_ptr() for t in flat_of(copy)] for path, copy in first.copies.items()}
    second = Snapshot.of(progress(2), {"metrics": 2}, first)
    assert places == {path: [t.data_ptr() for t in flat_of(copy)] for path, copy in second.copies.items()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_lies_on_a_gpu_comes_back_from_snapshots_that_share_memory(tmp_path: Path) -> None:
    store, before = Checkpoints(tmp_path), None
    for r in range(1, 5):
        now = progress(r)
        now.models = {name: w.to("cuda") for name, w in now.models.items()}
        before = Snapshot.of(now, {"metrics": r}, before)
        expected = {name: w.clone() for name, w in now.models.items()}
        for weights in now.models.values():
            weights.put(0.0 * weights)
        store.save(before)
        assert all(t.is_pinned() for path in now.models for t in flat_of(before.brought[f"models/{path}"]))
        loaded = Checkpoints(tmp_path).load(torch.device("cuda"))
        assert loaded is not None
        assert same(expected, loaded[0].models)


def progress_copied(now: ServerState) -> ServerState:
    return ServerState(now.round, copied(now.models), copied(now.memory), now.totals, now.refused, now.metrics)


def copied(value: Any) -> Any:
    if isinstance(value, Weights | torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(v) for name, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list) else value


def flat_of(value: Weights | torch.Tensor) -> list[torch.Tensor]:
    return [*value.flat.values()] if isinstance(value, Weights) else [value]
