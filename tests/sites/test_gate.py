"""The server's door: sites' requests pass, everything else stays outside, however it is written."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlencode

import pytest

from fedreel import __version__
from fedreel.engines.flower.processes import held_port

pytest.importorskip("starlette", reason="comes with the extra `flower`")
pytest.importorskip("uvicorn", reason="comes with the extra `flower`")
pytest.importorskip("cryptography", reason="comes with the extra `flower`")

pytest.importorskip("flwr", reason="needs the extra `flower`")

import httpx
import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.responses import Response

from fedreel.sites import gate, keys, listening, repeats, visitors


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
    signed: bool = True


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


SITE = ec.generate_private_key(ec.SECP384R1())


def enroll(folder: Path, name: str = "signer", key: ec.EllipticCurvePrivateKey = SITE) -> None:
    (folder / "sites").mkdir(exist_ok=True)
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (folder / "sites" / f"{name}.pub").write_bytes(key.public_key().public_bytes(*formats) + f" {name}\n".encode())


def signed(key: ec.EllipticCurvePrivateKey = SITE, seconds: float = 0.0) -> dict[str, str]:
    """The head of a request as Flower's own code makes it, so long ago."""
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    context = SimpleNamespace(request=httpx.Request("POST", "https://gate"))
    moment = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds)
    signs: Any = NodeAuthHttpInterceptor(key, key.public_key())
    with mock.patch("flwr.supernode.node_auth_http_interceptor.now", return_value=moment):
        signs.intercept(context, lambda _: None)
    return {name: value for name, value in context.request.headers.items() if name.startswith("flwr-")}


def ask(folder: Path, certificates: Path, port: int, *requests: Asked) -> list[Answer]:
    """Requests to a gate in front of this port, one after another, of an enrolled site."""
    verify = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    enroll(folder)

    async def all_of_them() -> list[Answer]:
        app = gate.make_app(folder, f"https://127.0.0.1:{port}", verify)
        return [await one(app, request) for request in requests]

    async def one(app: object, request: Asked) -> Answer:
        pieces = list(request.body)
        head = {"host": "gate", **(signed() if request.signed else {}), **request.headers}
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
            "headers": [(k.encode(), v.encode()) for k, v in head.items()],
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
    with held_port() as port:
        (answer,) = ask(tmp_path, certificates, port, Asked("/v1/fleet/x"))
    assert answer.status == 503


def test_a_stranger_on_the_superlinks_port_gets_nothing(tmp_path: Path, inner: Inner) -> None:
    keys.make_ca(tmp_path, "a CA")
    (answer,) = ask(tmp_path, tmp_path, inner.port, Asked("/v1/fleet/x", body=(b"secret",)))
    assert answer.status == 503
    assert inner.asked == []


def test_the_gate_tells_a_site_whether_its_key_is_enrolled(tmp_path: Path, certificates: Path, inner: Inner) -> None:
    (tmp_path / "sites").mkdir()
    known = list[str]()
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
    with held_port() as port:
        (answer,) = ask(tmp_path, certificates, port, Asked("/fedreel/hello", "GET"))
    assert (answer.status, answer.body) == (503, b"the server is starting or stopping")


