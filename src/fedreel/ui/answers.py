"""Answers as pages: a player, and what was found beside it, to be clicked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedreel.machine.words import clock
from fedreel.report.markup import Html, el, quantity, short, table
from fedreel.report.shell import section
from fedreel.ui.data_page import draw_check
from fedreel.ui.files import PLAYED, address_of
from fedreel.ui.page import styled
from fedreel.ui.places import Places
from fedreel.ui.workshop import Ask

PLAYER = "player"
FILES = {"summary.mp4": "the summary (mp4)", "page.html": "a page to keep (HTML)", "result.json": "all numbers (JSON)"}


def draw_answer(one: Ask, places: Places) -> Html:
    notes = one.answer.get("notes", [])
    remarks = el("ul", [el("li", note) for note in notes], class_="problems") if notes else None
    return styled(el("div", remarks, _DRAWN[one.kind](one, places), _downloads(one, places)))


def _summary(one: Ask, places: Places) -> Html:
    """The summary plays; chosen shots lead to their place in it, others to theirs in the video."""
    found, source = one.answer["found"], one.shown["source"]
    summary, whole = address_of("results", f"{one.id}/summary.mp4"), _played(source)
    items, at = [], 0.0
    for number, shot in enumerate(found["shots"]):
        text = f"{clock(shot['start'])} – {clock(shot['end'])}"
        place = (summary, at) if shot["chosen"] else (whole, shot["start"]) if whole else None
        said = "in the summary" if shot["chosen"] else "left out"
        items.append(_moment(one, places, number, text, f"score {shot['score']:.3f}, {said}", place, shot["chosen"]))
        at += shot["end"] - shot["start"] if shot["chosen"] else 0.0
    chosen = [item for item, shot in zip(items, found["shots"]) if shot["chosen"]]
    others = [item for item, shot in zip(items, found["shots"]) if not shot["chosen"]]
    more = el("details", el("summary", f"{len(others)} shots that are left out"), _list(others)) if others else None
    return el("div", _player(summary), section("shots", "Its shots", _list(chosen), more, lead=one.answer["lines"][0]))


def _finding(one: Ask, places: Places) -> Html:
    found, whole = one.answer["found"], _played(one.shown["source"])
    items = []
    for number, (moment, clip) in enumerate(zip(found["moments"], one.answer["clips"])):
        place = (whole, moment["start"]) if whole else (address_of("results", f"{one.id}/moments/{clip}"), 0.0)
        text = f"{clock(moment['start'])} – {clock(moment['end'])}"
        keep = el("a", "download", href=address_of("results", f"{one.id}/moments/{clip}", True))
        likely = found.get("scale") != "likeness"
        said = f"{100 * moment['score']:.1f} %" if likely else f"likeness {moment['score']:.2f}"
        items.append(_moment(one, places, number, text, said, place, number == 0, keep))
    first = whole or (address_of("results", f"{one.id}/moments/{one.answer['clips'][0]}") if items else "")
    none = el("p", "Nothing was found.", class_="empty") if not items else None
    return el("div", _player(first) if first else None, section("moments", "When it happens", none, _list(items)))


def _similar(one: Ask, places: Places) -> Html:
    found, root = one.answer["found"], one.options["root"]
    items = []
    for number, hit in enumerate(found["hits"]):
        name = f"{root}/{hit['path']}"
        whole = _played(name)
        said = ", ".join(filter(None, [f"similarity {hit['similarity']:.3f}", hit["label"], hit["owner"]]))
        place = (whole, 0.0) if whole else None
        items.append(_moment(one, places, number, short(hit["path"], 60), said, place, False))
    first = next((_played(f"{root}/{hit['path']}") for hit in found["hits"] if _played(f"{root}/{hit['path']}")), "")
    lead = f"{found['videos']} videos were compared."
    return el("div", _player(first) if first else None, section("hits", "Most alike", _list(items), lead=lead))


def _recognition(one: Ask, places: Places) -> Html:
    found, whole = one.answer["found"], _played(one.shown["source"])
    shown = found["ranking"][: one.options["top"]]
    rows: list[list[object]] = [
        [each["label"], quantity(each["probability"], f"{100 * each['probability']:.1f} %", style=_bar(each))]
        for each in shown
    ]
    listed = table(["it shows", "probability"], rows, caption="What it shows")
    return el("div", _player(whole) if whole else None, section("classes", found["label"], listed))


def _bar(each: dict[str, Any]) -> str:
    return f"--share:{each['probability']:.0%}"


def _player(source: str) -> Html:
    return el("video", src=source, id=PLAYER, controls=True, preload="metadata", playsinline=True, class_="player")


def _played(source: str) -> str:
    """Where a browser can play this file; '' if it cannot."""
    root, _, name = source.partition("/")
    return address_of(root, name) if Path(name).suffix.lower() in PLAYED else ""


def _moment(
    one: Ask,
    places: Places,
    number: int,
    title: str,
    text: str,
    place: tuple[str, float] | None,
    chosen: bool,
    keep: Html | None = None,
) -> Html:
    """A picture that plays its moment when it is clicked."""
    there = (places.results / one.id / f"picture-{number}.jpg").exists()
    source = address_of("results", f"{one.id}/picture-{number}.jpg")
    picture = el("img", src=source, alt="", loading="lazy") if there else None
    words = el("span", el("b", title), " ", text)
    if place is None:
        return el("li", picture, words)
    act = el(
        "button",
        picture,
        words,
        type="button",
        data_seek=f"{place[1]:.3f}",
        data_src=place[0],
        data_player=PLAYER,
        class_="chosen" if chosen else None,
    )
    return el("li", act, keep)


def _list(items: list[Html]) -> Html:
    return el("ul", items, class_="moments")


def _downloads(one: Ask, places: Places) -> Html | None:
    there = [name for name in FILES if (places.results / one.id / name).is_file()]
    if not there:
        return None
    links = [el("a", FILES[name], href=address_of("results", f"{one.id}/{name}", True)) for name in there]
    return el("p", "Download: ", [[link, " · "] for link in links[:-1]], links[-1], class_="bar")


_DRAWN: dict[str, Callable[[Ask, Places], Html]] = {
    "summarize": _summary,
    "find": _finding,
    "search": _similar,
    "recognize": _recognition,
    "check": draw_check,
}
