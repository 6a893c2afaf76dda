"""Finished cells in a text file: they are not run again, wherever the data lie; what the file cannot answer is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedreel.api
import fedreel.reproduce as harness
from fedreel.errors import DataError, Diverged
from fedreel.playground import VERSION
from fedreel.reproduce.cells import derived_of
from fedreel.reproduce.kept import open_kept
from fedreel.reproduce.spec import Choose, Row, Scale, Table

CELLS = Path(__file__).parent.parent / "docs" / "tables" / "cells"
Sweep = Callable[..., dict[str, Any]]


def length(run: Path) -> dict[str, float]:
    return {"length": float(len((run / "weights").read_text()))}


def half(run: Path) -> dict[str, float]:
    return {"half": length(run)["length"] / 2}


def related(cells: Sequence[tuple[Row, Path]]) -> list[dict[str, float]]:
    return [{"twice": 2 * derived_of(folder).get("length", {}).get("length", 0.0)} for _, folder in cells]


TABLE = Table(
    rows=(Row("slow", {"train.lr": 0.5}), Row("fast", {}, grid={"train.lr": (1.0, 2.0, 4.0)})),
    metrics=("lr", "length", "half", "twice"),
    scales={
        "smoke": Scale("recognition", (0, 1), choose_given=Choose("lr", {"data.validate": True}, "a part")),
    },
    derive=(length,),
)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Rates and seeds of the runs, which train nothing: the metric is the rate. A rate of 4 diverges."""
    found: list[tuple[float, int]] = []

    def run(recipe: str, folder: Path, *, set: dict[str, Any], seed: int, **_: Any) -> None:
        rate = set["train.lr"]
        found.append((rate, seed))
        folder.mkdir(parents=True, exist_ok=True)
        if rate == 4.0:
            raise Diverged("the loss is not a number")
        (folder / "weights").write_text("w" * int(10 * rate))
        (folder / "summary.json").write_text(json.dumps({"metrics": {"lr": rate}, "complete": True}))

    monkeypatch.setattr(fedreel.api, "run", run)
    return found


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A reproduction of a table in a folder, on data with this content that lie there."""

    def reproduce(place: str, table: Table = TABLE, content: str = "clips", name: str = "data") -> dict[str, Any]:
        data = tmp_path / place / name
        data.mkdir(parents=True, exist_ok=True)
        (data / "a.mp4").write_text(content)
        monkeypatch.setattr(harness, "find_table", lambda system, name: table)
        out, cells = tmp_path / place / "out", tmp_path / "cells.jsonl"
        return harness.reproduce("any", "table", data=data, out=out, cells=cells)["table"]

    return reproduce


ALL = [(1.0, 0), (2.0, 0), (4.0, 0), (0.5, 0), (0.5, 1), (2.0, 0), (2.0, 1)]  # tries, then cells


def test_kept_cells_and_tries_are_not_run_again_where_the_data_lie_elsewhere(ran: Any, sweep: Sweep) -> None:
    first = sweep("here")
    assert ran == ALL
    assert sweep("there") == first
    assert ran == ALL
    assert [row["metrics"]["length"]["values"] for row in first["rows"]] == [[5.0, 5.0], [20.0, 20.0]]


def test_the_file_has_a_line_for_every_cell_and_stays_as_it_is(ran: Any, sweep: Sweep, tmp_path: Path) -> None:
    sweep("here")
    text = (tmp_path / "cells.jsonl").read_text()
    head, *lines = map(json.loads, text.splitlines())
    assert head["data"] == "data"
    assert len(lines) == len(ALL)
    assert [line["cell"] for line in lines] == sorted(line["cell"] for line in lines)
    (lost,) = [line for line in lines if "diverged" in line]
    assert {*lost} == {"cell", "diverged"}
    sweep("there", name="clips")  # the same data in a folder of another name
    assert ran == ALL
    assert (tmp_path / "cells.jsonl").read_text() == text


def test_cells_of_other_data_are_refused(ran: Any, sweep: Sweep, tmp_path: Path) -> None:
    sweep("here")
    with pytest.raises(DataError, match="other data"):
        sweep("there", content="other clips")
    assert ran == ALL
    assert not (tmp_path / "there" / "out").exists()


def test_what_was_not_read_off_a_kept_cell_is_read_off_a_new_run(ran: Any, sweep: Sweep) -> None:
    sweep("here")
    more = replace(TABLE, derive=(length, half))
    sweep("there")
    assert ran == ALL
    found = sweep("there", more)  # its folders hold no run
    assert ran == ALL + ALL[3:]
    assert [row["metrics"]["half"]["mean"] for row in found["rows"]] == [2.5, 10.0]
    assert sweep("a third place", more) == found
    assert ran == ALL + ALL[3:]


def test_rows_are_related_by_what_is_kept_of_them(ran: Any, sweep: Sweep) -> None:
    table = replace(TABLE, relate=related)
    first = sweep("here", table)
    assert [row["metrics"]["twice"]["mean"] for row in first["rows"]] == [10.0, 40.0]
    assert sweep("there", table) == first
    assert ran == ALL


def test_a_cell_is_kept_as_soon_as_it_is_finished(
    ran: list[tuple[float, int]], sweep: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that is killed has no time to write anything."""
    really, lines = fedreel.api.run, []

    def counts(*args: Any, **named: Any) -> None:
        path = tmp_path / "cells.jsonl"
        lines.append(len(path.read_text().splitlines()) if path.exists() else 0)
        really(*args, **named)

    monkeypatch.setattr(fedreel.api, "run", counts)
    sweep("here")
    assert lines == [0, *range(2, len(ALL) + 1)]  # the first line names the data


def test_what_was_finished_before_an_interruption_is_kept(
    ran: list[tuple[float, int]], sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = fedreel.api.run

    def stops(*args: Any, seed: int, **named: Any) -> None:
        if seed == 1:
            raise KeyboardInterrupt
        really(*args, seed=seed, **named)

    with monkeypatch.context() as patch:
        patch.setattr(fedreel.api, "run", stops)
        with pytest.raises(KeyboardInterrupt):
            sweep("here")
    assert ran == ALL[:4]
    sweep("there")
    assert ran == ALL[:4] + ALL[4:]


@pytest.mark.parametrize(
    ("line", "said"), [('{"cell": "a", "met', "line 2"), ('{"cell": "a"}\n', "not a finished cell")]
)
def test_a_line_that_is_no_cell_is_told(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"data": "playground", "version": VERSION}) + "\n" + line)
    with pytest.raises(DataError, match=said):
        open_kept(path, None)


def test_cells_of_another_playground_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"data": "playground", "version": VERSION - 1}) + "\n")
    with pytest.raises(DataError, match="other data"):
        open_kept(path, None)


@pytest.mark.parametrize("path", sorted(CELLS.glob("*.jsonl")), ids=lambda path: path.name)
def test_the_kept_cells_of_the_documents_can_be_read(path: Path) -> None:
    head, *lines = map(json.loads, path.read_text().splitlines())
    assert {*head} == {"data", "version" if head["data"] == "playground" else "digest"}
    keys = [line["cell"] for line in lines]
    assert keys == sorted({*keys})
