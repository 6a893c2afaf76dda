"""The documentation is held to the code: its examples run, its commands parse, its links lead somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from click import UsageError
from typer.testing import CliRunner

import fedreel
from fedreel.cli import app
from fedreel.cli.catalogue import catalogue
from fedreel.config import PrivacyConfig, Recipe, load_recipe, read_toml, recipe_names
from fedreel.core.exchange import KINDS
from fedreel.core.job import make_method, make_task
from fedreel.core.method import Method
from fedreel.core.privacy import check_private
from fedreel.core.task import Task
from fedreel.core.weights import Layout, TensorInfo, bind
from fedreel.data.division import make_partitioner
from fedreel.errors import RecipeError
from fedreel.registry import BACKBONES, ENGINES, METHODS, TASKS
from fedreel.reproduce import find_table
from support.recipes import WITHOUT_WEIGHTS
from support.warm import run_python

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
METHOD_TABLES = ("Shared methods", "Methods of the systems")
LOCAL_PATH = re.compile(r"(?<![\w.~/$}-])/(?:home|root|work|tmp|mnt|media|opt|srv|var|usr|Users|Volumes)/|\b[A-Z]:\\")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, what the fence says, and what is in it."""

    page: Path
    info: str
    text: str
    number: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}-{self.number}"


def blocks(info: str) -> list[Block]:
    found = [
        Block(page, said.strip(), text, number)
        for page in PAGES
        for number, (said, text) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), 1)
    ]
    return [block for block in found if block.info == info]


def commands(program: str) -> list[tuple[Block, str]]:
    lines = [(block, line) for block in blocks("sh") for line in block.text.replace("\\\n", " ").splitlines()]
    return [(block, line) for block, line in lines if line.startswith(f"{program} ")]


SCRIPTS = blocks("python")
COMMANDS = commands("fedreel")
MAKE = commands("make")


