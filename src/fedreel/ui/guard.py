"""Who may talk to the pages. A browser that opened the printed link, under a name of this server, from its own pages.

- Host: a name that somebody else points at this machine (DNS rebinding) is not one of ours.
- Origin: another site's page may send requests, but its browser says where they come from.
- Token: the printed link has it. It is exchanged for a cookie that scripts cannot read and other sites cannot use.
- CSRF: what changes something needs a second secret, which only our own pages know."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self';"
    " connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SAFE = ("GET", "HEAD")


class Guard:
    """Stands before the whole application. What it turns away reaches no page."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], port: int, tls: bool, token: str, csrf: str) -> None:
        self.app, self.token, self.csrf = app, token, csrf
        self.scheme = "https" if tls else "http"
        usual = 443 if tls else 80
        hosts = {f"[{name}]" if ":" in name else name.lower() for name in names}
        self.hosts = {f"{host}:{port}" for host in hosts} | (hosts if port == usual else set())
        self.cookie, self.session = f"fedreel-ui-{port}", secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no web sockets here

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self.turned_away(scope)
        await (answer or self.app)(scope, receive, guarded)

    def turned_away(self, scope: Scope) -> Response | None:
        """The answer to a request that gets no further; None lets it in."""
        headers, method = Headers(scope=scope), scope["method"]
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host not in self.hosts:
            return _refused(421, f"This server is not '{host}'. Open the link that `fedreel ui` printed.")
        if (origin is not None or method not in SAFE) and origin != f"{self.scheme}://{host}":
            return _refused(403, "The request comes from another site.")
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if "token" in asked and method == "GET":
            return self._exchanged(scope, asked)
        given = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if not _same(given, self.session):
            return _refused(401, "Open the link with the token that `fedreel ui` printed when it started.")
        if method not in SAFE and not _same(asked.get("csrf", ""), self.csrf):
            return _refused(403, "This page is out of date. Load it again.")
        return None

    def _exchanged(self, scope: Scope, asked: dict[str, str]) -> Response:
        if not _same(asked.pop("token"), self.token):
            return _refused(401, "The token is not the one that `fedreel ui` printed when it started.")
        query = urlencode(asked)
        answer = RedirectResponse("/" + scope["path"].lstrip("/\\") + (f"?{query}" if query else ""), 303)
        secure = self.scheme == "https"
        answer.set_cookie(self.cookie, self.session, httponly=True, samesite="strict", secure=secure)
        return answer


def _same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(), wanted.encode())


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(why + "\n", status)
