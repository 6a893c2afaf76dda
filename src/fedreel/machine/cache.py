"""Where decoded and generated data are kept between runs: a folder that nobody else can write to."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from fedreel.errors import FedreelError


def cache_folder() -> Path:
    """FEDREEL_CACHE, or else `fedreel` in XDG_CACHE_HOME or ~/.cache. What lies there is believed, compiled code too:
    in a folder that is another user's, or that others may write to, it is one of our own. One that is made here only
    its owner may read, for it holds pictures of the data."""
    chosen = os.environ.get("FEDREEL_CACHE")
    folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedreel"
    if not hasattr(os, "geteuid"):
        return folder  # Windows keeps users apart by other means
    _make(folder)
    if not folder.exists() or _is_ours(folder, follow=True):
        return folder
    own = folder / f"user-{os.geteuid()}"
    _make(own)
    if not _is_ours(own, follow=False):  # made before us, by somebody who knew its name
        raise FedreelError(
            "the cache is in a folder of another user's",
            where=str(own),
            expected="a folder that only you can write to",
            hint="set FEDREEL_CACHE to one of your own",
        )
    return own


def readable_by_others(folder: Path) -> bool:
    """Whether other users of this machine can look into a folder."""
    return bool(stat.S_IMODE(folder.stat().st_mode) & 0o077)


def _make(folder: Path) -> None:
    """Where that cannot be done, whoever writes there says so."""
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def _is_ours(folder: Path, follow: bool) -> bool:
    try:
        found = folder.stat() if follow else folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
