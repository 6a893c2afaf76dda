"""The page of a new run: a recipe as a form; what is filled in goes to the queue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedreel.config import load_recipe, recipe_names
from fedreel.errors import FedreelError, RecipeError, RunError
from fedreel.report.markup import Html, el, short
from fedreel.ui.page import address, page, told
from fedreel.ui.places import Places

if TYPE_CHECKING:
    from fedreel.ui.form import Field, Form

MOST = 1 << 20  # bytes of a form
NAME = re.compile(r"[^\W_][\w.+-]{0,99}")
CHOICES = ("method.name", "engine.name", "task.backbone.name")
OPEN = ("Choices", "Rounds", "Data")


@dataclass
class Wrong:
    """What is wrong with a form that was sent: the error, and the fields that it belongs to."""

    error: FedreelError | None = None
    fields: set[str] = field(default_factory=set)


def routes() -> list[Route]:
    return [Route("/new", new), Route("/new", start, methods=["POST"])]


async def new(request: Request) -> Response:
    given = dict(request.query_params)
    return await run_in_threadpool(_page, request, given, Wrong())


async def start(request: Request) -> Response:
    """Check what was filled in, then put it into the queue; or show the form again with what is wrong."""
    given = await read_form(request)
    return await run_in_threadpool(_start, request, given)


async def read_form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST:
            raise RecipeError("this form is too large", expected=f"at most {MOST} bytes")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _start(request: Request, given: dict[str, str]) -> Response:
    from fedreel.ui.form import as_arguments, blamed, check  # it needs torch, which the other pages do not

    places: Places = request.app.state.places
    settings, source = {}, ""
    try:
        source = _source(places, given)
        form = _form(places, source, given)
        settings = form.changed(given)
        recipe = check(source, settings, places)
        name = given.get("name", "").strip()
        out = places.runs / name
        if not NAME.fullmatch(name):
            expected = "letters, digits, and . + - _ after the first"
            raise RunError("this cannot be the name of a run", where="name", expected=expected, found=name)
        if out.exists():
            raise RunError("there is a run of this name", where="name", found=name, hint=_free(places, name))
        if recipe.engine["name"] == "flower":
            hint = "fedreel submit RECIPE --out DIR --server FOLDER"
            raise RecipeError("a run at real sites begins where the server is", where="engine.name", hint=hint)
        request.app.state.queue.add(source, out, as_arguments(settings))
    except FedreelError as error:
        guilty = {"name"} if isinstance(error, RunError) else set()
        if isinstance(error, RecipeError):
            guilty = {*blamed(source, settings, places, error)} or {error.where}
        return _page(request, given, Wrong(error, guilty), 422)
    return RedirectResponse("/", 303)


def _page(request: Request, given: Mapping[str, str], wrong: Wrong, status: int = 200) -> Response:
    places: Places = request.app.state.places
    source = _source(places, given)
    form = _form(places, source, given)
    named = given.get("name") or _free(places, _usual(given, form))
    chosen = {key: text for key, text in given.items() if not _outdated(key, given)}
    sections = [_section(title, fields, chosen, wrong) for title, fields in form.sections.items() if fields]
    recipes = [el("option", name, value=name, selected=name == source) for name in recipe_names()]
    own = f"as in {short(given['run'], 30)}" if given.get("run") and source not in recipe_names() else None
    pick = el(
        "form",
        el("label", "Recipe", for_="recipe"),
        el(
            "select",
            el("option", own, value="", selected=True) if own else None,
            recipes,
            id="recipe",
            name="recipe",
            data_reload=True,
        ),
        el("button", "Show it", type="submit", data_show=True),
        action="/new",
        class_="bar",
    )
    kept = {key: given[key] for key in ("recipe", "run") if given.get(key)}
    hidden = [el("input", type="hidden", name=key, value=text) for key, text in kept.items()]
    was = [el("input", type="hidden", name=f"was:{key}", value=form.fields()[key].value) for key in _there(form)]
    show = el("button", "Show its settings", type="submit", formmethod="get", formaction="/new", data_show=True)
    whole = el(
        "form",
        hidden,
        was,
        _named(named, wrong),
        sections,
        el("div", el("button", "Start", type="submit", class_="main"), show, class_="bar"),
        method="post",
        action=address("/new", {"csrf": request.app.state.csrf}),
        id="new",
        novalidate=True,
    )
    error = told(wrong.error) if wrong.error else None
    return page("New run", pick, error, whole, at="New run", lead=form.recipe.description or None, status=status)


def _source(places: Places, given: Mapping[str, str]) -> str:
    """The recipe's name, or the file of a run's."""
    if given.get("run") and not given.get("recipe"):
        return str(places.run(given["run"]) / "recipe.toml")
    name = given.get("recipe") or "recognition"
    if name not in recipe_names():
        load_recipe(Path(name).name.removesuffix(".toml"))  # raises with the nearest name
    return name


def _form(places: Places, source: str, given: Mapping[str, str]) -> Form:
    """With the choices that were made, as far as this recipe has them."""
    from fedreel.ui.form import Form

    sources = tuple(map(str, places.data))
    form = Form(source, {}, sources)
    choices = {key: given[key] for key in _there(form) if key in given and given[key] != form.fields()[key].value}
    return Form(source, choices, sources) if choices else form


def _there(form: Form) -> list[str]:
    return [key for key in CHOICES if key in form.fields()]


def _outdated(key: str, given: Mapping[str, str]) -> bool:
    """Whether a field belongs to a method, engine or backbone that is not the chosen one any more."""
    for choice in CHOICES:
        prefix = choice.removesuffix("name")
        before = given.get(f"was:{choice}")
        if key.startswith(prefix) and key != choice and before is not None and given.get(choice) != before:
            return True
    return False


def _usual(given: Mapping[str, str], form: Form) -> str:
    stem = Path(given["run"]).name if given.get("run") and not given.get("recipe") else str(form.source)
    words = [stem] if given.get("run") else [stem, form.recipe.method["name"], str(form.recipe.seed)]
    return re.sub(r"[^\w.+-]", "-", "-".join(words)).lstrip("_.+-") or "run"


def _free(places: Places, name: str) -> str:
    """The name, or the first of name-2, name-3, ... that is not taken."""
    taken = (name, *(f"{name}-{number}" for number in range(2, 10_000)))
    return next((one for one in taken if not (places.runs / one).exists()), name)


def _section(title: str, fields: list[Field], given: Mapping[str, str], wrong: Wrong) -> Html:
    boxes = [_box(one, given.get(one.key), wrong) for one in fields]
    grid = el("div", boxes, class_="fields")
    shown = title in OPEN or any(one.key in wrong.fields or _other(one, given.get(one.key)) for one in fields)
    heading = el("summary", title)
    return el(
        "fieldset", el("legend", title, class_="unseen"), el("details", heading, grid, open=shown, class_="section")
    )


def _box(one: Field, given: str | None, wrong: Wrong) -> Html:
    """A field with its label, what it is for, and what is wrong with it."""
    text = one.shown() if given is None else given
    ident = "f-" + one.key.replace(".", "-")
    bad = one.key in wrong.fields and wrong.error is not None
    said = " ".join(filter(None, [f"{ident}-hint" if one.hint else "", f"{ident}-why" if bad else ""])) or None
    first = bad and one.key == min(wrong.fields)
    shared: dict[str, object] = {"id": ident, "name": one.key, "aria_describedby": said, "autofocus": first}
    shared["aria_invalid"] = "true" if bad else None
    if one.choices:
        known = one.choices if text in one.choices else (*one.choices, text)
        options = [el("option", name or "(none)", value=name, selected=name == text) for name in known]
        box = el("select", options, data_reload=one.decides, **shared)
    else:
        box = el("input", type="text", value=text, autocomplete="off", spellcheck="false", **shared)
    why = None
    if bad and wrong.error is not None:
        error = wrong.error
        parts = [error.problem, f"expected: {error.expected}" if error.expected else "", error.hint]
        why = el("p", ". ".join(filter(None, parts)), class_="why", id=f"{ident}-why")
    state = " ".join(filter(None, ["changed" if _other(one, given) else "", "wrong" if bad else ""]))
    hint = el("p", one.hint, class_="hint", id=f"{ident}-hint") if one.hint else None
    name = one.key.removesuffix(".name") if one.decides else one.key.partition(".")[2] or one.key
    return el("div", el("label", short(name, 40), for_=ident), box, hint, why, class_=f"field {state}".strip())


def _named(name: str, wrong: Wrong) -> Html:
    from fedreel.ui.form import Field

    box = Field("name", name, True, (), "The folder of the run, below that of all runs.")
    return el("fieldset", el("legend", "Run", class_="unseen"), el("div", _box(box, name, wrong), class_="fields"))


def _other(one: Field, given: str | None) -> bool:
    return given is not None and given.strip() != one.shown()
