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
from typing import Any, Literal

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


Kind = Literal["crash", "memory", "time"]


@dataclass(frozen=True)
class Fault:
    """What went wrong with an input: its number tells how to make it again."""

    harness: str
    seed: int
    number: int
    kind: Kind
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
            what, seconds, more = self._tried(data)
            if not what and seconds > SLOW:  # the machine may have been busy: it is believed when it happens again
                what, seconds, more = self._tried(data)
            if what:
                yield Fault(self.harness.name, seed, number, "crash", what, data)
            elif seconds > SLOW:
                yield Fault(self.harness.name, seed, number, "time", f"{seconds:.1f} s", data)
            elif more > LARGE:
                yield Fault(self.harness.name, seed, number, "memory", f"{more / 2**30:.1f} GB", data)

    def _tried(self, data: bytes) -> tuple[str, float, int]:
        """What goes wrong with an input, the seconds it takes, and how many bytes more than before."""
        before, began = forget_peak(), time.monotonic()
        what = self._what_happens(data)
        return what, time.monotonic() - began, peak() - before

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


STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> int:
    """Bytes of memory that this process has; from now on `peak` counts anew, where the system lets it."""
    try:
        REFERENCES.write_text("5")
    except OSError:
        return peak()
    return _memory("VmRSS:")


def peak() -> int:
    """Bytes of memory that this process has had at most since `forget_peak`."""
    return _memory("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory(name: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
