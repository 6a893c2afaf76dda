"""What a finished run prints: how it went, where everything is, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreel.config import Recipe
from fedreel.machine.tail import from_the_end
from fedreel.report.waiting import waiting_note
from fedreel.systems import find_system


def outcome(run: Path, summary: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Lines to print. A model that learned from views has no classes to tell."""
    shown = {k: v for k, v in summary["metrics"].items() if not k.endswith("_clients")}
    metrics = ", ".join(f"{k} {v:.4f}" for k, v in shown.items()) or _untested(recipe)
    refused = sum(summary["refused"].values())
    lines = [
        f"{summary['method']} on {summary['task']}: {summary['rounds']} rounds in {summary['wall_seconds']:.1f} s,"
        f" {metrics}{f', {refused} answers refused' if refused else ''}",
        f"run:    {run}",
        f"report: {(run / 'report.html').resolve()} (open it in a browser)",
    ]
    last = next((row for row in from_the_end(run / "metrics.jsonl") if row.get("phase") == "train"), {})
    if note := waiting_note(summary.get("waiting_for_data"), last):
        lines.append(f"data:   {note}")
    system, model = find_system(summary["task"]), shlex.quote(str(run))
    if recipe.task.get("objective") == "views":
        lines.append(f"next:   fedreel export --model {model} -o backbone.safetensors")
    elif system and (verb := next((verb for verb in system.verbs if verb.trained), None)):
        lines.append(f"next:   fedreel {verb.name} {verb.example} --model {model}")
    return lines


def _untested(recipe: Recipe) -> str:
    """Why there are no results."""
    if recipe.privacy is not None and recipe.privacy.tests == "off":
        return 'not tested ([privacy] tests = "off")'
    return "nothing to test on" if recipe.round.evaluate_every else "not tested (round.evaluate_every = 0)"
