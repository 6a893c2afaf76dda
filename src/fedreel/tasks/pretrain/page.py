"""The page of a search by example: the clip, and the videos most like it with three pictures of each, to be played."""

from __future__ import annotations

import base64
import os
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.data.shards import spaced
from fedreel.errors import DataError
from fedreel.media.excerpts import chosen, shape
from fedreel.media.video import rgb
from fedreel.report.markup import Html, count, duration, el, quantity, short, table
from fedreel.report.shell import document, section
from fedreel.tasks.summary.page import STYLE as BOARD
from fedreel.tasks.summary.page import image, jpeg, relative

if TYPE_CHECKING:
    from fedreel.tasks.pretrain.search import Hit, Similar

WIDE, HIGH = 240, 180  # a picture fits into this
PICTURES = 3
MOST = 200  # skipped files that the page lists
STYLE = """
.board video { display: block; width: 100%; aspect-ratio: 16 / 9; object-fit: contain; background: #000; }
.board img { aspect-ratio: auto; max-height: 5rem; } .board + .scroll { margin-top: 1rem; }
.board .at { overflow-wrap: anywhere; }
.board small { flex-wrap: wrap; overflow-wrap: anywhere; }
.rank { float: right; color: var(--soft); font-weight: 400; margin-left: .6rem; }
.asked { max-width: 22rem; }
"""


def draw_page(made: Similar, folder: Path) -> str:
    """The whole page, for a file in `folder`. It holds its pictures; videos are played from where they lie."""
    notes = [el("li", text) for text in made.notes]
    body = el(
        "main",
        el("ul", notes, class_="problems") if notes else None,
        section("clip", "The clip", el("ol", _asked(made, folder), class_="board asked")),
        section("hits", "The most similar", _board(made, folder), _listed(made, folder), lead=_lead(made)),
        section("skipped", "Skipped", _skipped(made), lead="These files cannot be read.") if made.skipped else None,
    )
    title = f"{short(made.clip.name)}: search"
    return document(title, el("style", Html(BOARD + STYLE)), _header(made), body, images=True, videos=True)


def pictures(video: Path) -> list[np.ndarray]:
    """Small pictures of the same size, evenly spaced over a video; none of one that cannot be read."""
    scaler = VideoReformatter()
    sizes: list[tuple[int, int]] = []

    def small(frame: Any, pixel: Fraction) -> np.ndarray:
        tall, wide = shape(frame, pixel)
        scale = min(WIDE / wide, HIGH / tall)
        sizes.append((max(round(tall * scale / 2) * 2, 2), max(round(wide * scale / 2) * 2, 2)))
        return rgb(frame, sizes[0], scaler)  # the first one's, should the video change its size

    try:
        found, line = chosen(video, lambda n: spaced(n, PICTURES), small)
    except DataError:  # it has changed since it was looked at
        return []
    return [found[number] for number in spaced(line.n_frames, PICTURES).tolist()]


def _header(made: Similar) -> Html:
    facts = [
        ("folder", short(str(made.folder), 100)),
        ("videos", f"{made.videos:,}"),
        ("model", made.run.resolve().name + (f", {made.client}" if made.client else "")),
        ("pooling", made.pooling),
    ]
    title = el(
        "div",
        el("p", "fedreel search", class_="eyebrow"),
        el("h1", made.clip.name),
        el("dl", [el("div", el("dt", name), el("dd", text)) for name, text in facts], class_="facts"),
    )
    if not made.hits:
        return el("header", title)
    best = made.hits[0]
    headline = el(
        "div",
        el("p", "most similar", class_="name"),
        el("p", _cosine(best), class_="value"),
        el("p", short(best.path), class_="hint"),
        class_="headline",
    )
    return el("header", title, headline)


def _lead(made: Similar) -> str:
    return (
        f"{len(made.hits):,} of {count(made.videos, 'video')}, the most similar first. Similarity is the cosine of two "
        "videos' vectors, at most 1. It orders the videos; which value is a high one depends on the model."
    )


def _asked(made: Similar, folder: Path) -> Html:
    words = el("p", el("span", made.clip.name, class_="at"))
    return el("li", _played(made.clip, made.clip.name, folder), words)


def _board(made: Similar, folder: Path) -> Html:
    cards = []
    for hit in made.hits:
        video = made.folder / hit.path
        facts = [el("span", text) for text in (f"similarity {_cosine(hit)}", hit.label, hit.owner) if text]
        words = el(
            "p",
            el("span", hit.rank, class_="rank"),
            el("a", el("span", hit.path, class_="at"), href=_link(video, folder)),
            el("small", facts),
        )
        cards.append(el("li", _played(video, hit.path, folder), words))
    return el("ol", cards, class_="board")


def _played(video: Path, name: str, folder: Path) -> list[Html]:
    """The video behind its middle picture, and below it the strip of all its pictures."""
    small = pictures(video)
    poster = f"data:image/jpeg;base64,{base64.b64encode(jpeg(small[len(small) // 2])).decode()}" if small else None
    player = el(
        "video",
        src=_link(video, folder),
        poster=poster,
        controls=True,
        preload="none",
        playsinline=True,
        aria_label=name,
    )
    strip = jpeg(np.ascontiguousarray(np.concatenate(small, axis=1))) if small else None
    return [player, *([image(strip, f"{name}: beginning, middle and end")] if strip else [])]


def _listed(made: Similar, folder: Path) -> Html | None:
    if not made.hits:
        return None
    told = [name for name in ("label", "owner") if any(getattr(hit, name) for hit in made.hits)]
    rows: list[list[object]] = [
        [
            str(hit.rank),
            quantity(hit.similarity, _cosine(hit)),
            el("a", hit.path, href=_link(made.folder / hit.path, folder)),
            *(getattr(hit, name) for name in told),
            quantity(hit.seconds, duration(hit.seconds)),
        ]
        for hit in made.hits
    ]
    head: list[object] = ["rank", "similarity", "video", *told, "length"]
    return table(head, rows, caption="The most similar videos", class_="sortable")


def _skipped(made: Similar) -> Html:
    rows: list[list[object]] = [[broken.path, broken.reason] for broken in made.skipped[:MOST]]
    hidden = len(made.skipped) - len(rows)
    more = el("p", f"{hidden:,} more are left out; `--json` writes all of them.", class_="hint") if hidden else None
    return el("div", table(["file", "why"], rows, caption="Skipped files", class_="sortable"), more)


def _link(video: Path, folder: Path) -> str:
    """Names may be of any bytes, and hold characters that mean something in an address."""
    return quote(os.fsencode(relative(video, folder)))


def _cosine(hit: Hit) -> str:
    return f"{hit.similarity:.4f}"  # neighbours are often close
