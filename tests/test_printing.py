"""Whatever the command line prints goes through one function, which spells out what is no text."""

from __future__ import annotations

import ast
from pathlib import Path

import fedreel

SOURCE = Path(fedreel.__file__).parent
ALLOWED = {
    "cli/say.py",  # the function itself
    "tasks/use/outputs.py",  # JSON, which spells everything out by itself
    "reproduce/__init__.py",  # names and numbers of our own tables
}


def prints(path: Path) -> list[int]:
    """Lines that print, but for a text that `plain` has made."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        what = ast.unparse(node.func)
        plain = bool(node.args) and isinstance(node.args[0], ast.Call) and ast.unparse(node.args[0].func) == "plain"
        if what in ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"):
            found += [] if plain else [node.lineno]
    return found


def test_nothing_is_printed_past_the_one_function_that_makes_text_plain() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).as_posix() not in ALLOWED]
    assert len(files) > 200
    assert {str(path.relative_to(SOURCE)): lines for path in files if (lines := prints(path))} == {}
