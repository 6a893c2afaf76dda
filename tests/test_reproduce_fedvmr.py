"""FedVMR's tables: each set beside its own printed numbers, both forms on given data, what is chosen for whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedreel.config import load_recipe
from fedreel.core.job import make_method, make_task
from fedreel.reproduce.fedvmr import TABLES, by_groups
from fedreel.reproduce.spec import Row

CAPTIONS = {"v_a": {"duration": 10.0, "timestamps": [[0.0, 5.0]], "sentences": ["It begins."]}}


@pytest.fixture
def charades(tmp_path: Path) -> Path:
    (tmp_path / "charades_sta_test.txt").write_text("A 1 2##x.\n")
    return tmp_path


@pytest.fixture
def activitynet(tmp_path: Path) -> Path:
    (tmp_path / "val_2.json").write_text(json.dumps(CAPTIONS))
    return tmp_path


def row(table: str, data: Path | None, name: str, form: str = "") -> Row:
    rows = [r for r in TABLES[table].rows_for(data) if r.name == name and r.setting.get("form", "") == form]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("table", ["table1", "fig2"])
def test_each_set_stands_beside_its_own_printed_numbers(table: str, charades: Path) -> None:
    assert row(table, charades, "FedVMR", "pointer").paper == {"r70": 31.60, "r50": 53.01, "r30": 66.46}
    (charades / "charades_sta_test.txt").unlink()
    (charades / "val_2.json").write_text(json.dumps(CAPTIONS))
    assert row(table, charades, "FedVMR", "pointer").paper == {"r70": 22.73, "r50": 42.35, "r30": 61.67}
    (charades / "val_2.json").unlink()
    (charades / "annotations.txt").write_text("A 1 2##x.\n")
    assert all(not r.paper for r in TABLES[table].rows_for(charades))  # nobody has printed anything for these


def test_rounds_of_groups_are_printed_for_charades_alone(activitynet: Path) -> None:
    assert all(not r.paper for r in TABLES["table2"].rows_for(activitynet))
    (activitynet / "val_2.json").unlink()
    (activitynet / "charades_sta_test.txt").write_text("A 1 2##x.\n")
    assert row("table2", activitynet, "8 groups", "pointer").paper == {"rounds": 6.0, "clock": 11.9}


def test_both_forms_have_the_same_methods_on_given_data(charades: Path) -> None:
    rows = TABLES["table1"].rows_for(charades)
    names = {form: [r.name for r in rows if r.setting["form"] == form] for form in ("proposal", "pointer")}
    assert [n for n in names["proposal"] if "no prior" not in n] == names["pointer"]
    assert names["pointer"] == [r.name for r in TABLES["table1"].rows_for(None)]


def test_what_makes_a_row_is_not_chosen_for_it() -> None:
    for table in TABLES.values():
        for r in table.rows_for(None):
            assert not {*r.grid} & {*r.settings}
            assert r.compute or "train.lr" in r.grid
    assert "method.lambda_" in row("table1", None, "FedVMR").grid
    assert "method.lambda_" not in row("table1", None, "FedVMR without the gap loss").grid
    assert "method.mu" in row("table1", None, "FedProx").grid


def test_without_the_parallel_run_nothing_is_measured_by_it(tmp_path: Path) -> None:
    assert by_groups([(row("table2", None, "1 group"), tmp_path)]) == [{}]


def finished(folder: Path, row: Row, clients: int, recalls: tuple[float, ...]) -> tuple[Row, Path]:
    """A cell with these recalls round by round."""
    (folder / row.name).mkdir()
    found = {f"{m} in round {i}": v for m in ("r70", "r50") for i, v in enumerate(recalls, 1)}
    content = {"by_round": {**found, "clients there": float(clients), "seconds in all": 50.0}}
    (folder / row.name / "derived.json").write_text(json.dumps(content))
    return row, folder / row.name


def test_rounds_and_clock_of_groups_are_counted_to_what_the_parallel_run_reaches(tmp_path: Path) -> None:
    """Means of three rounds: the parallel run's best is 0.3, which one group reaches in rounds 2 to 4."""
    recalls = {"12 groups": (0.1, 0.3, 0.3, 0.3, 0.2), "1 group": (0.0, 0.3, 0.3, 0.4, 0.1), "2 groups": 5 * (0.2,)}
    cells = [finished(tmp_path, row("table2", None, name), 12, values) for name, values in recalls.items()]
    parallel, one, two = by_groups(cells)
    assert (parallel["rounds"], parallel["clock"]) == (4.0, 4.0)
    assert (one["rounds"], one["clock"], one["seconds"]) == (4.0, 48.0, 40.0)
    assert one["clock (.5)"] == 48.0
    assert two == {}  # never there


