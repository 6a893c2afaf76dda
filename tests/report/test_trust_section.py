"""What a report says of how far its model is to be trusted: the diagram's points, the sentences, odd records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedreel.report import write
from support.report_pages import NASTY, Page

BINS = [[0.0, 0.0, 0.0]] * 13 + [[4.0, 3.6, 3.0], [0.0, 0.0, 0.0]]


def page(folder: Path, record: Any) -> Page:
    folder.mkdir()
    line = {"round": 1, "phase": "trust", "bytes_testing": 1, "seconds": 0.1, **record}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return Page(write(folder).read_text("utf-8"))


def said(read: Page) -> str:
    return " ".join(" ".join(read.words).split())


def test_a_bin_is_a_point_of_confidence_and_right_answers(tmp_path: Path) -> None:
    overall = {"samples": 4, "temperature": 1.5, "ece": 0.15, "ece_uncalibrated": 0.25, "bins": BINS}
    overall |= {"bins_uncalibrated": BINS, "score": 0.75, "chance": 0.5, "near_chance": True}
    read = page(tmp_path / "run", {"overall": overall, "models": {"global": overall}})
    paths = [attributes["d"] for tag, attributes in read.tags if tag == "path"]
    assert "M900 250h0" in paths  # 0.9 sure, 0.75 right; drawn downwards
    assert "On 4 held-out samples the model scored 0.750, where guessing gives 0.500" in said(read)
    assert "no better than guessing" in said(read)
    assert "of 15 bins: 25.0 % as the model is, 15.0 % with" in said(read)
    assert ["model global", "4", "0.750", "0.500", "1.500", "15.0 %", "not known"] in read.rows


def test_without_a_record_there_is_no_section(tmp_path: Path) -> None:
    assert "How far to trust it" not in said(page(tmp_path / "run", {"phase": "note", "text": "nothing"}))


@pytest.mark.parametrize(
    "record",
    [
        {"overall": {"samples": 0}},
        {"overall": {"samples": 3, "bins": "many", "bins_uncalibrated": [[1, None, 2], 5]}},
        {
            "overall": {"samples": "x", "score": float("nan"), "chance": 1},
            "models": [1],
            "clients": {NASTY: {"ece": "y"}},
        },
        {"overall": 7},
    ],
)
def test_odd_records_are_no_error(tmp_path: Path, record: dict[str, Any]) -> None:
    read = page(tmp_path / "run", record)  # whose nesting is checked
    assert "<script>alert" not in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert read.open == []
