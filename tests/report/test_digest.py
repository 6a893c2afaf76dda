"""Long runs: what is kept of very many rounds, and a digest that spares the next reader most of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedreel.report import digest, rounds
from fedreel.report.digest import Digest
from fedreel.report.page import draw
from fedreel.report.read import read_run
from fedreel.report.rounds import Costs, First, Rounds
from fedreel.report.run import Run


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thousand rounds are elsewhere, eight are here."""
    for module, name, value in (
        (rounds, "MOST", 8),
        (rounds, "FEWEST", 4),
        (rounds, "CELLS", 24),
        (digest, "LEAST", 1),
    ):
        monkeypatch.setattr(module, name, value)


def records(r: int) -> list[dict[str, Any]]:
    """Client a is tested in every round, b only in the fifth."""
    tested = {"a": {"top1": r / 100, "n": 2}} | ({"b": {"top1": 0.5, "n": 1}} if r == 5 else {})
    test = {"round": r, "phase": "test", "metrics": {"top1": 0.9 if r == 7 else r / 100}, "clients": tested}
    train = {"round": r, "phase": "train", "clients": ["a", f"c{r % 3}"], "loss": 1 / r, "bytes_up": r, "seconds": 2.0}
    late = {"round": r, "phase": "refused", "client": "c1", "reason": "offline", "detail": "away"}
    note = {"round": r, "phase": "note", "text": f"note {r}"}
    return [{**test, "seconds": 0.5}, train, late, note, {"round": r, "phase": "odd", "x": r}]


def departure(r: int) -> dict[str, Any]:
    row = {"kind": "departure", "time": float(r), "round": r, "client": "a", "purpose": "train", "layout": "L"}
    return {**row, "bytes": 10, "kinds": ["weights"], "numbers": {"loss": 1.0}}


def write(folder: Path, first: int, last: int, digested: Digest | None = None) -> None:
    for r in range(first, last + 1):
        with open(folder / "metrics.jsonl", "a") as metrics, open(folder / "ledger.jsonl", "a") as ledger:
            metrics.writelines(json.dumps(record) + "\n" for record in records(r))
            ledger.write(json.dumps(departure(r)) + "\n")
        if digested is not None:
            digested.round_done()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text('system = "S"\n')
    partition = {"round": 0, "phase": "partition", "classes": ["x"], "train": {"a": [3]}, "test": {}}
    (folder / "metrics.jsonl").write_text(json.dumps(partition) + "\nrubbish\n")
    return folder


def test_of_many_rounds_the_first_the_last_and_evenly_spaced_ones_are_kept() -> None:
    kept, gone = Rounds(), []
    for r in range(1, 101):
        gone += kept.put(r, {"r": r})
        assert len(kept) <= 8
        assert {1, r} <= {*kept}
    assert [*kept] == [1, 16, 32, 48, 64, 80, 96, 100]
    assert (kept.span, kept.seen) == (16, 100)
    assert sorted(r for r, _ in gone) == [r for r in range(1, 101) if r not in kept]


def test_of_rounds_with_many_clients_fewer_are_kept() -> None:
    kept = Rounds()
    for r in range(1, 20):
        kept.put(r, {"clients": ["a"] * 6})
    assert len(kept) <= 24 // 6


def test_a_round_that_comes_again_counts_once_and_as_it_was_last() -> None:
    kept = Rounds()
    kept.put(1, {"x": 1})
    assert kept.put(1, {"x": 2}) == []
    assert (dict(kept), kept.seen) == ({1: {"x": 2}}, 1)


def test_costs_add_up_to_the_same_whatever_the_blocks() -> None:
    costs = Costs()
    for r in range(1, 101):
        costs.put(r, {"rounds": 1, "bytes": r, "no number": "x", "not finite": float("nan")})
    assert costs.total("bytes") == 5050
    assert (costs.total("no number"), costs.total("not finite")) == (None, None)
    assert costs.blocks()[0] == (1, 16, {"rounds": 16.0, "bytes": 136.0})
    assert [row["rounds"] for _, _, row in costs.blocks()] == [16] * 6 + [4]


