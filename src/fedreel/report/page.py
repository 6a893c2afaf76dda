"""The report of one run, built from its directory alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fedreel.report.clients import client_table, participation, partition
from fedreel.report.curves import costs, curves
from fedreel.report.exchange import departures, refusals
from fedreel.report.markup import Html, el, escape, join, short, table
from fedreel.report.overview import header, problems, tiles
from fedreel.report.phases import steps
from fedreel.report.privacy import privacy
from fedreel.report.read import read_run
from fedreel.report.run import Run
from fedreel.report.shell import document, save, section
from fedreel.report.trust import trust
from fedreel.report.verdict import verdicts

MOST_ROWS, MOST_RECIPE = 200, 100_000


def write(folder: Path) -> Path:
    """Build report.html in a run's folder. Works at any moment of a run: what is missing is said in the page."""
    return save(Path(folder) / "report.html", draw(read_run(Path(folder))))


def draw(run: Run) -> str:
    """The page."""
    hover = "Hover, or focus and use the arrow keys, for values." if run.train or run.test else None
    sections = [
        ("curves", "Curves", curves(run), hover),
        ("steps", "The steps of a round", steps(run), None),
        ("trust", "How far to trust it", trust(run), None),
        ("privacy", "What it gives away", privacy(run), None),
        (
            "clients",
            "Clients",
            [client_table(run), participation(run)],
            "Click a heading to sort." if run.clients else None,
        ),
        ("partition", "How the data are divided", partition(run), None),
        ("costs", "What each round cost", costs(run), None),
        ("refused", "What was refused", refusals(run), None),
        ("departures", "What left the clients", departures(run), None),
        ("notes", "Notes", notes(run), None),
        ("others", "Other records", _others(run), None),
        ("recipe", "Recipe", _recipe(run), None),
    ]
    shown = [part for part in sections if part[2] is not None]
    nav = el("nav", [el("a", title, href=f"#{anchor}") for anchor, title, _, _ in shown], aria_label="Sections")
    body = el(
        "main",
        problems(run),
        verdicts(run),
        tiles(run),
        [section(anchor, title, content, lead=lead) for anchor, title, content, lead in shown],
    )
    name = run.label("system") or "run"
    title = f"{short(name)}, seed {run.label('seed') or '?'}: fedreel report"
    return document(title, header(run), nav, body, version=str(run.summary.get("fedreel") or ""))


def notes(run: Run) -> Html:
    if not run.notes:
        return el("p", "No notes were written.", class_="empty")
    shown = run.notes[:MOST_ROWS]
    items = [el("li", el("span", f"round {n['round']}", class_="round"), short(n["text"], 2000)) for n in shown]
    hidden = run.notes.seen - MOST_ROWS
    more = el("p", f"{hidden} more notes are in metrics.jsonl.", class_="hint") if hidden > 0 else None
    return el("div", el("ul", items, class_="notes"), more)


def _others(run: Run) -> Html | None:
    """Records of phases this page does not know, as they are."""
    if not run.others:
        return None
    rows: list[list[object]] = []
    for record in run.others[:MOST_ROWS]:
        rest = {key: value for key, value in record.items() if key not in ("round", "phase")}
        rows.append(
            [
                str(record["round"]),
                short(record["phase"]),
                el("code", short(json.dumps(rest, ensure_ascii=False), 400)),
            ]
        )
    hidden = run.others.seen - len(rows)
    more = el("p", f"{hidden} more records are in metrics.jsonl.", class_="hint") if hidden else None
    listed = table(["round", "phase", "content"], rows, caption="Records of other phases", class_="sortable")
    return el("div", listed, more)


def _recipe(run: Run) -> Html:
    if not run.recipe_text:
        return el("p", "recipe.toml is missing.", class_="empty")
    lines = run.recipe_text[:MOST_RECIPE].splitlines()
    cut = el("p", "The recipe is cut off here; recipe.toml has all of it.", class_="hint")
    shown = el("pre", el("code", Html("\n".join(map(_coloured, lines)))), tabindex=0)
    return el("div", shown, cut if len(run.recipe_text) > MOST_RECIPE else None)


def _coloured(line: str) -> str:
    """One line of TOML: section names, keys and comments told apart."""
    if line.startswith("#"):
        return el("i", line)
    if re.fullmatch(r"\[.*\]\s*", line):
        return el("b", line)
    key = re.match(r"""[\w."'-]+(?=\s*=)""", line)
    return join([el("span", key.group()), line[key.end() :]]) if key else escape(line)
