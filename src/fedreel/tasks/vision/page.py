"""The pages of recognised images and videos: one with what it could be, or each one of a folder."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fedreel.data.shards import spaced
from fedreel.media.images import FORMATS, decode
from fedreel.report.markup import Html, count, el, number, short, table
from fedreel.report.shell import document, section
from fedreel.tasks.skeleton.page import STYLE as RANKING
from fedreel.tasks.skeleton.page import percent
from fedreel.tasks.use.classes import Ranking

if TYPE_CHECKING:
    from fedreel.tasks.vision.recognize import Album, FileRecognition

LARGE, SMALL = 640, 240  # pixels of the longer side of a picture, alone and among others
COARSE = 100  # smaller images are enlarged without making them smooth
SHOWN = 200  # files of a folder, and skipped ones, that the page has room for
FRAMES = 8  # of each video of a folder
BARS = 3  # classes below each file of a folder
STYLE = """
.picture img { display: block; width: 100%; max-height: 62vh; object-fit: contain; }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 7rem), 1fr)); gap: .3rem; }
.strip img, .album .strip img { display: block; width: 100%; height: auto; }
.album .strip { grid-template-columns: repeat(4, 1fr); gap: 2px; background: var(--wash); }
.coarse { image-rendering: pixelated; }
.album { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14rem), 1fr)); gap: 1rem; list-style: none; margin: 0; padding: 0; }
.album > li { display: flex; flex-direction: column; min-width: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; break-inside: avoid; }
.album img, .album .none { display: block; width: 100%; height: 10rem; object-fit: contain; background: var(--wash); }
.album p { margin: 0; padding: .6rem .9rem .5rem; color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
.album .ranking { margin: 0; padding: 0 .9rem .3rem; font-size: .9rem; }
"""  # noqa: E501


def draw_file(made: FileRecognition, top: int, strip: np.ndarray | None) -> str:
    """The whole page of one file: it opens without a network. `strip` holds the frames (T, side, side, 3) of a video
    that the model saw."""
    name, what = Path(made.file).name, "image" if made.frames is None else "video"
    often = "" if made.frames is None else f"{count(made.frames, 'frame')} of "
    below = el("p", el("span", f"the model sees it as {often}{made.side} x {made.side} pixels"), class_="below")
    shown = el("figure", _shown(made.file, LARGE, strip), below, class_="picture")
    ranking = [el("h2", "What it could be"), _bars(made.ranking, top), _about(made, what)]
    fault = el("li", f"{made.fault}; only what comes before was looked at")
    body = el(
        "main",
        el("ul", fault, class_="problems") if made.fault else None,
        el("div", section(what, f"The {what}", shown), el("section", ranking, id="ranking"), class_="moving"),
    )
    header = _header(
        made.label,
        ["recognised in ", el("b", name)],
        ("confidence", percent(made.confidence), f"among {count(len(made.ranking), 'class', 'classes')}"),
    )
    return _page(f"{short(made.label)}: {short(name)}", header, body)


def draw_album(made: Album, top: int, strips: Mapping[str, np.ndarray]) -> str:
    """The whole page of a folder's files, in the order of their paths; `strips` of videos by their files."""
    name = Path(made.folder).resolve().name
    cards = [
        el("li", _shown(one.file, SMALL, few), el("p", _words(one, made)), _bars(one.ranking, min(top, BARS)))
        for one, few in ((one, _few(strips.get(one.file))) for one in made.files[:SHOWN])
    ]
    body = el(
        "main",
        section(made.what, f"The {made.what}", el("ol", cards, class_="album"), lead=_left_out(len(made.files))),
        section("labels", "How many of each", _counts(made)),
        section("skipped", "Skipped", _skipped(made), lead=_left_out(len(made.skipped))) if made.skipped else None,
    )
    common = Counter(one.label for one in made.files).most_common(1)[0][0]
    said = [f"the {made.what} of a folder, by the model ", el("b", made.run.resolve().name)]
    headline = (made.what, number(len(made.files)), f"most often {common}")
    return _page(f"{short(name)}: {made.what}", _header(name, said, headline), body)


def _page(title: str, header: Html, body: Html) -> str:
    return document(title, el("style", Html(RANKING + STYLE)), header, body, images=True)


def _header(title: str, lead: Sequence[object], headline: tuple[str, str, str]) -> Html:
    name, value, hint = headline
    left = [el("p", "fedreel recognize", class_="eyebrow"), el("h1", title), el("p", lead, class_="lead")]
    right = [el("p", name, class_="name"), el("p", value, class_="value"), el("p", hint, class_="hint")]
    return el("header", el("div", left), el("div", right, class_="headline"))


def _shown(file: str, longest: int, strip: np.ndarray | None) -> Html:
    if strip is None:
        return _picture(file, longest)
    frames = [_embedded(frame, f"frame {n} of {len(strip)}") for n, frame in enumerate(strip, 1)]
    return el("div", frames, class_="strip", role="group", aria_label=f"frames of {Path(file).name}")


def _few(strip: np.ndarray | None) -> np.ndarray | None:
    return None if strip is None else strip[spaced(len(strip), min(FRAMES, len(strip)))]


def _picture(file: str, longest: int) -> Html:
    """The image, made of the same pixels that training would see, in its own proportions."""
    name = Path(file).name
    try:
        with Image.open(file, formats=FORMATS) as image:
            wide, tall = image.size
    except Exception:  # it has changed since it was recognised; decoders meet that with errors of any kind
        return el("div", class_="none", role="img", aria_label=f"no picture of {name}")
    scale = min(1.0, longest / max(wide, tall))
    fitted = (max(1, round(wide * scale)), max(1, round(tall * scale)))
    pixels = decode(Path(file), max(fitted))
    if isinstance(pixels, str):
        return el("div", class_="none", role="img", aria_label=f"no picture of {name}")
    return _embedded(np.asarray(Image.fromarray(pixels).resize(fitted, Image.Resampling.BILINEAR)), name)


def _embedded(pixels: np.ndarray, name: str) -> Html:
    """A picture in the page itself, as JPEG."""
    content = BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=90, subsampling=0)
    source = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
    return el("img", src=source, alt=name, class_="coarse" if max(pixels.shape) < COARSE else None)


