"""A site's call to its server: the right one is told from all the others, and each no has its own words."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fedreel import __version__
from fedreel.engines.flower.processes import held_port
from fedreel.errors import FedreelError

pytest.importorskip("cryptography", reason="comes with the extra `flower`")

from fedreel.sites import keys, node, site
from fedreel.sites.call import call_server, check_clock, check_welcome, split_address, version_note

HELLO = json.dumps({"fedreel": __version__, "enrolled": True}).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One CA, with a certificate for 127.0.0.1 in `good`, one that has expired, and one for another host; and another
    CA in `other`."""
    made = tmp_path_factory.mktemp("tls")
    for name, hosts, days in (("good", ["127.0.0.1", "localhost"], 1), ("expired", ["127.0.0.1", "localhost"], -1)):
        _certificate(made, name, hosts, days)
    _certificate(made, "elsewhere", ["server.example.org", "10.0.0.1"], 1)
    (made / "other").mkdir()
    keys.make_ca(made / "other", "a CA")
    keys.make_server_certificate(made / "other", ["127.0.0.1"])
    return made


def _certificate(folder: Path, name: str, hosts: list[str], days: float) -> None:
    if not (folder / "ca.crt").exists():
        keys.make_ca(folder, "a CA")
    keys.make_server_certificate(folder, hosts, days)
    (folder / name).mkdir()
    for file in ("server.crt", "server.key"):
        (folder / file).rename(folder / name / file)


