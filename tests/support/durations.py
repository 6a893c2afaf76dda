"""How long tests take: what `make test-durations` writes to durations.json, and what the mark `slow` and the order of
files follow from. No test says of itself that it is slow."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parent.parent / "durations.json"
SLOW = 0.1  # seconds of a processor: what is left takes two of them two minutes, with linters and collection
KEPT = 0.1  # what is quicker is not worth a line


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help=f"measure, and write {FILE.name}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-durations"):
        config.pluginmanager.register(Stopwatch(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker begins one when the others have nothing left to do."""
    seconds = read()
    for item in items:
        if seconds.get(function_of(item.nodeid), 0.0) >= SLOW:
            item.add_marker("slow")
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0.0))


def read() -> dict[str, float]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def function_of(nodeid: str) -> str:
    """A test without its parameters: their names come and go."""
    return nodeid.partition("[")[0]


class Stopwatch:
    """A test costs what it takes itself, and its share of every fixture that it uses together with other tests. Counted
    are seconds of a processor, its own and its children's: on a busy machine they are the same. Of files, those of a
    clock: what waits most begins first."""

    def __init__(self, config: pytest.Config) -> None:
        self.writes = not hasattr(config, "workerinput")  # of several processes, who started the others
        self.shared: dict[str, float] = {}
        self.own: dict[str, float] = {}
        self.fixtures: dict[str, list[str]] = {}
        self.made: dict[str, float] = defaultdict(float)
        self.waited: Counter[str] = Counter()  # file -> seconds of a clock

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        began = used()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared[f"{fixturedef.baseid}::{fixturedef.argname}"] = used() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.shared, self.began = {}, used()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            names = item.fixturenames  # type: ignore[attr-defined]
            cost = {"seconds": used() - self.began, "shared": self.shared, "fixtures": names}
            item.user_properties.append(("cost", cost))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.waited[file_of(report.nodeid)] += report.duration
        if report.when == "teardown":
            cost: Any = dict(report.user_properties)["cost"]
            self.own[report.nodeid] = cost["seconds"] - sum(cost["shared"].values())
            self.fixtures[report.nodeid] = cost["fixtures"]
            for name, seconds in cost["shared"].items():
                self.made[name] += seconds

    def pytest_sessionfinish(self) -> None:
        if self.writes:
            FILE.write_text(json.dumps(self.with_others(read()), indent=0) + "\n")

    def with_others(self, before: Mapping[str, float]) -> dict[str, float]:
        """What was measured now, and of files of which nothing ran what was known before."""
        merged = {name: seconds for name, seconds in before.items() if file_of(name) not in self.waited}
        return dict(sorted((merged | self.by_function()).items()))

    def by_function(self) -> dict[str, float]:
        users = {name: [test for test in self.own if self.uses(test, name)] for name in self.made}
        cost = dict(self.own)
        for name, tests in users.items():
            for test in tests:
                cost[test] += self.made[name] / len(tests)
        longest: dict[str, float] = defaultdict(float)
        for test, seconds in cost.items():
            longest[function_of(test)] = max(longest[function_of(test)], round(seconds, 1))
        longest |= {file: round(seconds, 1) for file, seconds in self.waited.items()}
        return {name: longest[name] for name in sorted(longest) if longest[name] >= KEPT}

    def uses(self, test: str, fixture: str) -> bool:
        place, _, name = fixture.rpartition("::")
        return test.startswith(place) and name in self.fixtures[test]


def used() -> float:
    return sum(os.times()[:4])
