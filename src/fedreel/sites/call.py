"""A site's first call to its server: is it there, is it the right one, does it know us? Each no in plain words."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fedreel import __version__
from fedreel.errors import FedreelError

_AHEAD, _BEHIND = 5.0, 300.0  # seconds that Flower lets a site's clock differ
_EXPIRED, _NOT_YET, _UNKNOWN, _HOST = (10,), (9,), (18, 19, 20, 21), (62, 64)  # OpenSSL's verify codes


def split_address(server: str) -> tuple[str, int]:
    """HOST:PORT as two."""
    if server.startswith("http://"):
        raise FedreelError(
            "plain HTTP is refused: data about people may only travel encrypted",
            found=server,
            expected="HOST:PORT (the server speaks TLS)",
        )
    host, _, port = server.removeprefix("https://").rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        raise FedreelError("cannot read the server's address", expected="HOST:PORT", found=server or "nothing")
    return host.strip("[]"), int(port)


def call_server(server: str, ca: Path, public_key: str, timeout: float = 10) -> dict[str, Any]:
    """What the server says to us; raises if we cannot or should not talk with it."""
    host, port = split_address(server)
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise FedreelError(
            "the CA certificate cannot be read",
            where=str(ca),
            found=str(error),
            hint="name the server's ca.crt with --ca",
        ) from error
    connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    asked = time.time()
    try:
        connection.request("GET", "/fedreel/hello?" + urlencode({"key": public_key}))
        answer = connection.getresponse()
        if answer.status == 503:
            raise OSError("the server is starting or stopping")
        reply = json.loads(answer.read(1 << 16)) if answer.status == 200 else {}
    except ssl.SSLCertVerificationError as error:
        raise _distrust(error, server, ca) from error
    except http.client.RemoteDisconnected:  # over TLS, and without a word
        reply = {}
    except (ssl.SSLError, ConnectionResetError) as error:
        raise FedreelError(
            "the server does not speak TLS",
            where=server,
            found=str(error)[:100],
            hint="plain HTTP is refused. Is this the port of `fedreel server start`?",
        ) from error
    except (socket.gaierror, TimeoutError, OSError) as error:
        raise FedreelError(
            "the server cannot be reached",
            where=server,
            found=str(error) or type(error).__name__,
            hint="check the address, that the server runs, and that its firewall lets this port in",
        ) from error
    except (ValueError, http.client.HTTPException):
        reply = {}
    finally:
        connection.close()
    if not isinstance(reply, dict) or "enrolled" not in reply:
        raise FedreelError(
            "whatever answers there is not a fedreel server", where=server, hint="check address and port"
        )
    check_clock(reply.get("time"), asked, time.time(), server)
    return reply


def check_clock(theirs: object, asked: float, answered: float, server: str) -> None:
    """Raise if the server, which said its time between these two moments of ours, will not believe what we sign."""
    if not isinstance(theirs, int | float):
        return  # an older one
    ahead = max(0.0, asked - theirs) - max(0.0, theirs - answered)
    if not -_BEHIND <= ahead <= _AHEAD:
        raise FedreelError(
            f"this machine's clock is {'ahead of' if ahead > 0 else 'behind'} the server's",
            where=server,
            expected=f"at most {_AHEAD:.0f} s ahead or {_BEHIND:.0f} s behind, or nothing signed here is believed",
            found=f"{abs(ahead):.0f} s",
            hint="set both clocks by the network (timedatectl set-ntp true)",
        )


def check_welcome(reply: dict[str, Any], server: str, public_key: Path) -> None:
    """Raise if the server does not know our key."""
    if not reply["enrolled"]:
        raise FedreelError(
            "the server does not know this site's key",
            where=server,
            hint=f"send {public_key} to the server's owner, who runs: fedreel server enroll {public_key.name}",
        )


def version_note(reply: dict[str, Any]) -> str:
    """A remark if the two sides run different versions."""
    theirs = str(reply.get("fedreel"))
    return "" if theirs == __version__ else f"The server runs fedreel {theirs}, this site {__version__}."


def _distrust(error: ssl.SSLCertVerificationError, server: str, ca: Path) -> FedreelError:
    code = error.verify_code
    if code in _EXPIRED or code in _NOT_YET:
        return FedreelError(
            "the server's certificate has expired" if code in _EXPIRED else "the server's certificate is not valid yet",
            where=server,
            found=error.verify_message,
            hint="the server's owner makes a new one: fedreel server init --renew (and check this machine's clock)",
        )
    if code in _HOST:
        return FedreelError(
            "the server's certificate is for another host",
            where=server,
            found=error.verify_message,
            hint="use the name it was made for, or add this one to `hosts` in server.toml: fedreel server init --renew",
        )
    return FedreelError(
        "the server's certificate is not signed by your CA",
        where=server,
        expected=f"a certificate under {ca}",
        found=error.verify_message,
        hint="get ca.crt from the server's owner over a channel you trust; if you did, somebody else is answering",
    )
