"""The house's rules, read from the source as syntax trees: which room may import which, and no circles.

An import inside a function counts like one at the head of its module. One under `if TYPE_CHECKING` counts between rooms
and between tasks, but not for circles of modules: it never runs. Names that are looked up at run time (the registry's
tables, the playground's parts, the tables of a system) are no arrows; that is what those tables are for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedreel

ROOT = Path(fedreel.__file__).parent

# From the ground up. A room may import the rooms before it, unless ONLY narrows that down.
FLOORS = (
    *(
        "errors",
        "systems",
        "registry",
        "fields",
        "sections",
        "config",
    ),  # names, settings, complaints
    *("zoo", "machine", "kernels", "metrics"),  # models that come along; files, devices; fast loops; numbers
    *("core", "report", "runs"),  # the exchange; pages; the run directory
    *("media", "data", "models", "playground"),  # video files; data sets; networks; the generated world
    *("tasks", "methods", "engines"),  # what a client learns; how clients cooperate; where they work
    *("sites", "api", "reproduce", "demo", "ui", "cli", "__main__"),  # what people start
)
GROUND = frozenset({"errors", "config", "machine"})
ONLY = {
    "systems": set(),  # it names modules, and imports them when they are asked for
    "registry": {"errors", "systems"},
    "fields": {"registry"},
    "sections": {"errors"},
    "config": {"errors", "registry", "fields", "sections"},
    "zoo": {"errors", "config"},
    "machine": {"errors"},
    "kernels": {"errors", "machine"},
    "metrics": {"errors", "machine", "kernels"},
    "report": {"errors", "machine"},  # it reads a run's files, whoever wrote them
    "runs": {*GROUND, "registry", "core", "zoo"},  # whoever starts a run writes its report
    "media": {*GROUND},
    "playground": {*GROUND, "systems", "media"},
    "methods": {"errors", "config", "kernels", "core"},  # no task, no engine
    "engines": {*GROUND, "core"},  # no task, no method, and no site
    "sites": {*GROUND, "registry", "fields", "core", "runs", "data", "engines"},
    "api": {*GROUND, "core", "report", "runs", "tasks"},
    "fedreel": {"errors", "systems", "api", "tasks"},
}
SHARED = ("fedreel.tasks.vision", "fedreel.tasks.use", "fedreel.tasks.classification")  # by several tasks

# What does not hold yet: source and target (with all below them) -> why. An entry that excuses nothing fails, so the
# list can only shrink.
STILL: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Arrow:
    """One import: `name` is what is taken, `typing` whether only a type checker sees it."""

    source: str
    target: str
    name: str
    where: str
    typing: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.source} -> {self.target}" + (f" ({self.name})" if self.name else "")


def read_package(root: Path) -> list[Arrow]:
    """Every import of one of the package's modules by another."""
    modules = {_module(root, path): path for path in sorted(root.rglob("*.py"))}
    return [
        arrow
        for module, path in modules.items()
        for arrow in read_module(module, path.read_text(), path.relative_to(root).as_posix(), modules)
    ]


