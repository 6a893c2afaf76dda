"""digest.json: what a long run's records came to, so that whoever looks at the run reads only what has come since."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.machine.files import write_atomic
from fedreel.machine.records import Records, parse_json
from fedreel.report.markup import finite
from fedreel.report.rounds import Record
from fedreel.report.run import Flow, Ledger, Run, add_ledger, add_metrics

NAME = "digest.json"
FORMAT = 1
LEAST = 1_000_000  # bytes of records that are read anew before a digest is worth its while
SEAL = 200  # bytes before a mark by which the records are known again
FILES = ("metrics.jsonl", "ledger.jsonl")
_PHASES = ("train", "test", "trained", "averaged", "server", "privacy")
_LISTS = ("refused", "note", "others")
_WRONG = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, IndexError)


@dataclass(frozen=True)
class Mark:
    """How far a file was read: bytes, lines, and how many of them were no records, with the numbers of some."""

    at: int = 0
    lines: int = 0
    bad: int = 0
    where: tuple[int, ...] = ()


def begin(run: Run) -> dict[str, Mark]:
    """Put into a run what its digest tells, and say from where on its files are still to be read: from their
    beginning, where there is no digest or where the files have changed since."""
    nothing = {name: Mark() for name in FILES}
    try:
        content = parse_json((run.path / NAME).read_text("utf-8"))
        if content["format"] != FORMAT:
            return nothing
        marks = {name: _mark(content["marks"][name]) for name in FILES}
        if any(_seal(run.path / name, mark.at) != content["seals"][name] for name, mark in marks.items()):
            return nothing
        found = Run(run.path)
        _restore(found, content)
    except (OSError, *_WRONG):
        return nothing
    for name in (*_OWN, "ledger"):
        setattr(run, name, getattr(found, name))
    return marks


class Digest:
    """Written by a run about itself. It never tells of more than what the run would keep if it were killed."""

    def __init__(self, path: Path) -> None:
        self.run = Run(path, ledger=Ledger())
        self._marks = begin(self.run)
        if self.run.ledger is None:
            self.run.ledger = Ledger()
        self._worth = LEAST
        self._lengths: deque[tuple[int, ...]] = deque(maxlen=3)  # of the files, when rounds ended

    def round_done(self) -> None:
        """The round before the one before this is on disk, and its records with it: read as far as that, if it is
        worth it. A digest that cannot be written is not the run's business."""
        self._lengths.append(tuple(_length(self.run.path / name) for name in FILES))
        ends = dict(zip(FILES, self._lengths[0]))
        new = sum(end - self._marks[name].at for name, end in ends.items())
        if len(self._lengths) < 3 or new < self._worth:
            return
        assert self.run.ledger is not None
        ledger = self.run.ledger
        self._read(FILES[0], ends, lambda record: add_metrics(self.run, record))
        self._read(FILES[1], ends, lambda record: add_ledger(ledger, record))
        seals = {name: _seal(self.run.path / name, mark.at) for name, mark in self._marks.items()}
        marks = {name: vars(mark) for name, mark in self._marks.items()}
        text = json.dumps({"format": FORMAT, "marks": marks, "seals": seals, **_stored(self.run)})
        self._worth = max(LEAST, 2 * len(text))
        with suppress(OSError):
            write_atomic(self.run.path / NAME, text, sync=False)

    def _read(self, name: str, ends: Mapping[str, int], add: Callable[[Record], None]) -> None:
        before = self._marks[name]
        records = Records(self.run.path / name, before.at, before.lines, ends[name])
        with suppress(OSError):
            for record in records:
                try:
                    add(record)
                except _WRONG:
                    records.bad.append(records.number)
        self._marks[name] = after(before, records)


def after(mark: Mark, records: Records) -> Mark:
    """The mark when these records have been read on from another."""
    where = (*mark.where, *records.bad)[:9]
    return Mark(records.at, records.number, mark.bad + len(records.bad), where)


_OWN = ("partition", "sites", "trust", "costs", "past", "cases", *_PHASES, "refused", "notes", "others")


