"""What the package imports it declares: in its dependencies or, where only some need it, in an extra."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import fedreel
from fedreel.config import read_toml

SOURCE = Path(fedreel.__file__).parent
PROJECT = read_toml(Path(__file__).parent.parent / "pyproject.toml")["project"]
DISTRIBUTIONS = {"PIL": "pillow", "mlflow": "mlflow-skinny", "triton": "torch"}  # what brings a module of another name
EXTRAS = {  # folders and files -> the extra whose packages they may import beside the dependencies
    "engines/flower": "sites",
    "sites": "sites",
    "core/secure": "secure",
    "ui": "ui",
    "runs/track.py": "track",
    "privacy/accounting.py": "privacy",
    "models/sentences.py": "text",
    "data/hugging_face.py": "hf",
    "tasks/skeleton/poses/networks.py": "pose",
}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-") for requirement in requirements}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def test_every_import_is_declared() -> None:
    always = names(PROJECT["dependencies"])
    extras = {name: names(packages) for name, packages in PROJECT["optional-dependencies"].items()}
    undeclared, used = [], set()
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        extra = next((name for start, name in EXTRAS.items() if place == start or place.startswith(f"{start}/")), "")
        for module in imported(path):
            if module in sys.stdlib_module_names or module in ("fedreel", "tomllib"):
                continue
            distribution = DISTRIBUTIONS.get(module, module).lower().replace("_", "-")
            used.add(distribution)
            if distribution not in always | extras.get(extra, set()):
                undeclared.append(f"{place}: {module}")
    assert not undeclared
    assert {"torch", "cryptography", "httpx", "h5py", "flwr"} <= used  # it did look


def test_every_place_with_an_extra_is_there() -> None:
    assert all((SOURCE / place).exists() for place in EXTRAS)
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])
