"""What recipes need set to be built in a test: no weights of other packages, no networks of millions of numbers."""

from __future__ import annotations

from typing import Any

_TINY_VIDEOMAE = {
    f"task.backbone.{name}": size for name, size in {"width": 12, "depth": 1, "heads": 2, "mlp": 12}.items()
}
WITHOUT_WEIGHTS: dict[str, dict[str, Any]] = {
    "clips": {"task.backbone.image.init": ""},
    "fedvideomae": _TINY_VIDEOMAE,
    "fedvideomae-pretrain": _TINY_VIDEOMAE,
}
