"""Arrays out of files from elsewhere. What a file claims to hold is compared with its size before memory is taken for
it, and nothing outside the file is read."""

from __future__ import annotations

import ast
import math
import mmap
import re
import sys
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.lib import format as npy

FLOOR = 256 << 20  # bytes that any file may unpack to
TIMES = 32  # and so many times its own size: more than numbers can be compressed, as a rule
MEMBERS = 10_000  # of an .npz file
CHUNK = 16 << 20  # bytes that are read at once
HEAP = b"GCOL\x01\0\0\0"  # how a heap of texts begins
HEADER = 10_000  # characters of an array's header
_LONG = re.compile(r"(\d)L\b")  # how Python 2 wrote some numbers
_H5_KINDS = "fiub"  # numbers


class TooLarge(ValueError):
    """A file claims to hold more than its size allows for."""


def allowed(path: Path) -> int:
    """How many bytes the arrays of this file may take in memory."""
    return FLOOR + TIMES * path.stat().st_size


def read_npy(path: Path) -> np.ndarray:
    """The array of an .npy file; ValueError where there is none."""
    with path.open("rb") as file:
        return _array(file, path.stat().st_size, path.name)


def read_npz(path: Path, keys: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name: these, as far as they are there, or all. No objects."""
    left, arrays = allowed(path), {}
    with zipfile.ZipFile(path) as archive:
        for name, info in _members(archive).items():
            if keys is not None and name not in keys:
                continue
            with archive.open(info) as file:
                arrays[name] = found = _array(file, left, name)
            left -= found.nbytes
    return arrays


def array_of(content: bytes, name: str) -> np.ndarray:
    """The array of the bytes of an .npy file."""
    return _array(BytesIO(content), len(content), name)


def mapped_npy(path: Path) -> np.ndarray:
    """The array of an .npy file, read as it is used."""
    with path.open("rb") as file:
        head, start = read_header(file, path.name), file.tell()
    if head.dtype.hasobject or not head.nbytes or start + head.nbytes > path.stat().st_size:
        raise ValueError(f"'{path.name}' does not hold the numbers that its header promises")
    return np.memmap(path, head.dtype, "r", start, head.shape, "F" if head.fortran else "C")


def npz_names(path: Path) -> list[str]:
    """The names of the arrays in an .npz file, in their order."""
    with zipfile.ZipFile(path) as archive:
        return [*_members(archive)]


@contextmanager
def opened_h5(path: Path) -> Iterator[H5]:
    """An h5 file to read arrays from."""
    with h5py.File(path, "r") as file:
        yield H5(file, allowed(path))


class H5:
    """A group of an h5 file. Links to other files, and data that lie in other files, are refused with a ValueError, and
    so is what the file's size does not allow for: over all that is read, if `left` is shared."""

    def __init__(self, group: h5py.Group, left: int) -> None:
        self.group, self.left = group, left

    def __iter__(self) -> Iterator[str]:
        return iter(map(str, self.group))

    def __contains__(self, key: str) -> bool:
        return key in self.group.keys()  # noqa: SIM118 (a group follows paths and links)

    def node(self, key: str) -> Any:
        """A group or a dataset of this file."""
        if not isinstance(self.group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"'{key}' is a link, which such files do not need")
        found = self.group[key]
        if isinstance(found, h5py.Dataset):
            self.check(found)
        return found

    def inside(self, key: str) -> H5:
        found = self.node(key)
        if not isinstance(found, h5py.Group):
            raise ValueError(f"'{key}' is a {type(found).__name__}, not a group")
        return H5(found, self.left)

    def array(self, key: str) -> np.ndarray:
        """The numbers of a dataset."""
        return self.numbers(self.node(key), key)

    def numbers(self, found: Any, key: str) -> np.ndarray:
        if not isinstance(found, h5py.Dataset) or found.dtype.kind not in _H5_KINDS:
            raise ValueError(f"'{key}' holds no numbers")
        self.check(found)
        self.left -= found.size * 8
        return np.asarray(found[()])

    def text(self, key: str) -> Any:
        """One value of a dataset or, where there is none, of an attribute; None if there is neither."""
        path = Path(self.group.file.filename)
        _check_heaps(path, path.stat().st_size, path.stat().st_mtime_ns)
        if key in self:
            found = self.node(key)
            if not isinstance(found, h5py.Dataset) or found.size != 1 or found.dtype.itemsize > 1 << 16:
                raise ValueError(f"'{key}' is no single text")
            with little_memory():
                return found[()]
        if key not in self.group.attrs:
            return None
        told = self.group.attrs.get_id(key)
        if math.prod(told.shape or ()) != 1 or told.dtype.itemsize > 1 << 16:
            raise ValueError(f"'{key}' is no single text")
        with little_memory():
            return self.group.attrs[key]

    def check(self, found: h5py.Dataset) -> None:
        if found.external is not None or found.is_virtual:
            raise ValueError("its numbers lie in another file")
        chunk = math.prod(found.chunks or (0,)) * found.dtype.itemsize
        claimed = max((found.size or 0) * max(found.dtype.itemsize, 8), chunk)
        if claimed > self.left:
            raise TooLarge(f"{claimed} bytes are claimed, of which the file's size allows {max(self.left, 0)}")


@contextmanager
def little_memory(most: int = FLOOR) -> Iterator[None]:
    """For what takes as much memory as a file claims and cannot be asked before, such as h5's texts: no more than so
    many bytes beyond what this process has, where the system can hold it to that (Linux)."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + most
    if before[0] != resource.RLIM_INFINITY and before[0] < wanted:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (wanted, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@lru_cache(maxsize=8)
def _check_heaps(path: Path, size: int, _: int) -> None:
    """Texts of an h5 file lie in heaps, one after another, up to a free space. Where these do not end at the heap's end
    the library, up to HDF5 2.0 at least, goes round for ever."""
    if not size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(HEAP)
        while start >= 0:
            end = start + int.from_bytes(content[start + 8 : start + 16], "little")
            at = start + 16
            while at + 16 <= end:
                length, free = int.from_bytes(content[at + 8 : at + 16], "little"), content[at : at + 2] == b"\0\0"
                step = length if free else 16 + -(-length // 8) * 8
                at += step
                if step < 16 or at > min(end, size):
                    raise ValueError("its texts do not lie one after another")
            start = content.find(HEAP, start + 16)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MEMBERS:
        raise TooLarge(f"{len(infos)} members")
    return {i.filename.removesuffix(".npy"): i for i in infos if i.filename.endswith(".npy")}


@dataclass(frozen=True)
class Header:
    """What an array's header says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], name: str) -> Header:
    """The header at the beginning of an .npy file; then its numbers come. ValueError for any other."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"'{name}' is of an unknown version of numpy's format")
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if length > HEADER:
        raise TooLarge(f"'{name}' begins with {length} characters of header")
    text = _LONG.sub(r"\1", file.read(length).decode("utf-8" if version == (3, 0) else "latin-1"))
    try:
        told = ast.literal_eval(text.strip())
        shape, fortran, descr = told["shape"], told["fortran_order"], told["descr"]
        dtype = np.dtype(descr if isinstance(descr, str) else "V")
    except Exception as error:  # whatever Python's own reader trips over
        raise ValueError(f"'{name}' has no header of numpy's: {type(error).__name__}") from None
    sizes = isinstance(shape, tuple) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**60 for n in shape)
    if not sizes or type(fortran) is not bool or dtype.kind not in "fiubUSO" or dtype.itemsize > 1 << 20:
        raise ValueError(f"'{name}' holds no numbers or texts, but {text[:100]}")
    return Header(shape, fortran, dtype)


def _array(file: IO[bytes], left: int, name: str) -> np.ndarray:
    """The array that begins here, if it takes no more than `left` bytes."""
    head = read_header(file, name)
    shape, fortran, dtype, size = head.shape, head.fortran, head.dtype, head.nbytes
    if dtype.hasobject:
        raise ValueError(f"'{name}' holds no numbers or texts, but objects")
    if size > left:
        raise TooLarge(f"'{name}' claims {size} bytes, of which the file's size allows {max(left, 0)}")
    if not size:
        return np.zeros(shape, dtype)
    content, filled = np.empty(size, np.uint8), 0
    while filled < size and (count := file.readinto(content[filled : filled + CHUNK])):  # type: ignore[attr-defined]
        filled += count
    if filled < size:
        raise ValueError(f"'{name}' ends after {filled} of {size} bytes")
    flat = content.view(dtype)
    if dtype.kind == "U" and int(flat.view(np.dtype("u4").newbyteorder(dtype.byteorder)).max()) > sys.maxunicode:
        raise ValueError(f"'{name}' holds texts of no characters")
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)
