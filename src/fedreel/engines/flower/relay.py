"""The Flower app: it only carries frames. Its server side connects the Grid with the process that runs the method, its
client side a SuperNode with the site's worker, each over a Unix socket. No torch here: Flower starts these processes
afresh, and they should start fast. Only public names of Flower."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from multiprocessing.connection import Client, Connection

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedreel.engines.flower.pipe import Bytes, Frame, receive, send
from fedreel.engines.flower.post import Post
from fedreel.machine.patience import Patience

_POLLS = {"share": 0.1, "least": 0.2, "most": 3.0}  # seconds between two looks for replies
_WORKER_START = 120  # seconds that a site's worker may take to start
_TTL = 86400.0  # seconds for which that question stands
_PIECE = 4 << 20  # bytes that travel in one of Flower's records
_HEAD = 8 << 20  # bytes of a frame's head
_DEPTH = 20  # of its lists and tables in each other
_DEATHS = 3  # how often a worker may die over one frame

PING = "ping"  # the type of a frame that is answered by whoever gets it

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Until the other side hangs up: push the messages that come over the pipe, hand replies back by message id."""
    with Client(str(context.run_config["socket"]), "AF_UNIX") as pipe:
        silence = float(context.run_config["silence"])
        post = Post(grid, silence)
        patience = Patience(**_POLLS)
        try:
            while True:
                pause = patience.pause()
                while pipe.poll(pause):
                    _obey(grid, pipe, receive(pipe), post)
                    patience.over()
                    pause = 0.0
                for number, reply in post.pull() if post else ():
                    patience.over()
                    _hand_over(pipe, reply, number)
                if silence:
                    post.ask_the_silent(lambda node: _message(Frame({"type": PING}), node, _TTL))
        except (EOFError, ConnectionError):
            return


@client_app.query()
def work(message: Message, context: Context) -> Message:
    """One frame for this node: a site's worker answers it, or, in a simulation, this very process."""
    frame = unwrap(message.content)
    if frame.head["type"] == PING:
        return Message(wrap(Frame({})), reply_to=message)
    socket = context.node_config.get("socket")
    if socket is None:
        from fedreel.engines.flower.simulation import answer

        reply = answer(frame)
    else:
        reply = _ask_worker(str(socket), frame)
    return Message(wrap(reply), reply_to=message)


def wrap(frame: Frame) -> RecordDict:
    """A frame as Flower's records: its bytes one after another, in pieces. Each record costs Flower a request and some
    transactions; of an ArrayRecord, each array and each chunk of it does."""
    pieces = list(_cut(frame.arrays.values()))
    sizes = {name: len(data) for name, data in frame.arrays.items()}
    records = [ConfigRecord({"json": json.dumps([frame.head, sizes]), "bytes": pieces[0] if pieces else b""})]
    records += [ConfigRecord({"bytes": piece}) for piece in pieces[1:]]
    return RecordDict({str(number): record for number, record in enumerate(records)})


def unwrap(content: RecordDict) -> Frame:
    """The frame that was wrapped; ValueError or KeyError for what `wrap` does not make."""
    text = str(content["0"]["json"])
    if len(text) > _HEAD:
        raise ValueError(f"a head of {len(text)} characters")
    head, sizes = json.loads(text)
    if not _shallow(head):
        raise ValueError("a head that is nested too deeply")
    data = memoryview(b"".join(content[str(number)]["bytes"] for number in range(len(content))))  # type: ignore[misc]
    ends = list(accumulate(sizes.values()))
    if any(type(size) is not int or size < 0 for size in sizes.values()) or (ends or [0])[-1] != len(data):
        raise ValueError(f"{len(data)} bytes are not the arrays that were announced")
    return Frame(head, {name: data[end - sizes[name] : end] for name, end in zip(sizes, ends)})


def _shallow(head: object) -> bool:
    level = [head]
    for _ in range(_DEPTH):
        level = [x for v in level if isinstance(v, dict | list) for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return True
    return False


def _cut(arrays: Iterable[Bytes]) -> Iterator[bytes]:
    piece = bytearray()
    for array in arrays:
        for at in range(0, len(array), _PIECE):
            piece += array[at : at + _PIECE]
            while len(piece) >= _PIECE:
                yield bytes(piece[:_PIECE])
                del piece[:_PIECE]
    if piece:
        yield bytes(piece)


def _obey(grid: Grid, pipe: Connection, frame: Frame, post: Post) -> None:
    """A frame of the engine: `nodes` asks who is there, `send` is for a node, `drop` gives a message up."""
    what, number = frame.head["what"], frame.head["number"]
    if what == "nodes":
        here = {str(node.node_id): node.last_activated_at for node in grid.get_nodes()}
        send(pipe, Frame({"what": "nodes", "number": number, "nodes": here}))
    elif what == "drop":
        post.drop(number)
    else:
        content = Frame(frame.head["content"], frame.arrays)
        if not post.push(number, _message(content, int(frame.head["node"]), frame.head["ttl"])):
            send(pipe, Frame({"what": "error", "number": number, "reason": "the SuperLink did not accept the message"}))


def _message(frame: Frame, node: int, ttl: float) -> Message:
    return Message(wrap(frame), dst_node_id=node, message_type="query", ttl=ttl)


def _reply(reply: Message | None, number: int) -> Frame:
    if reply is None:
        return Frame({"what": "error", "number": number, "reason": "the message or its answer got lost on the way"})
    if reply.has_error():
        return Frame({"what": "error", "number": number, "reason": f"{reply.error.code}: {reply.error.reason}"})
    try:
        frame = unwrap(reply.content)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return Frame({"what": "error", "number": number, "reason": f"rubbish: {type(error).__name__}"})
    return Frame({"what": "reply", "number": number, "content": frame.head}, frame.arrays)


def _hand_over(pipe: Connection, reply: Message | None, number: int) -> None:
    """Whatever a site has answered, this process lives on: there are other sites."""
    try:
        send(pipe, _reply(reply, number))
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        send(pipe, Frame({"what": "error", "number": number, "reason": f"rubbish: {type(error).__name__}"}))


def _ask_worker(socket: str, frame: Frame) -> Frame:
    """The worker's answer. If the worker dies over it, it is started anew and asked again: orders may run twice."""
    deaths, deadline = 0, time.monotonic() + _WORKER_START
    while True:
        try:
            with Client(socket, "AF_UNIX") as pipe:
                send(pipe, frame)
                deadline = time.monotonic() + _WORKER_START
                return receive(pipe)
        except (FileNotFoundError, ConnectionRefusedError):  # not there (yet)
            if time.monotonic() > deadline:
                raise
        except (EOFError, ConnectionError):
            deaths += 1
            if deaths == _DEATHS:
                raise
        time.sleep(0.5)