def _bars(ranking: Ranking, top: int) -> Html:
    """The likeliest classes with a bar each, and what is left for all others."""
    rows = [
        el("li", el("span", label), el("b", percent(share, 1)), el("div", el("i", style=f"width:{share:.1%}")))
        for label, share in ranking[:top]
    ]
    rest = ranking[top:]
    words = [f"{len(rest)} more", percent(sum(share for _, share in rest), 1)]
    more = el("li", el("span", words[0], class_="hint"), el("b", words[1], class_="hint"))
    return el("ol", rows, more if rest else None, class_="ranking")


def _about(made: FileRecognition, what: str) -> Html:
    rows: list[list[object]] = [["file", Path(made.file).name], ["model", made.run.resolve().name]]
    rows += [["client", made.client]] if made.client else []
    return table(["what", "value"], rows, caption=f"The {what}")


def _words(one: FileRecognition, made: Album) -> str:
    return _below(one.file, made) + (" (it breaks off)" if one.fault else "")


def _below(file: str, made: Album) -> str:
    return Path(file).relative_to(made.folder).as_posix()


def _counts(made: Album) -> Html:
    found = Counter(one.label for one in made.files)
    rows: list[list[object]] = [[label, times] for label, times in found.most_common()]
    return table(["label", made.what], rows, caption=f"{made.what.capitalize()} of each label", class_="sortable")


def _skipped(made: Album) -> Html:
    rows: list[list[object]] = [[_below(broken.path, made), broken.reason] for broken in made.skipped[:SHOWN]]
    return table(["file", "why"], rows, caption="Skipped files", class_="sortable")


def _left_out(total: int) -> str | None:
    return f"The first {SHOWN} of {total:,}; `--json` writes all of them." if total > SHOWN else None