@contextmanager
def serving(certificate: Path | None, answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """A server on loopback, with TLS if there is a certificate; yields its address. `answer` gets the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            if not status:
                return  # hangs up
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "server.crt", certificate / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def says(body: bytes, status: int = 200) -> Callable[[str], tuple[int, bytes]]:
    return lambda path: (status, body)


def why_not(address: str, ca: Path) -> FedreelError:
    with pytest.raises(FedreelError) as caught:
        call_server(address, ca, "kind key", timeout=5)
    return caught.value


def test_the_right_server_is_asked_for_our_key(folder: Path) -> None:
    asked = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        return 200, HELLO

    with serving(folder / "good", answer) as address:
        assert call_server(address, folder / "ca.crt", "ecdsa AAA+/B=") == json.loads(HELLO)
        named = f"https://localhost:{address.rpartition(':')[2]}/"
        assert call_server(named, folder / "ca.crt", "k")["enrolled"] is True
    assert urlsplit(asked[0]).path == "/fedreel/hello"
    assert parse_qs(urlsplit(asked[0]).query) == {"key": ["ecdsa AAA+/B="]}


@pytest.mark.parametrize(
    ("certificate", "problem", "hint"),
    [
        ("other", "the server's certificate is not signed by your CA", "get ca.crt"),
        ("expired", "the server's certificate has expired", "--renew"),
        ("elsewhere", "the server's certificate is for another host", "the name it was made for"),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_certificate_that_is_not_good_says_why(
    folder: Path, certificate: str, problem: str, hint: str, host: str
) -> None:
    with serving(folder / certificate, says(HELLO)) as address:
        error = why_not(address.replace("127.0.0.1", host), folder / "ca.crt")
    assert error.problem == problem
    assert hint in error.hint
    assert error.where.startswith(host)


def test_nothing_is_told_to_a_server_whose_certificate_is_not_good(folder: Path) -> None:
    asked: list[str] = []
    with serving(folder / "other", lambda path: (200, str(asked.append(path)).encode())) as address:
        why_not(address, folder / "ca.crt")
    assert asked == []


def test_a_server_that_speaks_plain_http_is_refused(folder: Path) -> None:
    with serving(None, says(HELLO)) as address:
        error = why_not(address, folder / "ca.crt")
        assert error.problem == "the server does not speak TLS"
        assert "plain HTTP is refused" in error.hint
        with pytest.raises(FedreelError, match="plain HTTP is refused"):
            call_server(f"http://{address}", folder / "ca.crt", "k")


def test_where_nobody_listens_the_server_cannot_be_reached(folder: Path) -> None:
    with held_port() as port:
        error = why_not(f"127.0.0.1:{port}", folder / "ca.crt")
    assert error.problem == "the server cannot be reached"
    assert "firewall" in error.hint
    assert "refused" in error.found


def test_a_name_that_nobody_knows_cannot_be_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = why_not("server.invalid:443", folder / "ca.crt")
    assert (error.problem, error.where) == ("the server cannot be reached", "server.invalid:443")
    assert "not known" in error.found


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>welcome</html>"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b"\xff\xfe"),
        (200, b""),
        (404, b"not found"),
        (404, HELLO),
        (301, HELLO),
        (500, b"{}"),
        (200, b"5"),
        (200, b"null"),
        (0, b""),
    ],
)
def test_something_else_that_answers_is_not_taken_for_a_server(folder: Path, status: int, body: bytes) -> None:
    with serving(folder / "good", says(body, status)) as address:
        error = why_not(address, folder / "ca.crt")
    assert error.problem == "whatever answers there is not a fedreel server"


def test_a_server_that_is_not_ready_yet_can_be_asked_again(folder: Path) -> None:
    with serving(folder / "good", says(b"the server is starting or stopping", 503)) as address:
        error = why_not(address, folder / "ca.crt")
    assert (error.problem, error.found) == ("the server cannot be reached", "the server is starting or stopping")


@pytest.mark.parametrize("content", [None, b"", b"hello"])
def test_a_ca_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    error = why_not("127.0.0.1:1", tmp_path / "ca.crt")
    assert error.problem == "the CA certificate cannot be read"
    assert error.where == str(tmp_path / "ca.crt")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("server.org:8000", ("server.org", 8000)),
        ("https://server.org:443/", ("server.org", 443)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:8000", ("::1", 8000)),
    ],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "server.org", ":8000", "server.org:", "server.org:http", "https://server.org", "a:-1"]
)
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(FedreelError, match="cannot read the server's address"):
        split_address(text)


def test_a_server_that_does_not_know_us_says_what_to_send(tmp_path: Path) -> None:
    check_welcome({"enrolled": True}, "s:1", tmp_path / "site.pub")
    with pytest.raises(FedreelError, match="does not know this site's key") as caught:
        check_welcome({"enrolled": False}, "s:1", tmp_path / "site.pub")
    assert str(tmp_path / "site.pub") in caught.value.hint
    assert "fedreel server enroll" in caught.value.hint


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        *((None, ""), ("soon", ""), (100.0, ""), (101.0, ""), (95.0, ""), (401.0, "")),
        (94.0, "ahead of the server's"),
        (402.0, "behind the server's"),
    ],
)
def test_a_clock_by_which_nothing_is_believed_is_told(theirs: object, said: str) -> None:
    """Asked at 100 and answered at 101: what the server said in between it may have said at either."""
    if not said:
        check_clock(theirs, 100.0, 101.0, "s:1")
        return
    with pytest.raises(FedreelError, match=said) as caught:
        check_clock(theirs, 100.0, 101.0, "s:1")
    assert caught.value.found in ("6 s", "301 s")


def test_the_clocks_are_compared_before_anything_starts(folder: Path) -> None:
    late = json.dumps({"enrolled": True, "time": time.time() + 1000}).encode()
    with serving(folder / "good", says(late)) as address:
        assert "clock is behind" in why_not(address, folder / "ca.crt").problem


def test_another_version_is_remarked_on() -> None:
    assert version_note({"fedreel": __version__}) == ""
    assert "99.0" in version_note({"fedreel": "99.0"})
    assert __version__ in version_note({"fedreel": "99.0"})


def greeted(made: site.SiteFolder) -> list[str]:
    said: list[str] = []
    node.greet(made, said.append)
    return said


def test_a_site_looks_before_it_starts(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "videos"
    data.mkdir()
    site.init(tmp_path / "site", "north", {"*": str(data)}, "", "")

    def opened(address: str, **data: str) -> site.SiteFolder:
        return site.SiteFolder.open(tmp_path / "site", data, address, str(folder / "ca.crt"))

    hello: dict[str, Any] = {"fedreel": __version__, "enrolled": True}
    with serving(folder / "good", lambda path: (200, json.dumps(hello).encode())) as address:
        assert greeted(opened(address)) == []
        hello["fedreel"] = "99.0"
        assert len(greeted(opened(address))) == 1
        with pytest.raises(FedreelError, match="does not exist"):
            greeted(opened(address, videos=str(tmp_path / "gone")))
        hello["enrolled"] = False
        with pytest.raises(FedreelError, match="does not know this site's key"):
            greeted(opened(address))
    with pytest.raises(FedreelError, match="does not know its server"):
        greeted(site.SiteFolder.open(tmp_path / "site"))
