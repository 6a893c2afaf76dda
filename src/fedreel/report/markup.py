"""HTML that is escaped unless built here, and numbers and durations as people read them."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable
from typing import Any

VOID = {"meta", "br", "img", "input", "link"}
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
LOWER_IS_BETTER = ("loss", "error", "distance", "gap", "seconds", "bytes")


class Html(str):
    """Text that is markup already. Every other string is escaped when it becomes part of a page."""


def el(tag: str, *children: object, **attributes: object) -> Html:
    """One element. `class_` and `data_x` stand for `class` and `data-x`; None and False leave one out."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(name if value is True else f'{name}="{escape(str(value))}"')
    opening = f"<{' '.join(parts)}>"
    return Html(opening) if tag in VOID else Html(f"{opening}{join(children)}</{tag}>")


def join(children: Iterable[object]) -> Html:
    """Children one after another: markup as it is, None left out, lists flattened, all else escaped."""
    out: list[str] = []
    for child in children:
        if isinstance(child, Html):
            out.append(child)
        elif isinstance(child, (list, tuple)):
            out.append(join(child))
        elif child is not None:
            out.append(escape(str(child)))
    return Html("".join(out))


def escape(text: str) -> str:
    """Escaped for element text and for quoted attributes; control characters and lone surrogates replaced."""
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return html.escape(CONTROL.sub("\N{REPLACEMENT CHARACTER}", encodable), quote=True)


def data(value: object) -> Html:
    """JSON for the page's script; '<', '>' and '&' are written so that no text can end the script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json">{text}</script>')


def table(head: list[object], rows: Iterable[list[object]], *, caption: str, class_: str = "") -> Html:
    """A table whose first cell of every row names the row. Numbers and their headings stand to the right."""
    cells = [[_cell(row[0], "th"), *(_cell(value, "td") for value in row[1:])] for row in rows]
    right = {i for row in cells for i, cell in enumerate(row) if ' class="num' in cell[: cell.find(">")]}
    header = el("tr", [el("th", th, scope="col", class_="num" if i in right else None) for i, th in enumerate(head)])
    body = [el("tr", row) for row in cells]
    inner = el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", header),
        el("tbody", body),
        class_=class_ or None,
    )
    return el("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(value: object, tag: str) -> Html:
    if isinstance(value, Html) and _is_cell(value):
        return value
    scope = "row" if tag == "th" else None
    if isinstance(value, (int, float)):
        return el(tag, number(value), class_="num", data_v=_sort_key(value), scope=scope)
    return el(tag, value, scope=scope)


def quantity(value: float | None, text: str, **attributes: object) -> Html:
    """A right-aligned table cell that reads `text` and sorts as `value`."""
    return el("td", text, class_="num", data_v=_sort_key(value), **attributes)


def _is_cell(value: object) -> bool:
    return isinstance(value, Html) and value.startswith(("<th", "<td"))


def _sort_key(value: float | None) -> str | None:
    return None if value is None or not math.isfinite(value) else f"{value:.10g}"


def finite(value: Any) -> float | None:
    """The value as a float if it is a number a chart can show (bounded, so that spans do not overflow)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None  # an integer may be too large for math.isfinite


def number(value: float | None) -> str:
    """Three decimals in the usual range, thousands grouped, powers of ten at the extremes."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return score(value)


def score(value: float | None, spread: float | None = None) -> str:
    """A metric, with decimals even where it is whole, so that columns line up; `spread` gets as many."""
    if value is None:
        return "–"
    magnitude = abs(value)
    if magnitude >= 1e6 or 0 < magnitude < 1e-3:
        return f"{value:.3g}" + ("" if spread is None else f" ± {spread:.2g}")
    decimals = 0 if magnitude >= 1000 else 1 if magnitude >= 100 else 2 if magnitude >= 10 else 3
    return f"{value:,.{decimals}f}" + ("" if spread is None else f" ± {spread:,.{decimals}f}")


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def count(n: int, one: str, many: str = "") -> str:
    """'1 client', '8 clients'."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def short(text: str, limit: int = 60) -> str:
    """Long names keep their beginning and their end."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]}…{text[head + 1 - limit :]}"


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts owner2 before owner10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", text)
    return [(0, int(p), "") if p.isdecimal() and len(p) <= 18 else (1, 0, p) for p in parts]


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric of this name is the better one."""
    return any(word in metric.lower() for word in LOWER_IS_BETTER)
