"""Pieces that a site sends again because the line broke before it was told that they had arrived.

The SuperLink takes each piece of a message once, and says of one that comes again that it was not stored; the SuperNode
then gives up the whole message. So the gate passes a piece on once, and has the same answer however often it comes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from starlette.responses import Response

PIECES = "/v1/fleet/push-object"  # the only request that is not the same when it is made again
_REMEMBERED = 64  # answers for a site: it has a few pieces under way at once


class Repeats:
    """Answers that were given to sites, the last ones of each."""

    def __init__(self) -> None:
        self._given: dict[str, dict[bytes, asyncio.Future[Response]]] = {}

    async def once(self, site: str, path: str, body: bytes, pass_on: Callable[[], Awaitable[Response]]) -> Response:
        """The answer to a request; if it is a piece that has come before, the answer that it was given or will be."""
        if path != PIECES:
            return await pass_on()
        given, key = self._given.setdefault(site, {}), hashlib.sha256(body).digest()
        if key not in given:
            given[key] = asyncio.ensure_future(pass_on())
            for old in [*given][:-_REMEMBERED]:
                del given[old]
        answer = await asyncio.shield(given[key])  # whoever waits for it may be gone before it is there
        if answer.status_code != 200:
            given.pop(key, None)  # it may be tried again
        return answer
