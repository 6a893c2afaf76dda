"""What of a sweep is left: counted by the cells that are finished here or kept in a file, and nothing is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedreel.api
import fedreel.reproduce as harness
from fedreel.reproduce import fsar
from fedreel.reproduce.plan import by_row, by_table, plan
from fedreel.reproduce.spec import Choose, Row, Scale, Table
from support.tiny import cli

TABLE = Table(
    rows=(Row("slow", {"train.lr": 0.5}), Row("fast", {}, grid={"train.lr": (1.0, 2.0)})),
    metrics=("lr",),
    scales={"smoke": Scale("recognition", (0, 1), choose=Choose("lr", {"data.validate": True}, "a part"))},
)
TABLES = {"table": TABLE, "half": replace(TABLE, rows=TABLE.rows[1:])}
Lines = Callable[..., list[list[str]]]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What is planned for tables by the cells in one file; the folder of the runs is another every time."""

    def run(recipe: str, folder: Path, *, set: dict[str, Any], **_: Any) -> None:
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"metrics": {"lr": set["train.lr"]}, "complete": True}))

    monkeypatch.setattr(fedreel.api, "run", run)
    monkeypatch.setattr(harness, "find_table", lambda system, name: TABLES[name])
    harness.reproduce("any", "table", out=tmp_path / "out", cells=tmp_path / "cells.jsonl")

    def planned(*tables: str, jobs: int = 1, rows: bool = False) -> list[list[str]]:
        found = plan("any", *tables, out=tmp_path / "nowhere", cells=tmp_path / "cells.jsonl")
        assert not (tmp_path / "nowhere").exists()
        return (by_row if rows else by_table)(found, jobs)

    return planned


def edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    head, *cells = map(json.loads, path.read_text().splitlines())
    kept = [line for line in map(change, cells) if line]
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *kept]))


def test_nothing_is_left_of_what_is_in_the_file_or_in_the_folder(lines: Lines, tmp_path: Path) -> None:
    assert lines("table") == [["table", "2", "2", "0", "4", "0", "0.0"]]
    assert lines("table", rows=True) == []
    (tmp_path / "cells.jsonl").unlink()
    assert lines("table") == [["table", "2", "0", "2", "0", "4", "?"]]
    assert by_table(plan("any", "table", out=tmp_path / "out")) == [["table", "2", "2", "0", "4", "0", "0.0"]]


def test_cells_of_a_row_are_not_done_before_its_settings_are_chosen(lines: Lines, tmp_path: Path) -> None:
    edit(tmp_path / "cells.jsonl", lambda line: None if line["metrics"]["lr"] == 1.0 else line)
    assert lines("table") == [["table", "2", "1", "1", "2", "2", "0.0"]]
    assert lines("table", rows=True) == [["table", "fast", "1", "1", "0", "2", "0.0"]]


def test_another_choice_leaves_other_cells(lines: Lines, tmp_path: Path) -> None:
    """The file has cells of rate 2, which was best. Were rate 1 the best, its cells would be left."""
    best = {1.0: 3.0, 2.0: 2.0, 0.5: 0.5}
    edit(tmp_path / "cells.jsonl", lambda line: line | {"metrics": {"lr": best[line["metrics"]["lr"]]}})
    assert lines("table", rows=True) == [["table", "fast", "2", "0", "0", "2", "0.0"]]


def test_what_two_tables_show_counts_once(lines: Lines, tmp_path: Path) -> None:
    assert lines("table", "half")[1:] == [
        ["half", "1", "2", "0", "2", "0", "0.0"],
        ["all", "3", "2", "0", "4", "0", "0.0"],
    ]
    edit(tmp_path / "cells.jsonl", lambda line: None)
    assert lines("table", "half")[1:] == [["half", "1", "0", "2", "0", "2", "?"], ["all", "3", "0", "2", "0", "4", "?"]]


