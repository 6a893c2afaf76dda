"""The pages of runs: all of them, one as it happens, several side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from fedreel.errors import RunError
from fedreel.machine.words import size
from fedreel.report.charts import Chart, Line, line_chart
from fedreel.report.compare import COSTS, cell_text, compare_table
from fedreel.report.markup import Html, duration, el, finite, quantity, score, short, table
from fedreel.report.page import draw
from fedreel.report.read import read_run, read_settings
from fedreel.report.run import Run
from fedreel.report.shell import section
from fedreel.ui.board import Row
from fedreel.ui.jobs import RUNNING, WAITING, Job
from fedreel.ui.page import address, button, page, styled
from fedreel.ui.streams import stream
from fedreel.ui.watched import SECTIONS, Watched

REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:;"
    " frame-ancestors 'self'"
)
COLOURS = 4  # that lines have
BADGES = {"complete": "good", "done": "good", "running": "live", "interrupted": "bad", "failed": "bad"}


def routes() -> list[Route]:
    return [
        Route("/", runs),
        Route("/runs/events", runs_events),
        Route("/run", run),
        Route("/run/events", run_events),
        Route("/run/report", report),
        Route("/run/stop", stop, methods=["POST"]),
        Route("/run/resume", resume, methods=["POST"]),
        Route("/jobs/cancel", cancel, methods=["POST"]),
        Route("/job", job),
        Route("/compare", compare),
    ]


async def runs(request: Request) -> Response:
    rows = await run_in_threadpool(request.app.state.board.rows)
    head: list[object] = ["compare", "run", "state", "method", "task", "seed", "round", "metric", "value", "time"]
    listed = table(head, map(_cells, rows), caption="All runs", class_="sortable runs")
    hint = "Tick two runs or more to compare them."
    body = [
        el("div", _queue(request), data_part="queue"),
        el(
            "form",
            el("div", el("button", "Compare", type="submit"), el("span", hint, class_="hint"), class_="bar"),
            styled(listed),
            action="/compare",
            id="runs",
        ),
        el("p", "There is no run yet.", class_="empty", data_none=True, hidden=bool(rows)),
    ]
    lead = ["In ", el("code", str(request.app.state.places.runs)), ". Rows change while runs go on."]
    return page("Runs", el("div", body, data_events="/runs/events"), at="Runs", lead=lead)


async def runs_events(request: Request) -> Response:
    """Rows that have changed, new ones, and the order of all."""
    board, sent = request.app.state.board, dict[str, str]()

    def changes() -> dict[str, Any]:
        rows = {row.name: el("tr", _cells(row)) for row in board.rows()}
        new = {name: styled(row) for name, row in rows.items() if sent.get(name) != row}
        gone = [name for name in sent if name not in rows]
        sent.clear()
        sent.update(rows)
        told: dict[str, Any] = {"parts": {"queue": _queue(request)}}
        return told | ({"rows": new, "gone": gone} if new or gone else {})

    return stream(changes)


async def run(request: Request) -> Response:
    name = request.query_params.get("name", "")
    folder = request.app.state.places.run(name)
    asked = await run_in_threadpool(read_settings, folder)
    if asked.complete:
        top = _head(request, name, asked, "complete")
        source = address("/run/report", {"name": name})
        frame = el("iframe", src=source, title=f"Report of {name}", sandbox="allow-scripts", class_="report")
        return page(short(name), top, frame, at="Runs", badge=_badge("complete"))
    watched = _watched(request, folder)
    parts = await run_in_threadpool(watched.parts)
    state = watched.state
    top = el("div", _head(request, name, watched.run, state), data_part="head")
    log = _log(request, folder)
    sections = [
        section(anchor, title, el("div", parts[anchor], data_part=anchor)) for anchor, title in SECTIONS.items()
    ]
    body = el(
        "div",
        top,
        el("div", parts["tiles"], data_part="tiles"),
        log,
        sections,
        data_events=address("/run/events", {"name": name}),
        data_state=state,
    )
    return page(short(name), body, at="Runs", badge=el("span", _badge(state), data_part="badge"))


async def run_events(request: Request) -> Response:
    """Parts of the page that have changed; that the state has, which is worth another page."""
    name = request.query_params.get("name", "")
    watched, sent = _watched(request, request.app.state.places.run(name)), dict[str, str]()

    def changes() -> dict[str, Any]:
        parts = {**watched.parts(), "head": _head(request, name, watched.run, watched.state)}
        new = {key: part for key, part in parts.items() if sent.get(key) != part}
        sent.update(new)
        return {"parts": new, "state": watched.state}

    return stream(changes)


async def report(request: Request) -> Response:
    """The report, in a sandbox: whatever a run's files hold, it cannot act as this page."""
    folder = request.app.state.places.run(request.query_params.get("name", ""))
    text = await run_in_threadpool(lambda: draw(read_run(folder)))
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


