"""What a reproduced table is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row: what is run, under which name, and what the paper printed for it."""

    name: str
    settings: Mapping[str, Any]  # recipe settings, "section.key" -> value
    setting: Mapping[str, Any] = field(default_factory=dict)  # how the row is labelled beside its name
    paper: Mapping[str, float] = field(default_factory=dict)  # metric -> printed value


@dataclass(frozen=True)
class Scale:
    """How large: the recipe it starts from, seeds, and settings for all rows."""

    recipe: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A sweep. `factor` turns our metrics into the paper's unit (100 for percent)."""

    rows: tuple[Row, ...]
    metrics: tuple[str, ...]
    scales: Mapping[str, Scale]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    factor: float = 1.0
