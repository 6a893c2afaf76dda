"""The server's door: sites' requests pass, everything else stays outside, however it is written."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlencode

import pytest

from fedreel import __version__
from fedreel.engines.flower.processes import free_port

pytest.importorskip("starlette", reason="comes with the extra `flower`")
pytest.importorskip("uvicorn", reason="comes with the extra `flower`")
pytest.importorskip("cryptography", reason="comes with the extra `flower`")

from fedreel.sites import gate, keys


@dataclass
class Inner:
    """A SuperLink that notes what reaches it."""

    port: int
    asked: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inner")
    keys.make_ca(folder, "a CA")
    keys.make_server_certificate(folder, ["127.0.0.1"])
    return folder


@pytest.fixture
def inner(certificates: Path) -> Iterator[Inner]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            made.asked.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
            self.send_response(418 if body == b"teapot" else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("x-answer", "yes")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[::-1])

        do_GET = do_PUT = do_DELETE = do_POST

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        made = Inner(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@dataclass
class Asked:
    """A request as it comes over the wire: the path is not tidied up as clients do."""

    path: str
    method: str = "POST"
    body: Sequence[bytes] = (b"",)
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def ask(folder: Path, certificates: Path, port: int, *requests: Asked) -> list[Answer]:
    """Requests to a gate in front of this port, one after another."""
    verify = ssl.create_default_context(cafile=str(certificates / "ca.crt"))

    async def all_of_them() -> list[Answer]:
        app = gate.make_app(folder, f"https://127.0.0.1:{port}", verify)
        return [await one(app, request) for request in requests]

    async def one(app: object, request: Asked) -> Answer:
        pieces = list(request.body)
        sent: list[dict] = []

        async def receive() -> dict:
            piece = pieces.pop(0) if pieces else b""
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "https",
            "method": request.method,
            "path": unquote(request.path),
            "raw_path": request.path.encode(),
            "query_string": request.query.encode(),
            "root_path": "",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 9),
            "headers": [(k.encode(), v.encode()) for k, v in {"host": "gate", **request.headers}.items()],
        }
        await app(scope, receive, send)  # type: ignore[operator]
        headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:]))

    return asyncio.run(all_of_them())


def test_requests_of_sites_are_passed_on_and_answers_come_back(
    tmp_path: Path, certificates: Path, inner: Inner
) -> None:
    headers = {"x-signature": "abc", "content-type": "application/x-protobuf", "connection": "upgrade", "te": "x"}
    body = (b"one", b"", b"two")
    first, second = ask(
        tmp_path,
        certificates,
        inner.port,
        Asked("/v1/fleet/pull-messages", body=body, headers=headers),
        Asked("/v1/fleet/register-node", body=(b"teapot",)),
    )
    assert (first.status, first.body, first.headers["x-answer"]) == (200, b"owteno", "yes")
    assert first.headers["content-type"] == "application/x-protobuf"
    assert (second.status, second.body) == (418, b"topaet")
    path, content, got = inner.asked[0]
    assert (path, content, got["x-signature"]) == ("/v1/fleet/pull-messages", b"onetwo", "abc")
    assert "upgrade" not in got.values()
    assert got["host"] == f"127.0.0.1:{inner.port}"
    assert inner.asked[1][:2] == ("/v1/fleet/register-node", b"teapot")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/pull-messages"),
        *("/docs", "/openapi.json", "/", "//v1/fleet/x", "/V1/fleet/x", "/v1/fleetx/y", "/fedreel", "/fedreel/hello/x"),
        *("/x/v1/fleet/y", "/v1/control/../fleet/x", "/v1%2ffleetx"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_but_the_fleets_paths_is_behind_the_gate(
    tmp_path: Path, certificates: Path, inner: Inner, path: str, method: str
) -> None:
    (answer,) = ask(tmp_path, certificates, inner.port, Asked(path, method, (b"x",)))
    assert answer.status == 404
    assert inner.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/a/../../control/start-run",
        "/v1/fleet/./../control/start-run",
        "/v1/fleet/../../docs",
    ],
)
def test_no_way_of_writing_a_path_leads_around_the_gate(
    tmp_path: Path, certificates: Path, inner: Inner, path: str
) -> None:
    (answer,) = ask(tmp_path, certificates, inner.port, Asked(path))
    assert all(asked.startswith("/v1/fleet/") and ".." not in asked for asked, _, _ in inner.asked)
    assert answer.status == 404


@pytest.mark.parametrize("host", ["gate/v1/control/start-run?", "gate#", "x@127.0.0.1", "", "a:b:c"])
def test_the_host_that_a_request_names_changes_nothing(
    tmp_path: Path, certificates: Path, inner: Inner, host: str
) -> None:
    ask(tmp_path, certificates, inner.port, Asked("/v1/fleet/x", headers={"host": host}))
    assert {asked for asked, _, _ in inner.asked} <= {"/v1/fleet/x"}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_the_fleets_paths_take_nothing_but_posts(tmp_path: Path, certificates: Path, inner: Inner, method: str) -> None:
    (answer,) = ask(tmp_path, certificates, inner.port, Asked("/v1/fleet/x", method))
    assert answer.status == 405
    assert inner.asked == []


def test_what_is_too_large_is_refused_by_its_word_and_by_its_weight(
    tmp_path: Path, certificates: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_MOST", 1000)
    told, weighed, just = ask(
        tmp_path,
        certificates,
        inner.port,
        Asked("/v1/fleet/x", headers={"content-length": "1001"}),
        Asked("/v1/fleet/x", body=[b"x" * 100] * 11),
        Asked("/v1/fleet/x", body=[b"x" * 100] * 10),
    )
    assert [told.status, weighed.status, just.status] == [413, 413, 200]
    assert [len(body) for _, body, _ in inner.asked] == [1000]


def test_a_superlink_that_is_away_is_a_503(tmp_path: Path, certificates: Path) -> None:
    (answer,) = ask(tmp_path, certificates, free_port(), Asked("/v1/fleet/x"))
    assert answer.status == 503


def test_a_stranger_on_the_superlinks_port_gets_nothing(tmp_path: Path, inner: Inner) -> None:
    keys.make_ca(tmp_path, "a CA")
    (answer,) = ask(tmp_path, tmp_path, inner.port, Asked("/v1/fleet/x", body=(b"secret",)))
    assert answer.status == 503
    assert inner.asked == []


def test_the_gate_tells_a_site_whether_its_key_is_enrolled(tmp_path: Path, certificates: Path, inner: Inner) -> None:
    (tmp_path / "sites").mkdir()
    known = []
    for name in ("north", "south"):
        keys.make_site_keys(tmp_path, name)
        (tmp_path / "site.pub").rename(tmp_path / "sites" / f"{name}.pub")
        known.append(keys.read_site_key(tmp_path / "sites" / f"{name}.pub")[0])
    keys.make_site_keys(tmp_path, "north")
    stranger = keys.read_site_key(tmp_path / "site.pub")[0]
    asked = [*known, stranger, known[0][:-1], known[0].split()[0], ""]
    requests = [Asked("/fedreel/hello", "GET", query=urlencode({"key": key})) for key in asked]
    answers = ask(tmp_path, certificates, inner.port, *requests, Asked("/fedreel/hello", "GET"))
    told = [json.loads(a.body) for a in answers]
    assert [t["enrolled"] for t in told] == [True, True, False, False, False, False, False]
    assert {t["fedreel"] for t in told} == {__version__}
    assert inner.asked == []


def test_before_the_superlink_listens_the_gate_says_so(tmp_path: Path, certificates: Path) -> None:
    (tmp_path / "sites").mkdir()
    (answer,) = ask(tmp_path, certificates, free_port(), Asked("/fedreel/hello", "GET"))
    assert (answer.status, answer.body) == (503, b"the server is starting or stopping")
