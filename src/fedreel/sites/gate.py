"""The server's door to the outside: TLS, and only what a site needs. Flower's SuperLink listens on loopback behind it.

The SuperLink offers its Control API (start a run, enroll a key) on the same port as the API for sites, to everybody who
can reach it. So it is not reachable: the gate passes on requests to `/v1/fleet/`
and answers `/fedreel/hello` itself."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import sys
import time
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedreel import __version__
from fedreel.sites.listening import Prompt, listen
from fedreel.sites.repeats import Repeats
from fedreel.sites.server import ServerFolder
from fedreel.sites.visitors import Visitors, is_its_own

_MOST = 64 << 20  # bytes of one request; Flower sends arrays in pieces of 5 MB
_BODY = 120.0  # seconds until a request is there as a whole
_CLOSE = {"connection": "close"}
_STARTING = "the server is starting or stopping"
_FLEET = re.compile(r"/v1/fleet(/[A-Za-z0-9_-]+)+")
_log = logging.getLogger("uvicorn.error")
_DROPPED = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade", "trailers"}


def make_app(folder: Path, link: str, verify: ssl.SSLContext, hourly: float = 0.0) -> Starlette:
    """The gate in front of the SuperLink at `link`, for the server of this folder. A site may bring so many bytes in an
    hour; 0: any number."""
    client = httpx.AsyncClient(base_url=link, verify=verify, timeout=120, trust_env=False)
    visitors, repeats = Visitors(folder, hourly), Repeats()

    async def fleet(request: Request) -> Response:
        path = request.scope["path"]
        if not _FLEET.fullmatch(path):  # no dots: the client behind this would resolve them
            return Response("not found", 404)
        site = visitors.who(request.headers)
        if site is None:  # before anything of the body is read
            return Response("unknown", 401, _CLOSE)
        if visitors.over_quota(site):
            _log.warning("the site '%s' has brought more than server.toml allows in an hour", site)
            return Response("too much in an hour", 429, _CLOSE)
        if visitors.is_full():
            _log.warning("the disk is full: what sites send is refused")
            return Response("no room", 507, _CLOSE)
        async with visitors.turn(site):
            try:
                body = await asyncio.wait_for(_body(request), _BODY)
            except asyncio.TimeoutError:
                return Response("too slow", 408, _CLOSE)
            except ClientDisconnect:
                return Response("gone", 400, _CLOSE)  # which nobody hears
            if body is None:
                return Response("too large", 413, _CLOSE)
            visitors.brought(site, len(body))
            if not is_its_own(path, body):
                _log.warning("the site '%s' has sent an answer in another's name", site)
                return Response("another's name", 403, _CLOSE)
            return await repeats.once(site, path, body, lambda: pass_on(request, path, body))

    async def pass_on(request: Request, path: str, body: bytes) -> Response:
        headers = [(k, v) for k, v in request.headers.items() if k not in _DROPPED]
        try:
            answer = await client.request(request.method, path, content=body, headers=headers)
        except httpx.HTTPError:
            return Response(_STARTING, 503)
        kept = {k: v for k, v in answer.headers.items() if k not in _DROPPED and k != "content-encoding"}
        return Response(answer.content, answer.status_code, kept)

    async def hello(request: Request) -> Response:
        """Whether a key is enrolled, for the message that a site shows. The SuperLink itself decides who comes in."""
        if not await _listens(link):
            return Response(_STARTING, 503)
        key = request.query_params.get("key", "")
        enrolled = any(p.read_text().split()[:2] == key.split() for p in (folder / "sites").glob("*.pub"))
        return JSONResponse({"fedreel": __version__, "enrolled": enrolled, "time": time.time()})

    return Starlette(
        routes=[
            Route("/v1/fleet/{rest:path}", fleet, methods=["POST"]),
            Route("/fedreel/hello", hello, methods=["GET"]),
        ]
    )


async def _body(request: Request) -> bytes | None:
    """What comes with a request; None if it is too large."""
    if int(request.headers.get("content-length") or 0) > _MOST:
        return None
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST:
            return None
    return bytes(body)


async def _listens(link: str) -> bool:
    url = httpx.URL(link)
    try:
        _, line = await asyncio.wait_for(asyncio.open_connection(url.host, url.port), 5)
    except (OSError, asyncio.TimeoutError):
        return False
    line.close()
    return True


def main() -> None:
    """`python -m fedreel.sites.gate FOLDER`: serve until terminated."""
    folder = Path(sys.argv[1])
    server = ServerFolder(folder)
    verify = ssl.create_default_context(cafile=str(folder / "inner" / "ca.crt"))
    config = server.config
    app = make_app(folder, f"https://127.0.0.1:{config.link_port}", verify, config.site_gigabytes * 1e9)
    ear = listen(config.listen, config.port, config.connections, config.address_connections)
    uvicorn.Server(settings(app, folder)).run([ear])


def settings(app: Starlette, folder: Path) -> uvicorn.Config:
    """How the gate speaks: TLS, and with those who are prompt."""
    return uvicorn.Config(
        app,
        http=Prompt,
        ws="none",
        loop="asyncio",  # another would not count connections
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        log_level="warning",
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main()
