"""All claims of the papers on one page, from the JSON of stored tables."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreel.errors import DataError, nearest
from fedreel.reproduce.claims import ENOUGH, judged, made, statement
from fedreel.reproduce.of_papers import sections
from fedreel.reproduce.spec import Table
from fedreel.reproduce.stored import lines
from fedreel.systems import systems

HEAD = f"""# What the papers claim, and what holds here

Every claim is about two numbers of a table: one row is better than another in a metric, or in one setting than in
another, or one metric of a row lies above another. Rows are run with the same seeds, hence, in one setting, with the
same clients, order of clients and initial weights, so the difference is taken seed by seed. A claim *holds* if
Student's 95 % interval of the mean difference lies above zero, *does not hold* if it lies below, and *cannot be told*
otherwise, or with fewer than {ENOUGH} seeds; then the number of seeds is given that would tell a difference of this
size. Ours are means ± standard deviations over seeds. Metrics with ↓: less is better. With *: the paper does not
claim it, but its idea asks for it (a control is beaten, or another measure agrees).

This page is printed by `fedreel reproduce --claims docs/tables`, from the tables stored there."""


def page(folder: Path) -> str:
    """Markdown: for every system its claims, a row each, and the commands that made the tables."""
    stored = _read(folder)
    parts = [HEAD]
    for system in systems():
        if system.tables:
            tables: dict[str, Table] = importlib.import_module(system.tables).TABLES
            if any(table.claims for table in tables.values()):
                own = [content for content in stored if content["command"].split()[2] == system.name]
                parts += _section(system.title or system.name, tables, own)
    parts += sections(stored)
    return "\n\n".join(parts) + "\n"


def _read(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or not {"command", "rows", "data", "table", "system"} <= content.keys():
            raise DataError("this is not a stored table", where=str(path), expected="the TABLE.json of a reproduction")
        found.append({**content, "path": str(path)})
    if not found:
        raise DataError("there are no stored tables", where=str(folder), expected="TABLE.json files of reproductions")
    return found


def _section(title: str, tables: Mapping[str, Table], stored: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"## {title}"
    rows: list[list[str]] = []
    commands: list[str] = []
    for content in stored:
        claims = _claims(tables, content)
        if claims:
            commands.append(f"{len(commands) + 1}. `{content['command']}`")
            rows += [_row(claim, content, len(commands)) for claim in claims]
    if rows:
        columns = ("claim", "paper", "ours", "data", "seeds", "difference (95 %)", "verdict", "command")
        yield lines([columns, *rows])
        yield "\n".join(commands)
    open_claims = [text for table, spec in tables.items() for text in _not_run(table, spec, stored)]
    if open_claims:
        yield "Not run on any stored data: " + "; ".join(open_claims) + "."


def _claims(tables: Mapping[str, Table], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims that are made of a stored table today, by its numbers: one that is new needs no run."""
    if content["table"] not in tables:
        hint = nearest(content["table"], tables)
        raise DataError("there is no such table any more", where=content["path"], found=content["table"], hint=hint)
    return judged(tables[content["table"]].claims, content["rows"])


def _row(claim: Mapping[str, Any], content: Mapping[str, Any], command: int) -> list[str]:
    low_high = claim["interval"]
    spread = f" ({low_high[0]:+.3g} to {low_high[1]:+.3g})" if low_high else ""
    more = f"; about {claim['would_tell']} seeds would tell" if claim["would_tell"] else ""
    return [
        statement(claim, less=" ↓") + (" *" if claim["by"] == "ours" else ""),
        " / ".join("–" if p is None else f"{p:g}" for p in claim["paper"]) if any(claim["paper"]) else "–",
        " / ".join(_ours(o) for o in claim["ours"]),
        f"{content['data']}, {content['scale']}",
        str(claim["seeds"]),
        f"{claim['ahead']:+.3g}{spread}",
        f"**{claim['verdict']}**{more}" if claim["verdict"] != "cannot be told" else f"{claim['verdict']}{more}",
        f"{content['table']} [{command}]",
    ]


def _ours(cell: Mapping[str, Any]) -> str:
    digits = 3 if abs(cell["mean"]) < 2 else 1
    return f"{cell['mean']:.{digits}f}" + ("" if cell["sd"] is None else f" ± {cell['sd']:.{digits}f}")


def _not_run(table: str, spec: Table, stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """Claims of a table that no stored one answers; one line if it is all of them."""
    rows = [content["rows"] for content in stored if content["table"] == table]
    left = [claim for claim in spec.claims if not any(judged([claim], found) for found in rows)]
    if len(left) == len(spec.claims) > 1:
        return [f"{table} ({len(left)} claims)"]
    return [f"{table}: {statement(made(claim, claim.settings))}" for claim in left]
