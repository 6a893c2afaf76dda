"""Where the small real data sets lie, if they are here."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("FEDREEL_DATA") or Path(__file__).parents[3] / "shared" / "data")
