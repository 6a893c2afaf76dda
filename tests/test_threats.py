"""docs/threats.md is held to the tests: every one that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "threats.md").read_text()
NAMED = sorted({*re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)})
PARTIES = ("an owner", "a site's admin", "the server's admin", "another site", "a stranger", "a local user", "a file")


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_threats_names_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_threats_speaks_of_everybody_and_names_what_is_open() -> None:
    rows = [line.split("|")[1].strip() for line in TEXT.splitlines() if line.startswith("| ")]
    for party in PARTIES:
        assert any(row.startswith(party) for row in rows), party
    assert len(NAMED) > 20
    assert "## Still open" in TEXT
