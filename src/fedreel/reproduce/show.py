"""A reproduced table for the terminal: what was chosen, ours as mean ± sd (n), the paper's number beside it."""

from __future__ import annotations

from typing import Any

from fedreel.reproduce.choose import in_words


def columns_and_rows(table: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    metrics = list(dict.fromkeys(m for row in table["rows"] for m in row["metrics"]))
    printed = {m for m in metrics if any(m in row["paper"] for row in table["rows"])}
    settings = list(dict.fromkeys(s for row in table["rows"] for s in row["setting"]))
    choosing = any("chosen" in row for row in table["rows"])
    columns = ["method", *settings, *(["chosen"] if choosing else [])]
    for m in metrics:
        columns += [m, f"{m} (paper)"] if m in printed else [m]
    rows = []
    for row in table["rows"]:
        cells = [row["method"], *(str(row["setting"].get(s, "")) for s in settings)]
        cells += [in_words(row.get("chosen", {}))] if choosing else []
        for m in metrics:
            cells.append(_ours(row["metrics"].get(m)))
            if m in printed:
                cells.append(str(row["paper"].get(m, "")))
        rows.append(cells)
    return columns, rows


def _ours(cell: dict[str, Any] | None) -> str:
    if not cell or cell["mean"] is None:
        return "-"
    digits = 3 if abs(cell["mean"]) < 2 else 2
    sd = f" ± {cell['sd']:.{digits}f}" if cell["sd"] is not None else ""
    return f"{cell['mean']:.{digits}f}{sd} (n={cell['n']})"
