"""All claims of the papers on one page, from the JSON of stored tables."""

from __future__ import annotations

import importlib
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from fedreel.errors import DataError, nearest
from fedreel.reproduce.claims import ENOUGH, MOST, Rows, Verdict, judged, made, pairs, printed, statement
from fedreel.reproduce.of_papers import sections
from fedreel.reproduce.spec import Claim, Table
from fedreel.reproduce.stored import lines
from fedreel.systems import systems

Stored = Mapping[str, Any]
Judged = tuple[dict[str, Any], Sequence[Stored]]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
HEAD = f"""# What the papers claim, and what holds here

Every claim is about two numbers of a table: one row is better than another in a metric, or in one setting than in
another, or one metric of a row lies above another. Some are about rows of two tables, of the same data. Rows are run
with the same seeds, hence, in one setting, with the same clients, order of clients and initial weights, so the
difference is taken seed by seed. A claim *holds* if
Student's 95 % interval of the mean difference lies above zero, *does not hold* if it lies below, and *cannot be told*
otherwise, or with fewer than {ENOUGH} seeds; then the number of seeds is given that would tell a difference of this
size, if that is {MOST} or fewer. *Paper* is what it prints of the two, on its own data and with its own settings. Ours
are means ± standard deviations over seeds. Metrics with ↓: less is better. With *: the paper does not
claim it, but its idea asks for it (a control is beaten, or another measure agrees).

This page is printed by `fedreel reproduce --claims docs/tables`, from the tables stored there."""

COUNTED = """Verdicts on the papers' claims, by data. A claim counts once for each table that answers it. Claims
marked * are left out, and so are runs whose settings were changed by `--set` to look for a cause. Claims that no stored
table answers stand at the end of each system's section."""


def page(folder: Path) -> str:
    """Markdown: how many claims hold, for every system its claims, a row each, and the commands that made the
    tables."""
    stored = _read(folder)
    counts: list[list[str]] = []
    parts: list[str] = []
    answering = []
    for system in systems():
        if system.tables:
            tables: dict[str, Table] = importlib.import_module(system.tables).TABLES
            if any(table.claims for table in tables.values()):
                title = system.title or system.name
                own = [content for content in stored if content["command"].split()[2] == system.name]
                found = [pair for content in own for pair in _claims(tables, content, own)]
                counts += _counted(title, found)
                parts += _section(title, tables, own, found)
                asked = {content["path"] for _, contents in found for content in contents}
                answering += [one for one in own if one["path"] in asked or not tables[one["table"]].claims]
    return "\n\n".join([HEAD, *_overview(counts), *parts, *sections(answering)]) + "\n"


def _counted(title: str, found: Sequence[Judged]) -> Iterator[list[str]]:
    """Of the paper's claims on each data, how many hold, do not hold, and cannot be told, by runs as the tables have
    them."""
    verdicts: dict[str, Counter[str]] = {}
    for claim, contents in found:
        if claim["by"] == "paper" and not _changed(contents[0]):
            verdicts.setdefault(_where(contents[0]), Counter())[claim["verdict"]] += 1
    for where, counted in verdicts.items():
        yield [f"[{title}](#{title.lower()})", where, *(str(counted[verdict]) for verdict in VERDICTS)]


def _overview(counts: Sequence[Sequence[str]]) -> Iterator[str]:
    if counts:
        yield COUNTED
        yield lines([("system", "data, scale", *VERDICTS), *counts])


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


def _section(
    title: str, tables: Mapping[str, Table], stored: Sequence[Stored], found: Sequence[Judged]
) -> Iterator[str]:
    yield f"## {title}"
    if found:
        columns = ("claim", "paper", "ours", "data", "seeds", "difference (95 %)", "verdict", "command")
        commands = [*dict.fromkeys(content["command"] for _, contents in found for content in contents)]
        yield lines([columns, *(_row(claim, contents, commands) for claim, contents in found)])
        yield "\n".join(f"{number}. `{command}`" for number, command in enumerate(commands, 1))
    left = [row for table in tables for row in _not_run(table, tables, stored)]
    if left:
        yield f"Not run on any stored data, or not with today's settings: {len(left)}."
        yield lines([("claim", "paper", "table"), *left])


