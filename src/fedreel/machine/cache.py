"""Where decoded and generated data are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """FEDREEL_CACHE, or else `fedreel` in XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("FEDREEL_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedreel"
