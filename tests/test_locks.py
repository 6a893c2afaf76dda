"""locks/: what servers and sites install is known to the byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedreel.config import read_toml

ROOT = Path(__file__).parent.parent
TOOLS = ("dev", "docs")  # for who works on fedreel
EXTRAS = [name for name in read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"] if name not in TOOLS]
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


def locked(extra: str) -> dict[str, list[str]]:
    """Packages as NAME==VERSION -> hashes."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "locks" / f"{extra}.txt").read_text().splitlines():
        if package := re.match(r"([\w.-]+==[\w.+!-]+)", line):
            found.setdefault(package[1], [])
        else:
            digest = re.fullmatch(r"\s+--hash=sha256:([0-9a-f]{64})(?: \\)?", line)
            assert digest, line
            found[[*found][-1]].append(digest[1])
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_package_of_an_extra_is_locked_by_hash_in_the_tested_version(extra: str) -> None:
    packages = locked(extra)
    assert packages
    assert all(packages.values())
    versions = [package.split("==") for package in packages]
    assert {name: version for name, version in versions if PINNED.get(name, version) != version} == {}
    assert not {name for name, _ in versions if re.fullmatch(r"torch|triton|(nvidia|cuda)-.*", name)}
    table = read_toml(ROOT / "pyproject.toml")["project"]
    asked = [*table["dependencies"], *table["optional-dependencies"][extra]]
    direct = {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower().replace("_", "-") for text in asked}
    direct -= {"torch", "fedreel", "tomli"}  # apart; itself; only for Python 3.10
    assert direct <= {name for name, _ in versions}


def test_sites_need_no_ray() -> None:
    assert not [package for package in locked("sites") if package.startswith("ray==")]
    assert [package for package in locked("flower") if package.startswith("ray==")]
    assert {*locked("sites")} <= {*locked("flower")}
