"""Tables in documents, filled in from the JSON of stored tables: no number of theirs is typed by hand. A document says
which table, rows and columns it wants:

<!-- table: NAME | SETTING=VALUE, method=NAME, ... | COLUMN, COLUMN (paper), chosen, ... -->
<!-- end -->

`COLUMN by SETTING` gives one column for every value of a setting that rows differ in. What has a comma in its name
stands in double quotes.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreel.errors import DataError, nearest
from fedreel.reproduce.choose import in_words

BLOCK = re.compile(r"^<!-- table: (.*?) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """The text with every wanted table as the files in the folder have it."""

    def filled(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{wanted(found[1], folder)}\n<!-- end -->"

    return BLOCK.sub(filled, text)


def wanted(order: str, folder: Path) -> str:
    """A Markdown table by an order: the table's name, settings that its rows have, columns."""
    name, settings, columns = ([part.strip() for part in order.split("|")] + ["", ""])[:3]
    file = folder / f"{name}.json"
    if not file.is_file():
        known = sorted(path.stem for path in folder.glob("*.json"))
        raise DataError("there is no such stored table", where=str(folder), found=name, hint=nearest(name, known))
    table = json.loads(file.read_text())
    asked = dict(_pair(word, order) for word in _words(settings))
    known_as = [({"method": row["method"], **row["setting"]}, row) for row in table["rows"]]
    rows = [row for own, row in known_as if all(str(own.get(key)) == value for key, value in asked.items())]
    if not rows:
        raise DataError("no row of a stored table has these settings", where=str(file), found=settings)
    metric, by, setting = (part.strip() for part in columns.partition(" by "))
    return spread(rows, metric, setting, str(file)) if by else markdown(rows, _words(columns), str(file))


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], where: str) -> str:
    """Rows of a table's JSON: the method, the settings in which they differ, then the columns; `METRIC (paper)` is what
    the paper prints, `chosen` the settings that were chosen for the row."""
    differ = _differ(rows)
    _check_columns(rows, columns, where)
    digits = {column: _digits(rows, column) for column in columns}
    cells = [["method", *differ, *columns]]
    for row in rows:
        found = [_cell(row, column, digits[column]) for column in columns]
        cells.append([row["method"], *(str(row["setting"].get(key, "")) for key in differ), *found])
    return lines(cells)


def spread(rows: Sequence[Mapping[str, Any]], metric: str, setting: str, where: str) -> str:
    """Rows of a table's JSON that differ in one setting, side by side: a column for each of its values."""
    _check_columns(rows, [metric], where)
    values = [*dict.fromkeys(str(row["setting"].get(setting, "")) for row in rows)]
    if values == [""]:
        known = {key for row in rows for key in row["setting"]}
        raise DataError("a stored table has no such setting", where=where, found=setting, hint=nearest(setting, known))
    differ = [key for key in _differ(rows) if key != setting]
    digits = _digits(rows, metric)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        place = found.setdefault((row["method"], *(str(row["setting"].get(key, "")) for key in differ)), {})
        place[str(row["setting"].get(setting, ""))] = _cell(row, metric, digits)
    head = ["method", *differ, *(f"{setting} {value}" for value in values)]
    return lines([head, *([*names, *(cells.get(value, "") for value in values)] for names, cells in found.items())])


def lines(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row has the names of its columns."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in ruled)


def _differ(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which rows differ."""
    return [key for key in rows[0]["setting"] if len({str(row["setting"].get(key)) for row in rows}) > 1]


def _check_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], where: str) -> None:
    known = {
        "chosen",
        *(m for row in rows for m in row["metrics"]),
        *(f"{m} (paper)" for r in rows for m in r["paper"]),
    }
    for column in columns:
        if column not in known:
            raise DataError("a stored table has no such column", where=where, found=column, hint=nearest(column, known))


def _digits(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    """After the point: one, but three where all are shares."""
    means = [row["metrics"][column]["mean"] for row in rows if column in row["metrics"]]
    return 3 if all(abs(mean) < 2 for mean in means if mean is not None) else 1


def _cell(row: Mapping[str, Any], column: str, digits: int) -> str:
    if column == "chosen":
        return in_words(row.get("chosen", {}))
    if column.endswith(" (paper)"):
        printed = row["paper"].get(column.removesuffix(" (paper)"))
        return "" if printed is None else f"{printed:g}"
    found = row["metrics"].get(column)
    if not found or found["mean"] is None:
        return ""
    sd = f" ± {found['sd']:.{digits}f}" if found["sd"] is not None else ""
    most = max(len(cell["values"]) for cell in row["metrics"].values() if "values" in cell)
    return f"{found['mean']:.{digits}f}{sd}" + (f" ({found['n']} of {most})" if found["n"] < most else "")


def _words(text: str) -> list[str]:
    return [word.strip() for words in csv.reader([text], skipinitialspace=True) for word in words if word.strip()]


def _pair(word: str, order: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise DataError("settings of a wanted table are written KEY=VALUE", found=word, where=order)
    return key.strip(), value.strip()
