"""The server's door to the outside: TLS, and only what a site needs. Flower's SuperLink listens on loopback behind it.

The SuperLink offers its Control API (start a run, enroll a key) on the same port as the API for sites, to everybody who
can reach it. So it is not reachable: the gate passes on requests to `/v1/fleet/`
and answers `/fedreel/hello` itself."""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedreel import __version__
from fedreel.sites.server import ServerFolder

_MOST = 64 << 20  # bytes of one request; Flower sends arrays in pieces of 5 MB
_STARTING = "the server is starting or stopping"
_FLEET = re.compile(r"/v1/fleet(/[A-Za-z0-9_-]+)+")
_DROPPED = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade", "trailers"}


def make_app(folder: Path, link: str, verify: ssl.SSLContext) -> Starlette:
    """The gate in front of the SuperLink at `link`, for the server of this folder."""
    client = httpx.AsyncClient(base_url=link, verify=verify, timeout=120, trust_env=False)

    async def fleet(request: Request) -> Response:
        path = request.scope["path"]
        if not _FLEET.fullmatch(path):  # no dots: the client behind this would resolve them
            return Response("not found", 404)
        if int(request.headers.get("content-length") or 0) > _MOST:
            return Response("too large", 413)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST:
                return Response("too large", 413)
        headers = [(k, v) for k, v in request.headers.items() if k not in _DROPPED]
        try:
            answer = await client.request(request.method, path, content=bytes(body), headers=headers)
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
        return JSONResponse({"fedreel": __version__, "enrolled": enrolled})

    return Starlette(
        routes=[
            Route("/v1/fleet/{rest:path}", fleet, methods=["POST"]),
            Route("/fedreel/hello", hello, methods=["GET"]),
        ]
    )


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
    app = make_app(folder, f"https://127.0.0.1:{server.config.link_port}", verify)
    uvicorn.run(
        app,
        host=server.config.listen,
        port=server.config.port,
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        log_level="warning",
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main()
