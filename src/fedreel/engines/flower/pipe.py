"""Frames between processes of one machine: a JSON head and byte arrays over a Unix socket. No torch, no flwr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

Bytes = bytes | memoryview


@dataclass
class Frame:
    """What travels: plain JSON values, and arrays by name."""

    head: dict[str, Any]
    arrays: Mapping[str, Bytes] = field(default_factory=dict)


def send(pipe: Connection, frame: Frame) -> None:
    pipe.send_bytes(json.dumps([frame.head, list(frame.arrays)]).encode())
    for array in frame.arrays.values():
        pipe.send_bytes(array)


def receive(pipe: Connection) -> Frame:
    """Waits for a frame; EOFError or OSError when the other side is gone."""
    head, names = json.loads(pipe.recv_bytes())
    return Frame(head, {name: pipe.recv_bytes() for name in names})
