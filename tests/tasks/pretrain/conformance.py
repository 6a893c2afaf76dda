"""Small data of the task for engine conformance: recognition's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.recognition.conformance import R3D, write

__all__ = ["settings", "write"]


def settings(folder: Path) -> dict[str, Any]:
    return {"backbone": R3D, "size": 16, "frames": 4}