def test_hours_are_those_that_finished_cells_of_the_row_took_or_else_of_the_table(lines: Lines, tmp_path: Path) -> None:
    def timed(line: dict[str, Any]) -> dict[str, Any] | None:
        hours = {0.5: 2.0, 1.0: 0.5, 2.0: 0.5}[line["metrics"]["lr"]]
        return None if line["cell"].endswith("seed1") else line | {"seconds": 3600 * hours}

    edit(tmp_path / "cells.jsonl", timed)
    assert [line[-1] for line in lines("table", rows=True)] == ["2.0", "0.5"]
    assert lines("table")[0][-1] == "2.5"
    assert lines("table", jobs=2)[0][-1] == "1.2"
    edit(tmp_path / "cells.jsonl", lambda line: None if line["metrics"]["lr"] == 0.5 else line)
    assert [line[-1] for line in lines("table", rows=True)] == ["1.0", "0.5"]  # two cells like those of the other row


def test_how_long_a_cell_took_is_kept(lines: Lines, tmp_path: Path) -> None:
    text = (tmp_path / "cells.jsonl").read_text()
    assert all(json.loads(line)["seconds"] >= 0 for line in text.splitlines()[1:])
    edit(tmp_path / "cells.jsonl", lambda line: line | {"seconds": 5.0})
    harness.reproduce("any", "table", out=tmp_path / "elsewhere", cells=tmp_path / "cells.jsonl")  # runs nothing
    assert all(json.loads(line)["seconds"] == 5.0 for line in (tmp_path / "cells.jsonl").read_text().splitlines()[1:])


LEARNABLE = "learnable averaging momentum, proximal"  # a row of Table 3
STORED = Path(__file__).parent.parent / "docs" / "tables"


@pytest.mark.parametrize("table", ["fig2", "fig7", "table1"])
def test_stored_tables_of_fsar_are_done_by_the_cells_that_are_stored(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell is known by its settings: were a row of them changed or renamed, it would be run anew."""
    cells = STORED / "cells" / "fsar-skeletons.jsonl"
    digest = json.loads(cells.read_text().splitlines()[0])["digest"]
    asked = {"task.joints": "kinect-v1", "task.classes": 27, "task.bodies": 1}  # by the five sets, which are not here
    monkeypatch.setattr("fedreel.reproduce.kept._digest", lambda data: digest)
    monkeypatch.setitem(fsar.TABLES, table, replace(fsar.TABLES[table], adapt=lambda data: asked))
    (tmp_path / "skeletons").mkdir()
    given: dict[str, Any] = {"scale": "medium", "data": tmp_path / "skeletons", "out": tmp_path / "out", "cells": cells}
    found = {(row.label, row.left) for row in plan("fsar", table, **given)}
    for row in json.loads((STORED / f"fsar-skeletons-medium-{table}.json").read_text())["rows"]:
        assert (Row(row["method"], {}, row["setting"]).label, 0) in found


def test_rows_of_fsar_that_other_tables_run_are_their_cells(tmp_path: Path) -> None:
    """On the playground, where settings are not chosen."""
    same = {"FSAR": ["2 blocks sets all"], "FSAR without MKD": ["0 blocks sets all", LEARNABLE]}
    found = {r.label: r.cells for r in plan("fsar", "fig7", "fig9", "table3", scale="medium", out=tmp_path)}
    for name, others in same.items():
        assert all([part.name for part in found[other]] == [part.name for part in found[name]] for other in others)
    assert len({part.name for cells in found.values() for part in cells}) == 4 * (len(found) - 3)


def test_the_command_says_what_is_left_and_runs_nothing(tmp_path: Path) -> None:
    done = cli("reproduce", "fsar", "fig2", "fig7", "--out", str(tmp_path / "out"), "--dry-run")
    assert done.code == 0
    assert [line.split()[1::2] for line in done.out.splitlines() if " all " in line] == [
        ["all", "5", "0", "0", "0", "4", "?"]  # fig7 shows FSAR, too
    ]
    assert not (tmp_path / "out").exists()
    wrong = cli("reproduce", "fsar", "fig2", "--rows", "FASR", "--dry-run")
    assert wrong.code == 2
    assert "FSAR" in wrong.err
