"""Whether clients wait for their data so long that somebody should know, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedreel.report.markup import finite

NOTEWORTHY = 0.1  # of the time that clients train


def waiting_note(share: object, last: Mapping[str, Any]) -> str:
    """One line, if they waited for more than a tenth of the run's training and of that of its `last` round: data that
    are read once and then lie in memory need no mending."""
    known, training, waiting = finite(share), finite(last.get("training_seconds")), finite(last.get("waiting_seconds"))
    if known is None or not training or waiting is None or min(known, waiting / training) <= NOTEWORTHY:
        return ""
    return (
        f"clients waited for their data {known:.0%} of the time they trained: let more data lie in memory"
        " (data.memory), or give more cores to decode them"
    )
