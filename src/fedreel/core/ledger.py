"""Reading a ledger for its owner: totals by client and purpose, and the tensors behind them. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedreel.errors import FedreelError, nearest
from fedreel.machine.records import Records

Row = dict[str, Any]


def read_ledger(path: Path) -> Iterator[Row]:
    """All whole rows of a ledger; a row torn by a crash is passed over."""
    if path.exists():
        yield from (row for row in Records(path) if _whole(row))


def departures(path: Path, client: str | None = None) -> list[Row]:
    """Every departure, or one client's."""
    if not path.exists():
        raise FedreelError("there is no ledger here", where=str(path), hint="give a run directory or a ledger.jsonl")
    rows = [r for r in read_ledger(path) if r["kind"] == "departure"]
    if client is None:
        return rows
    known = {r["client"] for r in rows}
    if client not in known:
        raise FedreelError(f"nothing of '{client}' is in this ledger", where=str(path), hint=nearest(client, known))
    return [r for r in rows if r["client"] == client]


def totals(path: Path, client: str | None = None) -> list[list[str]]:
    """One row for each client and purpose."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in departures(path, client):
        groups.setdefault((row["client"], row["purpose"]), []).append(row)
    return [
        [
            *key,
            str(len(rows)),
            f"{sum(r['bytes'] for r in rows):,}",
            ", ".join(sorted({k for r in rows for k in r["kinds"]})),
            ", ".join(sorted({n for r in rows for n in r["numbers"]})),
        ]
        for key, rows in sorted(groups.items())
    ]


def tensors(path: Path, client: str | None = None) -> Iterator[tuple[str, list[list[str]]]]:
    """The layouts that left, as tables of tensors."""
    used = {r["layout"] for r in departures(path, client)}
    for row in read_ledger(path):
        if row["kind"] == "layout" and row["id"] in used:
            yield row["id"], [[n, "x".join(map(str, shape)) or "-", t, f"{b:,}"] for n, shape, t, b in row["tensors"]]


def _whole(row: Row) -> bool:
    """Whether a row holds what one of its kind does; others were damaged."""
    if row.get("kind") == "layout":
        rows = row.get("tensors")
        return isinstance(row.get("id"), str) and isinstance(rows, list) and all(map(_is_tensor, rows))
    if row.get("kind") != "departure":
        return isinstance(row.get("kind"), str)
    texts = "layout" in row and all(isinstance(row.get(name), str) for name in ("client", "purpose"))
    kinds, numbers, layout = row.get("kinds"), row.get("numbers"), row.get("layout")
    named = isinstance(kinds, list) and all(isinstance(k, str) for k in kinds) and isinstance(numbers, dict)
    return texts and named and type(row.get("bytes")) is int and (layout is None or isinstance(layout, str))


def _is_tensor(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[0], str)
        and isinstance(row[1], list)
        and isinstance(row[2], str)
        and type(row[3]) is int
    )
