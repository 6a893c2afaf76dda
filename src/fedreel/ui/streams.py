"""Server-sent events: what changed of a page, as long as somebody looks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from fedreel.errors import FedreelError

T = TypeVar("T")
OFTEN = 0.8  # seconds
SHARE = 150


def stream(changes: Callable[[], dict[str, Any]]) -> Response:
    """What `changes` tells, about once a second; what it has told before is not sent again."""

    async def events() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        before = ""
        while True:
            try:
                told, wait = await run_in_threadpool(lambda: pace(changes))
            except FedreelError:  # what it is about is gone; the page learns that when it asks again
                return
            text = json.dumps(told)
            yield f"data: {text}\n\n" if text != before else ": still here\n\n"
            before = text
            await asyncio.sleep(wait)

    return StreamingResponse(events(), media_type="text/event-stream")


def pace(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` gives, and how long to wait before the next time: OFTEN, or as long as keeps it below 1 % of a
    processor."""
    began = time.thread_time()
    made = work()
    return made, max(OFTEN, SHARE * (time.thread_time() - began))
