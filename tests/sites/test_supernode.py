"""A SuperNode that stays in step with its messages, over Flower's own functions and state."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from fedreel.sites.supernode import InStep

OVER, RUNNING = 1, 2  # runs


class Node:
    """A SuperNode without a SuperLink: messages to take, and the replies that were sent."""

    def __init__(self) -> None:
        stores = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
        self.state.set_node_id(7)
        for run in (OVER, RUNNING):
            self.state.store_run(Run.create_empty(run))
        self.sent: list[str] = []
        self.answer_later: Message | None = None  # what the executor answers once a reply has been sent

    def pull(self, function: Any, message: Message) -> int | None:
        objects = get_all_nested_objects(message)

        def confirm(run: int, _: str) -> None:
            if run == OVER:
                raise RunNotRunningException

        return function(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=lambda: (message, get_object_tree(message)),
            get_run=None,
            get_fab=None,
            pull_object=lambda run, name: objects[name].deflate(),
            confirm_message_received=confirm,
            trusted_entities=None,
        )

    def push(self, function: Any) -> None:
        def send(message: Message, *_: object) -> tuple[set[str], str]:
            self.sent.append(message.metadata.reply_to_message_id)
            if self.answer_later is not None:
                later, self.answer_later = self.answer_later, None
                threading.Thread(target=self.answer, args=(later,)).start()
            return set(), "session"

        function(state=self.state, object_store=self.store, send=send, push_object=None)

    def answer(self, message: Message) -> None:
        """As the executor does."""
        reply = Message(RecordDict({"0": ConfigRecord({"text": "answer"})}), reply_to=message)
        self.state.record_message_processing_start(message_id=message.metadata.message_id)
        flower._insert_message(reply, self.state, self.store)
        self.state.record_message_processing_end(message_id=message.metadata.message_id)


def message_of(run: int, text: str) -> Message:
    metadata = Metadata(run, "", 1, 7, "", "", 0.0, 60.0, "query")
    message = make_message(metadata=metadata, content=RecordDict({"0": ConfigRecord({"text": text})}))
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@pytest.fixture(params=[True, False], ids=["ours", "flower's"])
def functions(request: pytest.FixtureRequest) -> tuple[Any, Any, bool]:
    in_step = InStep()
    ours = (in_step.pull, in_step.push, True)
    return ours if request.param else (flower._pull_and_store_message, flower._push_messages, False)


def test_a_run_that_ends_over_a_message_delays_none_of_the_next(functions: tuple[Any, Any, bool]) -> None:
    """Flower's own stays one behind for good. If it no longer does, our SuperNode is needed only for its haste."""
    pull, push, ours = functions
    node, old, new = Node(), message_of(OVER, "old"), message_of(RUNNING, "new")
    assert node.pull(pull, old) is None  # its run ended while it was taken, yet it is there
    node.answer(old)
    assert node.pull(pull, new) == RUNNING
    node.answer_later = new
    node.push(push)
    names = [message.metadata.message_id for message in (old, new)]
    assert node.sent == (names if ours else names[:1])


def test_a_reply_that_cannot_be_sent_is_not_waited_for(functions: tuple[Any, Any, bool]) -> None:
    pull, push, _ = functions
    node, message = Node(), message_of(RUNNING, "new")
    assert node.pull(pull, message) == RUNNING
    node.answer(message)

    def fail(*_: object) -> None:
        raise RuntimeError("the line is broken")

    push(state=node.state, object_store=node.store, send=fail, push_object=None)
    assert not node.state.get_messages_legacy()
