"""Processes that read shards: the bytes of the shards, whoever is killed; and none of them is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.data import shard_readers as module
from fedreel.data.clip_index import find
from fedreel.data.shard_readers import Cut, Readers, Sheet, can_share, readers_of
from fedreel.data.shards import Shards, build
from fedreel.errors import DataError, RunError
from support.started import started

pytestmark = pytest.mark.skipif(not can_share(), reason="this system has no memory that processes share without a name")
SIDE = 8


@pytest.fixture(scope="module")
def shards(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return build(find(data), data, tmp_path_factory.mktemp("jpegs") / "shards", side=SIDE, quality=90, workers=1)


Children = Callable[[], list[BaseProcess]]


@pytest.fixture
def own() -> Children:
    """The processes that a test has started: those of another may be about to end."""
    before = {*multiprocessing.active_children()}
    return lambda: [process for process in multiprocessing.active_children() if process not in before]


@pytest.fixture
def readers(shards: Shards, own: Children, monkeypatch: pytest.MonkeyPatch) -> Iterator[Readers]:
    monkeypatch.setattr(module, "READERS", 1)
    found = readers_of(shards)
    yield found
    found.stop()
    assert not own()


def cuts_of(shards: Shards, *rows: int) -> list[Cut]:
    """Frames in no order, one of them twice; the square at one end or the other."""
    clips = [shards.clips[i] for i in rows]
    return [(c, np.array([0, 3, 3, 7, 1]), (0, (c.width - SIDE) * (i % 2))) for i, c in zip(rows, clips)]


def expected(shards: Shards, *rows: int) -> bytes:
    return b"".join(shards.parts.frames(*cut).tobytes() for cut in cuts_of(shards, *rows))


def kill_all(processes: list[BaseProcess]) -> None:
    for process in processes:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()


def test_what_is_read_is_what_the_shards_hold(shards: Shards, readers: Readers) -> None:
    wanted = [expected(shards, i, i + 1) for i in range(4)]
    sheets = [Sheet(len(wanted[0]) + 3) for _ in range(4)]
    under_way = [readers.begin(sheet, cuts_of(shards, i, i + 1)) for i, sheet in enumerate(sheets)]
    for reading in under_way:
        reading.wait()
    assert [sheet.bytes.tobytes() for sheet in sheets] == [one + bytes(3) for one in wanted]
    readers.begin(sheets[0], cuts_of(shards, 3, 4)).wait()  # a sheet is used again
    assert sheets[0].bytes[:-3].tobytes() == wanted[3]


def test_shards_have_one_set_of_readers(shards: Shards, readers: Readers) -> None:
    assert readers_of(shards) is readers
    assert readers_of(Shards.open(shards.folder)) is not readers


def test_readers_end_with_their_shards(shards: Shards, own: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READERS", 1)
    copy = Shards.open(shards.folder)
    readers_of(copy).begin(Sheet(10_000), cuts_of(copy, 0)).wait()
    (process,) = own()
    del copy
    end = time.monotonic() + 60
    while process.exitcode is None and time.monotonic() < end:  # the pool's thread may be the one who hears of its end
        process.join(0.1)
        time.sleep(0.01)
    assert process.exitcode == 0


def test_when_readers_are_killed_others_read_the_same(shards: Shards, readers: Readers, own: Children) -> None:
    wanted = expected(shards, 2, 0)
    sheets = [Sheet(len(wanted)) for _ in range(3)]
    readers.begin(sheets[0], cuts_of(shards, 2, 0)).wait()
    (process,) = own()
    os.kill(process.pid or 0, signal.SIGSTOP)  # it has begun neither of the next two
    under_way = [readers.begin(sheet, cuts_of(shards, 2, 0)) for sheet in sheets[1:]]
    kill_all(own())
    for reading in under_way:
        reading.wait()
    assert [sheet.bytes.tobytes() for sheet in sheets] == [wanted] * 3
    kill_all(own())  # between two batches
    readers.begin(sheets[0], cuts_of(shards, 1, 5)).wait()
    assert sheets[0].bytes.tobytes() == expected(shards, 1, 5)


class Fatal:
    """Ends the process that gets it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


