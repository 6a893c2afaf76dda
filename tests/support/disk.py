"""A disk that is full, and a process that is killed while it writes."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


class Killed(BaseException):
    """Nothing that is in memory is left."""


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def killed_at(call: int) -> Iterator[list[int]]:
    """The process ends at this call that changes the disk, the first being 0; of a write, half is done. Yields how many
    there have been."""
    count = [0]

    def counted(function: Callable[..., Any], half: bool = False) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            if count[0] == call:
                if half:
                    function(args[0], args[1][: len(args[1]) // 2])
                raise Killed
            count[0] += 1
            return function(*args, **options)

        return instead

    with (
        mock.patch.object(os, "write", counted(os.write, half=True)),
        mock.patch.object(os, "replace", counted(os.replace)),
        mock.patch.object(os, "fsync", counted(os.fsync)),
    ):
        yield count
