"""A site's worker started by root: whatever reads videos in it is not root."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from fedreel.errors import FedreelError

pytest.importorskip("cryptography", reason="comes with the extra `flower`")

from fedreel.sites import node, site

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)

CODE = """
import json, os, sys
from pathlib import Path
from fedreel.sites.worker import give_up_root
give_up_root(Path(sys.argv[1]))
def can(path):
    try:
        return bool(open(path).read())
    except PermissionError:
        return False
print(json.dumps([os.getuid(), os.geteuid(), os.getgid(), os.getgroups(), os.environ["HOME"], can(sys.argv[2])]))
"""


def become(folder: Path, secret: Path) -> list[object]:
    done = subprocess.run([sys.executable, "-c", CODE, folder, secret], capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What only root may read."""
    path = tmp_path / "secret"
    path.write_text("of root")
    path.chmod(0o600)
    return path


def test_roots_worker_becomes_the_owner_of_the_sites_folder(tmp_path: Path, secret: Path) -> None:
    user = pwd.getpwnam("nobody")
    folder = tmp_path / "site"
    folder.mkdir()
    os.chown(folder, user.pw_uid, user.pw_gid)
    assert become(folder, secret) == [*[user.pw_uid] * 2, user.pw_gid, [user.pw_gid], user.pw_dir, False]


def test_an_owner_without_a_name_has_no_groups(tmp_path: Path, secret: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    os.chown(folder, 54321, 54322)
    assert become(folder, secret) == [54321, 54321, 54322, [], os.environ["HOME"], False]


def test_a_folder_of_roots_stays_with_root(tmp_path: Path, secret: Path) -> None:
    assert become(tmp_path, secret)[:2] == [0, 0]
    assert become(tmp_path, secret)[-1] is True


def test_an_owner_who_cannot_read_the_data_is_told_before_anything_starts(tmp_path: Path) -> None:
    """Or Python itself, where that lies in a home folder."""
    data = tmp_path / "videos"
    data.mkdir(mode=0o700)
    made = site.init(tmp_path / "site", "north", {"*": str(data)}, "", "")
    said: list[str] = []
    node.check_owner(made, said.append)
    assert len(said) == 1
    assert "read as root" in said[0]
    os.chown(made.path, 54321, 54322)
    with pytest.raises(FedreelError, match="cannot read what the worker needs") as caught:
        node.check_owner(made, said.append)
    assert caught.value.found in (str(data), sys.executable, sys.prefix)
