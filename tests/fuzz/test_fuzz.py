"""A few mutated inputs for every reader and message; `make fuzz N=1000000` tries many."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("av")
from fuzz import readers, run
from fuzz.harness import LARGE, REFERENCES, Bench, Harness
from fuzz.readers import HARNESSES

FEW, FEWER = 60, 8  # inputs; fewer where each is a film or a page
SLOW = ("mp4", "mp4 look", "avi", *(f"report {what}" for what in ("metrics", "digest", "summary", "recipe", "ledger")))


@pytest.mark.parametrize("name", HARNESSES)
def test_a_reader_takes_its_seeds_and_refuses_the_rest_in_our_words(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bench = Bench(HARNESSES[name])
        try:
            for seed in bench.seeds:
                bench.accepts(seed)  # or the last step of the reader would never be tried
            assert list(bench.tries(1, range(FEWER if name in SLOW else FEW))) == []
        finally:
            bench.close()


def _take(data: bytes) -> None:
    """Crashes over what begins with a c, and takes memory for what begins with an m."""
    if data[:1] == b"c":
        raise KeyError("not ours")
    if data[:1] == b"m":
        np.ones(LARGE // 8 + (1 << 20)).sum()


def test_what_goes_wrong_is_told_by_kind_whatever_went_before(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REFERENCES.exists():
        pytest.skip("the peak of a process's memory cannot be counted anew here")
    order = [b"m", b"c", b"m", b"ok"]
    bench = Bench(Harness("made up", lambda: [b"ok"], _take))
    monkeypatch.setattr(bench, "input", lambda seed, number: order[number])
    assert [(f.number, f.kind) for f in bench.tries(0, range(4))] == [(0, "memory"), (1, "crash"), (2, "memory")]
    bench.close()


def test_what_is_slow_twice_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([9.0, 1.0, 9.0, 9.0])
    bench = Bench(Harness("made up", lambda: [b"ok"], lambda data: None))
    monkeypatch.setattr(bench, "_tried", lambda data: ("", next(took), 0))
    assert [(f.number, f.kind) for f in bench.tries(0, range(2))] == [(1, "time")]
    bench.close()


def test_the_run_ends_with_counts_by_harness_as_a_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(data: bytes) -> None:
        if data == b"c":
            raise KeyError("not ours")

    made = Harness("made up", lambda: [b"c"], take, mutate=lambda data, rng: rng.choice([b"c", b"ok"]))
    good = Harness("good", lambda: [b"ok"], lambda data: None)
    for module in (run, readers):
        monkeypatch.setattr(module, "HARNESSES", {"made up": made, "good": good})
    monkeypatch.setattr(run, "_rate", lambda name, seed: 10.0)
    assert run.main(["--inputs", "60", "--seed", "3", "--out", str(tmp_path / "found")]) == 1
    *_, table, _, line = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["harnesses"]["good"] == {"inputs": 30, "crashes": 0, "over_1_GB": 0, "over_5_s": 0}
    assert (told["inputs"], told["seed"]) == (60, 3)
    assert 0 < told["crashes"] == told["harnesses"]["made up"]["crashes"] < 30
    assert table.split() == ["all", "60", str(told["crashes"]), "0", "0"]
