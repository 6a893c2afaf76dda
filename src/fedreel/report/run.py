"""A run in memory: its rounds, tests and refusals, what left its clients, and what its records add to that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedreel.report.markup import finite, lower_is_better, natural
from fedreel.report.rounds import Costs, First, Past, Record, Rounds, better

COSTS = (
    *("seconds", "training_seconds", "waiting_seconds"),
    *("bytes_up", "bytes_down", "bytes_testing", "wire_up", "wire_down", "ordered", "answered"),
)


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
    train: Rounds = field(default_factory=Rounds)
    test: Rounds = field(default_factory=Rounds)
    trained: Rounds = field(default_factory=Rounds)  # tests of the clients' own models after their training
    averaged: Rounds = field(default_factory=Rounds)  # tests of their mean, before the server trains it
    server: Rounds = field(default_factory=Rounds)  # the server's training on data of its own
    privacy: Rounds = field(default_factory=Rounds)  # what was given away so far, where that is counted
    trust: Record = field(default_factory=dict)  # what held-out samples said of the model when the last round was over
    refused: First = field(default_factory=First)
    cases: Counter[tuple[str, str]] = field(default_factory=Counter)  # how often whose answer was refused, by reason
    notes: First = field(default_factory=First)
    others: First = field(default_factory=First)
    costs: Costs = field(default_factory=Costs)
    past: Past = field(default_factory=Past)
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
        total = self.costs.total(per_round)
        alone = [row["testing"] for row in self.costs.sums.values() if "testing" in row and "rounds" not in row]
        return (total or 0.0) + sum(alone) if per_round == "seconds" and alone else total

    @property
    def waiting(self) -> float | None:
        """The share of clients' training in which they waited for their data, if that is known."""
        share, training = finite(self.summary.get("waiting_for_data")), self.costs.total("training_seconds")
        return share if share is not None or not training else (self.costs.total("waiting_seconds") or 0.0) / training

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

    def best(self, metric: str) -> tuple[float, int] | None:
        """The best value that a test metric had, and in which round."""
        found = self.past.best.get(metric)
        for r, record in self.test.items():
            found = better(metric, found, (finite(record["metrics"].get(metric)), r))
        return found

    @property
    def last_tests(self) -> dict[str, Record]:
        """Each client's numbers of the last test it took part in."""
        last = dict(self.past.tested)
        for r, record in self.test.items():
            last |= {c: (r, values) for c, values in record["clients"].items() if r >= last.get(c, (0, {}))[0]}
        return {client: values for client, (_, values) in last.items()}

    @property
    def times_trained(self) -> Counter[str]:
        return self.past.trained + Counter(name for record in self.train.values() for name in {*record["clients"]})

    @property
    def clients(self) -> list[str]:
        """Everyone this directory mentions, in natural order."""
        names: set[str] = {*self.partition.get("train", {}), *self.partition.get("test", {})}
        names.update(self.past.trained, self.past.tested, (client for client, _ in self.cases))
        for phase in (self.train, self.test, self.trained, self.averaged):
            names.update(*(record["clients"] for record in phase.values()))
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


def add_metrics(run: Run, record: Record) -> None:
    """File one record under its phase. After a resume a round may be there twice: the later one counts."""
    phase, round_ = record["phase"], int(record["round"])
    if not 0 <= round_ < 10**9:
        raise ValueError(f"no round: {round_}")
    if phase == "partition":
        sides = {side: _counts(record.get(side) or {}) for side in ("train", "test")}
        several = int(min(finite(record.get("clients")) or 0, 1e12))  # of whom some are told about
        run.partition = {"classes": [str(c) for c in record.get("classes") or []], "clients": several, **sides}
        run.sites = {str(site): _names(clients) for site, clients in (record.get("sites") or {}).items()}
    elif phase == "train":
        run.costs.put(round_, {"rounds": 1, **{key: record.get(key) for key in COSTS}})
        for _, gone in run.train.put(round_, {**record, "clients": _names(record.get("clients") or [])}):
            run.past.add_training(gone)
    elif phase in ("test", "trained", "averaged"):
        _add_test(run, phase, round_, record)
    elif phase == "server":
        numbers = {key: finite(record.get(key)) for key in ("loss", "samples", "seconds")}
        run.costs.put(round_, {"serving": record.get("seconds")})
        run.server.put(round_, {"what": str(record.get("what") or ""), **numbers})
    elif phase == "privacy":
        run.privacy.put(round_, dict(record))
    elif phase == "trust":
        run.trust = dict(record)
    elif phase == "refused":
        words = {key: str(record.get(key) or "") for key in ("client", "reason", "detail")}
        run.cases[words["client"], words["reason"]] += 1
        run.refused.put({"round": round_, **words})
    elif phase == "note":
        run.notes.put({"round": round_, "text": str(record["text"])})
    else:
        run.others.put({**record, "phase": str(phase), "round": round_})


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


def _add_test(run: Run, phase: str, round_: int, record: Record) -> None:
    tests, what = {
        "test": (run.test, "testing"),
        "trained": (run.trained, ""),
        "averaged": (run.averaged, "averaging"),
    }[phase]
    clients = {str(name): dict(values) for name, values in (record.get("clients") or {}).items()}
    metrics = {str(name): value for name, value in (record.get("metrics") or {}).items()}
    before = tests.get(round_, {"metrics": {}, "clients": {}})
    merged = {"metrics": {**before["metrics"], **metrics}, "clients": {**before["clients"], **clients}}
    if what:
        run.costs.put(round_, {what: record.get("seconds")})
    for gone, old in tests.put(round_, {**merged, "seconds": record.get("seconds")}):
        if phase == "test":
            run.past.add_test(gone, old)


def _names(clients: Iterable[object]) -> list[str]:
    return [str(name) for name in clients]


def _counts(side: Record) -> dict[str, list[int]]:
    return {str(name): [int(min(max(finite(c) or 0, 0), 1e12)) for c in counts] for name, counts in side.items()}
