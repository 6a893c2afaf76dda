"""What a new task touches: CONTRIBUTING's list, followed in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from support.warm import run_python

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text().partition("### What a new task touches\n")[2].partition("\n## ")[0]
PAGE = (ROOT / "docs" / "add-a-task.md").read_text()
CONFORMANCE = '''
"""The task makes its own data."""


def settings(folder):
    return {"clients": 4}


def write(folder, clients):
    folder.mkdir(parents=True)
'''


def listed() -> list[str]:
    return re.findall(r"^\| `(.+?)` \|", GUIDE, re.MULTILINE)


def block(text: str, kind: str, first: str = "") -> str:
    (found,) = [b for b in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if b.startswith(first)]
    return found


def test_the_list_has_one_folder_one_recipe_and_one_page() -> None:
    files = [Path(name) for name in listed()]
    code = {file.parent for file in files if file.suffix == ".py"}
    assert code == {Path("src/fedreel/tasks/points")}
    assert sorted(file.suffix for file in files if file.suffix != ".py") == [".md", ".toml"]
    assert not any((ROOT / file).exists() for file in files)  # nothing that is there already is touched


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the new task in it: the files of the list, and small data for the tests."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tree)
    verb = block(PAGE, "python", "# points_verb.py").replace("from points ", "from fedreel.tasks.points.task ")
    texts = {
        "__init__.py": block(GUIDE, "python"),
        "task.py": block(PAGE, "python", "# points.py").partition("def recipe(")[0],
        "verb.py": verb,
        "points.toml": block(GUIDE, "toml"),
        "points.md": "# Points\n",
    }
    for name in listed():
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(texts.pop(Path(name).name))
    assert not texts
    (tree / "tests" / "tasks" / "points").mkdir()
    (tree / "tests" / "tasks" / "points" / "conformance.py").write_text(CONFORMANCE)
    return tree


def said(tree: Path, *words: object) -> str:
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    for name in [name for name in env if name.startswith("PYTEST_")]:
        del env[name]
    done = run_python(*words, cwd=tree, env=env, own_fedreel=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_new_task_is_listed_run_and_used(tree: Path) -> None:
    assert "  points " in said(tree, "-m", "fedreel", "list", "tasks")
    told = said(tree, "-m", "fedreel", "run", "points", "--out", "run", "--device", "cpu")
    assert "fedreel inside points.txt --model run" in told
    (tree / "points.txt").write_text("0 0\n0.1 0.2\n3 3\n")
    assert "3 3" not in said(tree, "-m", "fedreel", "inside", "points.txt", "--model", "run")
    assert said(tree, "-c", "import fedreel; print(fedreel.inside('points.txt', 'run').lines())").startswith("[")


def test_what_holds_of_all_tasks_holds_of_the_new_one(tree: Path) -> None:
    """The house's rules, the declarations, and the engines: with the tests that are there."""
    tests = ("tests/test_rooms.py", "tests/test_systems.py", "tests/test_conformance.py")
    chosen = "test_rooms or inside or folder or (points and not flower)"
    told = said(tree, "-m", "pytest", "-p", "no:cacheprovider", "-q", *tests, "-k", chosen)
    assert re.search(r"\d+ passed", told) or "100%" in told
