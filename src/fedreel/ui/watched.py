"""One run as it happens: its files are read on from where the last look ended; what changed of the page is drawn."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedreel.machine.tail import Record, Tail
from fedreel.report.clients import client_table
from fedreel.report.curves import costs, curves
from fedreel.report.digest import begin
from fedreel.report.exchange import departures, refusals
from fedreel.report.markup import Html, count, duration, el, natural, short
from fedreel.report.overview import tiles
from fedreel.report.page import notes
from fedreel.report.read import read_settings
from fedreel.report.run import Ledger, Run, add_ledger, add_metrics
from fedreel.ui.board import read_now, stamps, time_left
from fedreel.ui.page import styled
from fedreel.ui.streams import pace

MOST_CLIENTS = 400
KINDS = {"train": "training", "evaluate": "testing", "ask": "answering", "secure": "summing securely"}
STATES = ("working", "failed", "done", "waiting")
SECTIONS = {  # of the page of a run under way, in their order
    "now": "Now",
    "curves": "Curves",
    "clients": "Clients",
    "costs": "What each round cost",
    "refused": "What was refused",
    "departures": "What left the clients",
    "notes": "Notes",
}


class Watched:
    """May be asked by several pages at once; it reads and draws for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._start: object = None
        self._begin()

    def _begin(self) -> None:
        self.run = Run(self.folder)
        marks = begin(self.run)
        self.run.ledger = self.run.ledger or Ledger()
        self.now: dict[str, Any] = {}
        self._metrics, self._ledger = (Tail(self.folder / name, mark.at) for name, mark in marks.items())
        self._drawn: dict[str, Html] = {}
        self._seen: object = None
        self._asked: object = None
        self._next = 0.0  # when the parts that take long to draw are drawn again

    def parts(self) -> dict[str, Html]:
        """The parts of the page by name; those that nothing has happened to are not drawn again, and those of long runs
        not often."""
        with self._lock:
            self._refresh()
            seen = (self._metrics.at, self._ledger.at, self.run.complete)
            if seen != self._seen and time.monotonic() >= self._next:
                self._seen = seen
                drawn, wait = pace(lambda: {name: styled(draw(self.run)) for name, draw in _DRAWN.items()})
                self._drawn |= drawn
                self._next = time.monotonic() + wait
            self._drawn["tiles"] = styled(tiles(self.run))
            self._drawn["now"] = styled(_now(self.run, self.now))
            return dict(self._drawn)

    @property
    def state(self) -> str:
        return "complete" if self.run.complete else "running" if self.now else "interrupted"

    def _refresh(self) -> None:
        start = _start(self.folder)
        if start != self._start or self._metrics.cut():  # resumed: what came after the checkpoint was cut off
            self._begin()
            self._start = start
        stamp = stamps(self.folder, ("recipe.toml", "summary.json"))
        if stamp != self._asked:
            asked, self._asked = read_settings(self.folder), stamp
            self.run.recipe, self.run.recipe_text, self.run.summary = asked.recipe, asked.recipe_text, asked.summary
        self.now = {} if self.run.complete else read_now(self.folder)
        self.run.has_metrics = True
        for record in self._metrics.new():
            _safely(add_metrics, self.run, record)
        assert self.run.ledger is not None
        for record in self._ledger.new():
            _safely(add_ledger, self.run.ledger, record)


def _now(run: Run, now: dict[str, Any]) -> Html:
    """Who is at work."""
    if not now:
        text = "The run is complete." if run.complete else "Nobody is working on this run."
        return el("p", text, class_="empty")
    asked = run.recipe.get("round")
    rounds = int(now.get("rounds") or (asked.get("rounds", 0) if isinstance(asked, dict) else 0))
    left = time_left(run, rounds)
    states = {str(name): str(state) for name, state in (now.get("clients") or {}).items()}
    sums = Counter(states.values())
    words = ", ".join(f"{sums[state]} {state}" for state in STATES if sums[state])
    what = KINDS.get(str(now.get("kind")), "")
    said = [
        el("strong", f"Round {now.get('round', 0)} of {rounds}"),
        f", {what}" if what else None,
        f", about {duration(round(left))} left" if left is not None else None,
        f". {count(len(states), 'client')}: {words}." if states else None,
    ]
    order = sorted(
        states, key=lambda name: (STATES.index(states[name]) if states[name] in STATES else 9, natural(name))
    )
    shown = [
        el("li", short(name, 24), el("span", states[name], class_="unseen"), class_=states[name], title=name)
        for name in sorted(order[:MOST_CLIENTS], key=natural)
    ]
    more = len(order) - len(shown)
    return el(
        "div",
        el("p", said),
        el("ul", shown, class_="at-work", aria_label="Clients of this round") if shown else None,
        el("p", f"{more} more clients are not shown.", class_="hint") if more > 0 else None,
    )


_DRAWN: dict[str, Callable[[Run], Html]] = {
    "curves": curves,
    "clients": client_table,
    "costs": costs,
    "refused": refusals,
    "departures": departures,
    "notes": notes,
}


def _start(folder: Path) -> object:
    """How often the run has begun."""
    try:
        return json.loads((folder / "run.json").read_bytes()).get("start")
    except (OSError, ValueError, AttributeError):
        return None


def _safely(add: Callable[[Any, Record], None], to: object, record: Record) -> None:
    try:
        add(to, record)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return  # the report names such lines
