"""The page of the demo: what each trained model does with files it has never seen, beside the curve of its training."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedreel.machine.files import write_atomic
from fedreel.report.charts import Chart, Line, line_chart
from fedreel.report.markup import Html, el, score, short
from fedreel.report.read import read_run
from fedreel.report.shell import document, save

REFRESH = 5  # seconds, while there is more to come
RECORD = "exhibit.json"
IMAGES = {".gif": "image/gif", ".png": "image/png", ".jpg": "image/jpeg"}
STYLE = """
.exhibit { margin-top: 3.2rem; padding-top: 1.6rem; border-top: 1px solid var(--line); }
.exhibit > .lead { max-width: 46rem; color: var(--ink); }
.exhibit > .asked { max-width: 46rem; color: var(--soft); }
.exhibit .halves { display: grid; grid-template-columns: minmax(0, 6fr) minmax(0, 5fr); gap: 1rem; align-items: start; margin-top: 1rem; }
.exhibit > h2::first-letter { text-transform: uppercase; }
@media (max-width: 800px) { .exhibit .halves { grid-template-columns: minmax(0, 1fr); } }
.cards-shown { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: .8rem; list-style: none; margin: 0; padding: 0; }
.cards-shown li.begins { grid-column-start: 1; }
.cards-shown li { background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; min-width: 0; }
.cards-shown li.right { border-color: var(--good); } .cards-shown li.wrong { border-color: var(--bad); }
.cards-shown video, .cards-shown img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #000; image-rendering: pixelated; }
.cards-shown img.drawn { background: #fff; image-rendering: auto; }
.cards-shown p { margin: 0; padding: .45rem .4rem .55rem .5rem; font-size: .8rem; line-height: 1.35; overflow-wrap: break-word; hyphens: auto; }
.cards-shown b { display: block; font-size: .8rem; } .cards-shown .wrong b.verdict { color: var(--bad); } .cards-shown .right b.verdict { color: var(--good); }
.try { margin: 1rem 0 0; } .try pre { margin: .3rem 0 0; padding: .7rem .9rem; background: var(--wash); border-radius: 6px; white-space: pre-wrap; }
.waiting { margin-top: 2rem; }
"""  # noqa: E501


@dataclass(frozen=True)
class Card:
    """A picture that stands in the page or a video that it plays, and what the model made of it."""

    file: str  # in the exhibit's folder: .mp4, .gif, .png or .jpg
    title: str
    text: str = ""
    right: bool | None = None  # whether the model's answer is right; None: there is nothing to be right about
    mark: str = ""  # that in words; '': right or wrong
    begins: bool = False  # whether it stands at the beginning of a row, with those after it that belong to it


@dataclass(frozen=True)
class Exhibit:
    """What a model does with files that it was not trained on. `chance` is what its metric is without any learning,
    `noise` how far above that it may come by luck."""

    asked: str  # what was asked of the model, of which files: a sentence or two
    cards: Sequence[Card]
    command: str  # what a person types to do the same with a file of their own
    chance: float
    chance_is: str  # who reaches it
    noise: float
    page: str = ""  # in the exhibit's folder: the page that the verb wrote

    def save(self, folder: Path) -> None:
        write_atomic(folder / RECORD, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Exhibit:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text())
        return cls(**{**record, "cards": [Card(**card) for card in record["cards"]]})


@dataclass(frozen=True)
class Stand:
    """A system that is done: its run, its exhibit's folder, and what to say of both."""

    title: str
    purpose: str
    metric: str
    measures: str
    run: Path
    folder: Path


def write_exhibition(out: Path, stands: Sequence[Stand], waiting: Sequence[str], *, running: bool) -> Path:
    """Write the page `out`. Links are relative, so the tree can move. While more is to come it loads itself anew."""
    sections = [_section(stand, out.parent) for stand in stands]
    if waiting:
        text = "In training now or next" if running else "Not done yet; run the same command again to go on"
        sections.append(el("p", f"{text}: {', '.join(waiting)}.", class_="waiting empty"))
    top = el("header", el("div", el("p", "fedreel", class_="eyebrow"), el("h1", "fedreel demo"), _lead()))
    style = el("style", Html(STYLE))
    refresh = REFRESH if waiting and running else 0
    body = el("main", sections)
    return save(out, document("fedreel demo", style, top, body, images=True, videos=True, refresh=refresh))


def _lead() -> Html:
    return el(
        "p",
        "Each model below was trained just now by several owners together, whose files stayed where they are. What you"
        " see is what it makes of files that it was not trained on, right or wrong. All files are generated.",
        class_="lead",
    )


def _section(stand: Stand, root: Path) -> Html:
    exhibit = Exhibit.load(stand.folder)
    links: list[object] = [el("a", "Full report", href=_link(stand.run / "report.html", root))]
    if exhibit.page:
        links += [" · ", el("a", "the page that the command writes", href=_link(stand.folder / exhibit.page, root))]
    cards = el(
        "ul",
        [_card(card, stand.folder, root) for card in exhibit.cards],
        class_="cards-shown",
    )
    return el(
        "section",
        el("h2", stand.title),
        el("p", stand.purpose, class_="lead"),
        el("p", exhibit.asked, class_="asked"),
        el("div", cards, el("div", _curve(stand, exhibit)), class_="halves"),
        el("div", "The same with a file of your own:", el("pre", el("code", exhibit.command)), class_="try"),
        el("p", links, class_="hint"),
        class_="exhibit",
    )


def _card(card: Card, folder: Path, root: Path) -> Html:
    file = folder / card.file
    shown = _picture(card, file) if file.suffix.lower() in IMAGES else _video(card, _link(file, root))
    verdict = None if card.right is None else "right" if card.right else "wrong"
    words = [el("b", short(card.title, 80)), el("span", card.text)]
    sign = None if verdict is None else f"{'✓' if card.right else '✗'} {card.mark or verdict}"
    styles = " ".join(filter(None, [verdict, "begins" if card.begins else None]))
    return el("li", shown, el("p", words, el("b", sign, class_="verdict") if sign else None), class_=styles or None)


def _picture(card: Card, file: Path) -> Html:
    kind, content = file.suffix.lower(), base64.b64encode(file.read_bytes()).decode()
    source = f"data:{IMAGES[kind]};base64,{content}"
    return el("img", alt=card.title, src=source, class_="drawn" if kind == ".gif" else None)


def _video(card: Card, link: str) -> Html:
    """There is no room for controls: it leads to the file, which the browser plays alone."""
    playing = {"autoplay": True, "muted": True, "loop": True, "playsinline": True}
    return el("a", el("video", src=link, aria_label=card.title, **playing), href=link)


def _curve(stand: Stand, exhibit: Exhibit) -> list[Html]:
    run = read_run(stand.run)
    rounds = [r for r in sorted(run.test) if stand.metric in run.test[r]["metrics"]]
    values = [float(run.test[r]["metrics"][stand.metric]) for r in rounds]
    if not values:
        return [el("p", "No test was recorded.", class_="empty")]
    ends = sorted({rounds[0], rounds[-1]})
    chance = Line(exhibit.chance_is, ends, [exhibit.chance] * len(ends))
    chart = line_chart(Chart(stand.measures, [Line("the model", rounds, [*values]), chance]))
    return [chart, el("p", _ends(values[-1], exhibit), class_="hint")]


def _ends(last: float, exhibit: Exhibit) -> str:
    both = f"It ends at {score(last)}; {exhibit.chance_is}: {score(exhibit.chance)}."
    if last > exhibit.chance + exhibit.noise:
        return both
    return f"{both} That is no better than luck could make it: this short training did not teach the model enough."


def _link(path: Path, root: Path) -> str:
    return quote(os.path.relpath(path, root).replace(os.sep, "/"))
