"""Runs at the edge: unfinished, torn, empty, tiny, huge, full of odd values. Each still makes a true page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedreel.errors import RunError
from fedreel.report import write
from support.report_pages import ODD, append, make_run, read_page, records_of


@pytest.mark.parametrize("missing", ["recipe.toml", "summary.json", "metrics.jsonl", "ledger.jsonl"])
def test_a_missing_file_is_said_and_the_rest_is_shown(tmp_path: Path, missing: str) -> None:
    run = make_run(tmp_path / "run")
    (run / missing).unlink()
    page = read_page(write(run))
    assert f"{missing} is missing:" in page.text
    assert ("incomplete" in page.text) == (missing == "summary.json")
    assert "FSAR" in page.text
    assert "skeleton" in page.text


def test_a_run_at_real_sites_names_them_and_says_where_the_ledgers_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "ledger.jsonl").unlink()
    append(run, {"round": 0, "phase": "partition", "sites": {"ward": ["c0", "c3"], "lab": ["c1"]}})
    page = read_page(write(run))
    assert "ward2c0, c3" in page.text
    assert "fedreel ledger SITE-FOLDER" in page.text
    assert "is missing" not in page.text


def test_totals_of_an_unfinished_run_are_sums(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=5, refusals=False)
    (run / "summary.json").unlink()
    page = read_page(write(run))
    seconds = sum(r["seconds"] for r in records_of(run, "train"))  # a round's seconds cover its test
    assert f"wall time{seconds:.3g} s" in page.text
    assert "sent up138 kB" in page.text  # 5 rounds x 4 clients x 6,912 bytes
    assert f"top1{records_of(run, 'test')[-1]['metrics']['top1']:.3f}" in page.text


def test_refusals_known_only_from_the_summary_are_not_denied(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    page = read_page(write(run))
    assert "The summary counts refusals (timeout 3)" in page.text
    assert "Nothing was refused" not in page.text


def test_an_empty_directory_makes_a_page(tmp_path: Path) -> None:
    page = read_page(write(tmp_path))
    assert page.text.count("is missing:") >= 4
    assert "whether anything was refused is unknown" in page.text


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        write(tmp_path / "nowhere")


def test_torn_and_broken_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    good = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text("[1]\n" + good + '{"round": 21, "pha')
    with (run / "ledger.jsonl").open("a") as out:
        out.write('{"kind": "depar')
    page = read_page(write(run))
    assert "metrics.jsonl: the last line is torn" in page.text
    assert "metrics.jsonl: 1 unreadable line(s) left out (line 1)" in page.text
    assert "ledger.jsonl: the last line is torn" in page.text
    assert page.row("train")[1] == "80"


def test_after_a_resume_the_later_record_of_a_round_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=3, refusals=False)
    append(run, {"round": 2, "phase": "train", "loss": 0.125, "clients": ["owner1"], "lr": 1})
    loss = read_page(write(run)).chart("loss")["lines"][1]
    assert loss["x"] == [1, 2, 3]
    assert loss["y"][1] == 0.125


def test_values_that_are_not_finite_are_holes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, refusals=False)
    append(run, {"round": 3, "phase": "train", "loss": math.nan, "clients": ["owner1"]})
    append(run, {"round": 4, "phase": "test", "metrics": {"top1": math.inf, "loss": math.nan}})
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"metrics": {"top1": math.nan}}))
    page = read_page(write(run))
    test, training = page.chart("loss")["lines"]
    assert [y is None for y in test["y"]] == [False, False, False, True]
    assert [y is None for y in training["y"]] == [False, False, True, False]
    assert page.chart("top1")["lines"][0]["y"][3] is None
    assert "2 value(s) were not finite" in page.text
    assert "top1not finite" in page.text


def test_a_run_whose_loss_never_was_finite(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "phase": "train", "loss": NaN, "clients": ["a"]}\n')
    page = read_page(write(tmp_path))
    assert "No finite value was recorded." in page.text


def test_a_number_is_drawn_only_if_most_rounds_carry_it(tmp_path: Path) -> None:
    for r in range(1, 6):
        rare = {"rare": 1.0} if r < 3 else {}
        append(tmp_path, {"round": r, "phase": "train", "loss": 1.0, "clients": [], "gap": r * r} | rare)
    page = read_page(write(tmp_path))
    assert page.chart("gap")["lines"][0]["y"] == [1, 4, 9, 16, 25]
    assert not [title for title in page.titles if title.startswith("rare")]


def test_one_round_one_client(tmp_path: Path) -> None:
    page = read_page(write(make_run(tmp_path / "run", clients=1, rounds=1, classes=1, refusals=False)))
    assert page.chart("top1")["range"][:2] == [1, 1]
    assert page.row("owner0")[4] == "1"


def test_huge_names_are_shortened_but_kept(tmp_path: Path) -> None:
    name = "a" * 50_000
    path = write(make_run(tmp_path / "run", names={0: name}))
    titles = [attributes["title"] for _, attributes in read_page(path).tags if "title" in attributes]
    assert titles == [name]
    assert path.stat().st_size < 200_000


def test_long_runs_of_many_clients_stay_small_and_say_what_they_leave_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", clients=200, rounds=500, classes=100)
    path = write(run)
    assert path.stat().st_size < 3_000_000
    page = read_page(path)
    assert {f"owner{i}" for i in range(200)} <= {row[0] for row in page.rows if row}
    assert "40 of 200 clients are drawn" in page.text
    assert len(page.chart("top1")["thin"]) == 40
    took_part, held, _ = (payload for payload in page.payloads if payload["kind"] == "grid")
    counts = records_of(run, "partition")[0]["train"]
    assert held["cells"] == [counts[f"owner{i}"] for i in range(200)]
    trained = sum(len(record["clients"]) for record in records_of(run, "train"))
    assert sum(len(row) - row.count("0") for row in took_part["cells"]) == trained


def test_grouped_cells_keep_the_total(tmp_path: Path) -> None:
    counts = {f"c{i}": [i, 1] for i in range(1000)}
    append(tmp_path, {"round": 0, "phase": "partition", "classes": ["a", "b"], "train": counts, "test": {}})
    page = read_page(write(tmp_path))
    (grid,) = (payload for payload in page.payloads if payload["kind"] == "grid")
    assert len(grid["rows"]) == 334  # 1,000 clients, three to a cell, in at most 400 rows
    assert grid["cells"][0] == [0 + 1 + 2, 3]
    assert sum(map(sum, grid["cells"])) == 999 * 1000 // 2 + 1000
    assert "A cell stands for 3 clients." in page.text


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    before = write(run).read_bytes()
    assert write(run).read_bytes() == before  # the same directory makes the same page
    names = sorted(path.name for path in run.iterdir())

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    append(run, {"round": 2, "phase": "note", "text": "more"})
    with pytest.raises(OSError, match="disk full"):
        write(run)
    assert (run / "report.html").read_bytes() == before
    assert sorted(path.name for path in run.iterdir()) == names


@pytest.mark.parametrize("file", ["metrics.jsonl", "ledger.jsonl"])
def test_every_field_of_every_record_may_be_odd(tmp_path: Path, file: str) -> None:
    run = make_run(tmp_path / "run", clients=2, rounds=1)
    append(run, {"round": 1, "phase": "refused", "client": "a", "reason": "norm", "detail": "7"})
    text = (run / file).read_text()
    for record in map(json.loads, text.splitlines()):
        for key in record:
            (run / file).write_text(text)
            append(run, *({**record, key: value} for value in ODD), file=file)
            read_page(write(run))


def test_every_field_of_the_summary_may_be_odd(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", clients=2, rounds=1)
    summary = json.loads((run / "summary.json").read_text())
    for shift in range(len(ODD)):  # after all shifts every field has had every odd value
        odd = {key: ODD[(i + shift) % len(ODD)] for i, key in enumerate(summary)}
        (run / "summary.json").write_text(json.dumps(summary | odd))
        read_page(write(run))
