"""A run directory read into memory: whatever is there, with a plain sentence for whatever is not."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedreel.errors import RunError
from fedreel.machine.records import Records
from fedreel.report.markup import finite, lower_is_better, natural

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Record = dict[str, Any]
MISSING = {
    "metrics.jsonl": "rounds, tests and refusals are unknown.",
    "ledger.jsonl": "what left the clients is unknown.",
}


@dataclass
class Flow:
    """Departures added up: how many, how much, from whom, and what they carried."""

    count: int = 0
    bytes: float = 0.0
    clients: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    layouts: set[str] = field(default_factory=set)


@dataclass
class Ledger:
    """What left the clients, in totals (a ledger can be far larger than memory)."""

    layouts: dict[str, list[list[Any]]] = field(default_factory=dict)
    purposes: dict[str, Flow] = field(default_factory=dict)
    by_layout: dict[str, Flow] = field(default_factory=dict)
    client_bytes: Counter[str] = field(default_factory=Counter)
    last: float | None = None


@dataclass
class Run:
    """One run as its directory tells it. `problems` are sentences for the reader."""

    path: Path
    recipe_text: str = ""
    recipe: Record = field(default_factory=dict)
    summary: Record = field(default_factory=dict)
    partition: Record = field(default_factory=dict)
    sites: dict[str, list[str]] = field(default_factory=dict)  # real sites and their clients
    train: dict[int, Record] = field(default_factory=dict)
    test: dict[int, Record] = field(default_factory=dict)
    trained: dict[int, Record] = field(default_factory=dict)  # tests of the clients' own models after their training
    averaged: dict[int, Record] = field(default_factory=dict)  # tests of their mean, before the server trains it
    server: dict[int, Record] = field(default_factory=dict)  # the server's training on data of its own
    privacy: dict[int, Record] = field(default_factory=dict)  # what was given away so far, where that is counted
    trust: Record = field(default_factory=dict)  # what held-out samples said of the model when the last round was over
    refused: list[Record] = field(default_factory=list)
    notes: list[Record] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)
    ledger: Ledger | None = None
    has_metrics: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.summary.get("complete") is True

    def label(self, name: str) -> str:
        """A field of the summary, else of the recipe (where a section's `name` stands for it), else ''."""
        for source in (self.summary, self.recipe):
            value = source.get(name)
            value = value.get("name") if isinstance(value, dict) else value
            if value not in (None, ""):
                return str(value)
        return ""

    def total(self, name: str, per_round: str = "") -> float | None:
        """A number of the summary, else the sum over the rounds so far (a round's record covers its test)."""
        value = finite(self.summary.get(name))
        if value is not None or not per_round:
            return value
        alone = [record for r, record in self.test.items() if r not in self.train]
        parts = [finite(record.get(per_round)) for record in (*self.train.values(), *alone)]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    @property
    def rounds(self) -> int:
        return max([int(finite(self.summary.get("rounds")) or 0), *self.train, *self.test])

    @property
    def metrics(self) -> dict[str, float | None]:
        """The final metrics, or those of the last test; a value that is not finite is None."""
        final = self.summary.get("metrics")
        if not (isinstance(final, dict) and final):
            final = self.test[max(self.test)]["metrics"] if self.test else {}
        return {str(name): finite(value) for name, value in final.items()}

    @property
    def headline(self) -> str:
        """The metric to show first: the first one that is not a loss."""
        names = list(self.metrics)
        return next((name for name in names if not lower_is_better(name)), names[0] if names else "")

    def curve(self, metric: str) -> list[float | None]:
        """A test metric over the rounds in which it was measured."""
        records = (self.test[r]["metrics"] for r in sorted(self.test))
        return [finite(record[metric]) for record in records if metric in record]

    @property
    def clients(self) -> list[str]:
        """Everyone this directory mentions, in natural order."""
        names: set[str] = {*self.partition.get("train", {}), *self.partition.get("test", {})}
        for phase in (self.train, self.test, self.trained, self.averaged):
            names.update(*(record["clients"] for record in phase.values()))
        names.update(record["client"] for record in self.refused)
        names.update(self.ledger.client_bytes if self.ledger else ())
        return sorted(names - {""}, key=natural)

    @property
    def when(self) -> str:
        """When the last thing happened: by the ledger's clock, else by the files' dates."""
        moment = self.ledger.last if self.ledger else None
        if moment is None:
            paths = [self.path / name for name in ("summary.json", "metrics.jsonl", "recipe.toml")]
            moment = next((path.stat().st_mtime for path in paths if path.is_file()), None)
        if moment is None:
            return ""
        try:
            return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M} UTC"
        except (OverflowError, OSError, ValueError):
            return ""


def read_run(path: Path) -> Run:
    """Read a run directory, finished or not."""
    run = read_settings(path)
    run.has_metrics = _each_record(run, "metrics.jsonl", lambda record: add_metrics(run, record))
    ledger = Ledger()
    if run.sites and not (run.path / "ledger.jsonl").exists():
        return run  # each site keeps its own
    if _each_record(run, "ledger.jsonl", lambda record: add_ledger(ledger, record)):
        run.ledger = ledger
    return run