STRANGER = ec.generate_private_key(ec.SECP384R1())
UNKNOWN: dict[str, dict[str, str]] = {
    "no signature": {},
    "another's key": signed(STRANGER),
    "another's signature": {**signed(), "flwr-signature": signed(STRANGER)["flwr-signature"]},
    "another time": {**signed(), "flwr-timestamp": signed(seconds=1)["flwr-timestamp"]},
    "an hour ago": signed(seconds=3600),
    "an hour ahead": signed(seconds=-3600),
    "no time": {**signed(), "flwr-timestamp": "yesterday"},
    "a time without a place": {**signed(), "flwr-timestamp": "2026-01-01T00:00:00"},
    "no key": {**signed(), "flwr-public-key": "AAAA"},
    "no letters": {**signed(), "flwr-signature": "\xff\xfe"},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_whoever_is_not_known_is_sent_away_before_his_body_is_read(
    tmp_path: Path, certificates: Path, inner: Inner, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_body", lambda request: pytest.fail("the body was read"))
    asked = Asked("/v1/fleet/push-object", body=[b"x" * 1000] * 100, headers=UNKNOWN[name], signed=False)
    (answer,) = ask(tmp_path, certificates, inner.port, asked)
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert inner.asked == []


def test_a_site_is_known_from_when_it_is_enrolled_until_it_is_expelled(tmp_path: Path) -> None:
    known = visitors.Visitors(tmp_path, 0)
    assert known.who(signed()) is None
    enroll(tmp_path, "north")
    enroll(tmp_path, "south", STRANGER)
    assert (known.who(signed()), known.who(signed(STRANGER))) == ("north", "south")
    (tmp_path / "sites" / "north.pub").unlink()
    assert (known.who(signed()), known.who(signed(STRANGER))) == (None, "south")


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_BODY", 0.01)
    enroll(tmp_path)
    sent: list[Any] = []

    async def asked() -> None:
        app = gate.make_app(tmp_path, "https://127.0.0.1:1", ssl.create_default_context())
        head = [(k.encode(), v.encode()) for k, v in signed().items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/x", "headers": head, "query_string": b""}
        await app(scope, asyncio.Event().wait, lambda message: told(message))  # type: ignore[arg-type]

    async def told(message: Any) -> None:
        sent.append(message)

    asyncio.run(asked())
    assert sent[0]["status"] == 408


def test_a_piece_that_is_sent_again_is_passed_on_once_and_has_the_same_answer(
    tmp_path: Path, certificates: Path, inner: Inner
) -> None:
    """As after a line that broke before the answer: the SuperLink would say that it has not stored it."""
    piece, other = Asked(repeats.PIECES, body=(b"one",)), Asked(repeats.PIECES, body=(b"two",))
    answers = ask(tmp_path, certificates, inner.port, piece, piece, other, piece)
    assert [(a.status, a.body) for a in answers] == [(200, b"eno"), (200, b"eno"), (200, b"owt"), (200, b"eno")]
    assert [body for _, body, _ in inner.asked] == [b"one", b"two"]
    inner.asked.clear()
    again = [Asked("/v1/fleet/pull-messages", body=(b"x",))] * 2  # what is the same whenever it is asked
    again += [Asked(repeats.PIECES, body=(b"teapot",))] * 2  # what was refused may be tried again
    ask(tmp_path, certificates, inner.port, *again)
    assert len(inner.asked) == 4


def test_a_piece_that_comes_again_before_its_answer_waits_for_it() -> None:
    async def both() -> tuple[list[Response], int]:
        seen, made = repeats.Repeats(), list[int]()

        async def pass_on() -> Response:
            made.append(1)
            await asyncio.sleep(0.01)
            return Response(b"stored")

        first = asyncio.ensure_future(seen.once("north", repeats.PIECES, b"piece", pass_on))
        await asyncio.sleep(0)
        first.cancel()  # its line broke
        answers = await asyncio.gather(*(seen.once("north", repeats.PIECES, b"piece", pass_on) for _ in range(2)))
        await seen.once("south", repeats.PIECES, b"piece", pass_on)  # another site's own
        for number in range(1000):
            await seen.once("west", "/other", bytes(number), lambda: asyncio.sleep(0, Response()))
        return [*answers], len(made)

    answers, passed_on = asyncio.run(both())
    assert [bytes(answer.body) for answer in answers] == [b"stored"] * 2
    assert passed_on == 2


def test_a_site_that_is_cut_off_in_the_middle_is_no_error_of_ours(tmp_path: Path) -> None:
    enroll(tmp_path)
    sent: list[Any] = []

    async def asked() -> None:
        app = gate.make_app(tmp_path, "https://127.0.0.1:1", ssl.create_default_context())
        head = [(k.encode(), v.encode()) for k, v in signed().items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/x", "headers": head, "query_string": b""}
        came = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(came)

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)

    asyncio.run(asked())
    assert sent[0]["status"] == 400


def test_a_site_brings_no_more_than_its_share_of_an_hour(
    tmp_path: Path, certificates: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(visitors, "time", SimpleNamespace(monotonic=lambda: now[0]))
    book = visitors.Visitors(tmp_path, 100)
    for size in (60, 39):
        book.brought("north", size)
        now[0] += 1000
        assert not book.over_quota("north")
    book.brought("north", 1)
    assert book.over_quota("north")
    assert not book.over_quota("south")
    now[0] = 3601.0
    assert not book.over_quota("north")
    assert not visitors.Visitors(tmp_path, 0).over_quota("north")
    make = gate.make_app
    monkeypatch.setattr(gate, "make_app", lambda *args: make(*args, hourly=5.0))
    requests = [Asked("/v1/fleet/x", body=(b"123",)) for _ in range(4)]
    assert [a.status for a in ask(tmp_path, certificates, inner.port, *requests)] == [200, 200, 429, 429]


def pushed(node: int, *senders: int) -> bytes:
    """Answers that a node sends, each said to be of some node, as Flower has them on the wire."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    answers = [Message(metadata=Metadata(src_node_id=sender, reply_to_message_id="1")) for sender in senders]
    return PushMessagesRequest(node=Node(node_id=node), messages_list=answers).SerializeToString()


def test_no_site_answers_in_anothers_name(tmp_path: Path, certificates: Path, inner: Inner) -> None:
    path = "/v1/fleet/push-messages"
    own, none, others, rubbish = pushed(7, 7, 7), pushed(7), pushed(7, 7, 8), b"\xff"
    bodies = (own, none, others, rubbish)
    answers = ask(tmp_path, certificates, inner.port, *(Asked(path, body=(body,)) for body in bodies))
    assert [answer.status for answer in answers] == [200, 200, 403, 403]
    assert [body for _, body, _ in inner.asked] == [own, none]


def test_where_the_disk_is_full_nothing_more_comes_in(
    tmp_path: Path, certificates: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "_ROOM", 1 << 62)
    (answer,) = ask(tmp_path, certificates, inner.port, Asked("/v1/fleet/x"))
    assert answer.status == 507
    assert inner.asked == []


@pytest.fixture
def ear(certificates: Path) -> Iterator[listening.Listening]:
    """A gate on a real socket that takes four connections, three from one address."""
    made = listening.listen("127.0.0.1", 0, 4, 3)
    made.listen()
    server = uvicorn.Server(gate.settings(Starlette(), certificates))
    thread = threading.Thread(target=server.run, args=([made],), daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield made
    server.should_exit = True
    thread.join(60)


def call(ear: listening.Listening, certificates: Path, source: str = "127.0.0.1") -> ssl.SSLSocket:
    line = socket.create_connection(ear.getsockname(), 60, (source, 0))
    return ssl.create_default_context(cafile=str(certificates / "ca.crt")).wrap_socket(
        line, server_hostname="127.0.0.1"
    )


def test_connections_are_counted_by_address_and_in_all(ear: listening.Listening, certificates: Path) -> None:
    bare = [socket.create_connection(ear.getsockname(), 60) for _ in range(3)]  # not encrypted yet, and never will be
    with pytest.raises(OSError):  # noqa: PT011
        call(ear, certificates)
    other = call(ear, certificates, "127.0.0.2")
    with pytest.raises(OSError):  # noqa: PT011
        call(ear, certificates, "127.0.0.3")
    other.sendall(b"GET /x HTTP/1.1\r\nhost: gate\r\n\r\n")
    assert other.recv(100).startswith(b"HTTP/1.1 404")
    for line in bare:
        line.close()
    while ear.open["127.0.0.1"]:
        threading.Event().wait(0.01)
    call(ear, certificates).close()
    other.close()


@pytest.mark.parametrize("said", [b"", b"POST /v1/fleet/x HTTP/1.1\r\n"])
@pytest.mark.parametrize("first", [True, False])
def test_a_head_that_does_not_come_is_not_waited_for(
    ear: listening.Listening, certificates: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, first: bool
) -> None:
    monkeypatch.setattr(listening, "HEAD", 0.3 if first else 600.0)
    line = call(ear, certificates)
    if not first:
        line.sendall(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n")
        heard = b""
        while b"\r\n\r\nNot Found" not in heard:
            more = line.recv(1000)
            assert more, heard
            heard += more
        said = said or b"G"
        monkeypatch.setattr(listening, "HEAD", 0.3)
    with suppress(ConnectionResetError, BrokenPipeError):
        line.sendall(said)
        assert line.recv(1000) == b""
    while ear.open.total():
        threading.Event().wait(0.01)
