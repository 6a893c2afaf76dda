"""Matrices as a page of shaded squares: learnt topologies, loss landscapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedreel.report.grid import shades
from fedreel.report.markup import el
from fedreel.report.shell import document, save


class Matrix(NamedTuple):
    """A matrix and the names of its rows and columns."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: np.ndarray


def write_matrices(out: Path, title: str, lead: str, matrices: Sequence[Matrix]) -> Path:
    """Write the page `out`."""
    top = el("header", el("div", el("p", "fedreel", class_="eyebrow"), el("h1", title)))
    body = [shades(*matrix) for matrix in matrices] or [el("p", "There is nothing to show.", class_="empty")]
    return save(out, document(title, top, el("main", el("p", lead, class_="lead"), *body)))
