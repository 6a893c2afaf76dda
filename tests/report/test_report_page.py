"""The report of a run, read back as a browser would: well formed, self-contained, escaped, complete."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedreel.report import write

NASTY = "<script>alert('x')</script>&\"\N{RIGHT-TO-LEFT OVERRIDE}"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks nesting while it reads; keeps the visible text, the tags and the attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.payloads: list[Any] = []
        self.scripts: list[list[str]] = []
        self.titles: list[str] = []
        self.style = ""
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs).get("type") or "", ""])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "script" and self.scripts[-1][0] == "application/json":
            self.payloads.append(json.loads(self.scripts[-1][1]))

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.words.append(data)
            if self.open and self.open[-1] == "title":
                self.titles.append(data)
            if {"td", "th"} & set(self.open):
                self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return "".join(self.words)

    def row(self, first: str) -> list[str]:
        """The first table row that begins with this cell."""
        return next(row for row in self.rows if row and row[0] == first)

    def chart(self, name: str) -> dict[str, Any]:
        """The data behind the line chart of this title."""
        titles = [title.partition(" by round: ") for title in self.titles]
        charts = [payload for payload in self.payloads if payload["kind"] == "line"]
        return charts[[head for head, by, _ in titles if by].index(name)]


def read_page(path: Path) -> Page:
    """The page, after checking that it asks nothing of anywhere else."""
    page = Page(path.read_text("utf-8"))
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert re.match(r"#\w+$|[\w./%-]+$", attributes.get("href") or "#x")
    assert not re.search(r"url\(|@import|https?:", page.style)
    code = [text for kind, text in page.scripts if not kind]
    assert len(code) == 1
    assert not re.search(r"https?:|fetch\(|import\(|XMLHttpRequest|innerHTML|eval\(", code[0])
    return page


def append(run: Path, *records: dict[str, Any], file: str = "metrics.jsonl") -> None:
    with (run / file).open("a") as out:
        out.writelines(json.dumps(record) + "\n" for record in records)


def records_of(run: Path, phase: str) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["phase"] == phase]


def make_run(
    folder: Path,
    *,
    clients: int = 8,
    rounds: int = 20,
    classes: int = 6,
    names: dict[int, str] | None = None,
    refusals: bool = True,
    seed: int = 0,
    system: str = "fsar",
    extra: str = "",
) -> Path:
    """A run directory in the format `fedreel run` writes, with plausible numbers."""
    rng = random.Random(seed)
    owners = [(names or {}).get(i, f"owner{i}") for i in range(clients)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(
        f'system = "{system}"\nseed = {seed}\nengine = "local"\ndevice = "cpu"\n{extra}\n'
        '[task]\nname = "skeleton"\n\n'
        '[method]\nname = "fsar"\nalpha = 0.9 # <b>\n\n[data]\nname = "playground"\n\n[train]\nlr = 0.05\n\n'
        f"[round]\ncount = {rounds}\n"
    )
    skill = [rng.uniform(-0.15, 0.15) for _ in owners]
    counts = {o: [int(rng.expovariate(0.1)) * (rng.random() < 0.6) for _ in range(classes)] for o in owners}
    records: list[dict[str, Any]] = [
        {
            "round": 0,
            "phase": "partition",
            "classes": [f"class-{k}" for k in range(classes)],
            "train": counts,
            "test": {o: [c // 4 for c in row] for o, row in counts.items()},
        }
    ]
    ledger: list[dict[str, Any]] = [
        {
            "kind": "layout",
            "id": "ab12cd34",
            "tensors": [["backbone.conv.weight", [64, 3, 9, 1], "float32", 6912]],
        }
    ]
    refused = 0
    for r in range(1, rounds + 1):
        chosen = sorted(rng.sample(owners, max(1, clients // 2)))
        level = 0.2 + 0.55 * (1 - math.exp(-4 * r / max(rounds, 10)))
        records.append(
            {"round": r, "phase": "train", "loss": 2.2 - 2 * level + rng.gauss(0, 0.03), "clients": chosen}
            | {
                "ordered": len(chosen),
                "answered": len(chosen),
                "seconds": 3 + rng.random(),
                "lr": 0.05 * 0.98**r,
            }
            | {"bytes_up": 6912 * len(chosen), "bytes_down": 6912 * len(chosen)}
        )
        scores = {o: min(1.0, max(0.0, level + s + rng.gauss(0, 0.03))) for o, s in zip(owners, skill)}
        overall = {"top1": sum(scores.values()) / clients, "loss": 2.3 - 2 * level + rng.gauss(0, 0.04)}
        each = {o: {"top1": round(v, 4), "n": 40.0} for o, v in scores.items()}
        records.append({"round": r, "phase": "test", "metrics": overall, "clients": each, "seconds": 0.8})
        if refusals and r % 6 == 3:
            refused += 1
            records[-2]["answered"] -= 1
            detail = f"no answer within 2.0 s <{r}>"
            records.append({"round": r, "phase": "refused", "client": chosen[0], "reason": "timeout", "detail": detail})
        for owner in chosen:
            ledger.append(
                {"kind": "departure", "time": 1.7e9 + r, "round": r, "client": owner, "purpose": "train"}
                | {"layout": "ab12cd34", "bytes": 6912, "kinds": ["weights"], "numbers": {"samples": 50, "loss": 1.2}}
            )
    records.append({"round": rounds, "phase": "note", "text": "the learning rate was <halved>"})
    records.append({"round": rounds, "phase": "clusters", "groups": [[0, 1], [2]]})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "ledger.jsonl").write_text("".join(json.dumps(record) + "\n" for record in ledger))
    summary = {
        "system": system,
        "method": "fsar",
        "task": "skeleton",
        "engine": "local",
        "device": "cpu",
        "seed": seed,
    }
    summary |= {"rounds": rounds, "wall_seconds": 81.5, "bytes_up": 1_000_000, "bytes_down": 2_000_000}
    summary |= {
        "parameters": 1728,
        "clients": clients,
        "metrics": overall,
        "fedreel": "0.1.0",
        "complete": True,
    }
    (folder / "summary.json").write_text(json.dumps(summary | {"refused": {"timeout": refused}}))
    return folder


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
