"""Runs as they happen: each look reads only what is new, and shows what a reading of the whole would show."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra ui is not installed")

from fedreel.machine.alive import this_process
from fedreel.machine.tail import Tail, from_the_end
from fedreel.report.curves import curves
from fedreel.report.digest import Digest
from fedreel.report.exchange import departures
from fedreel.report.read import read_run
from fedreel.ui.board import Board, find_runs
from fedreel.ui.page import styled
from fedreel.ui.watched import Watched


def rows(round: int) -> list[dict[str, Any]]:
    return [
        {"round": round, "phase": "test", "metrics": {"top1": round / 10}, "clients": {"a": {"top1": 0.1, "n": 2}}},
        {"round": round, "phase": "train", "clients": ["a"], "loss": 1 / round, "seconds": 2.0, "bytes_up": 10},
    ]


def departure(round: int) -> dict[str, Any]:
    return {
        "kind": "departure",
        "time": 1.0,
        "round": round,
        "client": "a",
        "purpose": "train",
        "bytes": 10,
        "kinds": ["weights"],
        "numbers": {},
        "layout": "L",
    }


def write(path: Path, records: list[dict[str, Any]], mode: str = "a") -> None:
    with open(path, mode) as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text('system = "S"\n[round]\nrounds = 20\n[method]\nname = "fedavg"\n')
    (folder / "run.json").write_text('{"id": "x", "start": 1}')
    write(folder / "metrics.jsonl", [row for r in (1, 2, 3) for row in rows(r)])
    write(folder / "ledger.jsonl", [departure(1), departure(2)])
    return folder


@pytest.mark.parametrize("large", [3, 10, 1 << 22])
def test_a_tail_gives_each_whole_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr("fedreel.machine.tail.LARGE", large)
    path = tmp_path / "x.jsonl"
    tail = Tail(path)
    assert list(tail.new()) == []
    content = b'{"a": 1}\nrubbish\n[1]\n{"a": 2}\n'
    seen: list[object] = []
    for byte in range(len(content)):
        with open(path, "ab") as file:
            file.write(content[byte : byte + 1])
        seen += tail.new()
    assert seen == [{"a": 1}, {"a": 2}]
    assert not tail.cut()
    os.truncate(path, 9)
    assert tail.cut()


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 14])
def test_a_file_is_read_from_its_end_in_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("fedreel.machine.tail.BLOCK", block)
    path = tmp_path / "x.jsonl"
    assert list(from_the_end(path)) == []
    path.write_text('{"n": 9')
    assert list(from_the_end(path)) == []  # it is being written
    write(path, [{"n": n, "long": "x" * n} for n in range(50)], "w")
    whole = [{"n": n, "long": "x" * n} for n in reversed(range(50))]
    assert list(from_the_end(path)) == whole
    with open(path, "a") as file:
        file.write('{"n": 50')
    assert list(from_the_end(path)) == whole


def test_a_watched_run_shows_what_its_files_say_whenever_it_is_looked_at(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(run)
    monkeypatch.setattr("fedreel.ui.watched.pace", lambda draw: (draw(), 0.0))
    for r in range(4, 9):
        parts = watched.parts()
        whole = read_run(run)
        assert parts["curves"] == styled(curves(whole))
        assert parts["departures"] == styled(departures(whole))
        write(run / "metrics.jsonl", rows(r))
        write(run / "ledger.jsonl", [departure(r)])


def test_a_run_that_was_cut_back_and_went_on_is_read_anew(run: Path) -> None:
    """After a resume the file may be longer than before, with other rounds in it."""
    watched = Watched(run)
    watched.parts()
    write(run / "metrics.jsonl", [row for r in (1, 7, 8, 9) for row in rows(r)], "w")
    (run / "run.json").write_text('{"id": "x", "start": 2}')
    assert watched.parts()["curves"] == styled(curves(read_run(run)))
    assert sorted(watched.run.train) == [1, 7, 8, 9]


def test_what_has_been_read_is_not_read_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, read = Watched(run), [0]
    watched.parts()
    opened = builtins.open

    def counting(path: Any, *args: Any, **named: Any) -> Any:
        file = opened(path, *args, **named)
        if str(path).endswith(".jsonl"):
            inner = file.read
            file_read = lambda *a: (lambda got: (read.__setitem__(0, read[0] + len(got)), got)[1])(inner(*a))  # noqa: E731
            return _Counted(file, file_read)
        return file

    monkeypatch.setattr("fedreel.machine.tail.open", counting, raising=False)
    watched.parts()
    assert read[0] == 0
    new = "".join(json.dumps(row) + "\n" for row in rows(4))
    write(run / "metrics.jsonl", rows(4))
    watched.parts()
    assert read[0] == len(new)


class _Counted:
    def __init__(self, file: Any, read: Any) -> None:
        self.file, self.read = file, read

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def seek(self, *args: int) -> int:
        return self.file.seek(*args)


def test_the_list_tells_state_round_metric_and_time_left(run: Path) -> None:
    board = Board(run.parent)
    (row,) = board.rows()
    assert (row.name, row.state, row.round, row.rounds) == ("one", "interrupted", 3, 20)
    assert (row.metric, row.value, row.left) == ("top1", 0.3, None)
    (run / "now.json").write_text(json.dumps({**this_process(), "round": 4, "rounds": 20, "clients": {}}))
    (row,) = board.rows()
    assert (row.state, row.left) == ("running", 2.0 * 17)
    (run / "now.json").write_text(json.dumps({**this_process(), "born": "0", "round": 4}))
    assert board.rows()[0].state == "interrupted"  # its process is gone, whatever the file says
    (run / "summary.json").write_text(json.dumps({"complete": True, "rounds": 20, "metrics": {"top1": 0.9}}))
    (row,) = board.rows()
    assert (row.state, row.round, row.value) == ("complete", 20, 0.9)


def test_runs_are_found_in_folders_of_folders_but_not_in_runs_or_behind_links(run: Path, tmp_path: Path) -> None:
    root = run.parent
    deep = root / "sweep" / "cells" / "two"
    for folder in (deep, run / "model", root / ".hidden"):
        folder.mkdir(parents=True)
        (folder / "recipe.toml").touch()
    (root / "linked").symlink_to(tmp_path)
    assert [name for name, _ in find_runs(root)] == ["one", "sweep/cells/two"]


def test_clients_at_work_are_named_with_what_they_do(run: Path) -> None:
    clients = {"c1": "done", "c2": "failed", "c3": "working", "c4": "waiting"}
    said = {**this_process(), "round": 4, "rounds": 20, "kind": "train", "clients": clients}
    (run / "now.json").write_text(json.dumps(said))
    part = Watched(run).parts()["now"]
    assert "Round 4 of 20" in part
    assert "1 working, 1 failed, 1 done, 1 waiting" in part
    for name, state in clients.items():
        assert f'<li class="{state}" title="{name}">' in part


def test_a_page_that_begins_with_a_digest_shows_the_same_and_reads_only_what_came_after_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedreel.report.digest.LEAST", 1)
    digest = Digest(run)
    for r in range(4, 20):
        write(run / "metrics.jsonl", rows(r))
        write(run / "ledger.jsonl", [departure(r)])
        digest.round_done()
    watched = Watched(run)
    assert watched._metrics.at > 0.6 * (run / "metrics.jsonl").stat().st_size
    parts = watched.parts()
    (run / "digest.json").unlink()
    assert Watched(run).parts() == parts
