"""What commands of fedreel import, with nothing run and nothing registered: warm.py forks them from a process that has
it."""

from __future__ import annotations

import gc
import importlib
import pkgutil

import rich.progress  # noqa: F401
import safetensors.torch  # noqa: F401
import torch  # noqa: F401

import fedreel.cli
import fedreel.kernels.dtw
import fedreel.methods
import fedreel.report.run
import fedreel.runs.run
import fedreel.tasks

VERBS = (".task", ".summarize", ".find", ".recognize", ".search", ".evaluate")

for module in pkgutil.iter_modules(fedreel.methods.__path__, "fedreel.methods."):
    importlib.import_module(module.name)
for module in pkgutil.walk_packages(fedreel.tasks.__path__, "fedreel.tasks."):
    if module.name.endswith(VERBS):
        importlib.import_module(module.name)
gc.freeze()
