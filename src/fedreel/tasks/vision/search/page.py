"""The page of a search by example: the clip, and the videos most like it with three pictures of each, to be played."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.data.shards import spaced
from fedreel.errors import DataError
from fedreel.media.excerpts import chosen
from fedreel.media.thumbnails import fitted, jpeg
from fedreel.media.video import rgb, shape
from fedreel.report.markup import Html, count, duration, el, quantity, short, table
from fedreel.report.pictures import BOARD, header, image, jpeg_link, problems, relative_link
from fedreel.report.shell import document, section
from fedreel.tasks.vision.search.result import Hit, Similar

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


def draw_page(similar: Similar, folder: Path) -> str:
    """The whole page, for a file in `folder`. It holds its pictures; videos are played from where they lie."""
    clip = None if similar.sentence else el("ol", _asked(similar, folder), class_="board asked")
    body = el(
        "main",
        problems(similar.notes),
        section("clip", "The clip", clip) if clip else None,
        section("hits", "The most similar", _board(similar, folder), _listed(similar, folder), lead=_lead(similar)),
        _skipped(similar) if similar.skipped else None,
    )
    title = f"{short(_name(similar))}: search"
    return document(title, el("style", Html(BOARD + STYLE)), _header(similar), body, images=True, videos=True)


def pictures(video: Path) -> list[np.ndarray]:
    """Small pictures of the same size, evenly spaced over a video; none of one that cannot be read."""
    scaler = VideoReformatter()
    sizes: list[tuple[int, int]] = []

    def small(frame: Any, pixel: Fraction) -> np.ndarray:
        sizes.append(fitted(shape(frame, pixel), WIDE, HIGH))
        return rgb(frame, sizes[0], scaler)  # the first one's, should the video change its size

    try:
        frames, line = chosen(video, lambda n: spaced(n, PICTURES), small)
    except DataError:  # it has changed since it was looked at
        return []
    return [frames[number] for number in spaced(line.n_frames, PICTURES).tolist()]


def _header(similar: Similar) -> Html:
    facts = [
        ("folder", short(str(similar.folder), 100)),
        ("videos", f"{similar.videos:,}"),
        ("model", similar.run.resolve().name + (f", {similar.client}" if similar.client else "")),
        ("pooling", similar.pooling),
    ]
    best = similar.hits[0] if similar.hits else None
    headline = ("most similar", _cosine(best), short(best.path)) if best else None
    return header("search", _name(similar), facts=facts, headline=headline)


def _name(similar: Similar) -> str:
    return similar.sentence or similar.source.name


def _lead(similar: Similar) -> str:
    return (
        f"{len(similar.hits):,} of {count(similar.videos, 'video')}, the most similar first. Similarity is the cosine "
        "of two vectors, at most 1. It orders the videos; which value is a high one depends on the model."
    )


def _asked(similar: Similar, folder: Path) -> Html:
    words = el("p", el("span", similar.source.name, class_="at"))
    return el("li", _played(similar.source, similar.source.name, folder), words)


def _board(similar: Similar, folder: Path) -> Html:
    cards = []
    for hit in similar.hits:
        video = similar.folder / hit.path
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
    poster = jpeg_link(jpeg(small[len(small) // 2])) if small else None
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


def _listed(similar: Similar, folder: Path) -> Html | None:
    if not similar.hits:
        return None
    told = [name for name in ("label", "owner") if any(getattr(hit, name) for hit in similar.hits)]
    rows: list[list[object]] = [
        [
            str(hit.rank),
            quantity(hit.similarity, _cosine(hit)),
            el("a", hit.path, href=_link(similar.folder / hit.path, folder)),
            *(getattr(hit, name) for name in told),
            quantity(hit.seconds, duration(hit.seconds)),
        ]
        for hit in similar.hits
    ]
    head: list[object] = ["rank", "similarity", "video", *told, "length"]
    return table(head, rows, caption="The most similar videos", class_="sortable")


def _skipped(similar: Similar) -> Html:
    rows: list[list[object]] = [[broken.path, broken.reason] for broken in similar.skipped[:MOST]]
    hidden = len(similar.skipped) - len(rows)
    more = el("p", f"{hidden:,} more are left out; `--json` writes all of them.", class_="hint") if hidden else None
    listed = table(["file", "why"], rows, caption="Skipped files", class_="sortable")
    return section("skipped", "Skipped", el("div", listed, more), lead="These files cannot be read.")


def _link(video: Path, folder: Path) -> str:
    """Names may be of any bytes, and hold characters that mean something in an address."""
    return quote(os.fsencode(relative_link(video, folder)))


def _cosine(hit: Hit) -> str:
    return f"{hit.similarity:.4f}"  # neighbours are often close
