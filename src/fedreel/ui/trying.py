"""Try it: a video, something to do with it, and the answer as it plays in the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedreel import zoo
from fedreel.errors import DataError, FedreelError
from fedreel.report.markup import Html, el, short
from fedreel.systems import find_system
from fedreel.ui.answers import draw_answer
from fedreel.ui.files import PLAYED, address_of, videos_of
from fedreel.ui.new import read_form
from fedreel.ui.page import address, button, page, told
from fedreel.ui.places import Places
from fedreel.ui.streams import stream
from fedreel.ui.workshop import Ask

VERBS = {  # name -> title, what it does
    "summarize": ("Summarize", "The shots that matter, as a short video."),
    "find": ("Find by sentence", "When the video shows what a sentence says."),
    "search": ("Search", "The videos of a folder that are most like this one, or like a sentence."),
    "recognize": ("Recognize", "What the video shows."),
}
BADGES = {"done": "good", "failed": "bad", "stopped": "bad", "interrupted": "bad"}


def routes() -> list[Route]:
    return [
        Route("/try", trying),
        Route("/try", ask, methods=["POST"]),
        Route("/try/answer", answer),
        Route("/try/events", events),
        Route("/try/stop", stop, methods=["POST"]),
        Route("/try/forget", forget, methods=["POST"]),
    ]


async def trying(request: Request) -> Response:
    return await run_in_threadpool(_page, request, dict(request.query_params))


async def ask(request: Request) -> Response:
    given = await read_form(request)
    try:
        id = await run_in_threadpool(_ask, request, given)
    except FedreelError as error:
        return await run_in_threadpool(_page, request, given, error)
    return RedirectResponse(address("/try/answer", {"id": id}), 303)


async def answer(request: Request) -> Response:
    one: Ask = await run_in_threadpool(request.app.state.workshop.look, request.query_params.get("id", ""))
    under_way = one.state in ("waiting", "working")
    again = {"source": one.shown.get("source", ""), **({"model": one.shown["model"]} if one.shown.get("model") else {})}
    acts = [el("a", "Ask something else", href=address("/try", again), class_="button")] if one.kind in VERBS else []
    acts += [button(request, "Stop", "/try/stop", {"id": one.id}, "stop")] if under_way else []
    acts += [button(request, "Delete this answer", "/try/forget", {"id": one.id})] if not under_way else []
    if under_way:
        body = el("div", _progress(one), data_part="progress")
        attributes = {"data_events": address("/try/events", {"id": one.id}), "data_state": one.state}
        content = el("div", body, el("div", acts, class_="bar"), **attributes)
    elif one.state == "done":
        content = el("div", draw_answer(one, request.app.state.places), el("div", acts, class_="bar"))
    else:
        known = {key: one.error.get(key, "") for key in ("expected", "found", "where", "hint")}
        error = FedreelError(one.error.get("problem") or "The server ended before this was done.", **known)
        content = el("div", told(error), el("div", acts, class_="bar"))
    at = "Data" if one.kind == "check" else "Try it"
    badge = el("span", one.state, class_=f"badge {BADGES.get(one.state, '')}".strip())
    return page(short(one.shown.get("title", one.kind), 80), content, at=at, badge=badge, lead=one.shown.get("lead"))


async def events(request: Request) -> Response:
    id, workshop = request.query_params.get("id", ""), request.app.state.workshop
    workshop.look(id)

    def changes() -> dict[str, Any]:
        one = workshop.look(id)
        state = "working" if one.state == "waiting" else one.state
        return {"parts": {"progress": _progress(one)}, "state": state if state != "working" else ""}

    return stream(changes)


async def stop(request: Request) -> Response:
    id = request.query_params.get("id", "")
    request.app.state.workshop.look(id)
    await run_in_threadpool(request.app.state.workshop.stop, id)
    return RedirectResponse(address("/try/answer", {"id": id}), 303)


async def forget(request: Request) -> Response:
    id = request.query_params.get("id", "")
    kind = request.app.state.workshop.look(id).kind
    await run_in_threadpool(request.app.state.workshop.forget, id)
    return RedirectResponse("/data" if kind == "check" else "/try", 303)


def _ask(request: Request, given: Mapping[str, str]) -> str:
    """Check what is asked for, as far as it takes no model; raises what the page then says."""
    places: Places = request.app.state.places
    verb = given.get("verb", "")
    if verb not in VERBS:
        raise DataError("it is not clear what to do", expected=", ".join(VERBS), found=verb)
    sentence = given.get(f"{verb}.sentence", "").strip()[:1000]
    source = given.get("source", "")
    by_words = verb == "search" and sentence
    if verb == "find" and not sentence:
        raise DataError("what is to be found?", where="Find by sentence", expected="a sentence")
    if not source and not by_words:
        raise DataError("there is no video yet", expected="one that you drop here, or one of the list")
    film = None if by_words and not source else places.file(*_split(source))
    options = {
        "source": str(film or ""),
        "sentence": sentence,
        "model": _model(places, given.get(f"{verb}.model", "")),
        "ratio": _number(given.get("summarize.ratio"), 0.15, 0.01, 0.9),
        "top": round(_number(given.get(f"{verb}.top"), 5, 1, 50)),
    }
    if verb == "search":
        root = given.get("search.folder", "")
        options |= {"folder": str(places.folder(*_split(root))), "root": root}
    title = {
        "summarize": "Summary",
        "find": f"“{sentence}”",
        "search": f"Like “{sentence}”" if by_words else "Like this video",
        "recognize": "What it shows",
    }[verb]
    lead = "" if by_words else f"of {source.partition('/')[2]}"
    shown = {"title": title, "lead": lead, "source": source, "model": given.get(f"{verb}.model", "")}
    return request.app.state.workshop.ask(verb, options, shown)


def _page(request: Request, given: Mapping[str, str], error: FedreelError | None = None) -> Response:
    places: Places = request.app.state.places
    sources = {root: videos_of(places, root) for root in places.roots() if root != "results"}
    listed = {f"{root}/{name}" for root, names in sources.items() for name in names}
    source = given.get("source", "") if given.get("source") in listed else ""  # it may be gone
    csrf = request.app.state.csrf
    drop = el(
        "div",
        el("p", el("label", "Drop a video here, or choose one:", for_="file")),
        el("input", type="file", id="file", accept="video/*,.mkv,.avi,.flv,.wmv"),
        el("progress", value=0, max=1, hidden=True, aria_label="Sent"),
        el("p", class_="hint", role="status"),
        class_="drop",
        data_to=address("/uploads", {"csrf": csrf}),
        data_most=request.app.state.most_upload,
    )
    groups = [_group(places, root, names, source) for root, names in sources.items() if names]
    first = el("option", "(none)", value="")
    picked = el("div", el("label", "Video", for_="source"), el("select", first, groups, id="source", name="source"))
    models = _models(request)
    parts = [_verb(verb, places, models, given) for verb in VERBS]
    form = el(
        "form",
        el("fieldset", el("legend", "Video", class_="unseen"), el("div", picked, class_="field"), _player(source)),
        parts,
        method="post",
        action=address("/try", {"csrf": csrf}),
        id="try",
    )
    own = source.partition("/")[2] if source.startswith("uploads/") else ""
    gone = el("div", button(request, f"Delete {short(own, 40)}", "/uploads/forget", {"name": own}), class_="bar")
    lead = "A model works on a video of yours. Nothing leaves this machine."
    return page(
        "Try it",
        told(error) if error else None,
        drop,
        gone if own else None,
        form,
        _before(request),
        at="Try it",
        lead=lead,
        status=422 if error else 200,
    )


def _verb(verb: str, places: Places, models: Mapping[str, list[tuple[str, str]]], given: Mapping[str, str]) -> Html:
    title, text = VERBS[verb]
    fields = []
    if verb in ("find", "search"):
        words = "What to find, in words" if verb == "find" else "A sentence, instead of the video"
        fields.append(_text(f"{verb}.sentence", words, given.get(f"{verb}.sentence", "")))
    if verb == "search":
        folders = [(root, folder.name) for root, folder in places.roots().items() if root != "results"]
        fields.append(_select("search.folder", "Where to look", folders, given.get("search.folder", "")))
    if verb == "summarize":
        fields.append(_text("summarize.ratio", "Share to keep", given.get("summarize.ratio", "0.15")))
    else:
        top = {"find": "3", "search": "10", "recognize": "5"}[verb]
        fields.append(_text(f"{verb}.top", "How many answers", given.get(f"{verb}.top", top)))
    chosen = given.get(f"{verb}.model", given.get("model", ""))
    fields.append(_select(f"{verb}.model", "Model", [("", "the one for this"), *models[verb]], chosen))
    act = el("button", title, type="submit", name="verb", value=verb, class_="main")
    return el(
        "fieldset",
        el("legend", title),
        el("p", text, class_="hint"),
        el("div", fields, class_="fields"),
        el("div", act, class_="bar"),
        data_own_enter=True,
    )


def _models(request: Request) -> dict[str, list[tuple[str, str]]]:
    """Of each verb, models that come with fedreel, and complete runs whose task has it."""
    known = zoo.entries()
    models = {
        verb: [(f"zoo:{one.name}", f"{one.name}: {short(one.does, 60)}") for one in known if verb in one.verbs]
        for verb in VERBS
    }
    for row in request.app.state.board.rows():
        system = find_system(row.task) if row.state == "complete" else None
        for verb in VERBS:
            if system and system.verb(verb):
                models[verb].append((f"run:{row.name}", f"run {short(row.name, 50)}"))
    return models


def _model(places: Places, name: str) -> str | None:
    kind, _, rest = name.partition(":")
    if kind == "run":
        return str(places.run(rest))
    return zoo.entry(rest).name if kind == "zoo" else None


def _split(source: str) -> tuple[str, str]:
    root, _, name = source.partition("/")
    return root, name


def _number(text: str | None, default: float, low: float, high: float) -> float:
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise DataError("this is not a possible number", expected=f"{low:g} to {high:g}", found=str(text))
    return value


def _group(places: Places, root: str, names: list[str], chosen: str) -> Html:
    title = "Uploaded" if root == "uploads" else places.roots()[root].name
    options = [el("option", name, value=f"{root}/{name}", selected=f"{root}/{name}" == chosen) for name in names]
    return el("optgroup", options, label=title)


def _player(source: str) -> Html:
    """The video itself, where a browser can play it; the script puts another one in when another is chosen."""
    played = Path(source).suffix.lower() in PLAYED
    address = address_of(*_split(source)) if played else None
    return el(
        "video",
        src=address,
        controls=True,
        preload="metadata",
        hidden=not played,
        data_of="source",
        data_played=" ".join(sorted(PLAYED)),
        class_="player small",
    )


def _text(key: str, label: str, value: str) -> Html:
    ident = "t-" + key.replace(".", "-")
    box = el("input", type="text", id=ident, name=key, value=value, autocomplete="off")
    return el("div", el("label", label, for_=ident), box, class_="field")


def _select(key: str, label: str, options: list[tuple[str, str]], chosen: str) -> Html:
    ident = "t-" + key.replace(".", "-")
    shown = [el("option", text, value=value, selected=value == chosen) for value, text in options]
    return el("div", el("label", label, for_=ident), el("select", shown, id=ident, name=key), class_="field")


def _progress(one: Ask) -> Html:
    text = {"waiting": "Waiting for its turn.", "working": f"{one.what.capitalize() or 'Working'} …"}
    share = min(max(one.share, 0.0), 1.0)
    said = text.get(one.state, one.state)
    return el("div", el("p", said, role="status"), el("progress", value=f"{share:.3f}", max=1, aria_label=said))


def _before(request: Request) -> Html | None:
    """Earlier answers."""
    items = []
    for id in request.app.state.workshop.ids()[:20]:
        one = request.app.state.workshop.look(id)
        if one.kind in VERBS:
            link = el("a", short(one.shown.get("title", one.kind), 60), href=address("/try/answer", {"id": id}))
            state = el("span", one.state, class_="hint") if one.state != "done" else None
            items.append(el("li", link, " ", short(one.shown.get("lead", ""), 60), " ", state))
    return el("section", el("h2", "Earlier answers"), el("ul", items)) if items else None
