"""Where decoded and generated data are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """FEDREEL_CACHE, or else `fedreel` in XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEDREEL_CACHE") or Path(home) / "fedreel")
