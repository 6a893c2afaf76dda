"""What is slow is measured: the file names tests that exist, and a shared fixture is paid for by all who use it."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.durations import Stopwatch, file_of, pytest_collection_modifyitems, read

ROOT = Path(__file__).parent.parent


def test_the_file_names_tests_that_exist() -> None:
    known: dict[str, set[str]] = {}
    for test in read():
        file = file_of(test)
        if file not in known:
            assert (ROOT / file).exists(), f"{file} is gone: run `make test-durations`"
            nodes = ast.walk(ast.parse((ROOT / file).read_text()))
            known[file] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        if test != file:
            assert test.rpartition("::")[2] in known[file], f"{test} is gone: run `make test-durations`"


def test_a_test_pays_for_itself_and_its_share_of_a_fixture() -> None:
    """A module's fixture of 6 s serves three tests, the first of which is charged with it by pytest."""
    watch = Stopwatch(SimpleNamespace())  # type: ignore[arg-type]

    def ran(test: str, seconds: float, fixtures: list[str], shared: dict[str, float]) -> None:
        cost = {"seconds": seconds, "fixtures": fixtures, "shared": shared}
        for when, waited in (("setup", 1.0), ("call", 2.0), ("teardown", 0.5)):
            report = SimpleNamespace(nodeid=test, when=when, duration=waited, user_properties=[("cost", cost)])
            watch.pytest_runtest_logreport(report)  # type: ignore[arg-type]

    ran("tests/test_a.py::test_x[1]", 7.5, ["world"], {"tests/test_a.py::world": 6.0})
    ran("tests/test_a.py::test_x[2]", 3.0, ["world"], {})
    ran("tests/test_a.py::test_y", 0.01, ["world", "tmp_path"], {})
    ran("tests/test_a.py::test_z", 0.01, [], {})
    ran("tests/test_b.py::test_x", 0.4, ["world"], {})  # another file's fixture of the same name
    measured = {
        "tests/test_a.py": 14.0,  # of a clock
        "tests/test_b.py": 3.5,
        "tests/test_a.py::test_x": 5.0,  # the longer of 1.5 + 6/3 and 3 + 6/3
        "tests/test_a.py::test_y": 2.0,
        "tests/test_b.py::test_x": 0.4,
    }
    assert watch.by_function() == measured
    not_run = {"tests/test_c.py": 9.0, "tests/test_c.py::test_x": 8.0}
    assert (
        watch.with_others({**not_run, "tests/test_a.py": 1.0, "tests/test_a.py::test_gone": 2.0}) == measured | not_run
    )


class Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.marks = nodeid, list[str]()

    def add_marker(self, mark: str) -> None:
        self.marks.append(mark)


def test_the_longest_file_comes_first_and_in_it_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"a.py": 9.0, "a.py::test_1": 0.05, "b.py": 3.0, "b.py::test_1": 1.5}
    monkeypatch.setattr("support.durations.read", lambda: seconds)
    names = ["new.py::test_1", "b.py::test_1", "a.py::test_2", "a.py::test_1[x]", "b.py::test_2"]
    items: Any = [Item(name) for name in names]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [names[2], names[3], names[1], names[4], names[0]]
    assert [item.nodeid for item in items if item.marks] == ["b.py::test_1"]
