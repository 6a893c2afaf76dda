"""[secure] of a recipe. No torch, and no need for `cryptography`."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.errors import RecipeError


@dataclass(frozen=True)
class SecureConfig:
    """[secure]: whether the server learns only the sum of a round's updates, and on which grid they are summed."""

    sums: bool = False
    clip: float = 1.0  # no number of the model changes by more than this at a client in a round
    bits: int = 32  # of each number on its way; 64 for many thousands of clients, or a finer grid
    weight_cap: float = 1e4  # no client counts for more samples, or frames: whatever models are weighed by

    def __post_init__(self) -> None:
        from fedreel.config import check_ranges

        check_ranges(self, "secure", clip=(1e-9, 1e9), weight_cap=(1, 1e7))
        if self.bits not in (32, 64):
            raise RecipeError("bits is out of range", where="[secure] bits", expected="32 or 64", found=str(self.bits))
