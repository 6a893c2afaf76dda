"""Small networks, for tests."""

from __future__ import annotations

from typing import Any

from fedreel.models.r3d import R3D, R3DConfig


def small_r3d(width: int = 2, **settings: Any) -> R3DConfig:
    """One block a stage."""
    return R3DConfig(**{"width": width, "blocks": (1, 1, 1, 1), **settings})


def tiny_r3d(width: int = 2, **settings: Any) -> R3D:
    return R3D(small_r3d(width, **settings))
