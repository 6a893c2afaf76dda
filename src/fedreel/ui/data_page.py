"""Data: what `fedreel data check` sees of a folder, with pictures, and who would hold what if it were divided."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedreel.config import DataConfig, parse_value
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.report.clients import partition as draw_partition
from fedreel.report.markup import Html, count, el, short
from fedreel.report.run import Run, add_metrics
from fedreel.report.shell import section
from fedreel.ui.files import address_of
from fedreel.ui.page import address, button, page, styled, told
from fedreel.ui.places import Places, speakable
from fedreel.ui.values import toml
from fedreel.ui.workshop import Ask

DIVISIONS: dict[str, dict[str, Any]] = {
    "by owner": {"name": "by-owner"},
    "evenly": {"name": "iid", "num_partitions": 5},
    "Dirichlet 1.0": {"name": "dirichlet", "num_partitions": 5, "alpha": 1.0, "min_partition_size": 1},
    "Dirichlet 0.1": {"name": "dirichlet", "num_partitions": 5, "alpha": 0.1, "min_partition_size": 1},
    "one class each": {"name": "pathological", "num_partitions": 5, "num_classes_per_partition": 1},
}


def routes() -> list[Route]:
    return [
        Route("/data", data),
        Route("/data/check", check, methods=["POST"]),
        Route("/data/division", division),
    ]


async def data(request: Request) -> Response:
    return await run_in_threadpool(_page, request)


async def check(request: Request) -> Response:
    root = request.query_params.get("folder", "")
    folder = request.app.state.places.folder(*_split(root))
    shown = {"title": folder.name, "lead": f"What `fedreel data check` sees in {folder}.", "source": root}
    id = await run_in_threadpool(request.app.state.workshop.ask, "check", {"source": str(folder)}, shown)
    return RedirectResponse(address("/try/answer", {"id": id}), 303)


async def division(request: Request) -> Response:
    return await run_in_threadpool(_division, request)


def draw_check(one: Ask, places: Places) -> Html:
    """The report, some of the clips, and ways to divide them."""
    answer = one.answer
    links = [
        el("a", name, href=address("/data/division", {"id": one.id, "partition": toml(table)}), class_="button")
        for name, table in DIVISIONS.items()
    ]
    lead = "Who would hold what? Nothing is trained for this."
    pictures = [
        el(
            "li",
            el("img", src=address_of("results", f"{one.id}/picture-{number}.jpg"), alt="", loading="lazy"),
            el("strong", short(clip["label"] or "no label", 40)),
            el("br"),
            " ".join(filter(None, [short(clip["owner"], 30), short(clip["path"].rpartition("/")[2], 40)])),
        )
        for number, clip in enumerate(answer["shown"])
    ]
    return el(
        "div",
        el("pre", "\n".join(answer["lines"]), class_="lines", tabindex=0),
        section("division", "Divide it", el("div", links, class_="bar"), lead=lead) if answer["clips"] else None,
        section("clips", "Some of its clips", el("ul", pictures, class_="thumbs")) if pictures else None,
    )


def _page(request: Request) -> Response:
    places: Places = request.app.state.places
    if not places.data:
        text = "No folder was given. Start the server with --data FOLDER, once for each folder that it may show."
        return page("Data", el("p", text, class_="empty"), at="Data")
    rows: list[Html | None] = []
    for root, folder in places.roots().items():
        if root.startswith("data"):
            rows.append(_row(request, root, folder.name, str(folder)))
            within = [_row(request, f"{root}/{name}", f"{folder.name}/{name}", "") for name in _folders(folder)]
            more = el("details", el("summary", "Folders in it"), el("ul", within, class_="queue"))
            rows.append(el("li", more) if within else None)
    before = []
    for id in request.app.state.workshop.ids()[:50]:
        one = request.app.state.workshop.look(id)
        if one.kind == "check":
            before.append(el("li", el("a", short(one.options["source"], 90), href=address("/try/answer", {"id": id}))))
    earlier = el("section", el("h2", "Looked over before"), el("ul", before[:10])) if before else None
    lead = "Look a folder over before anything is trained on it."
    return page("Data", el("ul", rows, class_="queue"), earlier, at="Data", lead=lead)


def _row(request: Request, root: str, name: str, where: str) -> Html:
    act = button(request, "Look it over", "/data/check", {"folder": root})
    return el("li", el("strong", short(name)), el("span", where, class_="hint") if where else None, act)


def _folders(folder: Path, most: int = 30) -> list[str]:
    """Folders right below, which may be data sets of their own."""
    try:
        entries = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in entries if not name.startswith(".") and speakable(name))[:most]


def _division(request: Request) -> Response:
    given = dict(request.query_params)
    one: Ask = request.app.state.workshop.look(given.get("id", ""))
    if one.kind != "check" or one.state != "done":
        raise DataError("there is no such look at a folder", where=given.get("id", ""))
    text = given.get("partition") or toml(DIVISIONS["by owner"])
    error, drawn = None, None
    try:
        drawn = _drawn(one, text, given.get("seed", "0"))
    except FedreelError as found:
        error = told(found)
    fields = [
        _field("partition", "Division", text, "As in a recipe's data.partition."),
        _field("seed", "Seed", given.get("seed", "0"), "Another one, another draw."),
    ]
    links = [
        el("a", name, href=address("/data/division", {**given, "partition": toml(table)}), class_="button")
        for name, table in DIVISIONS.items()
    ]
    form = el(
        "form",
        el("input", type="hidden", name="id", value=one.id),
        el("fieldset", el("legend", "Division", class_="unseen"), el("div", fields, class_="fields")),
        el("div", el("button", "Draw", type="submit", class_="main"), links, class_="bar"),
        action="/data/division",
    )
    settings = {"data.source": one.options["source"], "data.partition": text, "data.seed": given.get("seed", "0")}
    train = el("a", "New run with this division", href=address("/new", {"recipe": "recognition", **settings}))
    back = el("a", "Back to the folder", href=address("/try/answer", {"id": one.id}))
    lead = f"Clips of {one.shown['title']}: who would hold what. Nothing is trained for this."
    acts = el("div", train if drawn else None, back, class_="bar")
    return page("Division", form, error, drawn, acts, at="Data", lead=lead, status=422 if error else 200)


def _drawn(one: Ask, text: str, seed: str) -> Html:
    from fedreel.data.clip_index import Clip
    from fedreel.tasks.vision.clips import divided

    table = parse_value(text)
    if not isinstance(table, dict):
        expected = '{name = "dirichlet", num_partitions = 5, alpha = 0.1}'
        raise RecipeError("this is not a division", where="Division", expected=expected, found=text)
    if not seed.isdecimal():
        raise RecipeError("this is not a seed", where="Seed", expected="0, 1, 2, ...", found=seed)
    clips = [Clip(**{**clip, "shared_with": tuple(clip["shared_with"])}) for clip in one.answer["clips"]]
    config = DataConfig(source=one.options["source"], partition=table, seed=int(seed))
    found: Mapping[str, Any] = divided(clips, config)
    run = Run(Path(one.options["source"]))
    add_metrics(run, {"round": 0, "phase": "partition", **found})
    return styled(section("drawn", count(len(found["train"]), "client"), draw_partition(run)))


def _field(key: str, label: str, value: str, hint: str) -> Html:
    ident = f"d-{key}"
    box = el("input", type="text", id=ident, name=key, value=value, autocomplete="off", spellcheck="false")
    broad = " broad" if key == "partition" else ""
    return el("div", el("label", label, for_=ident), box, el("p", hint, class_="hint"), class_=f"field{broad}")


def _split(source: str) -> tuple[str, str]:
    root, _, name = source.partition("/")
    return root, name
