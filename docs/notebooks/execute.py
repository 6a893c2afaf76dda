"""Runs a notebook's cells without Jupyter: `python docs/notebooks/execute.py FILE.ipynb` writes its outputs anew, and
with `--check` compares them with those that are there: same words, same pictures, whatever the numbers."""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__)
    told.add_argument("file", type=Path)
    told.add_argument("--check", action="store_true")
    given = told.parse_args()
    path = given.file.resolve()
    stored = json.loads(path.read_text(encoding="utf-8"))
    made = executed(stored)
    if given.check:
        for old, new in zip(stored["cells"], made["cells"]):
            if said(old) != said(new):
                raise SystemExit(f"cell {new['id']} says something else:\n{said(old)}\n{said(new)}")
    else:
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, which run one after another in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number, before = [], 0, Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    number += 1
                    outputs = run("".join(cell["source"]), names, number)
                    cell = {**cell, "execution_count": number, "outputs": outputs}
                cells.append(cell)
        finally:
            os.chdir(before)
    return {**notebook, "cells": cells}


def run(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a cell prints, and what its last expression is, as a notebook keeps it."""
    tree, last = ast.parse(source), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = eval(compile(last, f"cell {number}", "eval"), names) if last else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        data: dict[str, Any] = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_png_"):
            picture = base64.b64encode(value._repr_png_()).decode()
            data = {"image/png": picture, "text/plain": ["a picture"]}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def said(cell: dict[str, Any]) -> list[str]:
    """The lines of a cell's outputs, and which of them are pictures. Numbers are left out, and how often a line comes
    too: other processors give others."""
    texts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        kinds = ", ".join(sorted(data))
        text = "".join(output.get("text", data.get("text/plain", [])))
        texts.append(f"{output['output_type']} {kinds}")
        texts += sorted({" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines()})
    return texts


if __name__ == "__main__":
    main()
