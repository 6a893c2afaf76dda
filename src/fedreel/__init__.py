"""fedreel: train video-understanding models on video that may not leave its owners, then use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["FedreelError", "__version__", "load", "load_recipe", "run"]

from fedreel.errors import FedreelError

if TYPE_CHECKING:
    from fedreel.api import load, load_recipe, run


def __getattr__(name: str) -> Any:
    """torch is imported only when something that needs it is used."""
    if name in ("run", "load", "load_recipe"):
        from fedreel import api

        return getattr(api, name)
    raise AttributeError(f"module 'fedreel' has no attribute '{name}'")
