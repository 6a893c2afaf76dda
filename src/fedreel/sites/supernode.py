"""Flower's SuperNode, in step with its messages. `python -m fedreel.sites.supernode ARGUMENTS`, as `flower-supernode`.

Flower's takes one message, waits for a reply, whichever comes, sends it, and takes the next. If a run ends while one of
its messages is being taken, that one stays behind and is answered later: from then on each reply goes out when the next
message comes, and the last one not at all. This one waits for the reply to the message that it took.

It also asks for the next message soon after the last, and ever more rarely: Flower's asks every three seconds, which a
secure sum with its five questions would wait for each time.

It changes two functions that Flower does not promise to keep: the version is pinned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import Message
from flwr.supernode import start_client_internal as flower

from fedreel.machine.patience import Patience

_POLLS = {"share": 0.05, "least": 0.2, "most": 3.0}  # seconds between two looks for a message; Flower looks every 3

_pull, _push = flower._pull_and_store_message, flower._push_messages


class InStep:
    """Stands in for the functions by which a SuperNode takes a message and sends replies."""

    def __init__(self) -> None:
        self._taken = ""  # the message that was taken last
        self._patience = Patience(**_POLLS)

    def pull(self, *, receive: Callable[[], tuple[Message, Any] | None], **rest: Any) -> int | None:
        def soon() -> tuple[Message, Any] | None:
            while (found := receive()) is None:
                pause = self._patience.pause()
                if pause == self._patience.most:
                    return None
                time.sleep(pause)
            self._taken = found[0].metadata.message_id
            self._patience.over()
            return found

        return _pull(receive=soon, **rest)

    def push(self, *, state: Any, **rest: Any) -> None:
        noting = _Noting(state)
        while self._taken not in noting.done:
            _push(state=noting, **rest)  # type: ignore[arg-type]
        self._patience.over()


class _Noting:
    """A SuperNode's state, which notes what Flower is done with: a message whose reply was sent, or could not be."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.done = set[str]()

    def delete_messages(self, *, message_ids: Sequence[str]) -> None:
        self.done |= set(message_ids)
        self._state.delete_messages(message_ids=message_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    in_step = InStep()
    flower._pull_and_store_message = in_step.pull  # type: ignore[assignment]
    flower._push_messages = in_step.push  # type: ignore[assignment]
    flower_supernode()


if __name__ == "__main__":
    main()
