"""The process at a site that takes messages off the SuperNode, hands their frames to the worker and its answers back.
Flower's own would unpack the program that a server ships with a run and import it, in a process of its own for each
message. This one never looks at that program, and stays. `python -m fedreel.sites.executor ARGUMENTS`.

It speaks with the SuperNode as Flower's does, by names that Flower does not promise to keep: the version is pinned."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedreel.engines.flower.relay import work
from fedreel.machine.patience import Patience

_POLLS = {"share": 0.05, "least": 0.2, "most": 1.5}  # seconds between two looks for a message
_AT_ONCE = 8  # messages under way; the worker answers one after another
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def main() -> None:
    """Carry messages until terminated. The arguments are JSON: the SuperNode's address, and the file of the secret that
    both know."""
    arguments = json.loads(sys.argv[1])
    address, secret = arguments["address"], Path(arguments["secret"]).read_bytes()
    signs = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
    patience = Patience(**_POLLS)
    with ThreadPoolExecutor(_AT_ONCE) as threads, _talk(address, signs) as node:
        while True:
            taken = node.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if taken.token:
                threads.submit(_carry, address, taken.token)
                patience.over()
            else:
                time.sleep(patience.pause())


def _carry(address: str, token: str) -> None:
    """One message: pull it, have it answered, push the answer."""
    try:
        with _talk(address, RuntimeTokenHttpInterceptor(token)) as node:
            beat = HeartbeatSender(make_task_heartbeat_fn_http(node))
            beat.start()
            try:
                message, context, *_ = pull_task_input(node)  # the rest is the program
                reply, problem = _answer(message, context)
                push_message(node, reply, context)
                status = SubStatus.FAILED if problem else SubStatus.COMPLETED
                push_task_output(client=node, context=context, sub_status=status, details=problem)
            finally:
                beat.stop()
    except Exception:
        traceback.print_exc()  # into the log; the server's order runs out of time
        sys.stderr.flush()


def _answer(message: Message, context: Context) -> tuple[Message, str]:
    """The worker's answer; if there is none, an error and why."""
    try:
        return work(message, context), ""
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, problem), reply_to=message), problem


@contextmanager
def _talk(address: str, *interceptors: Any) -> Iterator[RuntimeHttpClient]:
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # on this machine's loopback interface
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), *interceptors],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    try:
        yield client
    finally:
        client.close()


if __name__ == "__main__":
    main()
