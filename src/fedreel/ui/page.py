"""The frame of every page here: the look of the reports, with style and script in files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fedreel.errors import FedreelError
from fedreel.report.markup import Html, el

MENU = {"Runs": "/", "New run": "/new", "Try it": "/try", "Data": "/data", "Sites": "/sites"}
STATIC = {  # what browsers may load: name -> package, type
    "page.css": ("fedreel.report", "text/css"),
    "page.js": ("fedreel.report", "text/javascript"),
    "ui.css": ("fedreel.ui", "text/css"),
    "ui.js": ("fedreel.ui", "text/javascript"),
    "icon.svg": ("fedreel.ui", "image/svg+xml"),
}
ICON = "icon.svg"


def page(
    title: str, *body: object, at: str = "", lead: object = None, badge: object = None, status: int = 200
) -> HTMLResponse:
    """A whole page; `at` is where in the menu it stands."""
    links = [el("a", name, href=to, aria_current="page" if name == at else None) for name, to in MENU.items()]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title}: fedreel"),
        el("link", rel="icon", href=f"/static/{ICON}"),
        [el("link", rel="stylesheet", href=f"/static/{name}") for name in ("page.css", "ui.css")],
        [el("script", src=f"/static/{name}", defer=True) for name in ("page.js", "ui.js")],
    )
    top = el("header", el("div", el("h1", title, badge), el("p", lead, class_="lead") if lead else None))
    skip = el("a", "Skip to the content", href="#content", class_="skip")
    menu = el("nav", el("strong", "fedreel"), links, aria_label="Pages")
    main = el("main", top, *body, id="content", tabindex=-1)
    return HTMLResponse(f"<!doctype html>\n{el('html', head, el('body', skip, menu, main), lang='en')}\n", status)


def styled(markup: Html) -> Html:
    """With no style in the markup, which the pages' policy would refuse: the script puts it on. Text cannot be mistaken
    for an attribute: its quotes are escaped."""
    return Html(markup.replace(' style="', ' data-style="'))


def address(path: str, query: Mapping[str, str] | None = None) -> str:
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def button(request: Request, text: str, path: str, query: Mapping[str, str], class_: str | None = None) -> Html:
    """A button that does something, with what proves that our own page has it."""
    action = address(path, {**query, "csrf": request.app.state.csrf})
    return el("form", el("button", text, type="submit", class_=class_), method="post", action=action, class_="inline")


def error_page(error: FedreelError, status: int = 400) -> Response:
    return page("This does not work", told(error), status=status)


def told(error: FedreelError) -> Html:
    """An error as a person reads it."""
    rows = [("where", error.where), ("expected", error.expected), ("found", error.found), ("next", error.hint)]
    facts = [el("div", el("dt", name), el("dd", text)) for name, text in rows if text]
    return el("div", el("p", error.problem), el("dl", facts, class_="facts"), class_="problems told", role="alert")


async def static(request: Request) -> Response:
    name = request.path_params.get("name", ICON)  # browsers ask for /favicon.ico where a page, as a report, names none
    if name not in STATIC:
        return Response("not found", 404)
    package, kind = STATIC[name]
    folder = files(package) if package == "fedreel.report" else files(package) / "static"
    headers = {"Cache-Control": "no-cache"}
    return Response((folder / name).read_bytes(), media_type=kind, headers=headers)
