"""Numbers in documents are those of the stored tables, to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from fedreel.config import load_recipe
from fedreel.core.job import make_task
from fedreel.errors import DataError
from fedreel.reproduce.claims_page import page
from fedreel.reproduce.stored import fill

DOCS = Path(__file__).parent.parent / "docs"
TABLES = DOCS / "tables"


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_documents_show_what_the_stored_tables_say(path: Path) -> None:
    text = path.read_text()
    assert fill(text, TABLES) == text, "run `python docs/tables/fill.py`"


def test_the_page_of_claims_is_that_of_the_stored_tables() -> None:
    assert (DOCS / "claims.md").read_text() == page(TABLES), "run `python docs/tables/fill.py`"


def test_the_recipe_for_a_few_clips_has_the_settings_that_did_best_on_held_out_clips() -> None:
    losses: dict[str, list[float]] = {}
    for row in json.loads((TABLES / "recognition-few-small-few.json").read_text())["rows"]:
        for tried in row["tries"] if row["method"] == "clips" else ():
            losses.setdefault(json.dumps(tried["settings"]), []).append(tried["score"])
    assert [len(found) for found in losses.values()] == 4 * [9]  # four tries on three sets of three sizes
    best = min(losses, key=lambda settings: fmean(losses[settings]))
    recipe = load_recipe("clips")
    assert json.loads(best) == {"task.there": make_task(recipe).there, "train.lr": recipe.train.lr}  # type: ignore[attr-defined]


def test_calibration_lowers_the_error_of_the_recipe_for_a_few_clips_on_every_set() -> None:
    rows = json.loads((TABLES / "recognition-few-small-few.json").read_text())["rows"]
    own = [row["metrics"] for row in rows if row["method"] == "clips"]
    assert len(own) == 9
    assert all(metrics["ece"]["mean"] < metrics["ece_uncalibrated"]["mean"] for metrics in own)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def metric(*values: float | None) -> dict[str, object]:
        known = [v for v in values if v is not None]
        mean = sum(known) / len(known) if known else None
        return {"mean": mean, "sd": 0.5 if len(known) > 1 else None, "n": len(known), "values": list(values)}

    rows = [
        {
            "method": "FedAvg",
            "setting": {"form": "a", "split": "iid"},
            "metrics": {"top1": metric(40.0, 42.0), "rounds": metric(3.0, None), "alike, last": metric(7.0, 7.0)},
            "paper": {"top1": 44.5},
            "chosen": {"train.lr": 0.1},
        },
        {
            "method": "FedAvg",
            "setting": {"form": "b", "split": "iid"},
            "metrics": {"top1": metric(0.25, 0.75)},
            "paper": {},
        },
        {
            "method": "none",
            "setting": {"form": "a", "split": "iid"},
            "metrics": {"top1": metric(None, None)},
            "paper": {},
        },
    ]
    (tmp_path / "demo.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


def test_rows_are_picked_by_their_method_too(folder: Path) -> None:
    found = fill("<!-- table: demo | method=FedAvg, form=b | top1 -->\n<!-- end -->", folder)
    assert [line for line in found.split("\n") if line.startswith("| FedAvg")] == ["| FedAvg | 0.500 ± 0.500 |"]


def test_a_wanted_table_is_filled_in_and_what_stands_around_it_stays(folder: Path) -> None:
    order = "<!-- table: demo | form=a | top1, top1 (paper), rounds, chosen -->"
    found = fill(f"before\n{order}\nold\n\nrows\n<!-- end -->\nafter\n", folder)
    assert found == (
        f"before\n{order}\n"
        "| method | top1 | top1 (paper) | rounds | chosen |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| FedAvg | 41.0 ± 0.5 | 44.5 | 3.0 (1 of 2) | lr=0.1 |\n"
        "| none |  |  |  |  |\n"
        "<!-- end -->\nafter\n"
    )
    assert fill(found, folder) == found


def test_a_column_with_a_comma_in_its_name_stands_in_quotes(folder: Path) -> None:
    found = fill('<!-- table: demo | method=FedAvg, form=a | "alike, last", top1 -->\n<!-- end -->', folder)
    assert found.splitlines()[1:4:2] == ["| method | alike, last | top1 |", "| FedAvg | 7.0 ± 0.5 | 41.0 ± 0.5 |"]


def test_settings_in_which_rows_differ_are_columns(folder: Path) -> None:
    found = fill("<!-- table: demo | | top1 -->\n<!-- end -->", folder).splitlines()
    assert found[1] == "| method | form | top1 |"
    assert found[4] == "| FedAvg | b | 0.5 ± 0.5 |"


def test_values_of_a_setting_can_stand_side_by_side(folder: Path) -> None:
    found = fill("<!-- table: demo | split=iid | top1 by form -->\n<!-- end -->", folder).splitlines()
    assert found[1:6] == [
        "| method | form a | form b |",
        "| --- | --- | --- |",
        "| FedAvg | 41.0 ± 0.5 | 0.5 ± 0.5 |",
        "| none |  |  |",
        "<!-- end -->",
    ]


def test_a_column_of_shares_has_three_digits(folder: Path) -> None:
    found = fill("<!-- table: demo | form=b | top1 -->\n<!-- end -->", folder).splitlines()
    assert found[3] == "| FedAvg | 0.500 ± 0.500 |"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("dmeo | | top1", "demo"),
        ("demo | form=c | top1", "form=c"),
        ("demo | form | top1", "KEY=VALUE"),
        ("demo | | top", "top1"),
        ("demo | | top1 by from", "form"),
    ],
)
def test_what_no_stored_table_has_is_told(folder: Path, order: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fill(f"<!-- table: {order} -->\n<!-- end -->", folder)
