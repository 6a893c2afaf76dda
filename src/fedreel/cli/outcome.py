"""What a finished run prints: how it went, where everything is, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreel.systems import find_system


def outcome(run: Path, summary: Mapping[str, Any], task: Mapping[str, Any]) -> list[str]:
    """Lines to print. `task` is the recipe's [task] section: a model that learned from views has no classes to tell."""
    shown = {k: v for k, v in summary["metrics"].items() if not k.endswith("_clients")}
    metrics = ", ".join(f"{k} {v:.4f}" for k, v in shown.items()) or "nothing to test on"
    refused = sum(summary["refused"].values())
    lines = [
        f"{summary['method']} on {summary['task']}: {summary['rounds']} rounds in {summary['wall_seconds']:.1f} s,"
        f" {metrics}{f', {refused} answers refused' if refused else ''}",
        f"run:    {run}",
        f"report: {(run / 'report.html').resolve()} (open it in a browser)",
    ]
    system, model = find_system(summary["task"]), shlex.quote(str(run))
    if task.get("objective") == "views":
        lines.append(f"next:   fedreel export --model {model} -o backbone.safetensors")
    elif system and (verb := next((verb for verb in system.verbs if verb.trained), None)):
        lines.append(f"next:   fedreel {verb.name} {verb.example} --model {model}")
    return lines
