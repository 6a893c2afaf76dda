"""The gate's ear: so many connections, in all and from one address, and so long until one has said what it wants."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 20.0  # seconds until the head of a request is there


class Listening(socket.socket):
    """A listening socket that hangs up on whoever has too many connections, before anything is made for him. One counts
    from the moment it is accepted until it is closed, encrypted yet or not."""

    def limit(self, most: int, each: int) -> None:
        """So many connections in all, and so many from one address."""
        self.most, self.each, self.open = most, each, Counter[str]()

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            handle, address = self._accept()  # type: ignore[attr-defined]
            connection = _Counted(self.family, self.type, self.proto, fileno=handle)
            connection.count(self.open, str(address[0]))
            if self.open.total() <= self.most and self.open[str(address[0])] <= self.each:
                return connection, address
            connection.close()


def listen(host: str, port: int, most: int, each: int) -> Listening:
    """A socket that takes so many connections, and so many from one address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = Listening(family, socket.SOCK_STREAM)
    made.limit(most, each)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    return made


class Prompt(H11Protocol):
    """HTTP for those who say what they want within `HEAD` seconds."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._wait()  # a part of a head

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEAD, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Counted(socket.socket):
    _open: Counter[str] | None = None

    def count(self, open: Counter[str], address: str) -> None:
        self._open, self._address = open, address
        open[address] += 1

    def close(self) -> None:
        if self._open is not None:
            self._open[self._address] -= 1
            self._open = None
        super().close()