def _claims(tables: Mapping[str, Table], content: Stored, stored: Sequence[Stored]) -> list[Judged]:
    """The claims that are made of a stored table today, by its numbers and those of the others beside it: one that is
    new needs no run. Each with the one or two tables that it is about."""
    if content["table"] not in tables:
        hint = nearest(content["table"], tables)
        raise DataError("there is no such table any more", where=content["path"], found=content["table"], hint=hint)
    return [pair for claim in tables[content["table"]].claims for pair in _judged(claim, content, stored)]


def _judged(claim: Claim, content: Stored, stored: Sequence[Stored]) -> list[Judged]:
    if not claim.second:
        return [(one, (content,)) for one in judged([claim], content["rows"])]
    return [
        (one, (content, other))
        for other in stored
        if other["table"] == claim.second and _run_on(other) == _run_on(content)
        for one in judged([claim], content["rows"], {claim.second: other["rows"]})
    ]


def _run_on(content: Stored) -> tuple[Any, ...]:
    """What two tables must have in common if their rows are to be compared: data, scale, and what a user changed."""
    return content["data"], content["scale"], _changed(content)


def _changed(content: Stored) -> list[str]:
    words = shlex.split(content["command"])
    return sorted(value for word, value in pairwise(words) if word == "--set")


def _row(claim: Mapping[str, Any], contents: Sequence[Stored], commands: Sequence[str]) -> list[str]:
    low_high = claim["interval"]
    spread = f" ({low_high[0]:+.3g} to {low_high[1]:+.3g})" if low_high else ""
    content = contents[0]
    shown = (f"{one['table']} [{commands.index(one['command']) + 1}]" for one in contents)
    more = f"; about {claim['would_tell']} seeds would tell" if claim["would_tell"] else ""
    more = "; equal in every seed" if low_high and not any(low_high) else more
    return [
        _said(claim),
        _paper(claim["paper"]),
        " / ".join(_ours(o) for o in claim["ours"]),
        _where(content),
        str(claim["seeds"]),
        f"{claim['ahead']:+.3g}{spread}",
        f"**{claim['verdict']}**{more}" if claim["verdict"] != "cannot be told" else f"{claim['verdict']}{more}",
        ", ".join(shown),
    ]


def _where(content: Stored) -> str:
    return f"{content['data']}, {content['scale']}"


def _ours(cell: Mapping[str, Any]) -> str:
    digits = 3 if abs(cell["mean"]) < 2 else 1
    return f"{cell['mean']:.{digits}f}" + ("" if cell["sd"] is None else f" ± {cell['sd']:.{digits}f}")


def _paper(numbers: Mapping[str, Sequence[float | None]]) -> str:
    shown = []
    for name, both in numbers.items():
        own = " / ".join("–" if p is None else f"{p:g}" for p in both)
        shown.append(f"{own} ({name})" if name else own)
    return ", ".join(shown) or "–"


def _not_run(table: str, tables: Mapping[str, Table], stored: Sequence[Stored]) -> Iterator[list[str]]:
    """Claims of a table that no stored one answers: of every two rows that the playground has for them, or if it has
    none, as they are made."""
    of_table = [content for content in stored if content["table"] == table]
    for claim in tables[table].claims:
        answered = [one for content in of_table for one, _ in _judged(claim, content, stored)]
        rows, others = (_as_stored(tables[name]) for name in (table, claim.second or table))
        asked = [(made(claim, [row["setting"] for row in pair]), pair) for pair in pairs(claim, rows, others)]
        if not asked and not answered:
            asked = [(made(claim, claim.settings), ({"paper": {}}, {"paper": {}}))]
        for one, pair in asked:
            if not any(one["settings"] == done["settings"] and one["setting"] == done["setting"] for done in answered):
                yield [_said(one), _paper(printed(claim, pair)), table]


def _as_stored(table: Table) -> Rows:
    return [{"method": row.name, "setting": row.setting, "paper": row.paper} for row in table.rows_for(None)]


def _said(claim: Mapping[str, Any]) -> str:
    return statement(claim, less=" ↓") + (" *" if claim["by"] == "ours" else "")
