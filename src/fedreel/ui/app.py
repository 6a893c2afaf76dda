"""The application: what it keeps while it runs, and the addresses of its pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedreel.errors import DataError, FedreelError, RunError
from fedreel.ui import data_page, files, new, runs, sites_page, trying
from fedreel.ui.board import Board
from fedreel.ui.guard import Guard
from fedreel.ui.jobs import Queue
from fedreel.ui.page import error_page, static
from fedreel.ui.places import Places
from fedreel.ui.workshop import Workshop

PARTS = (runs, new, files, trying, data_page, sites_page)


def make_app(
    places: Places,
    *,
    names: Iterable[str],
    port: int,
    token: str,
    csrf: str,
    tls: bool = False,
    most_upload: int = 4 << 30,
) -> Starlette:
    """The pages over these places, for browsers that reach this server under these names."""
    queue, workshop = Queue(places.own / "jobs"), Workshop(places.results)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        queue.start()
        workshop.start()
        try:
            yield
        finally:
            queue.close()
            workshop.close()

    app = Starlette(
        routes=[
            *(route for part in PARTS for route in part.routes()),
            Route("/static/{name}", static),
            Route("/favicon.ico", static),
        ],
        middleware=[Middleware(Guard, names=tuple(names), port=port, tls=tls, token=token, csrf=csrf)],
        exception_handlers={FedreelError: _told, 404: _nowhere},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.places, app.state.csrf, app.state.queue = places, csrf, queue
    app.state.board, app.state.watched, app.state.workshop = Board(places.runs), {}, workshop
    app.state.most_upload, app.state.asked = most_upload, sites_page.Asked()
    return app


async def _nowhere(request: Request, error: Exception) -> Response:
    return error_page(FedreelError("there is no such page", where=request.url.path), 404)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, FedreelError)
    missing = isinstance(error, (DataError, RunError)) and error.problem.startswith("there is no such")
    return error_page(error, 404 if missing else 400)
