"""What lies in the cache is believed: nobody else may have put it there, nor read what it holds of the data."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedreel.errors import FedreelError
from fedreel.machine.cache import cache_folder, readable_by_others

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows keeps users apart by other means")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that everybody may write to."""
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    return tmp_path / "cache"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_cache_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert mode(cache_folder()) == 0o700
    monkeypatch.delenv("FEDREEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c" / "fedreel"
    assert mode(cache_folder()) == 0o700
    assert not readable_by_others(cache_folder())


@pytest.mark.parametrize("rights", [0o700, 0o750, 0o755])
def test_a_folder_that_others_cannot_write_to_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rights: int
) -> None:
    tmp_path.chmod(rights)
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert mode(tmp_path) == rights
    assert readable_by_others(tmp_path) == (rights != 0o700)


@pytest.mark.parametrize("rights", [0o777, 0o1777, 0o775])
def test_in_a_shared_folder_everybody_has_his_own(shared: Path, rights: int) -> None:
    shared.chmod(rights)
    assert cache_folder() == shared / f"user-{os.geteuid()}"
    assert mode(cache_folder()) == 0o700


def test_in_a_folder_of_another_users_too(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: shared.stat().st_uid + 1)
    with pytest.raises(FedreelError, match="of another user's"):  # what is made in it is not that user's either
        cache_folder()


def test_a_name_that_was_made_before_is_not_trusted(shared: Path, tmp_path: Path) -> None:
    own = shared / f"user-{os.geteuid()}"
    (tmp_path / "trap").mkdir()
    own.symlink_to(tmp_path / "trap")
    with pytest.raises(FedreelError, match="of another user's"):
        cache_folder()
    own.unlink()
    own.mkdir(mode=0o700)
    own.chmod(0o777)
    with pytest.raises(FedreelError, match="of another user's"):
        cache_folder()
    own.rmdir()
    own.write_text("")
    with pytest.raises(FedreelError, match="of another user's"):
        cache_folder()


def test_where_none_can_be_made_the_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "file" / "cache"))
    assert cache_folder() == tmp_path / "file" / "cache"
