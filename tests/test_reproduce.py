"""The reproduction harness: the shape of a table, means over seeds, and no cell run twice."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import fedreel.reproduce as harness
import fedreel.tasks.recognition.task as recognition
from fedreel.config import Recipe, load_recipe
from fedreel.core.job import make_method, make_task
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.reproduce import reproduce
from fedreel.reproduce.recognition import TABLES
from fedreel.reproduce.show import columns_and_rows
from fedreel.reproduce.spec import Row, Scale, Table
from support.tiny import SETTINGS, cli, videos

TINY = Table(
    rows=(
        Row("FedAvg", {"method.name": "fedavg"}),
        Row("FedProx", {"method.name": "fedprox", "method.mu": 0.5}, {"mu": 0.5}, {"top1": 61.5}),
    ),
    metrics=("top1", "loss"),
    scales={"smoke": Scale("recognition", (0, 1), SETTINGS)},
    settings={"task.projection": 4},
    notes=("a note",),
    factor=100.0,
)


@pytest.fixture(autouse=True)
def tiny_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(TABLES, "tiny", TINY)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed sweep."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREEL_CACHE", str(out / "cache"))
        patch.setitem(TABLES, "tiny", TINY)
        said = cli("reproduce", "recognition", "tiny", "--data", data, "--out", out / "table", "--device", "cpu")
    assert said.code == 0, said.err
    assert "61.5" in said.out
    assert "a note" in said.out
    assert str(out / "table" / "tiny.json") in said.out
    return out / "table"


def test_the_table_has_exactly_the_promised_shape(finished: Path) -> None:
    table = json.loads((finished / "tiny.json").read_text())
    assert {*table} == {"system", "table", "scale", "data", "command", "rows", "claims", "notes"}
    assert (table["system"], table["table"], table["scale"]) == ("recognition", "tiny", "smoke")
    assert [row["method"] for row in table["rows"]] == ["FedAvg", "FedProx"]
    for row in table["rows"]:
        assert {*row} == {"method", "setting", "metrics", "paper"}
        assert {*row["metrics"]} == {"top1", "loss"}
        for cell in row["metrics"].values():
            assert {*cell} == {"mean", "sd", "n", "values"}
    assert [row["setting"] for row in table["rows"]] == [{}, {"mu": 0.5}]
    assert [row["paper"] for row in table["rows"]] == [{}, {"top1": 61.5}]
    assert table["notes"][0] == "a note"
    assert "<table" in (finished / "tiny.html").read_text()


def test_means_and_deviations_are_those_of_the_cells(finished: Path) -> None:
    table = json.loads((finished / "tiny.json").read_text())
    cells = [json.loads(p.read_text()) for p in sorted((finished / "cells").glob("*/summary.json"))]
    assert sorted((c["method"], c["seed"]) for c in cells) == [(m, s) for m in ("fedavg", "fedprox") for s in (0, 1)]
    for row, method in zip(table["rows"], ("fedavg", "fedprox")):
        for metric, cell in row["metrics"].items():
            a, b = (100 * c["metrics"][metric] for c in cells if c["method"] == method)
            assert (cell["n"], cell["values"]) == (2, [a, b])
            assert math.isclose(cell["mean"], (a + b) / 2)
            assert math.isclose(cell["sd"], abs(a - b) / math.sqrt(2), abs_tol=1e-12)


def test_the_spread_of_three_numbers_by_hand() -> None:
    assert harness._mean_sd([0.1, 0.2, None, 0.6], 100.0) == {
        "mean": pytest.approx(30.0),
        "sd": pytest.approx(100 * math.sqrt((0.04 + 0.01 + 0.09) / 2)),
        "n": 3,
        "values": [10.0, 20.0, None, 60.0],
    }
    assert harness._mean_sd([0.25], 100.0) == {"mean": 25.0, "sd": None, "n": 1, "values": [25.0]}
    assert harness._mean_sd([], 100.0) == {"mean": None, "sd": None, "n": 0, "values": []}


def test_all_cells_share_settings_and_differ_in_their_row(finished: Path, data: Path) -> None:
    recipes = [load_recipe(p) for p in sorted((finished / "cells").glob("*/recipe.toml"))]
    assert len(list((finished / "cells").glob("*/report.html"))) == len(recipes)
    assert {r.task["projection"] for r in recipes} == {4}
    assert {r.data.source for r in recipes} == {str(data)}
    assert sorted((r.method["name"], r.method.get("mu"), r.seed) for r in recipes) == [
        *(("fedavg", None, seed) for seed in (0, 1)),
        *(("fedprox", 0.5, seed) for seed in (0, 1)),
    ]


def test_finished_cells_are_not_run_again(finished: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(recognition, "open_clips", lambda *args: started.append(args))
    cells = [p for p in (finished / "cells").rglob("*") if p.is_file() and p.name != ".lock"]
    before = {p: p.stat().st_mtime_ns for p in cells}
    table = (finished / "tiny.json").read_text()
    reproduce("recognition", "tiny", data=data, out=finished, device="cpu")
    assert started == []
    assert {p: p.stat().st_mtime_ns for p in cells} == before
    assert (finished / "tiny.json").read_text() == table


def test_an_interrupted_sweep_goes_on_where_it_stopped(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = import_module("fedreel.runs.run")
    really, calls = runs.Federation, [0]

    def third_time_stops(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return really(*args, **named)

    monkeypatch.setattr(runs, "Federation", third_time_stops)
    args = ["reproduce", "recognition", "tiny", "--data", data, "--out", tmp_path / "t", "--device", "cpu"]
    said = cli(*args)
    assert said.code == 130
    assert "run the same command again" in said.err
    half = json.loads((tmp_path / "t" / "tiny.json").read_text())
    assert [(row["method"], row["metrics"]["top1"]["n"]) for row in half["rows"]] == [("FedAvg", 2)]
    assert cli(*args).code == 0
    assert calls[0] == 5  # two finished, one stopped, and the two that were left
    assert json.loads((tmp_path / "t" / "tiny.json").read_text()) == json.loads((finished / "tiny.json").read_text())


def test_other_data_do_not_mix_with_cells_that_are_there(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "table")
    before = {p.name for p in (out / "cells").iterdir()}
    reproduce("recognition", "tiny", data=videos(tmp_path / "other"), out=out, device="cpu")
    after = {p.name for p in (out / "cells").iterdir()}
    assert before < after
    assert len(after) == 2 * len(before)


def test_tables_share_cells_and_what_was_read_off_them(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def first(run: Path) -> dict[str, float]:
        read.append("first")
        return {"one": 1.0}

    def second(run: Path) -> dict[str, float]:
        read.append("second")
        return {"two": 2.0}

    row = Row("FedAvg", {}, {"said": "otherwise"})  # the recipe's own method: the same run
    monkeypatch.setitem(TABLES, "tiny", replace(TINY, metrics=("top1", "one"), derive=(first,)))
    monkeypatch.setitem(
        TABLES, "other", replace(TINY, rows=(row,), metrics=("top1", "one", "two"), derive=(first, second))
    )
    out = shutil.copytree(finished, tmp_path / "table")
    cells = sorted((out / "cells").iterdir())
    tables = [reproduce("recognition", name, data=data, out=out, device="cpu")[name] for name in ("tiny", "other")]
    assert sorted((out / "cells").iterdir()) == cells
    assert read == ["first"] * 4 + ["second"] * 2
    means = {name: cell["mean"] for name, cell in tables[1]["rows"][0]["metrics"].items()}
    assert means == {"top1": tables[0]["rows"][0]["metrics"]["top1"]["mean"], "one": 100.0, "two": 200.0}


def test_several_tables_are_one_sweep_in_which_a_cell_is_run_once(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(run: Path) -> dict[str, float]:
        return {"one": 1.0}

    def two(run: Path) -> dict[str, float]:
        return {"two": 2.0}

    monkeypatch.setitem(TABLES, "tiny", replace(TINY, derive=(one,)))
    shared = replace(TINY, rows=TINY.rows[:1], metrics=("top1", "one", "two"), derive=(one, two))
    monkeypatch.setitem(TABLES, "shared", shared)
    words = ("reproduce", "recognition", "tiny", "shared", "--data", data, "--out", tmp_path / "t", "--device", "cpu")
    said = cli(*words)
    assert said.code == 0, said.err
    assert "[4/4]" in said.err  # two rows and two seeds: those of the second table are among them
    for name in ("tiny", "shared"):
        assert str(tmp_path / "t" / f"{name}.json") in said.out
    assert said.out.index("recognition tiny, smoke") < said.out.index("recognition shared, smoke")
    assert json.loads((tmp_path / "t" / "tiny.json").read_text()) == json.loads((finished / "tiny.json").read_text())
    rows = json.loads((tmp_path / "t" / "shared.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["FedAvg"]
    assert [rows[0]["metrics"][name]["mean"] for name in ("one", "two")] == [100.0, 200.0]
    again = cli(*words, "--rows", "FedProx")
    assert "[2/2]" in again.err  # the second table has no such row
    assert "shared.json" not in again.out


def test_unknown_words_are_answered_by_the_nearest(tmp_path: Path) -> None:
    for words, said in (
        (("recogniton", "tiny", "smoke"), "did you mean 'recognition'"),
        (("recognition", "tinny", "smoke"), "did you mean 'tiny'"),
        (("recognition", "tiny", "smokee"), "did you mean 'smoke'"),
    ):
        with pytest.raises(RecipeError, match=said):
            reproduce(words[0], words[1], scale=words[2], out=tmp_path / "t")
        told = cli("reproduce", words[0], words[1], "--scale", words[2], "--out", tmp_path / "t")
        assert told.code == 2
        assert said in told.err
    with pytest.raises(RecipeError, match="did you mean 'FedAvg'"):
        reproduce("recognition", "tiny", rows="FedAvgg", out=tmp_path / "t")
    with pytest.raises(RecipeError, match="has 'nobody' in it"):  # before the data are looked at
        reproduce("fedlid", "table1", "table5", rows="nobody", data=tmp_path / "nowhere", out=tmp_path / "t")
    with pytest.raises(DataError, match="images for the clients"):
        reproduce("fedlid", "table1", data=tmp_path / "nowhere", out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("system", sorted(harness.reproducible()))
def test_every_row_of_every_table_is_a_recipe(system: str) -> None:
    """No spec may name a recipe, method or setting that does not exist."""
    tables: dict[str, Table] = import_module(harness.reproducible()[system].tables).TABLES
    for name, table in tables.items():
        assert "smoke" in table.scales, name
        for size in table.scales.values():
            for row in table.rows_for(None):
                recipe = load_recipe(size.recipe, {**table.settings, **size.settings, **row.settings})
                make_task(recipe)
                make_method(recipe)


def test_the_terminal_shows_ours_beside_the_papers() -> None:
    row = {"method": "A", "setting": {"mu": 1}, "metrics": {"top1": {"mean": 50.0, "sd": 1.25, "n": 3}}, "paper": {}}
    bare = {"method": "B", "setting": {}, "metrics": {"top1": {"mean": None, "sd": None, "n": 0}}, "paper": {"top1": 7}}
    columns, rows = columns_and_rows({"rows": [row, bare]})
    assert columns == ["method", "mu", "top1", "top1 (paper)"]
    assert rows == [["A", "1", "50.00 ± 1.25 (n=3)", ""], ["B", "", "-", "7"]]


def test_several_cells_at_once_give_the_same_table(finished: Path, data: Path, tmp_path: Path) -> None:
    reproduce("recognition", "tiny", data=data, out=tmp_path / "t", device="cpu", jobs=2)
    assert json.loads((tmp_path / "t" / "tiny.json").read_text()) == json.loads((finished / "tiny.json").read_text())


def test_a_row_that_needs_no_run_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def compute(recipe: Recipe) -> dict[str, float]:
        seeds.append(recipe.seed)
        return {"top1": 0.25 + recipe.seed}

    rows = (Row("chance", {}, compute=compute), Row("elsewhere", {}, compute=compute, only="data"))
    table = Table(rows, ("top1",), {"smoke": Scale("recognition", (0, 1))}, factor=100.0)
    monkeypatch.setattr(harness, "find_table", lambda system, name: table)
    for _ in range(2):
        found = harness.reproduce("any", "table", out=tmp_path)["table"]
    assert seeds == [0, 1]
    assert [r["method"] for r in found["rows"]] == ["chance"]
    assert found["rows"][0]["metrics"]["top1"]["mean"] == 75.0


def test_a_package_that_only_the_last_row_needs_is_missed_before_the_first_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = []

    def needs() -> None:
        if not there:
            raise FedreelError("a package is not here")

    def compute(recipe: Recipe) -> dict[str, float]:
        return {"top1": 0.5}

    rows = (Row("chance", {}, compute=compute), Row("by words", {}, compute=compute, needs=needs))
    table = Table(rows, ("top1",), {"smoke": Scale("recognition", (0, 1))})
    monkeypatch.setattr(harness, "find_table", lambda system, name: table)
    out = tmp_path / "out"
    with pytest.raises(FedreelError, match="a package is not here"):
        harness.reproduce("any", "table", out=out)
    assert not out.exists()
    assert len(harness.reproduce("any", "table", out=out, rows="chance")["table"]["rows"]) == 1
    there.append("it")
    whole = harness.reproduce("any", "table", out=out)
    there.clear()
    assert harness.reproduce("any", "table", out=out) == whole  # finished cells need nothing


def test_rows_can_be_related_within_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def relate(cells: Any) -> list[dict[str, float]]:
        first = json.loads((cells[0][1] / "summary.json").read_text())["metrics"]["top1"]
        return [{"ahead": json.loads((c / "summary.json").read_text())["metrics"]["top1"] - first} for _, c in cells]

    rows = tuple(Row(f"row {i}", {}, compute=lambda r, i=i: {"top1": r.seed + i * (1.0 + r.seed)}) for i in range(2))
    table = Table(rows, ("top1", "ahead"), {"smoke": Scale("recognition", (0, 1))}, relate=relate)
    monkeypatch.setattr(harness, "find_table", lambda system, name: table)
    found = harness.reproduce("any", "table", out=tmp_path)["table"]
    assert [r["metrics"]["ahead"]["mean"] for r in found["rows"]] == [0.0, 1.5]


def test_rows_are_chosen_by_texts_of_which_all_or_one_must_be_there() -> None:
    rows = [Row(name, {}, {"split": split}) for name in ("a server", "no server") for split in ("even", "odd")]

    def chosen(text: str) -> list[int]:
        return [i for i, row in enumerate(rows) if row.has(text)]

    assert chosen("") == chosen("server") == [0, 1, 2, 3]
    assert chosen("no server & split odd") == [3]
    assert chosen("a server & even | odd") == [0, 1, 3]
    assert chosen("both") == chosen("=server") == chosen("= no server & =even") == []
    assert chosen("=a server") == [0, 1]
    assert chosen("=no server & =split even | =split odd") == [1, 2, 3]
