"""The report of a run, read back as a browser would: well formed, self-contained, escaped, complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedreel.report import write
from fedreel.report.waiting import waiting_note
from support.report_pages import NASTY, append, make_run, read_page, records_of


def test_finished_run_tells_its_facts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = write(run)
    assert path == run / "report.html"
    page = read_page(path)
    for fact in ("FSAR", "skeleton", "local on cpu", "complete", "1 min 22 s", "1 MB", "2 MB", "1,728"):
        assert fact in page.text
    assert "incomplete" not in page.text
    assert "Made by fedreel 0.1.0" in page.text
    assert "the learning rate was <halved>" in page.text
    assert (run / "recipe.toml").read_text().strip() in page.text
    assert page.row("20")[1:] == ["clusters", '{"groups": [[0, 1], [2]]}']


def test_curves_carry_the_recorded_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = read_page(write(run))
    chart, tests = page.chart("top1"), records_of(run, "test")
    assert [line["n"] for line in chart["lines"]] == ["test"]
    assert chart["lines"][0]["x"] == list(range(1, 21))
    assert chart["lines"][0]["y"] == pytest.approx([t["metrics"]["top1"] for t in tests], rel=1e-3)
    assert [line["n"] for line in chart["thin"]] == [f"owner{i}" for i in range(8)]
    assert chart["thin"][5]["y"] == pytest.approx([t["clients"]["owner5"]["top1"] for t in tests], rel=1e-3)
    loss = page.chart("loss")
    assert [line["n"] for line in loss["lines"]] == ["test", "training"]
    assert loss["lines"][1]["y"] == pytest.approx([t["loss"] for t in records_of(run, "train")], rel=1e-3)
    assert page.chart("lr")["lines"][0]["y"][0] == pytest.approx(0.05 * 0.98)


def test_means_over_samples_and_over_clients_share_a_chart(tmp_path: Path) -> None:
    for r in (1, 2):
        append(tmp_path, {"round": r, "phase": "train", "clients": ["a"], "bytes_up": 1, "bytes_testing": 7})
        metrics = {"top1": r / 4, "top1_clients": r / 8, "orphan_clients": 3}
        append(tmp_path, {"round": r, "phase": "test", "metrics": metrics, "clients": {}})
    page = read_page(write(tmp_path))
    lines = {line["n"]: line["y"] for line in page.chart("top1")["lines"]}
    assert lines == {"test": [0.25, 0.5], "test, mean over clients": [0.125, 0.25]}
    charts = [title.partition(" by round: ")[0] for title in page.titles if " by round: " in title]
    assert charts == ["top1", "orphan_clients"]
    (traffic,) = (payload for payload in page.payloads if payload["kind"] == "bars")
    assert {line["n"]: line["y"] for line in traffic["lines"]} == {"up": [1, 1], "for testing": [7, 7]}


def test_client_table_counts_what_the_files_say(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = read_page(write(run))
    trains, tests, refused = (records_of(run, phase) for phase in ("train", "test", "refused"))
    held = records_of(run, "partition")[0]["train"]
    for i in range(8):
        name = f"owner{i}"
        top1, n, items, trained, dropped, _ = page.row(name)[1:]
        assert float(top1) == pytest.approx(tests[-1]["clients"][name]["top1"], abs=6e-4)
        assert n == "40"
        assert int(items) == sum(held[name])
        assert int(trained) == sum(name in t["clients"] for t in trains)
        assert int(dropped) == sum(r["client"] == name for r in refused)


def test_partition_shows_every_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = read_page(write(run))
    sides = records_of(run, "partition")[0]
    for side in ("train", "test"):
        for name, counts in sides[side].items():
            assert [name, *[str(n) if n else "·" for n in counts], str(sum(counts))] in page.rows


def test_ledger_is_added_up(tmp_path: Path) -> None:
    page = read_page(write(make_run(tmp_path / "run")))
    # 20 rounds x 4 clients x 6,912 bytes
    assert page.row("train")[1:] == ["80", "8", "553 kB", "weights", "loss, samples", "ab12cd34 "]
    assert page.row("backbone.conv.weight")[1:] == ["64 × 3 × 9 × 1", "float32", "6.91 kB"]
    assert "1 tensor, 6.91 kB each; left 80 times, 553 kB in all" in page.text


def test_costs_are_stacked_per_round(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    traffic, seconds, answers = (p for p in read_page(write(run)).payloads if p["kind"] == "bars")
    assert [(line["n"], set(line["y"])) for line in traffic["lines"]] == [("up", {27650.0}), ("down", {27650.0})]
    rounds = [record["seconds"] for record in records_of(run, "train")]  # a round's seconds cover its test
    assert seconds["lines"][0]["y"] == pytest.approx([whole - 0.8 for whole in rounds], rel=1e-3)
    assert seconds["lines"][1]["y"] == [0.8] * 20
    assert [r for r, n in zip(answers["x"], answers["lines"][1]["y"]) if n] == ["3", "9", "15"]


def test_a_run_whose_clients_wait_for_their_data_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert "waiting for data" not in read_page(write(run)).text  # nobody told
    told = {"round": 20, "phase": "train", "clients": ["a"], "loss": 1.0, "training_seconds": 8.0}
    append(run, {**told, "waiting_seconds": 0.5})
    page = read_page(write(run)).text
    assert "waiting for data6.2%" in page
    assert "Clients waited" not in page
    append(run, {**told, "waiting_seconds": 2.0})  # the later record counts
    assert "Clients waited for their data 25% of the time they trained: let more" in read_page(write(run)).text


@pytest.mark.parametrize(
    ("share", "last", "noteworthy"),
    [
        (0.3, (10.0, 2.0), True),
        (0.1, (10.0, 2.0), False),  # not above a tenth
        (0.3, (10.0, 0.0), False),  # read once
        (None, (10.0, 2.0), False),
        (0.3, (None, None), False),
        (0.3, (0.0, 0.0), False),
    ],
)
def test_only_waiting_that_goes_on_is_noteworthy(share: Any, last: tuple[Any, Any], noteworthy: bool) -> None:
    assert bool(waiting_note(share, dict(zip(("training_seconds", "waiting_seconds"), last)))) is noteworthy


def test_refusals_are_named_with_round_and_detail(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = read_page(write(run))
    cases = records_of(run, "refused")
    assert len(cases) == 3
    for case in cases:
        assert [str(case["round"]), case["client"], "timeout", case["detail"]] in page.rows
    assert page.row("timeout")[1:3] == ["no answer in time", "3"]
    assert "Nothing was refused" not in page.text


def test_a_clean_run_says_that_nothing_was_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", refusals=False)
    assert "Nothing was refused:" in read_page(write(run)).text
    (run / "summary.json").unlink()
    assert "Nothing was refused so far:" in read_page(write(run)).text


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names={0: NASTY, 1: "</script><b>", 2: "\ud800lone\x00"})
    append(
        run,
        {"round": 1, "phase": "refused", "client": NASTY, "reason": NASTY, "detail": NASTY},
        {"round": 1, "phase": "note", "text": NASTY},
        {"round": 1, "phase": NASTY, NASTY: NASTY},
        {"round": 21, "phase": "test", "metrics": {NASTY: 0.5}, "clients": {NASTY: {NASTY: 0.4, "n": 1}}},
        {"round": 0, "phase": "partition", "classes": [NASTY], "train": {NASTY: [3]}, "test": {}},
    )
    append(
        run,
        {"kind": "layout", "id": NASTY, "tensors": [[NASTY, [1], NASTY, 4]]},
        {"kind": "departure", "client": NASTY, "purpose": NASTY, "layout": NASTY, "bytes": 4} | {"numbers": {NASTY: 1}},
        file="ledger.jsonl",
    )
    (run / "recipe.toml").write_text(f"# {NASTY}\n[{NASTY}]\n")
    summary = json.loads((run / "summary.json").read_text())
    odd = dict.fromkeys(("system", "method", "task", "engine", "device", "seed", "fedreel"), NASTY)
    (run / "summary.json").write_text(json.dumps(summary | odd | {"metrics": {NASTY: 1.0}}))
    page = read_page(write(run))  # markup that got through would be a second script, or break the nesting
    assert page.text.count(NASTY) > 20
    assert "</script><b>" in page.text
    assert len([tag for tag, _ in page.tags if tag == "script"]) == len(page.payloads) + 1
