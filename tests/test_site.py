"""The documentation's site has every page and every public name, and shows what GitHub shows."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import fedreel
from fedreel.systems import resolve
from support.warm import run_python

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
PROMISING = sorted(DOCS.glob("add-a*.md"))


def load_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", DOCS / "mkdocs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = load_hooks()
REFERRED = [name for _, _, *names in HOOKS.REFERENCE.values() for name in names]


def leaves(entry: Any) -> Iterator[str]:
    """The pages of the navigation, whatever they are called there."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(part)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    made = [*HOOKS.OUTSIDE.values(), *(f"reference/{name}.md" for name in HOOKS.REFERENCE)]
    made += [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]
    assert Counter(leaves(SITE["nav"])) == Counter([*pages, *made])


def test_pictures_are_small_used_and_made_by_the_script() -> None:
    pictures = sorted((DOCS / "pictures").iterdir())
    assert sum(path.stat().st_size for path in pictures) < 1_500_000
    texts = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS.rglob("*.md")))
    script = (DOCS / "screenshots.py").read_text(encoding="utf-8")
    for path in pictures:
        assert f"pictures/{path.name})" in texts, path
        named = path.stem.replace("report-dark", "report-").replace("report-light", "report-")
        assert named in script, path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_says_what_it_says(path: Path, tmp_path: Path) -> None:
    done = run_python(DOCS / "notebooks" / "execute.py", path, "--check", cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_a_notebook_is_a_page_with_what_came_out() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"output_type": "stream", "text": ["2\n"]}]},
        {"cell_type": "code", "source": ["p"], "outputs": [{"data": {"image/png": "QUJD", "text/plain": ["p"]}}]},
    ]
    picture = "![What the cell shows](data:image/png;base64,QUJD)"
    expected = ["# Title\ntext", "```python\n1 + 1\n```", "```text\n2\n```", "```python\np\n```", picture]
    assert HOOKS.notebook_text({"cells": cells}) == "\n\n".join(expected) + "\n"


def test_the_site_asks_the_net_for_nothing() -> None:
    assert SITE["theme"]["font"] is False
    assert "offline" in SITE["plugins"]
    for script in SITE["extra"]["polyfills"]:
        assert (DOCS / script).is_file(), script


def test_what_fedreel_exports_is_in_the_reference() -> None:
    missing = {f"fedreel.{name}" for name in fedreel.__all__ if name != "__version__"} - set(REFERRED)
    assert missing == set()


@pytest.mark.parametrize("page", PROMISING, ids=lambda page: page.stem)
def test_what_an_example_imports_is_in_the_reference(page: Path) -> None:
    """By its own name, or with the module that it is in."""
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    taken = {
        (str(node.module), alias.name)
        for example in examples
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedreel.")
        for alias in node.names
    }
    assert taken, "no example imports anything"
    assert {f"{m}.{n}" for m, n in taken if m not in REFERRED and f"{m}.{n}" not in REFERRED} == set()


@pytest.mark.parametrize("name", REFERRED)
def test_names_in_the_reference_exist(name: str) -> None:
    module, _, last = name.rpartition(".")
    assert resolve(f"{module}:{last}") is not None


def shown(place: str, text: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place), meta={})
    return HOOKS.on_page_markdown(text, page, None, None)


def test_links_lead_to_where_things_are_on_the_site() -> None:
    assert shown("index.md", "[a](docs/ui.md#runs)") == "[a](ui.md#runs)"
    assert shown("ui.md", "[a](../README.md)") == "[a](index.md)"
    assert shown("systems/fsar.md", "[a](../ui.md)") == "[a](../ui.md)"
    assert shown("systems/fsar.md", "[a](../../src/x/y.py)") == "[a](../source/src/x/y.py.md)"
    assert shown("ui.md", "[a](../src/fedreel/methods)") == "[a](source/src/fedreel/methods/index.md)"
    for untouched in ("[a](https://x.org/docs/ui.md)", "[a](#runs)", "```\n[a](../README.md)\n```"):
        assert shown("ui.md", untouched) == untouched


@pytest.mark.parametrize("origin", ["README.md", "docs/ui.md", "src/fedreel/api.py", "src/fedreel/zoo/words/card.md"])
def test_a_file_is_found_again_from_its_place(origin: str) -> None:
    assert HOOKS.origin_of(HOOKS.place_of(origin)) == origin


def test_lists_and_fences_are_what_they_are_on_github() -> None:
    assert shown("a.md", "Text\nmore:\n- one\n- two\n") == "Text\nmore:\n\n- one\n- two\n"
    assert shown("a.md", "\n- one\n  more\n- two\n") == "\n- one\n  more\n- two\n"
    assert shown("a.md", "```python no-run\nx\n```\n") == "```python\nx\n```\n"
    assert HOOKS.slug("What a site's owner sees, and C++", "-") == "what-a-sites-owner-sees-and-c"
