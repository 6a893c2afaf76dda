"""The pages of recognised images and videos: one with what it could be, or each one of a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from fedreel.data.shards import spaced
from fedreel.media.images import FORMATS, decode
from fedreel.report.markup import Html, count, el, number, short, table
from fedreel.report.pictures import RANKING, header, jpeg_link, percent, problems, ranking_bars
from fedreel.report.shell import document, section
from fedreel.tasks.use.result import NAMED
from fedreel.tasks.vision.result import Album, FileRecognition

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


def draw_file(recognition: FileRecognition, strip: np.ndarray | None) -> str:
    """The whole page of one file: it opens without a network. `strip` holds the frames (T, side, side, 3) of a video
    that the model saw."""
    name, what = recognition.source.name, "image" if recognition.frames is None else "video"
    often = "" if recognition.frames is None else f"{count(recognition.frames, 'frame')} of "
    side = recognition.side
    below = el("p", el("span", f"the model sees it as {often}{side} x {side} pixels"), class_="below")
    shown = el("figure", _shown(recognition.source, LARGE, strip), below, class_="picture")
    bars = ranking_bars(recognition.ranking, recognition.top)
    ranking = [el("h2", "What it could be"), bars, _about(recognition, what)]
    body = el(
        "main",
        problems(recognition.notes),
        el("div", section(what, f"The {what}", shown), el("section", ranking, id="ranking"), class_="moving"),
    )
    classes = count(len(recognition.ranking), "class", "classes")
    head = header(
        "recognize",
        recognition.label,
        lead=["recognised in ", el("b", name)],
        headline=("confidence", percent(recognition.confidence), f"among {classes}"),
    )
    return _page(f"{short(recognition.label)}: {short(name)}", head, body)


def draw_album(album: Album, strips: Mapping[Path, np.ndarray]) -> str:
    """The whole page of a folder's files, in the order of their paths; `strips` of videos by their files."""
    name = album.source.resolve().name
    cards = [
        el("li", _shown(entry.source, SMALL, few), el("p", _words(entry, album)), _few_bars(entry))
        for entry, few in ((entry, _few(strips.get(entry.source))) for entry in album.entries[:SHOWN])
    ]
    body = el(
        "main",
        problems(album.notes[:NAMED]),
        section(album.what, f"The {album.what}", el("ol", cards, class_="album"), lead=_left_out(len(album.entries))),
        section("labels", "How many of each", _counts(album)),
        section("skipped", "Skipped", _skipped(album), lead=_left_out(len(album.skipped))) if album.skipped else None,
    )
    [(common, times)] = Counter(entry.label for entry in album.entries).most_common(1)
    head = header(
        "recognize",
        name,
        lead=[f"the {album.what} of a folder, by the model ", el("b", album.run.resolve().name)],
        headline=(album.what, number(len(album.entries)), f"most often {common}" if times > 1 else "no label twice"),
    )
    return _page(f"{short(name)}: {album.what}", head, body)


def _page(title: str, head: Html, body: Html) -> str:
    return document(title, el("style", Html(RANKING + STYLE)), head, body, images=True)


def _shown(file: Path, longest: int, strip: np.ndarray | None) -> Html:
    if strip is None:
        return _picture(file, longest)
    frames = [_embedded(frame, f"frame {n} of {len(strip)}") for n, frame in enumerate(strip, 1)]
    return el("div", frames, class_="strip", role="group", aria_label=f"frames of {file.name}")


def _few(strip: np.ndarray | None) -> np.ndarray | None:
    return None if strip is None else strip[spaced(len(strip), min(FRAMES, len(strip)))]


def _picture(file: Path, longest: int) -> Html:
    """The image, made of the same pixels that training would see, in its own proportions."""
    name = file.name
    try:
        with Image.open(file, formats=FORMATS) as image:
            wide, tall = image.size
    except Exception:  # it has changed since it was recognised; decoders meet that with errors of any kind
        return el("div", class_="none", role="img", aria_label=f"no picture of {name}")
    scale = min(1.0, longest / max(wide, tall))
    fitted = (max(1, round(wide * scale)), max(1, round(tall * scale)))
    pixels = decode(file, max(fitted))
    if isinstance(pixels, str):
        return el("div", class_="none", role="img", aria_label=f"no picture of {name}")
    return _embedded(np.asarray(Image.fromarray(pixels).resize(fitted, Image.Resampling.BILINEAR)), name)


def _embedded(pixels: np.ndarray, name: str) -> Html:
    """A picture in the page itself, as JPEG."""
    content = BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=90, subsampling=0)
    return el(
        "img", src=jpeg_link(content.getvalue()), alt=name, class_="coarse" if max(pixels.shape) < COARSE else None
    )


def _few_bars(entry: FileRecognition) -> Html:
    return ranking_bars(entry.ranking, min(entry.top, BARS))


def _about(recognition: FileRecognition, what: str) -> Html:
    rows: list[list[object]] = [["file", recognition.source.name], ["model", recognition.run.resolve().name]]
    rows += [["client", recognition.client]] if recognition.client else []
    return table(["what", "value"], rows, caption=f"The {what}")


def _words(entry: FileRecognition, album: Album) -> str:
    return _below(entry.source, album) + (" (it breaks off)" if entry.fault else "")


def _below(file: Path, album: Album) -> str:
    return file.relative_to(album.source).as_posix()


def _counts(album: Album) -> Html:
    labels = Counter(entry.label for entry in album.entries)
    rows: list[list[object]] = [[label, times] for label, times in labels.most_common()]
    return table(["label", album.what], rows, caption=f"{album.what.capitalize()} of each label", class_="sortable")


def _skipped(album: Album) -> Html:
    rows: list[list[object]] = [[_below(Path(broken.path), album), broken.reason] for broken in album.skipped[:SHOWN]]
    return table(["file", "why"], rows, caption="Skipped files", class_="sortable")


def _left_out(total: int) -> str | None:
    return f"The first {SHOWN} of {total:,}; `--json` writes all of them." if total > SHOWN else None