def _stored(run: Run) -> dict[str, Any]:
    """Kept records as they were written, and sums beside them."""
    rounds = {name: getattr(run, name) for name in _PHASES}
    lists = {"refused": run.refused, "note": run.notes, "others": run.others}
    records = [{**record, "phase": name, "round": r} for name, kept in rounds.items() for r, record in kept.items()]
    records += [{"phase": name, **record} for name, kept in lists.items() for record in kept]
    if run.trust:
        records.append({**run.trust, "phase": "trust", "round": run.trust.get("round", 0)})
    partition = {"phase": "partition", "round": 0, **run.partition, "sites": run.sites}
    ledger = run.ledger or Ledger()
    return {
        "records": [*([partition] if run.partition else []), *records],
        "rounds": {name: [kept.span, kept.seen] for name, kept in rounds.items()},
        "lists": {name: kept.seen for name, kept in lists.items()},
        "cases": [[*case, times] for case, times in run.cases.items()],
        "costs": [run.costs.span, [[block, sums] for block, sums in run.costs.sums.items()]],
        "trained": dict(run.past.trained),
        "tested": [[client, r, values] for client, (r, values) in run.past.tested.items()],
        "best": [[name, value, r] for name, (value, r) in run.past.best.items()],
        "ledger": {
            "layouts": ledger.layouts,
            "client_bytes": dict(ledger.client_bytes),
            "last": ledger.last,
            **{name: {k: _plain(flow) for k, flow in getattr(ledger, name).items()} for name in _FLOWS},
        },
    }


_FLOWS = ("purposes", "by_layout")


def _restore(run: Run, content: Record) -> None:
    """Records go the way of those of the file itself; sums are set after that. Anything that is not what was stored
    raises one of the errors that `begin` expects."""
    for name in _PHASES:
        getattr(run, name).span = _whole(content["rounds"][name][0], 1)
    for record in content["records"]:
        add_metrics(run, record)
    for name in _PHASES:
        getattr(run, name).seen = _whole(content["rounds"][name][1])
    for kept, name in zip((run.refused, run.notes, run.others), _LISTS):
        kept.seen = _whole(content["lists"][name])
    run.cases = Counter({(str(client), str(reason)): _whole(times) for client, reason, times in content["cases"]})
    run.costs.span = _whole(content["costs"][0], 1)
    run.costs.sums = {_block(b): {str(k): _number(v) for k, v in sums.items()} for b, sums in content["costs"][1]}
    run.past.trained = Counter({str(client): _whole(times) for client, times in content["trained"].items()})
    run.past.tested = {str(client): (_whole(r), dict(values)) for client, r, values in content["tested"]}
    run.past.best = {str(name): (_number(value), _whole(r)) for name, value, r in content["best"]}
    told = content["ledger"]
    purposes, by_layout = ({str(k): _flow(flow) for k, flow in told[name].items()} for name in _FLOWS)
    layouts = {str(name): [list(tensor) for tensor in tensors] for name, tensors in told["layouts"].items()}
    sent = Counter({str(client): _whole(amount) for client, amount in told["client_bytes"].items()})
    run.ledger = Ledger(layouts, purposes, by_layout, sent, finite(told["last"]))


def _plain(flow: Flow) -> dict[str, Any]:
    return {name: sorted(value) if isinstance(value, set) else value for name, value in vars(flow).items()}


def _flow(told: Record) -> Flow:
    sets = ({str(name) for name in told[kind]} for kind in ("clients", "numbers", "kinds", "layouts"))
    return Flow(_whole(told["count"]), _number(told["bytes"]), *sets)


def _mark(told: Record) -> Mark:
    at, lines, bad = (_whole(told[name]) for name in ("at", "lines", "bad"))
    return Mark(at, lines, bad, tuple(_whole(number) for number in told["where"]))


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 10**18:
        raise ValueError(f"no count: {value!r}")
    return value


def _block(value: object) -> int:
    return _whole(value, -1)


def _number(value: object) -> float:
    found = finite(value)
    if found is None:
        raise ValueError(f"no number: {value!r}")
    return found


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _seal(path: Path, at: int) -> str:
    """Of the end of what was read; '' of a file that is shorter, or not there."""
    if at == 0:
        return "nothing"
    try:
        with open(path, "rb") as file:
            file.seek(max(0, at - SEAL))
            end = file.read(min(SEAL, at))
            return hashlib.sha256(end).hexdigest() if file.tell() == at else ""
    except OSError:
        return ""
