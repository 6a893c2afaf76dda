"""All faults in one real run: it completes, and its metrics, summary and report name each."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedreel.api import run
from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.registry import ENGINES
from support.faulty import EXPECTED, Unlucky
from support.toy import Toy


class Text(HTMLParser):
    """The words of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_a_run_full_of_faults_completes_and_names_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "faulty", "support.faulty:FaultyEngine")
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": "fedavg"},
        engine={"name": "faulty"},
        train=TrainConfig(batch_size=4, lr=0.1),
        round=RoundConfig(rounds=6, time_limit=3.0),
    )
    result = run(recipe, tmp_path / "run", quiet=True, task=Toy(), method=Unlucky())
    assert result.summary["complete"]
    assert result.summary["rounds"] == 6
    assert sum(result.summary["refused"].values()) == len(EXPECTED)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    refused = {(r["round"], r["client"]): r["reason"] for r in rows if r["phase"] == "refused"}
    assert refused == EXPECTED
    words = Text((tmp_path / "run" / "report.html").read_text()).words
    for reason in EXPECTED.values():
        assert any(reason in w for w in words), reason
    assert any("the camera is broken" in w for w in words)
    assert any("no answer within 3 s" in w for w in words)