def save_named(folder: Path) -> None:
    """What a reader does who follows the pages: blocks that begin with a file name are saved under it."""
    for block in SCRIPTS:
        if named := NAMED.match(block.text):
            (folder / named[1]).write_text(block.text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_examples_run(block: Block, tmp_path: Path) -> None:
    save_named(tmp_path)
    script = tmp_path / "example.py"
    script.write_text(block.text, encoding="utf-8")
    done = run_python(script.name, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_commands_parse(block: Block, line: str) -> None:
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    context = command.make_context("fedreel", list(words))
    while hasattr(command, "get_command"):  # a group: its first word is a command
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"there is no command '{name}'"
        context = command.make_context(name, list(words), parent=context)
    given = context.params
    if context.command_path.endswith("fedreel run"):
        check_recipe(given["recipe"], given["set"] or [], given["engine"])
    elif context.command_path.endswith("fedreel list"):
        assert catalogue(given["what"])
    elif context.command_path.endswith("fedreel reproduce"):
        for table in given["tables"]:
            assert given["scale"] in find_table(given["system"], table).scales


def check_recipe(name: str, settings: list[str], engine: str | None) -> None:
    """Its settings exist, and so do those of its task, method, engine and partition."""
    if name.endswith(".toml"):
        return
    check_settings(load_recipe(name, settings), engine)


def check_settings(recipe: Recipe, engine: str | None = None) -> None:
    make_task(recipe)
    make_method(recipe)
    make_partitioner(recipe.data.partition)
    ENGINES.lookup(engine or recipe.engine["name"])


@pytest.mark.parametrize("block", [block for block in blocks("toml") if block.text.startswith("system = ")], ids=str)
def test_recipes_on_pages_can_be_run(block: Block, tmp_path: Path) -> None:
    """Whole ones, which begin with their system; but not of tasks that only their page has."""
    path = tmp_path / "job.toml"
    path.write_text(block.text, encoding="utf-8")
    if read_toml(path)["task"]["name"] in TASKS:
        check_settings(load_recipe(path))


def test_a_wrong_command_would_be_noticed() -> None:
    block = Block(DOCS, "sh", "", 0)
    for line in ("fedreel run", "fedreel run x --no-such", "fedreel data no-such", "fedreel no-such", "fedreel report"):
        with pytest.raises((AssertionError, UsageError)):
            test_commands_parse(block, line)


@pytest.mark.parametrize(("block", "line"), MAKE, ids=[line for _, line in MAKE])
def test_the_makefile_has_what_the_pages_name(block: Block, line: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert shlex.split(line, comments=True)[1] in targets


def test_the_folders_that_contributors_are_told_of_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things lie\n")[2]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    for first, *others in (re.findall("`(.+?)`", row) for row in rows):
        for folder in (ROOT / first, *((ROOT / first).parent / other for other in others)):
            assert folder.is_dir(), folder


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_path_of_one_machine(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if LOCAL_PATH.search(line)] == []


def test_the_search_for_paths_finds_them() -> None:
    for text in ("see /home/me/x", "`/tmp/a`", "out=/Users/me/run", 'open("C:\\x")'):
        assert LOCAL_PATH.search(text), text
    for text in ("~/.cache/fedreel", "../src/home/x", "runs/tmp/x", "https://example.org/home/x", "owner/class"):
        assert not LOCAL_PATH.search(text), text


def test_privacy_lists_the_kinds() -> None:
    rows = table("Kinds")
    assert {kind.strip("`"): meaning for kind, meaning in rows} == KINDS


@pytest.mark.parametrize("name", METHODS)
def test_privacy_says_what_a_method_sends(name: str) -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("What each method sends")}
    assert name in rows, f"docs/privacy.md has no row for {name}"
    backbone, head, norm, numbers, questions, _ = rows[name]
    method: Method = METHODS.lookup(name)()
    leaves: dict[str, set[bool]] = {part: set() for part in ("backbone", "head", "norm")}
    for tensor in tensors_of(method):
        part = "norm" if tensor.role in ("norm", "statistics") else tensor.name.partition(".")[0]
        leaves[part].add(method.travels(tensor))
    words = {frozenset({True}): "yes", frozenset({False}): "no", frozenset({True, False}): "part"}
    assert [words[frozenset(leaves[part])] for part in leaves] == [backbone, head, norm]
    assert numbers == ", ".join(sorted(method.sends))
    asked = sorted(n for n in dir(type(method)) if hasattr(getattr(type(method), n), "sends"))
    assert questions == (", ".join(asked) or "none")


def test_methods_are_listed_once_each() -> None:
    listed = [row[0].strip("`") for heading in METHOD_TABLES for row in table(heading, "methods.md")]
    assert sorted(listed) == sorted(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_methods_says_what_a_method_sees_needs_and_sends(name: str) -> None:
    rows = {row[0].strip("`"): row[3:] for heading in METHOD_TABLES for row in table(heading, "methods.md")}
    method: type[Method] = METHODS.lookup(name)
    answers = [getattr(method, n).sends for n in sorted(dir(method)) if hasattr(getattr(method, n), "sends")]
    sent = dict.fromkeys(f"`{n}` ({kind})" for held in (method.sends, *answers) for n, kind in sorted(held.items()))
    besides = [text for text in sent if text not in ("`samples` (count)", "`loss` (loss)")]
    needs = " and ".join(ability.says for ability in method.needs)
    assert rows[name] == [method.sees, needs or "any", ", ".join(besides) or "nothing"]


def test_every_feature_of_ours_names_what_shows_it() -> None:
    """A page, a test or a benchmark; that links lead somewhere is tested above."""
    ours = [row[-1] for row in table("Features", "why.md")]
    shown = [cell for cell in ours if cell.startswith(("yes", "partly"))]
    assert len(shown) + sum(cell.startswith("no") for cell in ours) == len(ours)
    assert [cell for cell in shown if not LINK.search(cell)] == []
    for heading in ("What users of federated frameworks ask", "What users of video models ask"):
        for asked, where, here, seen in table(heading, "why.md"):
            assert "https://github.com/" in where, asked
            assert here.startswith(("**yes", "**partly", "**no")), asked
            assert LINK.search(seen), asked


def test_entry_points_give_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pyproject lines on the pages, put where an installed package has them, make the classes known by name."""
    save_named(tmp_path)
    package = tmp_path / "examples-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1.0\n")
    groups: dict[str, dict[str, str]] = {}
    for number, block in enumerate(b for b in blocks("toml") if b.text.startswith("[project.entry-points")):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        groups |= read_toml(path)["project"]["entry-points"]
    lines = [f"[{g}]\n" + "".join(f"{n} = {v}\n" for n, v in named.items()) for g, named in groups.items()]
    (package / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        known = ((TASKS, "points"), (METHODS, "choosy"), (ENGINES, "backwards"), (BACKBONES, "spacetime"))
        names = [registry.lookup(name).__name__ for registry, name in known]
        assert names == ["Points", "Choosy", "Backwards", "SpaceTimeConfig"]
        listed = CliRunner().invoke(app, ["list", "methods"]).output
        assert "  choosy " in listed
        recipe = load_recipe("recognition", ["method.name=choosy", "method.keep=0.25"])
        assert make_method(recipe).keep == 0.25  # type: ignore[attr-defined]
        recipe = load_recipe("recognition", ["task.backbone=spacetime", "task.backbone.width=32"])
        assert make_task(recipe).backbone.width == 32  # type: ignore[attr-defined]
        check_verb(tmp_path)
    finally:
        for name in ("points", "points_system", "points_verb", "choosy", "backwards", "spacetime"):
            sys.modules.pop(name, None)


def check_verb(folder: Path) -> None:
    """The verb that add-a-task.md declares: it finds what the model finds, and writes it where it is told to."""
    points = importlib.import_module("points")
    run = fedreel.run(points.recipe(), folder / "run").path
    (folder / "points.txt").write_text("0 0\n0.1 0.2\n3 3\n")
    result = fedreel.inside(folder / "points.txt", run, out=folder / "in.txt", page=folder / "in.html")
    with torch.no_grad():
        rows = torch.tensor([[0.0, 0.0], [0.1, 0.2], [3.0, 3.0]])
        loaded = fedreel.load(run)
        classes = loaded.task.forward(loaded.model, (rows, None)).logits.argmax(1).tolist()
    texts = [text for text, which in zip(("0 0", "0.1 0.2", "3 3"), classes) if which]
    assert result.lines() == texts == (folder / "in.txt").read_text().split("\n")
    assert all(text in (folder / "in.html").read_text() for text in texts)
    assert result.files == [folder / "in.txt", folder / "in.html"]


def tensors_of(method: Method) -> list[TensorInfo]:
    """Of recognition's model, and of those on the tasks that the method needs: it may keep back what only they have."""
    named = tasks()
    needed = [name for name, task in named.items() if method.needs and all(isinstance(task, a) for a in method.needs)]
    return [tensor for name in ("recognition", *needed) for tensor in tensors_of_task(name)]


@cache
def tasks() -> dict[str, Task]:
    """By the name of their recipe."""
    names = [name for name in recipe_names() if not name.endswith("-paper")]
    return {name: make_task(load_recipe(name, WITHOUT_WEIGHTS.get(name, ()))) for name in names}


@cache
def tensors_of_task(name: str) -> tuple[TensorInfo, ...]:
    task = tasks()[name]
    if hasattr(task, "classes"):
        task = replace(task, classes=2)  # type: ignore[call-arg,type-var]
    return tuple(bind(task.model()).layout.tensors)


def table(heading: str, page: str = "privacy.md") -> list[list[str]]:
    """The rows of the first table under a heading of a page."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: small letters, words joined by dashes, no punctuation."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_what_methods_leak_is_what_their_declarations_and_the_checks_say() -> None:
    sys.path.insert(0, str(DOCS / "tables"))
    try:
        leaks = importlib.import_module("leaks")
    finally:
        sys.path.pop(0)
    assert leaks.filled(leaks.PAGE.read_text()) == leaks.PAGE.read_text(), "python docs/tables/leaks.py"
    for row in leaks.table().splitlines()[2:]:
        name, _, by_clients, *_ = (cell.strip(" `") for cell in row.strip("|").split("|"))
        recipe = Recipe(method={"name": name}, privacy=PrivacyConfig(noise=1.0))
        try:
            check_private(recipe, METHODS.lookup(name)(), SimpleNamespace(travelling=Layout(())))  # type: ignore[arg-type]
            refused = False
        except RecipeError:
            refused = True
        assert refused == (by_clients == "refused"), name
