"""The page over several reports, the reproduction table, and runs side by side, against hand-worked examples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedreel.errors import RunError
from fedreel.report import Entry, compare_table, write_index, write_table
from fedreel.report.compare import cell_text
from support.report_pages import NASTY, make_run, read_page


def with_metrics(run: Path, **metrics: float) -> Path:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"metrics": metrics}))
    return run


def test_index_links_are_relative_and_cards_tell_the_headline(tmp_path: Path) -> None:
    with_metrics(make_run(tmp_path / "runs" / "a b#1"), loss=0.5, top1=0.25)
    entries = [
        Entry.of_run("FSAR", "Skeletons stay home.", tmp_path / "runs" / "a b#1"),
        Entry(NASTY, NASTY, tmp_path / "x" / "report.html", NASTY, 0.5, 3.0, [0.1, math.nan, 0.5]),
        Entry("bare", "nothing measured yet", tmp_path / "y" / "report.html"),
    ]
    path = write_index(tmp_path / "pages" / "index.html", "Five systems", entries)
    page = read_page(path)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == ["../runs/a%20b%231/report.html", "../x/report.html", "../y/report.html"]
    assert "top10.250" in page.text
    assert "Skeletons stay home." in page.text
    assert "3 runs, 1 min 24 s in all" in page.text  # 81.5 + 3
    assert page.text.count(NASTY) == 3 + 1  # name, description, metric, and the sparkline's title


def test_index_of_a_directory_is_its_index_html(tmp_path: Path) -> None:
    assert write_index(tmp_path, "none", []) == tmp_path / "index.html"
    assert "No reports yet." in read_page(tmp_path / "index.html").text


def reproduction() -> dict[str, Any]:
    def cell(mean: float, sd: float | None, n: int) -> dict[str, Any]:
        return {"mean": mean, "sd": sd, "n": n}

    return {
        "system": "CFed-VS",
        "table": "Table 2",
        "scale": "playground",
        "rows": [
            {
                "method": "FedAvg",
                "setting": {"data": "TVSum"},
                "metrics": {"F1": cell(54.0, 0.25, 3), "loss": cell(0.5, None, 1)},
                "paper": {"F1": 59.2},
            },
            {
                "method": NASTY,
                "setting": {"k": 2},
                "metrics": {"F1": cell(57.126, 0.3, 3), "loss": cell(0.75, 0.01, 2)},
                "paper": {"F1": 58.4, "loss": "n/a"},
            },
            {"method": "broken", "setting": {}, "metrics": {"F1": cell(math.nan, None, 1)}, "paper": {}},
        ],
        "notes": [f"seeds {NASTY}"],
    }


def test_reproduction_table_has_ours_beside_the_papers(tmp_path: Path) -> None:
    page = read_page(write_table(tmp_path / "t.html", reproduction()))
    assert page.rows[0] == ["method", "data", "k", "F1", "loss ↓"]
    assert page.rows[1] == ["ours", "paper"] * 2
    assert page.row("FedAvg") == ["FedAvg", "TVSum", "–", "54.00 ± 0.25 (n=3)", "★ 59.2", "★ 0.500 (n=1)", "–"]
    assert page.row(NASTY)[1:] == ["–", "2", "★ 57.13 ± 0.30 (n=3)", "58.4", "0.750 ± 0.010 (n=2)", "n/a"]
    assert page.row("broken")[3:] == ["not finite", "–", "–", "–"]
    assert f"seeds {NASTY}" in page.text
    assert "CFed-VS · Table 2" in page.text
    assert "scale: playground" in page.text


def test_what_was_not_measured_or_not_printed_has_no_number_and_no_column(tmp_path: Path) -> None:
    table = reproduction()
    for row in table["rows"]:
        row["paper"].pop("loss", None)
    table["rows"][1]["metrics"]["loss"] = {"mean": None, "sd": None, "n": 0}  # of a method that has none
    page = read_page(write_table(tmp_path / "t.html", table))
    assert page.rows[1] == ["ours", "paper", "ours"]
    assert page.row("FedAvg")[3:] == ["54.00 ± 0.25 (n=3)", "★ 59.2", "0.500 (n=1)"]
    assert page.row(NASTY)[3:] == ["★ 57.13 ± 0.30 (n=3)", "58.4", "–"]
    assert [a.get("colspan") for tag, a in page.tags if tag == "th" and a.get("scope") == "colgroup"] == ["2", "1"]


def test_reproduction_table_without_rows(tmp_path: Path) -> None:
    page = read_page(
        write_table(tmp_path / "t.html", {"system": "FSAR", "table": "1", "scale": "", "rows": [], "notes": []})
    )
    assert "The table has no rows yet." in page.text


def test_seeds_of_one_recipe_become_a_mean(tmp_path: Path) -> None:
    runs = [with_metrics(make_run(tmp_path / f"s{s}", rounds=1, seed=s), top1=v) for s, v in enumerate((0.5, 0.6, 0.7))]
    edit(runs[1], "seed = 1\n", 'seed = 1\ndescription = "another text"\n')
    table = compare_table(runs)
    assert table["differ"] == []
    assert table["columns"] == ["system", "method", "n", "seeds", "top1", "wall_seconds", "bytes_up", "bytes_down"]
    (row,) = table["rows"]
    assert (row["system"], row["method"], row["n"], row["seeds"]) == ("FSAR", "fsar", 3, [0, 1, 2])
    assert row["top1"] == {"mean": pytest.approx(0.6), "sd": pytest.approx(0.1), "n": 3}
    assert cell_text(row["top1"]) == "0.600 ± 0.100"
    assert cell_text(row["seeds"]) == "0, 1, 2"
    assert table["notes"] == []
    json.dumps(table, allow_nan=False)


def edit(run: Path, old: str, new: str) -> Path:
    text = (run / "recipe.toml").read_text()
    assert old in text
    (run / "recipe.toml").write_text(text.replace(old, new))
    return run


def test_recipes_that_differ_are_rows_and_the_keys_are_named(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "a", rounds=1)
    slow = edit(make_run(tmp_path / "b", rounds=1), "lr = 0.05", "lr = 0.01")
    extra = edit(make_run(tmp_path / "c", rounds=1), "[train]\n", "[train]\nclip = 1\n")
    other = edit(make_run(tmp_path / "d", rounds=1), 'name = "fsar"\nalpha = 0.9', 'name = "fedprox"\nmu = 0.1')
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"method": "fedprox"}))
    table = compare_table([plain, slow, extra, other])
    # mu and alpha are knobs of one method each: the method's name already says that they differ
    assert table["differ"] == ["train.lr", "train.clip"]
    shown = [(row["method"], row["train.lr"], row["train.clip"]) for row in table["rows"]]
    assert shown == [("fsar", 0.05, None), ("fsar", 0.01, None), ("fsar", 0.05, 1), ("fedprox", 0.05, None)]


def test_values_that_are_not_finite_leave_the_mean_but_not_the_table(tmp_path: Path) -> None:
    runs = [with_metrics(make_run(tmp_path / f"{s}", rounds=1, seed=s), top1=v) for s, v in ((0, 0.5), (1, math.nan))]
    (row,) = compare_table(runs)["rows"]
    assert row["n"] == 2
    assert row["top1"] == {"mean": 0.5, "sd": None, "n": 1}
    (row,) = compare_table(runs[1:])["rows"]
    assert cell_text(row["top1"]) == "not finite"


def test_doubtful_runs_are_told(tmp_path: Path) -> None:
    twins = [make_run(tmp_path / name, rounds=1, seed=7) for name in ("a", "b")]
    half = make_run(tmp_path / "half", rounds=1)
    summary = json.loads((half / "summary.json").read_text())
    (half / "summary.json").write_text(json.dumps(summary | {"complete": False}))
    bare = make_run(tmp_path / "bare", rounds=1)
    (bare / "recipe.toml").unlink()
    unfinished = make_run(tmp_path / "unfinished", rounds=1)
    (unfinished / "summary.json").unlink()
    table = compare_table([*twins, half, bare, unfinished])
    notes = "\n".join(table["notes"])
    assert "seed 7 occurs more than once" in notes
    assert f"{half}: the run is incomplete." in notes
    assert f"{bare}: recipe.toml is missing or unreadable." in notes
    assert [entry["run"] for entry in table["skipped"]] == [str(unfinished)]
    assert table["differ"] == []
    with pytest.raises(RunError, match="none of these runs"):
        compare_table([unfinished])
