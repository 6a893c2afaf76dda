"""A run directory as `fedreel run` writes one, and its page read back as a browser would."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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
    system: str = "FSAR",
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


ODD: list[Any] = [None, -1, 1e308, math.nan, math.inf, True, "", "x", [], [None], {}, {"x": {}}, {"x": [1e300, "y"]}]
