"""A harness: a reader, inputs that its last step accepts, and how they are spoiled. What it does to one input."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreel.errors import FedreelError
from fuzz.mutate import Mutate, spoil_bytes

SLOW = 5.0  # seconds
LARGE = 1 << 30  # bytes more than before


@dataclass(frozen=True)
class Harness:
    """`read` gets the path of a file called `file` in a folder that `prepare` has filled, or, without a `file`, the
    bytes themselves. It may raise `errors`; anything else is a fault."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Any], object]
    mutate: Mutate = spoil_bytes
    file: str = ""
    prepare: Callable[[Path], object] = lambda folder: None
    errors: tuple[type[BaseException], ...] = (FedreelError,)
    clean: tuple[str, ...] = ()  # what `read` leaves behind, removed after each input


@dataclass(frozen=True)
class Fault:
    """What went wrong with an input: its number tells how to make it again."""

    harness: str
    seed: int
    number: int
    what: str
    data: bytes = field(repr=False)


class Bench:
    """A harness set up in a folder of its own, preferably in memory."""

    def __init__(self, harness: Harness) -> None:
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
        self.harness, self.folder = harness, Path(tempfile.mkdtemp(prefix="fuzz-", dir=place))
        harness.prepare(self.folder)
        self.seeds = [*harness.seeds()]

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def input(self, seed: int, number: int) -> bytes:
        """The same for the same numbers."""
        rng = random.Random(f"{seed}/{self.harness.name}/{number}")
        return self.harness.mutate(rng.choice(self.seeds), rng)

    def accepts(self, data: bytes) -> object:
        """Give an input to the reader, to its last step."""
        what: Any = data
        if self.harness.file:
            what = self.folder / self.harness.file
            what.parent.mkdir(parents=True, exist_ok=True)
            what.write_bytes(data)
        try:
            return self.harness.read(what)
        finally:
            for name in self.harness.clean:
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def tries(self, seed: int, numbers: Sequence[int] | range) -> Iterator[Fault]:
        for number in numbers:
            data = self.input(seed, number)
            before, began = peak(), time.monotonic()
            what = self._what_happens(data)
            seconds, bytes_more = time.monotonic() - began, peak() - before
            if not what and seconds > SLOW:
                what = f"{seconds:.1f} s"
            if not what and bytes_more > LARGE:
                what = f"{bytes_more / 2**30:.1f} GB"
            if what:
                yield Fault(self.harness.name, seed, number, what, data)

    def _what_happens(self, data: bytes) -> str:
        try:
            self.accepts(data)
        except self.harness.errors:
            return ""
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            own = [p for p in traceback.extract_tb(error.__traceback__) if "fedreel" in p.filename] or [place]
            where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
            return f"{type(error).__name__} at {where}: {str(error)[:200]}"
        return ""


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
