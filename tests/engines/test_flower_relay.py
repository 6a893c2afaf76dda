"""The relay between the engine and a Grid: a site that is silent for long is asked whether it is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Listener
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedreel.engines.flower import link, relay
from fedreel.engines.flower.pipe import Frame, send


class Silent:
    """A Grid whose nodes take everything and answer nothing. After so many looks for replies nobody waits any more."""

    def __init__(self, looks: int) -> None:
        self.looks, self.pushed, self.over = looks, list[str](), threading.Event()

    def push_messages(self, messages: list[Any]) -> Iterator[str]:
        for message in messages:
            self.pushed.append(relay.unwrap(message.content).head["type"])
            yield str(len(self.pushed))

    def pull_messages(self, ids: list[str]) -> list[Any]:
        self.looks -= 1
        if self.looks <= 0 or relay.PING in self.pushed:
            self.over.set()
        return []


def message(content: Any, *, dst_node_id: int, **_: Any) -> Any:
    """Flower's can be made only in a run."""
    return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id))


@pytest.mark.parametrize(("silence", "asked"), [(0.001, [relay.PING]), (0.0, []), (3600.0, [])])
def test_a_silent_node_is_asked_after_so_many_seconds(
    silence: float, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_POLLS", {"share": 0.0, "least": 0.002, "most": 0.002})
    monkeypatch.setattr(relay, "Message", message)
    grid, context = Silent(looks=20), SimpleNamespace(run_config={"socket": str(tmp_path / "s"), "silence": silence})
    with closing(Listener(str(tmp_path / "s"), "AF_UNIX")) as listener:
        serving = threading.Thread(target=relay.serve, args=(grid, context), daemon=True)
        serving.start()
        with listener.accept() as pipe:
            head = {"what": "send", "number": 1, "node": "7", "ttl": 60.0, "content": {"type": "orders"}}
            send(pipe, Frame(head))
            assert grid.over.wait(60)
        serving.join(60)
    assert grid.pushed[:2] == ["orders", *asked]


def test_the_app_is_told_how_long_a_node_may_be_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def accepted(command: list[str], **_: Any) -> Any:
        ran.append(command)
        return SimpleNamespace(stdout='{"success": true}')

    monkeypatch.setattr(link, "subprocess", SimpleNamespace(run=accepted, TimeoutExpired=TimeoutError))
    monkeypatch.setattr(link.Link, "connect", lambda self, wait: self._run_app())
    link.Link(tmp_path, silence=7).close()
    (command,) = ran
    assert "silence=7.0" in command[command.index("--run-config") + 1].split()
    assert "\nsilence = 0.0\n" in link.APP  # Flower takes only what the app has, and of its type
