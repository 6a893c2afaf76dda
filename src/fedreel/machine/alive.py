"""Processes as other processes know them: by host, number and birth, since numbers are given again."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    return process(os.getpid())


def process(pid: int) -> dict[str, Any]:
    """What tells this process from all others; to be kept as JSON."""
    return {"host": platform.node(), "pid": pid, "born": _born(pid)}


def alive(known: Mapping[str, Any]) -> bool:
    """Whether the process that was described so still runs on this machine."""
    pid, born = known.get("pid"), known.get("born")
    if not isinstance(pid, int) or pid <= 1 or known.get("host") != platform.node():
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return bool(born) and born == _born(pid)


def interrupt(known: Mapping[str, Any]) -> bool:
    """Ctrl-C for a process; False if it is not there any more."""
    if not alive(known):
        return False
    try:
        os.kill(int(known["pid"]), signal.SIGINT)
    except OSError:
        return False
    return True


def _born(pid: int) -> str:
    """When the process began, in the system's ticks; '' if it has ended. Without /proc a number must do."""
    if not Path("/proc/self/stat").exists():
        return "unknown"
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