def test_of_a_list_the_first_are_kept_and_all_counted() -> None:
    few = First()
    for n in range(20):
        few.put({"n": n})
    assert ([row["n"] for row in few], few.seen) == ([*range(8)], 20)


def test_nothing_that_is_counted_is_lost_with_the_rounds_that_are_not_kept(run: Path) -> None:
    write(run, 1, 100)
    found = read_run(run)
    assert (found.rounds, found.test.seen, found.train.seen) == (100, 100, 100)
    assert found.total("none", "bytes_up") == 5050
    assert found.total("none", "seconds") == 200.0  # of which tests took 50
    assert found.times_trained == {"a": 100, "c0": 33, "c1": 34, "c2": 33}
    assert found.best("top1") == (1.0, 100)
    assert found.last_tests == {"a": {"top1": 1.0, "n": 2}, "b": {"top1": 0.5, "n": 1}}
    assert found.cases == {("c1", "offline"): 100}
    assert (found.refused.seen, found.notes.seen, found.others.seen) == (100, 100, 100)


def test_the_best_round_is_known_although_it_is_not_kept(run: Path) -> None:
    write(run, 1, 60)
    found = read_run(run)
    assert 7 not in found.test
    assert found.best("top1") == (0.9, 7)
    page = draw(found)
    assert "best 0.900 in round 7, 60 tests" in page
    assert f"One round in {found.test.span} is drawn, and the first and the last." in page


def test_a_page_from_the_digest_is_the_page_from_the_files(run: Path) -> None:
    write(run, 1, 100, Digest(run))
    by_digest = read_run(run)
    assert digest.begin(Run(run))["metrics.jsonl"].lines > 400
    told = draw(by_digest)
    (run / "digest.json").unlink()
    assert draw(read_run(run)) == told
    assert "1 unreadable line(s) left out (line 2)" in told


def test_whoever_has_a_digest_reads_only_what_came_after_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, 1, 100, Digest(run))
    begun: list[int] = []
    real = digest.Records.__init__

    def noted(self: Any, path: Path, begin: int = 0, *rest: Any) -> None:
        begun.append(path.stat().st_size - begin)
        real(self, path, begin, *rest)

    monkeypatch.setattr(digest.Records, "__init__", noted)
    read_run(run)
    assert len(begun) == 2
    assert all(left < path.stat().st_size / 3 for left, path in zip(begun, (run / n for n in digest.FILES)))


def test_a_digest_is_behind_the_checkpoint_so_that_a_killed_run_can_go_on_with_it(run: Path) -> None:
    """Each round's records are in the file when it ends; the two last rounds may be cut off."""
    lengths, digested = [], Digest(run)
    for r in range(1, 30):
        write(run, r, r, digested)
        lengths.append((run / "metrics.jsonl").stat().st_size)
    assert digest.begin(Run(run))["metrics.jsonl"].at in lengths[:-2]


@pytest.mark.parametrize("what", ["cut", "changed"])
def test_records_that_have_changed_are_read_anew(run: Path, what: str) -> None:
    write(run, 1, 50, Digest(run))
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(text[: len(text) // 4] if what == "cut" else text.replace(b"note", b"word"))
    by_digest = read_run(run)
    (run / "digest.json").unlink()
    assert draw(read_run(run)) == draw(by_digest)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: [],
        lambda told: {**told, "format": 99},
        lambda told: {**told, "rounds": {}},
        lambda told: {**told, "costs": [1, [[0, {"seconds": "x"}]]]},
        lambda told: {**told, "trained": {"a": -1}},
        lambda told: {**told, "records": [7]},
        lambda told: {**told, "ledger": {**told["ledger"], "purposes": {"p": []}}},
        lambda told: {**told, "marks": {**told["marks"], "metrics.jsonl": {"at": 1.5}}},
    ],
)
def test_a_damaged_digest_is_passed_over(run: Path, change: Any) -> None:
    write(run, 1, 50, Digest(run))
    whole = draw(read_run(run))
    file = run / "digest.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    assert digest.begin(Run(run)) == {name: digest.Mark() for name in digest.FILES}
    assert draw(read_run(run)) == whole