async def stop(request: Request) -> Response:
    name = request.query_params.get("name", "")
    folder = request.app.state.places.run(name)
    await run_in_threadpool(request.app.state.queue.stop, folder)
    return RedirectResponse(address("/run", {"name": name}), 303)


async def resume(request: Request) -> Response:
    name = request.query_params.get("name", "")
    folder = request.app.state.places.run(name)
    if read_settings(folder).label("engine") == "flower":
        hint = "fedreel submit RECIPE --out DIR --server FOLDER --resume"
        raise RunError("a run at real sites goes on where the server is", where=name, hint=hint)
    add = partial(request.app.state.queue.add, str(folder / "recipe.toml"), folder, resume=True)
    await run_in_threadpool(add)
    return RedirectResponse(address("/run", {"name": name}), 303)


async def cancel(request: Request) -> Response:
    await run_in_threadpool(request.app.state.queue.cancel, request.query_params.get("id", ""))
    return RedirectResponse("/", 303)


async def job(request: Request) -> Response:
    """What a job of the queue printed."""
    wanted = request.query_params.get("id", "")
    found = next((one for one in request.app.state.queue.jobs() if one.id == wanted), None)
    if found is None:
        raise RunError("there is no such job", where=wanted)
    said = request.app.state.queue.log(found.id) or "Nothing yet."
    facts = [("recipe", found.recipe), ("folder", Path(found.out).name), ("settings", "  ".join(found.settings))]
    shown = [el("div", el("dt", name), el("dd", text)) for name, text in facts if text]
    body = [el("dl", shown, class_="facts"), el("h2", "What it printed"), el("pre", said, tabindex=0)]
    return page(f"Job {int(found.id)}", body, at="Runs", badge=_badge(found.state))


async def compare(request: Request) -> Response:
    names = request.query_params.getlist("run")
    if len(names) < 2:
        raise RunError("these are too few to compare", expected="two runs or more", found=str(len(names)))
    folders = {name: request.app.state.places.run(name) for name in names}
    body = await run_in_threadpool(_compared, folders)
    return page("Side by side", body, at="Runs", lead=f"{len(names)} runs: " + ", ".join(map(short, names)))


def _compared(folders: dict[str, Path]) -> Html:
    made = compare_table([*folders.values()])
    columns = made["columns"]
    words = {"wall_seconds": duration, "bytes_up": size, "bytes_down": size}

    def cell(column: str, value: Any) -> object:
        if isinstance(value, dict) and "mean" in value:
            mean = value["mean"]
            return quantity(mean, words[column](mean) if column in COSTS else cell_text(value))
        return cell_text(value)

    rows = [[cell(column, row.get(column)) for column in columns] for row in made["rows"]]
    said = [f"{one['run']}: {one['why']}" for one in made["skipped"]] + made["notes"]
    notes = el("ul", [el("li", text) for text in said], class_="problems") if said else None
    read = {name: read_run(folder) for name, folder in folders.items()}
    metrics = dict.fromkeys(m for one in read.values() for r in sorted(one.test) for m in one.test[r]["metrics"])
    charts = []
    for metric in [metric for metric in metrics if not metric.endswith("_clients")][:12]:
        lines = []
        for name, one in list(read.items())[:COLOURS]:
            tested = [r for r in sorted(one.test) if metric in one.test[r]["metrics"]]
            if tested:
                lines.append(Line(short(name, 30), tested, [finite(one.test[r]["metrics"][metric]) for r in tested]))
        if lines:
            charts.append(line_chart(Chart(metric, lines, dots=True)))
    more = len(read) - COLOURS
    left = el("p", f"Curves of the first {COLOURS} runs are drawn.", class_="hint") if more > 0 else None
    shown = table(columns, rows, caption="Runs side by side", class_="sortable")
    return styled(el("div", notes, shown, section("curves", "Curves", el("div", charts, class_="charts even"), left)))