def read_module(module: str, source: str, file: str, modules: Iterable[str]) -> Iterator[Arrow]:
    """The arrows of one module. `from a import b` leads to a.b where that is a module, else to a."""
    known = set(modules)
    tree = ast.parse(source)
    unseen = {id(node) for node in _only_for_typing(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            taken = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            dotted = [(f"{node.module}.{alias.name}", alias.name) for alias in node.names]
            taken = [(full, "") if full in known else (node.module or "", name) for full, name in dotted]
        else:
            continue
        for target, name in taken:
            if target in known and target != module:
                yield Arrow(module, target, name, f"{file}:{node.lineno}", id(node) in unseen)


def room(module: str) -> str:
    """`core` for fedreel.core.client, `config` for fedreel.config, `fedreel` for the package itself."""
    return module.split(".")[1] if "." in module else module


def allowed(source: str, target: str) -> bool:
    """Whether one room may import from another."""
    if source == target:
        return True
    if source in ONLY:
        return target in ONLY[source]
    return source in FLOORS and target in FLOORS[: FLOORS.index(source)]


def excused(arrow: Arrow) -> bool:
    return any(_below(arrow.source, source) and _below(arrow.target, target) for source, target in STILL)


def broken_walls(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Imports between rooms that the table does not allow. Of the package itself only its version is for everyone."""
    return [
        a
        for a in arrows
        if not allowed(room(a.source), room(a.target)) and (a.target, a.name) != ("fedreel", "__version__")
    ]


def between_tasks(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Imports of one task's folder by another, or by what tasks share."""
    within = [a for a in arrows if room(a.source) == room(a.target) == "tasks"]
    return [a for a in within if _folder(a.source) != _folder(a.target) and _folder(a.target) not in SHARED]


def module_circles(arrows: Iterable[Arrow]) -> list[list[Arrow]]:
    """The arrows of each circle of modules."""
    return _tied(
        {(a.source, a.target): a for a in arrows if not a.typing and (a.target, a.name) != ("fedreel", "__version__")}
    )


def room_circles(arrows: Iterable[Arrow]) -> list[list[Arrow]]:
    """The arrows of each circle of rooms, one for each pair of rooms."""
    pairs = {(room(a.source), room(a.target)): a for a in arrows if a.name != "__version__"}
    return _tied({pair: arrow for pair, arrow in pairs.items() if pair[0] != pair[1]})


def test_the_architecture_page_lists_the_rooms_from_the_ground_up() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    section = page.partition("## The rooms")[2].partition("\n## ")[0]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert rows == [floor for floor in FLOORS if floor != "__main__"]


@pytest.fixture(scope="module")
def arrows() -> list[Arrow]:
    return read_package(ROOT)


def test_each_room_imports_only_rooms_that_it_may(arrows: list[Arrow]) -> None:
    assert {room(a.source) for a in arrows} <= {*FLOORS, "fedreel"}, "a new room needs a floor"
    wrong = [a for a in broken_walls(arrows) if not excused(a)]
    assert not wrong, _lines(wrong)


def test_the_table_itself_has_no_way_up() -> None:
    """So no room can reach itself over others, whatever is imported."""
    for source, targets in ONLY.items():
        above = set(FLOORS[FLOORS.index(source) :]) if source in FLOORS else set()
        assert not targets & above, source
        assert targets <= set(FLOORS), source


def test_no_circles_between_modules(arrows: list[Arrow]) -> None:
    wrong = module_circles(a for a in arrows if not excused(a))
    assert not wrong, "\n\n".join(map(_lines, wrong))


def test_no_circles_between_rooms(arrows: list[Arrow]) -> None:
    wrong = room_circles(a for a in arrows if not excused(a))
    assert not wrong, "\n\n".join(map(_lines, wrong))


def test_no_task_imports_another(arrows: list[Arrow]) -> None:
    wrong = [a for a in between_tasks(arrows) if not excused(a)]
    assert not wrong, _lines(wrong)


def test_every_exception_still_excuses_something(arrows: list[Arrow]) -> None:
    tied = [a for circle in module_circles(arrows) for a in circle]
    against = [*broken_walls(arrows), *between_tasks(arrows), *tied]
    unused = [
        pair for pair in STILL if not any(_below(a.source, pair[0]) and _below(a.target, pair[1]) for a in against)
    ]
    assert not unused, f"take these out of STILL: {unused}"


MODULES = ("fedreel", "fedreel.core", "fedreel.core.a", "fedreel.runs", "fedreel.tasks.x.page", "fedreel.tasks.y.page")


@pytest.mark.parametrize(
    ("source", "target", "name", "line", "typing"),
    [
        ("import fedreel.runs", "fedreel.runs", "", 1, False),
        ("from fedreel import runs", "fedreel.runs", "", 1, False),
        ("from fedreel.core import a", "fedreel.core.a", "", 1, False),
        ("from fedreel.core.a import b", "fedreel.core.a", "b", 1, False),
        ("def f():\n    from fedreel.runs import x", "fedreel.runs", "x", 2, False),
        ("if TYPE_CHECKING:\n    from fedreel.runs import X", "fedreel.runs", "X", 2, True),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import fedreel.runs", "fedreel.runs", "", 4, False),
    ],
)
def test_the_reader_sees_every_kind_of_import(source: str, target: str, name: str, line: int, typing: bool) -> None:
    (arrow,) = read_module("fedreel.me", source, "me.py", MODULES)
    assert arrow == Arrow("fedreel.me", target, name, f"me.py:{line}", typing)


def test_the_reader_leaves_other_packages_out() -> None:
    assert not list(
        read_module("fedreel.me", "import torch\nfrom fedreelish import core\nfrom os import path", "", MODULES)
    )


@pytest.mark.parametrize(
    ("source", "target", "may"),
    [
        ("core", "machine", True),
        ("core", "runs", False),
        ("report", "core", False),
        ("runs", "report", False),
        ("methods", "tasks", False),
        ("methods", "engines", False),
        ("tasks", "methods", False),
        ("tasks", "engines", False),
        ("engines", "tasks", False),
        ("engines", "methods", False),
        ("engines", "sites", False),
        ("sites", "engines", True),
        ("cli", "reproduce", True),
        ("errors", "errors", True),
        ("core", "shed", False),
        ("shed", "core", False),
    ],
)
def test_the_table_says_what_the_design_says(source: str, target: str, may: bool) -> None:
    assert allowed(source, target) is may


def test_a_wrong_arrow_is_named_with_file_and_line() -> None:
    source = "import os\n\ndef f():\n    from fedreel.runs.run import load\n"
    arrows = list(read_module("fedreel.core.a", source, "core/a.py", ("fedreel.runs.run",)))
    assert _lines(broken_walls(arrows)) == "core/a.py:4: fedreel.core.a -> fedreel.runs.run (load)"


def test_a_task_may_import_itself_and_what_is_shared_and_no_other_task() -> None:
    def arrow(source: str, target: str) -> Arrow:
        return Arrow(f"fedreel.tasks.{source}", f"fedreel.tasks.{target}", "", "")

    good = [arrow("x.task", "x.page"), arrow("x.task", "vision.clips"), arrow("x.task", "classification")]
    bad = [arrow("x.task", "y.page"), arrow("vision.clips", "x.page"), arrow("use.classes", "y.page")]
    assert between_tasks([*good, *bad]) == bad


def test_circles_are_found_by_hand() -> None:
    """a -> b -> c -> a with a tail, a pair that only a type checker sees, and rooms that meet over two modules."""
    ring = [Arrow(f"fedreel.core.{s}", f"fedreel.core.{t}", "", "") for s, t in ("ab", "bc", "ca", "cd", "de")]
    seen = [Arrow("fedreel.core.e", "fedreel.core.d", "", "", typing=True)]
    assert module_circles([*ring, *seen]) == [ring[:3]]
    assert room_circles([*ring, *seen]) == []
    there = Arrow("fedreel.core.a", "fedreel.runs.x", "", "")
    back = Arrow("fedreel.runs.y", "fedreel.core.b", "", "")
    assert module_circles([there, back]) == []
    assert room_circles([there, back]) == [[there, back]]


def _tied(arrows: Mapping[tuple[str, str], Arrow]) -> list[list[Arrow]]:
    """The arrows within each strongly connected part: pairs that reach each other (the graph is small)."""
    reach: dict[str, set[str]] = {}
    for source, target in arrows:
        reach.setdefault(source, set()).add(target)
    growing = True
    while growing:
        growing = False
        for targets in reach.values():
            further = set().union(*(reach.get(t, set()) for t in targets)) - targets
            targets |= further
            growing |= bool(further)
    parts = {
        frozenset(n for n in reach if n in reach[node] and node in reach[n]) for node in reach if node in reach[node]
    }
    return [[arrow for pair, arrow in arrows.items() if {*pair} <= part] for part in sorted(parts, key=sorted)]


def _lines(arrows: Iterable[Arrow]) -> str:
    return "\n".join(map(str, arrows))


def _below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def _folder(module: str) -> str:
    return ".".join(module.split(".")[:3])


def _module(root: Path, path: Path) -> str:
    return ".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


def _only_for_typing(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                yield from ast.walk(statement)