def test_readers_that_die_again_and_again_are_an_error(
    shards: Shards, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIES", 2)
    fatal: Any = [Fatal()]
    with pytest.raises(RunError, match="die again and again") as caught:
        readers.begin(Sheet(1), fatal).wait()
    assert caught.value.where == str(shards.folder)
    sheet = Sheet(len(expected(shards, 4)))
    readers.begin(sheet, cuts_of(shards, 4)).wait()  # others are not kept from it
    assert sheet.bytes.tobytes() == expected(shards, 4)


def test_a_damaged_picture_is_named_as_elsewhere(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READERS", 1)
    made = build(find(data), data, tmp_path / "shards", side=SIDE, quality=90, workers=1)
    part = made.parts.file(0)
    content = bytearray(part.read_bytes())
    content[: made.clips[0].size // 2] = bytes(made.clips[0].size // 2)
    part.write_bytes(content)
    readers = readers_of(made)
    try:
        with pytest.raises(DataError, match="frame 0 of") as here:
            made.parts.frames(*cuts_of(made, 0)[0])
        with pytest.raises(DataError) as there:
            readers.begin(Sheet(10_000), cuts_of(made, 0)).wait()
        assert str(there.value) == str(here.value)
        assert there.value.hint == here.value.hint
    finally:
        readers.stop()


def test_what_is_given_up_is_not_written_later(shards: Shards, readers: Readers) -> None:
    sheet = Sheet(len(expected(shards, 0)))
    under_way = [readers.begin(sheet, cuts_of(shards, 0)) for _ in range(5)]
    for reading in under_way:
        reading.give_up()
    sheet.bytes[:] = 7
    readers.begin(Sheet(10_000), cuts_of(shards, 1)).wait()  # the reader has gone on to the next
    assert (sheet.bytes == 7).all()


def test_readers_outlive_a_ctrl_c_that_their_process_outlives(shards: Shards, readers: Readers, own: Children) -> None:
    sheet = Sheet(len(expected(shards, 0)))
    readers.begin(sheet, cuts_of(shards, 0)).wait()
    (process,) = own()
    os.kill(process.pid or 0, signal.SIGINT)
    readers.begin(sheet, cuts_of(shards, 1)).wait()
    assert sheet.bytes.tobytes() == expected(shards, 1)
    assert own() == [process]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_readers_end_with_the_process_they_read_for(shards: Shards, tmp_path: Path, sign: signal.Signals) -> None:
    """Ctrl-C reaches them all; what kills this process does not."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\nimport numpy as np\nfrom pathlib import Path\n"
        "from fedreel.data import shard_readers as module\nfrom fedreel.data.shards import Shards\n"
        "module.READERS = 1\nshards = Shards.open(Path(sys.argv[1]))\nsheet = module.Sheet(10_000)\n"
        "while True:\n"
        "    reading = module.readers_of(shards).begin(sheet, [(shards.clips[0], np.arange(5), (0, 0))])\n"
        "    reading.wait()\n"
        "    print(*(p.pid for p in multiprocessing.active_children()), flush=True)\n"
    )
    command, pipe = [sys.executable, script, shards.folder], subprocess.PIPE
    with started(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reader = int(process.stdout.readline())
        if sign == signal.SIGINT:
            os.killpg(process.pid, sign)
        else:
            process.kill()
        told = process.stderr.read()  # to its end: all who could write there have ended
    assert told.count("Traceback") == (1 if sign == signal.SIGINT else 0), told
    while Path(f"/proc/{reader}").exists() and not _ended(reader):
        time.sleep(0.02)


def _ended(process: int) -> bool:
    """It may be a zombie until somebody asks for it."""
    return ") Z " in Path(f"/proc/{process}/stat").read_text()