def _cells(row: Row) -> list[object]:
    link = el("a", short(row.name), href=address("/run", {"name": row.name}))
    label = f"Compare {row.name}"
    tick = el("input", type="checkbox", name="run", value=row.name, aria_label=label)
    done = f"{row.round} of {row.rounds}" if row.rounds else str(row.round)
    took = f"{duration(round(row.left))} left" if row.left is not None else duration(row.seconds)
    return [
        el("td", tick, data_run=row.name),
        el("td", link, data_v=row.name),
        el("td", _badge(row.state)),
        *(el("td", short(text, 24)) for text in (row.method, row.task, row.seed)),
        quantity(row.round, done),
        el("td", row.metric),
        quantity(row.value, score(row.value)),
        quantity(row.left if row.left is not None else row.seconds, took),
    ]


def _badge(state: str) -> Html:
    return el("span", state, class_=f"badge {BADGES.get(state, '')}".strip())


def _head(request: Request, name: str, run: Run, state: str) -> Html:
    """What the run is, and what can be done with it now."""
    facts = [(label, run.label(label)) for label in ("system", "method", "task", "engine", "device", "seed")]
    shown = [el("div", el("dt", label), el("dd", text)) for label, text in facts if text]
    queued = _latest(request, run.path)
    waiting = queued is not None and queued.state in (WAITING, RUNNING)
    actions: list[object] = []
    if state == "running":
        actions.append(button(request, "Stop", "/run/stop", {"name": name}, "stop"))
    elif state == "interrupted" and not waiting:
        actions.append(button(request, "Resume", "/run/resume", {"name": name}))
    elif state == "interrupted":
        actions.append(el("p", "In the queue.", class_="hint"))
    actions.append(el("a", "New run with these settings", href=address("/new", {"run": name})))
    actions.append(el("a", "Report", href=address("/run/report", {"name": name}), target="_blank", rel="noopener"))
    if state == "complete":
        actions.append(el("a", "Try its model", href=address("/try", {"model": f"run:{name}"})))
    return el("div", el("dl", shown, class_="facts"), el("div", actions, class_="bar"))


def _queue(request: Request) -> Html | None:
    """Jobs that wait, run or went wrong."""
    jobs = request.app.state.queue.jobs()
    later = {job.out: job.id for job in jobs}
    shown = [
        job for job in jobs if job.state in (WAITING, RUNNING) or (job.state == "failed" and later[job.out] == job.id)
    ][-12:]
    if not shown:
        return None
    items = []
    for one in shown:
        out = Path(one.out)
        inside = out.is_relative_to(request.app.state.places.runs)
        name = out.relative_to(request.app.state.places.runs).as_posix() if inside else out.name
        begun = (out / "recipe.toml").exists()
        title = el("a", short(name), href=address("/run", {"name": name})) if begun else el("strong", short(name))
        act = button(request, "Take out", "/jobs/cancel", {"id": one.id}) if one.state != RUNNING else None
        log = el("a", "what it printed", href=address("/job", {"id": one.id})) if one.state != WAITING else None
        items.append(el("li", _badge(one.state), " ", title, " ", log, act))
    return el("section", el("h2", "Queue"), el("ul", items, class_="queue"), id="queue")


def _log(request: Request, folder: Path) -> Html | None:
    """Why the last job of this run went wrong."""
    last = _latest(request, folder)
    if last is None or last.state != "failed":
        return None
    said = request.app.state.queue.log(last.id, 2000)
    return el("section", el("h2", "What went wrong"), el("pre", said, tabindex=0), id="log")


def _latest(request: Request, folder: Path) -> Job | None:
    own = [job for job in request.app.state.queue.jobs() if Path(job.out) == folder]
    return own[-1] if own else None


def _watched(request: Request, folder: Path) -> Watched:
    """Pages that look at the same run share what was read of it."""
    known: dict[Path, Watched] = request.app.state.watched
    if folder not in known:
        while len(known) >= 20:
            known.pop(next(iter(known)))
        known[folder] = Watched(folder)
    return known[folder]
