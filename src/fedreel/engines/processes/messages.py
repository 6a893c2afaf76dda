"""Orders and results between processes of one machine: a head of JSON over a pair of sockets, and beside it open files
that hold the tensors. No pickle, and no tensor goes through a pipe."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedreel.core.timing import Times
from fedreel.core.update import Answer, Failure, Moved, Named, Order, Result, Update, Value
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.engines.processes.memory import Region, Reused, Views, look_into, offsets

_HEAD = struct.Struct("<IQ")  # how many files, how many bytes
_MOST_FILES = 250  # that the system lets pass with one message
_WORTH_SHARING = 1 << 16  # bytes; smaller tensors are written anew for every order


class Ended(Exception):
    """Nobody is at the other end any more."""


class Shared:
    """What orders under way start from. A tensor that many of them hold is written once, as long as one is open, and
    each worker opens it once."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], tuple[Tensor, int, Region]] = {}
        self._users: dict[tuple[int, int], set[object]] = {}
        self._made = 0

    def region(self, tensor: Tensor, user: object) -> tuple[int, Region] | None:
        """Where a large tensor lies until `user` and all others have let it go, by number; None for a small one. A
        tensor that was changed meanwhile is another one."""
        if tensor.nbytes < _WORTH_SHARING:
            return None
        key = (id(tensor), tensor._version)
        if key not in self._regions:
            self._made += 1
            self._regions[key] = (tensor, self._made, Region([tensor]))  # its id is its own as long as it is here
        self._users.setdefault(key, set()).add(user)
        return self._regions[key][1:]

    @property
    def numbers(self) -> set[int]:
        """Of all that are open."""
        return {number for _, number, _ in self._regions.values()}

    def release(self, user: object) -> None:
        for key in [key for key, users in self._users.items() if user in users]:
            self._users[key].discard(user)
            if not self._users[key]:
                del self._users[key]
                self._regions.pop(key)[2].close()


