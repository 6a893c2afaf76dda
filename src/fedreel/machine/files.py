"""Writing so that a reader finds the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote


def write_atomic(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Temp, fsync, rename. On any error the temp file is gone and the old content stands."""
    temp = path.with_name(f".{path.name}.tmp")
    try:
        with open(temp, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    if sync:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Force a file's content or a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; the file becomes `path` if all goes well, and is gone if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path):  # type: ignore[no-untyped-def]
    """Yields a temp folder that becomes `path` when the block ends well, and vanishes when it does not. What was `path`
    before is there until then."""
    temp, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():  # whoever wrote here before was killed between two names
        os.replace(old, path)
    for rest in (temp, old):
        shutil.rmtree(rest, ignore_errors=True)
    temp.mkdir(parents=True)
    try:
        yield temp
        for file in temp.iterdir():
            sync_path(file)
        sync_path(temp)
        if path.exists():  # left by an earlier run of the same moment
            os.replace(path, old)
        os.replace(temp, path)
        sync_path(path.parent)
    except BaseException:
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(temp, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One builder at a time: several processes may want the same data in it. (Windows has no flock.)"""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed or the process dies
        yield


def hold_lock(folder: Path) -> IO[str] | None:
    """A folder's lock, held until it is closed or the process dies; None if somebody else holds it."""
    import fcntl

    lock = open(folder / ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def file_name(name: str) -> str:
    """A client's name as one safe path component: no separators, no dots that climb."""
    safe = quote(name, safe=" ()+,=@_-").replace(".", "%2E")
    if not safe or len(safe) > 120:
        import hashlib

        safe = safe[:80] + "%" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return safe


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete and on disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