def test_of_200_activities_the_parallel_run_has_200_groups(activitynet: Path, tmp_path: Path) -> None:
    names = [r.name for r in TABLES["table2"].rows_for(activitynet)]
    assert names == ["1 group", "2 groups", "4 groups", "8 groups", "200 groups"]
    good, better = (0.1, 0.1, 0.1, 0.2, 0.2, 0.2), (0.1, 0.2, 0.2, 0.2, 0.3, 0.3)
    rows = {name: row("table2", activitynet, name, "pointer") for name in ("8 groups", "200 groups")}
    chains = finished(tmp_path, rows["8 groups"], 200, better)
    assert by_groups([chains]) == [{}]  # chains are no measure of the others
    found, parallel = by_groups([chains, finished(tmp_path, rows["200 groups"], 200, good)])
    assert (found["rounds"], found["clock"]) == (4.0, 100.0)
    assert (parallel["rounds"], parallel["clock"]) == (6.0, 6.0)


def test_of_fewer_clients_than_groups_each_is_a_group_of_its_own(charades: Path, tmp_path: Path) -> None:
    recalls = {"4 groups": (0.1, 0.2, 0.2, 0.2), "8 groups": 4 * (0.2,), "16 groups": 4 * (0.2,)}
    rows = [row("table2", charades, name, "pointer") for name in recalls]
    four, eight, sixteen = by_groups([finished(tmp_path, r, 6, recalls[r.name]) for r in rows])
    assert (four["rounds"], four["clock"]) == (4.0, 6.0)
    assert (eight["rounds"], eight["clock"]) == (3.0, 3.0)
    assert sixteen == eight


@pytest.mark.parametrize(("recipe", "length", "rounds"), [("fedvmr-paper", 64, 40), ("fedvmr-activitynet", 128, 70)])
def test_the_papers_settings_are_recipes(recipe: str, length: int, rounds: int) -> None:
    found = load_recipe(recipe)
    assert (found.round.rounds, found.train.epochs, found.train.schedule) == (rounds, 10, "constant")
    task, method = make_task(found), make_method(found)
    assert (task.length, task.form, task.answer, task.max_share) == (length, "pointer", "likeliest", 1.0)  # type: ignore[attr-defined]
    assert (method.groups, method.bins, method.share) == (1, 4, 0.01)  # type: ignore[attr-defined]


def test_heads_are_compared_with_the_same_effort(charades: Path) -> None:
    """Every form by the same methods with the same grid; MiniLM's rows have no list of words."""
    rows = TABLES["heads"].rows_for(charades)
    assert len({(r.name, *r.setting.values()) for r in rows}) == len(rows) == 18
    for method in ("centralised", "FedAvg", "FedVMR"):
        mine = [r for r in rows if r.setting["training"] == method]
        assert len({str(r.grid) for r in mine}) == 1
        assert {r.name for r in mine} == {"form pointer", "form proposal", "form anchor-free", "form qd-detr"}
    for row in rows:
        encoded = row.setting["sentences"] == "minilm"
        assert (row.settings.get("task.sentences"), row.settings.get("task.words")) == (
            ("minilm", "") if encoded else (None, None)
        )
        if not encoded:
            make_task(load_recipe("fedvmr", row.settings)).model()
    assert [*TABLES["heads"].scales] == ["smoke", "small", "medium"]
    assert TABLES["heads"].scales["small"].seeds == (0, 1, 2)