@dataclass
class Channel:
    """One end of a line between two processes. Both remember which layouts and which memory they have told each other
    of."""

    line: socket.socket
    layouts: dict[str, Layout] = field(default_factory=dict)
    written: Reused = field(default_factory=Reused)  # here, for the other end
    views: Views = field(default_factory=Views)  # of what the other end has written
    told: set[int] = field(default_factory=set)  # numbers of shared regions that the other end has open
    common: dict[int, Tensor] = field(default_factory=dict)  # those that are open at this end

    def send(self, head: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        content = json.dumps(head).encode()
        try:
            sent = socket.send_fds(self.line, [_HEAD.pack(len(files), len(content))], list(files))
            assert sent == _HEAD.size
            self.line.sendall(content)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Ended from error

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """A message with its open files, which are the caller's to close."""
        try:
            head, files, _, _ = socket.recv_fds(self.line, _HEAD.size, _MOST_FILES)
            head += self._exactly(_HEAD.size - len(head))
            count, size = _HEAD.unpack(head)
            content = self._exactly(size)
        except ConnectionResetError as error:
            raise Ended from error
        if len(files) != count:
            _close(files)
            raise OSError(f"{count} open files were sent and {len(files)} came: too many are open here")
        told: dict[str, Any] = json.loads(content)
        return told, files

    def close(self) -> None:
        self.line.close()
        self.written.close()

    def send_order(self, order: Order, shared: Shared) -> None:
        packed = _Packed(self, shared, order.key)
        head = {
            "order": [order.round, order.step, order.client, order.kind, order.question, order.limit, order.awaited],
            "together": order.together,
            "models": {name: packed.value(w) for name, w in order.models.items()},
            "args": {name: packed.value(v) for name, v in order.args.items()},
        }
        packed.send(head)

    def receive_order(self) -> Order:
        head, files = self.receive()
        unpacked = _Unpacked(self, head, files)
        round, step, client, kind, question, limit, awaited = head["order"]
        models = {name: unpacked.weights(told) for name, told in head["models"].items()}
        args = {name: unpacked.value(told) for name, told in head["args"].items()}
        return Order(round, step, client, kind, models, args, question, limit, tuple(head["together"]), awaited)

    def send_result(self, result: Result, **beside: Any) -> None:
        packed = _Packed(self)
        head: dict[str, Any] = {"of": [result.round, result.step, result.client], "beside": beside}
        if isinstance(result, Failure):
            head["failure"] = [result.reason, result.detail]
        else:
            head["numbers"] = {n: v if isinstance(v, int | float) else float(v) for n, v in result.numbers.items()}
            head["tensors"] = {name: packed.value(v) for name, v in result.tensors.items()}
        if isinstance(result, Update):
            head["weights"], head["carried"] = packed.value(result.weights), result.carried
            head["means"] = {name: packed.value(w) for name, w in result.means.items()}
            head["times"] = result.times.row() if result.times else None
            head["moved"] = [result.moved.model, result.moved.change, result.moved.trained] if result.moved else None
        packed.send(head)

    def receive_result(self) -> tuple[Result, dict[str, Any]]:
        """A result, and what was sent beside it."""
        head, files = self.receive()
        unpacked = _Unpacked(self, head, files)
        round, step, client = head["of"]
        if "failure" in head:
            return Failure(round, step, client, *head["failure"]), head["beside"]
        tensors = {name: unpacked.named(told) for name, told in head["tensors"].items()}
        if "weights" not in head:
            return Answer(round, step, client, head["numbers"], tensors), head["beside"]
        means = {name: unpacked.weights(told) for name, told in head["means"].items()}
        weights = unpacked.weights(head["weights"])
        times = Times.of_row(head["times"])
        moved = Moved(weights, *head["moved"]) if head["moved"] else None
        update = Update(round, step, client, weights, head["numbers"], tensors, means, head["carried"], times, moved)
        return update, head["beside"]

    def _exactly(self, size: int) -> bytes:
        parts, missing = [], size
        while missing:
            part = self.line.recv(min(missing, 1 << 20))
            if not part:
                raise Ended
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def new_line() -> tuple[Channel, socket.socket]:
    """A channel, and the other end of its line for another process."""
    here, there = socket.socketpair()
    return Channel(here), there


class _Packed:
    """What a message says of its tensors: in which memory they lie, and where. An open file is sent with it only of
    memory that the other end has not seen."""

    def __init__(self, channel: Channel, shared: Shared | None = None, user: object = None) -> None:
        self._channel, self._shared, self._user = channel, shared, user
        self._new: dict[str, list[list[object]]] = {}
        self._regions: dict[int, Region] = {}
        self._loose: list[Tensor] = []

    def value(self, value: Value) -> Any:
        if isinstance(value, Weights):
            layout = value.layout
            if layout.id not in self._channel.layouts:
                self._channel.layouts[layout.id] = layout
                self._new[layout.id] = [t.row() for t in layout.tensors]
            return {"layout": layout.id, "flat": {_name(d): self._tensor(t) for d, t in value.flat.items()}}
        return {"tensor": self._tensor(value)} if isinstance(value, Tensor) else {"value": value}

    def send(self, head: dict[str, Any]) -> None:
        channel = self._channel
        loose = channel.written.write(self._loose) if self._loose else None
        new = {number: region for number, region in self._regions.items() if number not in channel.told}
        gone = channel.told - self._shared.numbers if self._shared is not None else set()
        channel.told = (channel.told | new.keys()) - gone
        files = [region.handle for region in (*new.values(), *([loose[1]] if loose is not None and loose[2] else []))]
        memory = {
            "opened": [*new],
            "gone": [*gone],
            "loose": None if loose is None else [loose[0], loose[2], offsets(self._loose)],
            "closed": channel.written.taken_closed(),
            "let_go": channel.views.taken_let_go(),
        }
        channel.send({**head, "layouts": self._new, "memory": memory}, files)

    def _tensor(self, tensor: Tensor) -> list[Any]:
        shared = self._shared.region(tensor, self._user) if self._shared is not None else None
        about = [_name(tensor.dtype), list(tensor.shape)]
        if shared is None:
            self._loose.append(tensor)
            return [-1, len(self._loose) - 1, *about]
        number, region = shared
        self._regions[number] = region
        return [number, 0, *about]


class _Unpacked:
    """The tensors of a message that has come; its files are closed."""

    def __init__(self, channel: Channel, head: Mapping[str, Any], files: list[int]) -> None:
        new = {name: Layout(map(TensorInfo.from_row, rows)) for name, rows in head["layouts"].items()}
        channel.layouts |= new
        self._channel, memory = channel, head["memory"]
        self._offsets: list[int] = []
        channel.written.let_go(memory["let_go"])
        channel.views.forget(memory["closed"])
        for number in memory["gone"]:
            del channel.common[number]
        try:
            channel.common |= {number: look_into(handle) for number, handle in zip(memory["opened"], files)}
            if memory["loose"] is not None:
                number, fresh, self._offsets = memory["loose"]
                self._loose = channel.views.look(number, files[-1] if fresh else None)
        finally:
            _close(files)

    def value(self, told: Mapping[str, Any]) -> Value:
        if "layout" in told:
            return self.weights(told)
        return self._tensor(*told["tensor"]) if "tensor" in told else told["value"]

    def named(self, told: Mapping[str, Any]) -> Named:
        return self.weights(told) if "layout" in told else self._tensor(*told["tensor"])

    def weights(self, told: Mapping[str, Any]) -> Weights:
        flat = {getattr(torch, name): self._tensor(*place) for name, place in told["flat"].items()}
        return Weights(self._channel.layouts[told["layout"]], flat)

    def _tensor(self, file: int, at: int, dtype: str, shape: list[int]) -> Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        size = torch.Size(shape).numel() * kind.itemsize
        if not size:
            return torch.empty(shape, dtype=kind)
        content, start = (self._loose, self._offsets[at]) if file < 0 else (self._channel.common[file], 0)
        return content[start : start + size].view(kind).view(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _close(files: Sequence[int]) -> None:
    for handle in files:
        os.close(handle)
