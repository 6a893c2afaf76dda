"""Sections that a recipe may lack: [transfer]. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedreel.errors import RecipeError


@dataclass(frozen=True)
class TransferConfig:
    """[transfer]: in which form models travel, for lines on which every byte counts."""

    up: Literal["full", "bf16", "int8", "top-k"] = "full"  # a client's change: as it is, rounded, or its largest part
    keep: float = 0.01  # top-k: share of the numbers that travel
    feedback: bool = True  # what rounding leaves out stays with its client, which adds it to its next change
    together: bool = False  # at real sites: the mean of a site's clients travels, where the method sees sums only
    down: Literal["full", "changes"] = "full"  # at real sites: models, or what is new against what the site has

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise RecipeError(
                "keep is out of range", where="[transfer] keep", expected="above 0, up to 1", found=str(self.keep)
            )
