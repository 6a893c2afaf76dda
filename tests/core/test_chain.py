"""The ledger's lines hang together: whatever is changed, cut, put in or torn shows, and where."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from fedreel.core.chain import Chain, verify
from fedreel.core.ledger import departures
from fedreel.core.update import TRAIN, Order
from fedreel.errors import FedreelError, RunError
from fedreel.methods.fedbn import FedBN
from support.disk import room_for
from support.tiny import cli
from support.toy import make_worker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Six lines, written in two lives."""
    for life in range(2):
        chain = Chain(tmp_path / "ledger.jsonl", tmp_path / "ledger.head")
        for n in range(3):
            chain.append([{"kind": "departure", "n": 3 * life + n}])
        chain.sync()
        chain.close()
    return tmp_path / "ledger.jsonl"


def problems(path: Path) -> list[str]:
    return [*verify(path, path.with_suffix(".head")).problems]


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_what_nobody_touched_is_whole(path: Path) -> None:
    found = verify(path, path.with_suffix(".head"))
    assert (found.lines, found.unchained, found.problems) == (6, 0, ())
    assert [json.loads(line)["n"] for line in lines(path)] == [*range(6)]
    said = cli("ledger", path, "--verify")
    assert (said.code, found.last in said.out) == (0, True)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_changed_line_is_named(path: Path, number: int) -> None:
    changed = lines(path)
    changed[number - 1] = changed[number - 1].replace(b'"departure"', b'"depravity"')
    path.write_bytes(b"".join(changed))
    (told,) = problems(path)
    assert told.startswith(f"line {number} was changed")
    said = cli("ledger", path.parent, "--verify")
    assert said.code == 1
    assert told in said.out


@pytest.mark.parametrize("number", range(1, 7))
def test_a_cut_line_is_seen_wherever_it_was(path: Path, number: int) -> None:
    path.write_bytes(b"".join(line for n, line in enumerate(lines(path), 1) if n != number))
    told = problems(path)
    assert told
    expected = {1: "lines were cut off at the beginning", 6: "lines were cut off at the end"}
    assert told[0].startswith(expected.get(number, f"line {number - 1} was changed, or lines between"))


def test_a_line_put_in_or_moved_is_seen(path: Path) -> None:
    whole = lines(path)
    for wrong in (
        [*whole[:3], whole[1], *whole[3:]],
        [whole[1], whole[0], *whole[2:]],
        [*whole[:2], b"{}\n", *whole[2:]],
    ):
        path.write_bytes(b"".join(wrong))
        assert problems(path)
    path.write_bytes(b"".join([*whole[:2], b"no json\n", *whole[3:]]))
    assert problems(path)[0] == "line 3 was changed: it holds no hash of the line before"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_line_is_told_and_gone_when_the_next_is_written(path: Path, cut: int) -> None:
    with path.open("ab") as file:
        file.write(b'{"kind": "departure", "client": "somebody", "n'[:-cut])
    assert problems(path) == ["line 7 is torn: a crash while it was written, or a cut"]
    chain = Chain(path, path.with_suffix(".head"))
    chain.append([{"n": 6}])
    chain.sync()
    assert problems(path) == []
    assert len(lines(path)) == 7


def test_lines_of_before_are_counted_and_chained_to(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"kind": "a"}\n{"kind": "b"}\n')
    chain = Chain(path)
    chain.append([{"kind": "c"}, {"kind": "d"}])
    found = verify(path)
    assert (found.lines, found.unchained, found.problems) == (4, 2, ())
    path.write_text(path.read_text().replace('"b"', '"x"'))
    assert verify(path).problems[0].startswith("line 2 was changed")


def test_where_there_is_none_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedreelError, match="there is no ledger here"):
        verify(tmp_path / "ledger.jsonl")
    (tmp_path / "ledger.jsonl").touch()
    (tmp_path / "ledger.head").write_text("rubbish")
    with pytest.raises(FedreelError, match="cannot be read"):
        verify(tmp_path / "ledger.jsonl", tmp_path / "ledger.head")


def _write(path: str, who: int) -> None:
    chain = Chain(Path(path))
    for n in range(50):
        chain.append([{"who": who, "n": n}, {"who": who, "n": n}])


def test_several_processes_keep_one_chain(tmp_path: Path) -> None:
    path, context = tmp_path / "ledger.jsonl", multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(path), who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert verify(path).problems == ()
    rows = [json.loads(line) for line in lines(path)]
    assert len(rows) == 300
    assert all([r["n"] for r in rows if r["who"] == who] == [n for n in range(50) for _ in "ab"] for who in range(3))


@pytest.mark.parametrize("room", [0, 1, 60, 200])
def test_where_there_is_no_room_for_a_line_nothing_is_written_and_nothing_leaves(path: Path, room: int) -> None:
    before = path.read_bytes()
    chain = Chain(path, path.with_suffix(".head"))
    with room_for(len(before) + room), pytest.raises(RunError, match="the ledger cannot be written, so nothing leaves"):
        chain.append([{"kind": "departure", "text": "x" * 300}])
    assert path.read_bytes() == before
    chain.append([{"n": 6}])
    chain.sync()
    assert problems(path) == []


def test_a_departure_that_cannot_be_noted_does_not_happen(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedBN())
    order = Order(1, 1, "c1", TRAIN, {"global": worker.start})
    with pytest.raises(RunError, match="nothing leaves"):
        full(worker.execute, order)
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""
    left = worker.execute(order)
    (row,) = departures(tmp_path / "ledger.jsonl")
    assert (row["client"], row["bytes"]) == ("c1", left.nbytes)


def full(work: object, order: Order) -> object:
    """The disk takes no more than half of what is written to the ledger."""
    write, patch = os.write, pytest.MonkeyPatch()

    def half(handle: int, text: bytes) -> int:
        if len(text) < 20:
            raise OSError(28, "No space left on device")
        return write(handle, text[: len(text) // 2])

    with patch.context() as inside:
        inside.setattr(os, "write", half)
        return work(order)  # type: ignore[operator]


def test_lines_are_written_while_those_before_are_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced is all that was there when that began, and the chain may be closed meanwhile."""
    chain = Chain(tmp_path / "ledger.jsonl")
    chain.append([{"kind": "departure", "n": 0}])
    forced: list[int] = []
    fsync = os.fsync

    def slow(handle: int) -> None:
        chain.append([{"kind": "departure", "n": 1}])  # would wait for ever if the chain were held
        chain.close()
        forced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    chain.sync()
    assert forced == [(tmp_path / "ledger.jsonl").stat().st_ino]
    assert verify(tmp_path / "ledger.jsonl").lines == 2
