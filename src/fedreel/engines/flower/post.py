"""Messages under way to the nodes of a Grid, and what became of them. Only public names of Flower."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid


@dataclass
class _Sent:
    node: int
    at: float
    number: int = 0


class Post:
    """Pushes messages under numbers and pulls their replies. A SuperNode takes one message after another, but forgets
    one that it could not pull as a whole, or whose reply it could not push, without a word. So a node that has been
    silent for `silence` seconds is asked something that costs nothing: the question overtakes no message, and what is
    still open from before it when it is answered is lost."""

    def __init__(self, grid: Grid, silence: float) -> None:
        self._grid, self._silence = grid, silence
        self._open: dict[str, _Sent] = {}
        self._asked: dict[str, _Sent] = {}  # questions that are not answered yet
        self._asked_at: dict[int, float] = {}  # when a node was asked last
        self._doubted: set[str] = set()  # their node has answered a later question; the reply may be a moment behind

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self._open)

    def push(self, number: int, message: Message) -> bool:
        """Whether the SuperLink took it."""
        sent = _Sent(message.metadata.dst_node_id, time.monotonic(), number)
        message_id = self._push(message)
        if message_id:
            self._open[message_id] = sent
        return bool(message_id)

    def drop(self, number: int) -> None:
        """Nobody waits for the reply any more."""
        self._open = {message_id: sent for message_id, sent in self._open.items() if sent.number != number}

    def pull(self) -> Iterator[tuple[int, Message | None]]:
        """Replies by number; None in place of one that will not come."""
        doubted, self._doubted = self._doubted, set()
        for reply in self._grid.pull_messages([*self._open, *self._asked]):
            message_id = reply.metadata.reply_to_message_id
            if message_id in self._asked:
                asked = self._asked.pop(message_id)
                if not reply.has_error():
                    self._doubted |= _before(asked, self._open)
                    for older in _before(asked, self._asked):
                        del self._asked[older]
            elif message_id in self._open:
                yield self._open.pop(message_id).number, reply
        for message_id in doubted & set(self._open):
            yield self._open.pop(message_id).number, None

    def ask_the_silent(self, question: Callable[[int], Message]) -> None:
        """Ask the nodes that have left a message unanswered for too long, a `question` of its own each. The question
        may get lost as well: there is another after twice the time."""
        now = time.monotonic()
        for node in {sent.node for sent in self._open.values()}:
            since = max(self._asked_at.get(node, 0.0), min(s.at for s in self._open.values() if s.node == node))
            asked = sum(s.node == node for s in self._asked.values())
            if now - since > self._silence * 2**asked:
                self._asked_at[node] = now
                if message_id := self._push(question(node)):
                    self._asked[message_id] = _Sent(node, now)

    def _push(self, message: Message) -> str:
        return next((message_id for message_id in self._grid.push_messages([message]) if message_id), "")


def _before(asked: _Sent, messages: dict[str, _Sent]) -> set[str]:
    """Those of the messages that went to the same node earlier."""
    return {message_id for message_id, sent in messages.items() if sent.node == asked.node and sent.at < asked.at}
