"""Files that cannot be recognised: each is told with what was found and what to do, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedreel.errors import DataError
from fedreel.tasks.use.recognize import recognize


def assert_refused(told: dict[str, tuple[str, str, str]], folder: Path, run: Path) -> None:
    """`told`: name below the folder -> what the problem, what was found and the hint must contain."""
    before = sorted(folder.rglob("*"))
    for name, (problem, found, hint) in told.items():
        with pytest.raises(DataError, match=problem) as error:
            recognize(folder / name, run, page=folder / "p.html", json=folder / "p.json")
        assert found in error.value.found, name
        assert hint in error.value.hint, name
        assert error.value.expected, name
        assert sorted(folder.rglob("*")) == before, name
