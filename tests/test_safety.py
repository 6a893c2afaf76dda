"""The package's own source, read as syntax trees: nothing in it runs code from data, and no file grows out of hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedreel

ROOT = Path(fedreel.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    *("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),  # run code from data
    *("socket", "http", "urllib.request", "requests", "ftplib", "aiohttp", "httpx"),  # reach the network
}
NAMES = {"eval", "exec", "__import__"}
CALLS = {
    *("torch.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "joblib.load"),
    *("os.system", "os.popen", "pandas.read_pickle", "builtins.eval", "builtins.exec"),
}


ALLOWED = {  # who may reach the network, and with what
    "sites/gate.py": {"httpx"},
    "sites/call.py": {"http", "socket"},
    "sites/listening.py": {"socket"},  # it is what the gate listens with
    "sites/place.py": {"httpx"},
    "engines/flower/processes.py": {"socket"},
    "engines/processes/messages.py": {"socket"},  # a pair of them, between processes of one machine
    "engines/processes/crew.py": {"socket"},
}


def dangers(source: str, allowed: frozenset[str] | set[str] = frozenset()) -> list[str]:
    """What a module must not hold, as `line: what`."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        found += [
            f"{line}: import {name}" for name in _imports(node) if _banned(name) and name.split(".")[0] not in allowed
        ]
        if isinstance(node, ast.Name) and node.id in NAMES:
            found.append(f"{line}: {node.id}")
        name = _dotted(node, aliases)
        if name in CALLS:
            found.append(f"{line}: {name}")
        if isinstance(node, ast.Call):
            called = _dotted(node.func, aliases)
            flags = {k.arg: k.value for k in node.keywords}
            if called in ("numpy.load", "numpy.lib.npyio.load") and _on(flags.get("allow_pickle")):
                found.append(f"{line}: numpy.load with allow_pickle")
            if called.startswith(("subprocess.", "asyncio.create_subprocess_shell")) and _on(flags.get("shell")):
                found.append(f"{line}: a shell")
    return found


def _dangers_of(path: Path) -> list[str]:
    return dangers(path.read_text(), ALLOWED.get(path.relative_to(ROOT).as_posix(), frozenset()))


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
    return []


def _banned(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:n]) in MODULES for n in range(1, len(parts) + 1))


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.asname, a.name) for a in node.names if a.asname)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, aliases)}.{node.attr}"
    return ""


def _on(flag: ast.expr | None) -> bool:
    return flag is not None and not (isinstance(flag, ast.Constant) and flag.value is False)


def test_no_file_of_the_package_runs_code_from_data_or_reaches_the_network() -> None:
    assert len(FILES) > 50
    found = [f"{path.relative_to(ROOT)}:{danger}" for path in FILES for danger in _dangers_of(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "from urllib import request",
        "import urllib.request as u",
        "import http.client",
        "def f(x):\n    return eval(x)",
        "list(map(exec, []))",
        "import torch as t\nt.load('x')",
        "from torch import load as innocent\ninnocent('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "from subprocess import run\nrun('ls', shell=1)",
        "import os\nos.system('ls')",
        "import yaml\nyaml.load(x)",
    ],
)
def test_the_reader_finds_each_danger(source: str) -> None:
    assert dangers(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "from urllib.parse import quote",
        "import numpy as np\nnp.load('x')\nnp.load('x', allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from safetensors.torch import load_file\nload_file('x')",
        "from .pickle import x",
    ],
)
def test_the_reader_leaves_harmless_code_alone(source: str) -> None:
    assert not dangers(source)


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in FILES}
    assert {name: n for name, n in lengths.items() if n > 400} == {}


def test_every_module_says_what_it_is_for() -> None:
    trees = {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in FILES}
    assert [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []
