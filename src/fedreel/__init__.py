"""fedreel: train video-understanding models on video that may not leave its owners, then use them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "FedreelError",
    "__version__",
    "evaluate",
    "export",
    "find",
    "load",
    "load_recipe",
    "poses",
    "recognize",
    "run",
    "search",
    "summarize",
]

from fedreel.errors import FedreelError

# What libraries that come with torch read from the environment when it is imported:
# - Its allocator on 64-bit ARM gives freed memory back to the system after so many milliseconds, 10 by itself: each
#   training step takes it anew, page by page, for up to a fifth of its time.
# - OpenMP's threads turn so many times in waiting for each other, 300,000 by themselves, before they sleep: beside
#   other programs most of a core's time goes into that, and a step takes several times as long.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from fedreel.api import load, load_recipe, run
    from fedreel.tasks.moments.command import find
    from fedreel.tasks.skeleton.poses.command import poses
    from fedreel.tasks.summary.command import summarize
    from fedreel.tasks.use.recognize import recognize
    from fedreel.tasks.vision.evaluate.command import evaluate
    from fedreel.tasks.vision.export import export
    from fedreel.tasks.vision.search.command import search

_FUNCTIONS = {
    "run": "fedreel.api:run",
    "load": "fedreel.api:load",
    "load_recipe": "fedreel.api:load_recipe",
    "evaluate": "fedreel.tasks.vision.evaluate.command:evaluate",
    "export": "fedreel.tasks.vision.export:export",
}


def __getattr__(name: str) -> Any:
    """torch is imported only when something that needs it is used. Verbs are those that tasks declare, of installed
    packages too."""
    from fedreel.systems import resolve, verbs

    if name in _FUNCTIONS:
        return resolve(_FUNCTIONS[name])
    if not name.startswith("_") and (verb := verbs().get(name)):
        return resolve(verb.function)
    raise AttributeError(f"module 'fedreel' has no attribute '{name}'")
