"""Unpack a zip or tar from anywhere: nothing lands outside the folder, no links, no bombs, all or nothing."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import secrets
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import IO, TypeAlias, cast

from fedreel.errors import DataError

MAX_BYTES = 64 * 2**30
MAX_MEMBERS = 2_000_000
MAX_PADDING = 64 * 2**20  # of zeros after the last member of a tar
CHUNK = 2**20

# What Python's readers raise on damaged archives; anything else is a fault of ours and should be seen.
_DAMAGE = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, ValueError, RuntimeError, LookupError, OverflowError),
)
Members: TypeAlias = "Generator[tuple[str, IO[bytes] | None], None, None]"
_DRIVE = re.compile(r"^[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def extract(archive: Path, out: Path, *, max_bytes: int = MAX_BYTES) -> Path:
    """Unpack a zip or tar (plain, gz, bz2, xz) into the new folder `out`, which appears only when complete.

    Members that are links or devices, or whose names point outside the folder, are refused; so is an archive
    that unpacks to more than `max_bytes` (counted as written, whatever its headers say).
    """
    if not archive.is_file():
        raise DataError("there is no such archive", where=str(archive))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            "the folder to unpack into already exists",
            where=str(out),
            hint="remove it or choose another folder",
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        _unpack(archive, temporary, max_bytes)
        if out.exists():
            out.rmdir()
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def _unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    left = max_bytes
    try:
        with closing(_members(archive)) as members:
            for count, (name, file) in enumerate(members):
                if count >= MAX_MEMBERS:
                    raise _refused(archive, name, f"more than {MAX_MEMBERS} members")
                target = folder.joinpath(*_parts(name, archive))
                try:
                    left -= _place(target, file, left)
                except (FileExistsError, NotADirectoryError) as error:
                    raise _refused(archive, name, "another member already has this name") from error
                if left < 0:
                    raise DataError(
                        "the archive unpacks to more than is allowed",
                        where=f"{archive}: {name}",
                        expected=f"at most {max_bytes} bytes",
                        hint="if you trust it, pass a larger max_bytes",
                    )
    except _DAMAGE as error:
        found = f"{type(error).__name__}: {error}"
        raise DataError("the archive cannot be unpacked", where=str(archive), found=found) from error


def _place(target: Path, file: IO[bytes] | None, left: int) -> int:
    """Write one member and return its bytes; stops after the first block beyond what is `left`."""
    if file is None:
        target.mkdir(parents=True, exist_ok=True)
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with target.open("xb") as sink:  # x: a second member of the same name must not replace the first
        while written <= left and (block := file.read(CHUNK)):
            sink.write(block)
            written += len(block)
    return written


def _parts(name: str, archive: Path) -> list[str]:
    """The folders and file of a member name, or DataError where any system would read it as lying outside."""
    path = name.replace("\\", "/")  # archives made on Windows
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or _DRIVE.match(path):
        raise _refused(archive, name, "an absolute path")
    # Windows drops trailing dots and spaces, so '.. ' and '...' are as bad as '..'.
    if any(not part.strip(". ") for part in parts):
        raise _refused(archive, name, "a path that leaves the folder")
    if _CONTROL.search(path) or (os.name == "nt" and ":" in path):
        raise _refused(archive, name, "forbidden characters in the name")
    return parts


def _members(archive: Path) -> Members:
    """Each member's name with its open file, None for a folder. By magic number: names and tails can lie."""
    with archive.open("rb") as file:
        magic = file.read(4)
    return _zip_members(archive) if magic in (b"PK\3\4", b"PK\5\6") else _tar_members(archive)


def _zip_members(archive: Path) -> Members:
    with zipfile.ZipFile(archive) as container:
        for info in container.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, info.orig_filename, "a link or a special file")
            if info.is_dir():
                yield info.orig_filename, None
            else:
                with container.open(info) as file:
                    yield info.orig_filename, file


def _tar_members(archive: Path) -> Members:
    with _decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=_StrictHeader) as container:
        for info in container:
            if info.isdir():
                yield info.name, None
            elif info.isreg() and not info.issparse():
                file = container.extractfile(info)
                assert file is not None  # of a regular member it never is
                with file:
                    yield info.name, file
            else:
                raise _refused(archive, info.name, "a link or a special file")
        # The checksum of a compressed file stands at its end, which tarfile does not read.
        for _ in range(MAX_PADDING // CHUNK):
            if not stream.read(CHUNK):
                return
        raise tarfile.ReadError("the archive continues after its end")


def _decompressed(archive: Path) -> IO[bytes]:
    """By hand, so that the end of the stream can be reached; the magic number says which compression."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(archive))
    if magic.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.open(archive))
    if magic.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        return cast("IO[bytes]", lzma.open(archive))
    return archive.open("rb")


class _StrictHeader(tarfile.TarInfo):
    """tarfile takes a broken header for the end of the archive and would drop the rest without a word."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _StrictHeader:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the proper end: a block of zeros
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"the archive ends abruptly: {error}") from error


def _refused(archive: Path, member: str, reason: str) -> DataError:
    return DataError("the archive is refused: a member is not safe", where=f"{archive}: {member!r}", found=reason)
