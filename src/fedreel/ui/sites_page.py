"""Sites: who is enrolled at a server and online, and the jobs that were submitted there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedreel.errors import FedreelError
from fedreel.machine.words import size
from fedreel.report.markup import Html, el, quantity, short, table
from fedreel.report.shell import section
from fedreel.ui.page import address, page, styled, told
from fedreel.ui.places import Places
from fedreel.ui.streams import stream

if TYPE_CHECKING:
    from fedreel.sites.status import Status

FRESH = 10.0  # seconds: to ask Flower starts a process
_JOB = ("run", "state", "rounds", "from sites", "to sites")
STATES = {"online": "good", "finished": "good", "offline": "bad"}


class Asked:
    """What was last known of the server; all pages share it."""

    def __init__(self) -> None:
        self._lock, self._at = threading.Lock(), 0.0
        self._known: Status | None = None

    def status(self, folder: Path) -> Status:
        from fedreel.sites.status import read_status

        with self._lock:
            if self._known is None or time.monotonic() - self._at > FRESH:
                self._known, self._at = read_status(folder), time.monotonic()
            return self._known


def routes() -> list[Route]:
    return [Route("/sites", sites), Route("/sites/events", events)]


async def sites(request: Request) -> Response:
    places: Places = request.app.state.places
    if places.server is None:
        text = "No server's folder was given. Start with --server FOLDER to see who is online and what runs there."
        return page("Sites", el("p", text, class_="empty"), at="Sites")
    body = await run_in_threadpool(_drawn, request)
    return page("Sites", el("div", el("div", body, data_part="sites"), data_events="/sites/events"), at="Sites")


async def events(request: Request) -> Response:
    places: Places = request.app.state.places
    if places.server is None:
        return Response("not found", 404)

    def changes() -> dict[str, Any]:
        return {"parts": {"sites": _drawn(request)}}

    return stream(changes)


def _drawn(request: Request) -> Html:
    places: Places = request.app.state.places
    assert places.server is not None
    try:
        found = request.app.state.asked.status(places.server)
    except FedreelError as error:
        return told(error)
    except ImportError as error:
        hint = "pip install 'fedreel[flower]'"
        return told(FedreelError("sites need packages that are not installed", found=str(error), hint=hint))
    running = el("span", "running", class_="badge good") if found.running else el("span", "not running", class_="badge")
    server = el("p", el("code", str(found.path)), f", port {found.port} ", running)
    problem = el("ul", el("li", found.problem), class_="problems") if found.problem else None
    who: list[list[object]] = [[short(site.name), _state(site.state), site.since or "–"] for site in found.sites]
    jobs: list[list[object]] = [
        [
            _name(places, job.out),
            _state(job.state),
            job.rounds,
            quantity(job.received, size(job.received)),
            quantity(job.sent, size(job.sent)),
            "–" if job.epsilon is None else quantity(job.epsilon, f"{job.epsilon:.2f}"),
        ]
        for job in found.jobs
    ]
    nobody = el("p", "No site is enrolled yet: fedreel server enroll SITE.PUB", class_="empty")
    nothing = el("p", "No job was submitted yet.", class_="empty")
    lists = [
        section("who", "Sites", table(["site", "state", "since"], who, caption="Sites") if who else nobody),
        section(
            "jobs",
            "Jobs",
            table([*_JOB, "epsilon"], jobs, caption="Jobs") if jobs else nothing,
        ),
    ]
    said = (
        "What left a site is in the ledger that the site keeps itself, and what private jobs have given away in its "
        "budget. At the site: fedreel ledger SITE_FOLDER, fedreel site budget."
    )
    return styled(el("div", server, problem, lists, el("p", said, class_="hint")))


def _name(places: Places, out: Path) -> Html:
    """A job's run; with a link where it lies among the runs."""
    try:
        name = out.resolve().relative_to(places.runs).as_posix()
        return el("th", el("a", short(name), href=address("/run", {"name": name})), scope="row")
    except ValueError:
        return el("th", short(out.name), title=str(out), scope="row")


def _state(state: str) -> Html:
    return el("td", el("span", state, class_=f"badge {STATES.get(state, '')}".strip()))
