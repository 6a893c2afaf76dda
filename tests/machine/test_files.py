"""Folders that appear whole or not at all, and in whose place there is always one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedreel.machine.files import new_folder


def write(path: Path, text: str) -> None:
    with new_folder(path) as temp:
        (temp / "a").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_new_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write(tmp_path / "f", text)
        assert (tmp_path / "f" / "a").read_text() == text
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("call", [1, 2])
def test_the_old_folder_is_there_till_the_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Whichever of the two renamings fails."""
    write(tmp_path / "f", "old")
    really, calls = os.replace, iter(range(1, 99))

    def fails(*names: Any) -> None:
        if next(calls) == call:
            raise OSError("no")
        really(*names)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no"):
        write(tmp_path / "f", "new")
    assert (tmp_path / "f" / "a").read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_who_is_killed_between_two_names_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path / "f", "old")
    os.replace(tmp_path / "f", tmp_path / ".f.old")
    with pytest.raises(KeyError), new_folder(tmp_path / "f"):
        raise KeyError
    assert (tmp_path / "f" / "a").read_text() == "old"
