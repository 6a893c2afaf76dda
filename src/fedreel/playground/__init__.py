"""A generated world of real video files with labels, captions, scores, skeletons and images: seeded, no download."""

from __future__ import annotations

import importlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedreel.config import DataConfig
from fedreel.errors import DataError, nearest
from fedreel.machine.cache import cache_folder
from fedreel.machine.files import locked
from fedreel.machine.processes import cores
from fedreel.playground.sizes import MEDIUM, SIZES, SMALL, TINY, VERSION, Size
from fedreel.playground.work import Jobs
from fedreel.playground.work import parts as declared_parts

__all__ = [
    "MEDIUM",
    "SIZES",
    "SMALL",
    "TINY",
    "VERSION",
    "Size",
    "cached",
    "declared_parts",
    "make",
    "name",
    "place_of",
]

_ABANDONED = 24 * 3600  # seconds after which another process's half-made folder is taken for dead


def make(
    out: Path,
    seed: int = 0,
    size: str | Size = "small",
    parts: Collection[str] | None = None,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
) -> Path:
    """Write the world's parts under `out` and return it; parts already there, of the same seed and size, are kept.

    A part appears under its name only when it is complete. A folder that holds parts of another seed, size or version
    is refused. The bytes do not depend on `workers` (default: all cores).
    """
    out, chosen = Path(out), _chosen(parts)
    what = {"seed": seed, "size": asdict(_size(size)), "version": VERSION}
    if seed < 0:
        raise DataError("a playground's seed cannot be negative", expected="0, 1, 2, ...", found=str(seed))
    for part in declared_parts():
        if part in chosen or (out / part / "part.json").exists():
            _check(out / part, what)
    if all((out / part).exists() for part in chosen):
        return out
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):  # another process may be making them: then they are there when it lets go
        missing = [part for part in chosen if not (out / part).exists()]
        for number, part in enumerate(missing, 1):
            if progress:
                progress(f"making {part} ({number} of {len(missing)})")
            _make(out, part, what, workers or cores())
    return out


def cached(seed: int = 0, size: str = "small", parts: Collection[str] | None = None) -> Path:
    """The world in the user's cache, made there if it is absent."""
    return make(cache_folder() / name(seed, size), seed, size, parts)


def name(seed: int, size: str) -> str:
    """What a world is called in the cache: all that it depends on."""
    return f"playground-v{VERSION}-{_size(size).name}-{seed}"


def place_of(data: DataConfig, part: str, expected: str) -> Path:
    """Where a recipe's source lies: a part of the playground, in the cache or in a folder of one, or what else it is.
    `expected` says what the task can read."""
    if data.source == "playground":
        return cached(data.seed, data.size, (part,)) / part
    path = Path(data.source).expanduser()
    if not path.exists():
        raise DataError(
            "the data folder does not exist",
            where=data.source,
            expected=f"'playground', {expected}",
            hint="give --data FOLDER, or set data.source",
        )
    return path / part if (path / part / "part.json").is_file() else path


def _chosen(parts: Collection[str] | None) -> list[str]:
    known = declared_parts()
    for part in parts or ():
        if part not in known:
            raise DataError(f"the playground has no part '{part}'", hint=nearest(part, known))
    return [part for part in known if parts is None or part in parts]


def _size(size: str | Size) -> Size:
    if isinstance(size, Size):
        return size
    if size not in SIZES:
        raise DataError(f"the playground has no size '{size}'", hint=nearest(size, SIZES))
    return SIZES[size]


def _check(folder: Path, what: dict[str, Any]) -> None:
    """Nothing there, or exactly what would be made: anything else is not ours to use or to replace."""
    if not folder.exists():
        return
    try:
        found = json.loads((folder / "part.json").read_text(encoding="utf-8"))
        same = {key: found[key] for key in what}
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            "this folder is not a part of a playground",
            where=str(folder),
            expected="a folder with a part.json, or none",
            hint="choose another folder",
        ) from None
    if same != what:
        raise DataError(
            "this folder already holds another playground",
            where=str(folder),
            expected=_words(what),
            found=_words(same),
            hint="choose another folder, or delete this one",
        )


def _words(what: dict[str, Any]) -> str:
    return f"seed {what['seed']}, size {what['size']['name']}, version {what['version']}"


def _make(out: Path, part: str, what: dict[str, Any], workers: int) -> None:
    for old in out.glob(f".{part}.*.tmp"):
        if time.time() - old.stat().st_mtime > _ABANDONED:
            shutil.rmtree(old, ignore_errors=True)
    temp = out / f".{part}.{uuid.uuid4().hex[:8]}.tmp"
    temp.mkdir()
    try:
        size = Size(**what["size"])
        jobs = Jobs(part, temp, what["seed"], size, workers)
        counts = importlib.import_module(declared_parts()[part]).write(jobs)
        record = json.dumps({"part": part, **what, "counts": counts}, indent=1)
        (temp / "part.json").write_text(record + "\n", encoding="utf-8")
        try:
            temp.rename(out / part)
        except OSError:
            if not (out / part).exists():
                raise
            _check(out / part, what)  # another process was quicker; the bytes are the same
    finally:
        shutil.rmtree(temp, ignore_errors=True)
