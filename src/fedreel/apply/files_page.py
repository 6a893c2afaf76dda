"""The pages of recognised images: one image with what it could be, or a folder's, each with its likeliest classes."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ..data.pictures import FORMATS, _decode
from ..report.markup import Html, count, el, number, short, table
from ..report.shell import document, section
from .answers import Ranking
from .skeleton_page import STYLE as RANKING
from .skeleton_page import percent

if TYPE_CHECKING:
    from .recognize_image import Album, ImageRecognition

LARGE, SMALL = 640, 240  # pixels of the longer side of a picture, alone and among others
COARSE = 100  # smaller images are enlarged without making them smooth
SHOWN = 200  # images and skipped files of a folder that the page has room for
BARS = 3  # classes below each image of a folder
STYLE = """
.picture img { display: block; width: 100%; max-height: 62vh; object-fit: contain; }
.coarse { image-rendering: pixelated; }
.album { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14rem), 1fr)); gap: 1rem; list-style: none; margin: 0; padding: 0; }
.album > li { display: flex; flex-direction: column; min-width: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; break-inside: avoid; }
.album img, .album .none { display: block; width: 100%; height: 10rem; object-fit: contain; background: var(--wash); }
.album p { margin: 0; padding: .6rem .9rem .5rem; color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
.album .ranking { margin: 0; padding: 0 .9rem .3rem; font-size: .9rem; }
"""  # noqa: E501


def draw_image(made: ImageRecognition, top: int) -> str:
    """The whole page of one image: one file that opens without a network."""
    name = Path(made.file).name
    below = el("p", el("span", f"the model sees it as {made.side} x {made.side} pixels"), class_="below")
    shown = el("figure", _picture(made.file, LARGE), below, class_="picture")
    ranking = [el("h2", "What it could be"), _bars(made.ranking, top), _about(made)]
    body = el(
        "main",
        el("div", section("image", "The image", shown), el("section", ranking, id="ranking"), class_="moving"),
    )
    header = _header(
        made.label,
        ["recognised in ", el("b", name)],
        ("confidence", percent(made.confidence), f"among {count(len(made.ranking), 'class', 'classes')}"),
    )
    return _page(f"{short(made.label)}: {short(name)}", header, body)


def draw_album(made: Album, top: int) -> str:
    """The whole page of a folder's images, in the order of their paths."""
    name = Path(made.folder).resolve().name
    shown = made.images[:SHOWN]
    cards = [
        el("li", _picture(image.file, SMALL), el("p", _below(image.file, made)), _bars(image.ranking, min(top, BARS)))
        for image in shown
    ]
    body = el(
        "main",
        section("images", "The images", el("ol", cards, class_="album"), lead=_left_out(len(made.images))),
        section("labels", "How many of each", _counts(made)),
        section("skipped", "Skipped", _skipped(made), lead=_left_out(len(made.skipped))) if made.skipped else None,
    )
    common = Counter(image.label for image in made.images).most_common(1)[0][0]
    said = ["the images of a folder, by the model ", el("b", made.run.resolve().name)]
    headline = ("images", number(len(made.images)), f"most often {common}")
    return _page(f"{short(name)}: images", _header(name, said, headline), body)


def _page(title: str, header: Html, body: Html) -> str:
    return document(title, el("style", Html(RANKING + STYLE)), header, body, images=True)


def _header(title: str, lead: Sequence[object], headline: tuple[str, str, str]) -> Html:
    name, value, hint = headline
    left = [el("p", "fedreel recognize", class_="eyebrow"), el("h1", title), el("p", lead, class_="lead")]
    right = [el("p", name, class_="name"), el("p", value, class_="value"), el("p", hint, class_="hint")]
    return el("header", el("div", left), el("div", right, class_="headline"))


def _picture(file: str, longest: int) -> Html:
    """The image as an embedded JPEG, made of the same pixels that training would see, in its own proportions."""
    name = Path(file).name
    try:
        with Image.open(file, formats=FORMATS) as image:
            wide, tall = image.size
    except Exception:  # it has changed since it was recognised; decoders meet that with errors of any kind
        return el("div", class_="none", role="img", aria_label=f"no picture of {name}")
    scale = min(1.0, longest / max(wide, tall))
    fitted = (max(1, round(wide * scale)), max(1, round(tall * scale)))
    pixels = _decode(Path(file), max(fitted))
    if isinstance(pixels, str):
        return el("div", class_="none", role="img", aria_label=f"no picture of {name}")
    content = BytesIO()
    Image.fromarray(pixels).resize(fitted, Image.Resampling.BILINEAR).save(content, "JPEG", quality=90, subsampling=0)
    source = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
    return el("img", src=source, alt=name, class_="coarse" if max(wide, tall) < COARSE else None)


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


def _about(made: ImageRecognition) -> Html:
    rows: list[list[object]] = [["file", Path(made.file).name], ["model", made.run.resolve().name]]
    rows += [["client", made.client]] if made.client else []
    return table(["what", "value"], rows, caption="The image")


def _below(file: str, made: Album) -> str:
    return Path(file).relative_to(made.folder).as_posix()


def _counts(made: Album) -> Html:
    found = Counter(image.label for image in made.images)
    rows: list[list[object]] = [[label, times] for label, times in found.most_common()]
    return table(["label", "images"], rows, caption="Images of each label", class_="sortable")


def _skipped(made: Album) -> Html:
    rows: list[list[object]] = [[_below(broken.path, made), broken.reason] for broken in made.skipped[:SHOWN]]
    return table(["file", "why"], rows, caption="Skipped files", class_="sortable")


def _left_out(total: int) -> str | None:
    return f"The first {SHOWN} of {total:,}; `--json` writes all of them." if total > SHOWN else None
