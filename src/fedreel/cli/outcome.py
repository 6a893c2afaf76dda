"""What a finished run prints: how it went, where everything is, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

USES = {  # task -> a command that uses a model of it
    "recognition": "fedreel recognize CLIP --model {run}",
    "image": "fedreel recognize IMAGE --model {run}",
    "skeleton": "fedreel recognize MOTION --model {run}",
    "summary": "fedreel summarize VIDEO --model {run} -o summary.mp4",
    "moments": 'fedreel find VIDEO "what happens" --model {run}',
    "pretrain": "fedreel search CLIP --in FOLDER --model {run}",
}
EXPORT = "fedreel export {run} -o backbone.safetensors"


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
    use = EXPORT if task.get("objective") == "views" else USES.get(summary["task"])
    return lines + ([f"next:   {use.format(run=shlex.quote(str(run)))}"] if use else [])