def read_settings(path: Path) -> Run:
    """Only what was asked for and how it ended: the recipe and the summary."""
    if not path.is_dir():
        raise RunError(
            "this is not a run directory",
            expected="a directory that `fedreel run` wrote",
            found="a file" if path.exists() else "nothing",
            where=str(path),
        )
    run = Run(path)
    _read_recipe(run)
    _read_summary(run)
    return run


def add_metrics(run: Run, record: Record) -> None:
    """File one record under its phase. After a resume a round may be there twice: the later one counts."""
    phase, round_ = record["phase"], int(record["round"])
    if not 0 <= round_ < 10**9:
        raise ValueError(f"no round: {round_}")
    if phase == "partition":
        sides = {side: _counts(record.get(side) or {}) for side in ("train", "test")}
        run.partition = {"classes": [str(c) for c in record.get("classes") or []], **sides}
        run.sites = {str(site): _names(clients) for site, clients in (record.get("sites") or {}).items()}
    elif phase == "train":
        run.train[round_] = {**record, "clients": _names(record.get("clients") or [])}
    elif phase in ("test", "trained", "averaged"):
        _add_test({"test": run.test, "trained": run.trained, "averaged": run.averaged}[phase], round_, record)
    elif phase == "server":
        numbers = {key: finite(record.get(key)) for key in ("loss", "samples", "seconds")}
        run.server[round_] = {"what": str(record.get("what") or ""), **numbers}
    elif phase == "privacy":
        run.privacy[round_] = dict(record)
    elif phase == "trust":
        run.trust = dict(record)
    elif phase == "refused":
        words = {key: str(record.get(key) or "") for key in ("client", "reason", "detail")}
        run.refused.append({"round": round_, **words})
    elif phase == "note":
        run.notes.append({"round": round_, "text": str(record["text"])})
    else:
        run.others.append({**record, "phase": str(phase), "round": round_})


def add_ledger(ledger: Ledger, record: Record) -> None:
    if record["kind"] == "layout":
        ledger.layouts[str(record["id"])] = [list(tensor) for tensor in record["tensors"]]
        return
    if record["kind"] != "departure":
        return
    client, layout = str(record["client"]), str(record.get("layout") or "")
    amount = finite(record.get("bytes")) or 0.0
    numbers = [str(name) for name in record.get("numbers") or {}]
    kinds = [str(kind) for kind in record.get("kinds") or []]
    flows = [ledger.purposes.setdefault(str(record.get("purpose") or "unnamed"), Flow())]
    flows += [ledger.by_layout.setdefault(layout, Flow())] if layout else []
    for flow in flows:
        flow.count += 1
        flow.bytes += amount
        flow.clients.add(client)
        flow.numbers.update(numbers)
        flow.kinds.update(kinds)
        flow.layouts.update([layout] if layout else [])
    ledger.client_bytes[client] += round(amount)
    moment = finite(record.get("time"))
    if moment is not None:
        ledger.last = max(moment, ledger.last or moment)


def _read_recipe(run: Run) -> None:
    try:
        run.recipe_text = (run.path / "recipe.toml").read_text("utf-8", errors="replace")
        run.recipe = tomllib.loads(run.recipe_text)
    except OSError:
        run.problems.append("recipe.toml is missing: what was asked for is unknown.")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        run.problems.append(f"recipe.toml is not valid TOML ({error}); it is shown as it is.")


def _read_summary(run: Run) -> None:
    try:
        summary = json.loads((run.path / "summary.json").read_text("utf-8", errors="replace"))
        if not isinstance(summary, dict):
            raise ValueError("not an object")
        run.summary = summary
    except OSError:
        run.problems.append(
            "summary.json is missing: the run has not finished. Totals are sums over the rounds so far."
        )
    except (ValueError, RecursionError) as error:
        run.problems.append(f"summary.json cannot be read ({error}). Totals are sums over the rounds so far.")


def _each_record(run: Run, name: str, add: Callable[[Record], None]) -> bool:
    """Hand every record of a JSON-lines file to `add`; lines that are none are counted and reported."""
    records = Records(run.path / name)
    try:
        for record in records:
            try:
                add(record)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                records.bad.append(records.number)
    except OSError:
        run.problems.append(f"{name} is missing: {MISSING[name]}")
        return False
    if records.torn:
        run.problems.append(f"{name}: the last line is torn (the run was writing it) and left out.")
    if records.bad:
        where = ", ".join(map(str, records.bad[:8])) + (", …" if len(records.bad) > 8 else "")
        run.problems.append(f"{name}: {len(records.bad)} unreadable line(s) left out (line {where}).")
    return True


def _add_test(tests: dict[int, Record], round_: int, record: Record) -> None:
    clients = {str(name): dict(values) for name, values in (record.get("clients") or {}).items()}
    metrics = {str(name): value for name, value in (record.get("metrics") or {}).items()}
    merged = tests.setdefault(round_, {"metrics": {}, "clients": {}})
    merged["metrics"].update(metrics)
    merged["clients"].update(clients)
    merged["seconds"] = record.get("seconds")


def _names(clients: Iterable[object]) -> list[str]:
    return [str(name) for name in clients]


def _counts(side: Record) -> dict[str, list[int]]:
    return {str(name): [int(min(max(finite(c) or 0, 0), 1e12)) for c in counts] for name, counts in side.items()}
