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
from fedreel.core.update import Answer, Failure, Named, Order, Result, Update, Value
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.engines.processes.memory import Region, look_into

_HEAD = struct.Struct("<IQ")  # how many files, how many bytes
_MOST_FILES = 250  # that the system lets pass with one message
_WORTH_SHARING = 1 << 16  # bytes; smaller tensors are written anew for every order


class Ended(Exception):
    """Nobody is at the other end any more."""


class Shared:
    """What orders under way start from. A tensor that many of them hold is written once, as long as one is open."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], tuple[Tensor, Region]] = {}
        self._users: dict[tuple[int, int], set[object]] = {}

    def region(self, tensor: Tensor, user: object) -> Region | None:
        """Where a large tensor lies until `user` and all others have let it go; None for a small one. A tensor that
        was changed meanwhile is another one."""
        if tensor.nbytes < _WORTH_SHARING:
            return None
        key = (id(tensor), tensor._version)
        if key not in self._regions:
            self._regions[key] = (tensor, Region([tensor]))  # as long as the tensor is here, its id is its own
        self._users.setdefault(key, set()).add(user)
        return self._regions[key][1]

    def release(self, user: object) -> None:
        for key in [key for key, users in self._users.items() if user in users]:
            self._users[key].discard(user)
            if not self._users[key]:
                del self._users[key]
                self._regions.pop(key)[1].close()


@dataclass
class Channel:
    """One end of a line between two processes. Both remember which layouts they have told each other."""

    line: socket.socket
    layouts: dict[str, Layout] = field(default_factory=dict)

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

    def send_order(self, order: Order, shared: Shared) -> None:
        packed = _Packed(self.layouts, shared, order.key)
        head = {
            "order": [order.round, order.step, order.client, order.kind, order.question, order.limit, order.awaited],
            "together": order.together,
            "models": {name: packed.value(w) for name, w in order.models.items()},
            "args": {name: packed.value(v) for name, v in order.args.items()},
        }
        packed.send(self, head)

    def receive_order(self) -> Order:
        head, files = self.receive()
        unpacked = _Unpacked(self.layouts, head, files)
        round, step, client, kind, question, limit, awaited = head["order"]
        models = {name: unpacked.weights(told) for name, told in head["models"].items()}
        args = {name: unpacked.value(told) for name, told in head["args"].items()}
        return Order(round, step, client, kind, models, args, question, limit, tuple(head["together"]), awaited)

    def send_result(self, result: Result, **beside: Any) -> None:
        packed = _Packed(self.layouts)
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
        packed.send(self, head)

    def receive_result(self) -> tuple[Result, dict[str, Any]]:
        """A result, and what was sent beside it."""
        head, files = self.receive()
        unpacked = _Unpacked(self.layouts, head, files)
        round, step, client = head["of"]
        if "failure" in head:
            return Failure(round, step, client, *head["failure"]), head["beside"]
        tensors = {name: unpacked.named(told) for name, told in head["tensors"].items()}
        if "weights" not in head:
            return Answer(round, step, client, head["numbers"], tensors), head["beside"]
        means = {name: unpacked.weights(told) for name, told in head["means"].items()}
        weights = unpacked.weights(head["weights"])
        times = Times.of_row(head["times"])
        update = Update(round, step, client, weights, head["numbers"], tensors, means, head["carried"], times)
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
    """What a message says of its tensors: in which of its files they lie, and where."""

    def __init__(self, known: dict[str, Layout], shared: Shared | None = None, user: object = None) -> None:
        self._known, self._shared, self._user = known, shared, user
        self._new: dict[str, list[list[object]]] = {}
        self._regions: list[Region] = []
        self._loose: list[Tensor] = []

    def value(self, value: Value) -> Any:
        if isinstance(value, Weights):
            layout = value.layout
            if layout.id not in self._known:
                self._known[layout.id] = layout
                self._new[layout.id] = [t.row() for t in layout.tensors]
            return {"layout": layout.id, "flat": {_name(d): self._tensor(t) for d, t in value.flat.items()}}
        return {"tensor": self._tensor(value)} if isinstance(value, Tensor) else {"value": value}

    def send(self, channel: Channel, head: dict[str, Any]) -> None:
        loose = Region(self._loose) if self._loose else None
        files = [region.handle for region in (*self._regions, loose) if region is not None]
        channel.send({**head, "layouts": self._new, "loose": loose.offsets if loose is not None else []}, files)

    def _tensor(self, tensor: Tensor) -> list[Any]:
        region = self._shared.region(tensor, self._user) if self._shared is not None else None
        about = [_name(tensor.dtype), list(tensor.shape)]
        if region is None:
            self._loose.append(tensor)
            return [-1, len(self._loose) - 1, *about]
        if region not in self._regions:
            self._regions.append(region)
        return [self._regions.index(region), 0, *about]


class _Unpacked:
    """The tensors of a message that has come; its files are closed."""

    def __init__(self, known: dict[str, Layout], head: Mapping[str, Any], files: list[int]) -> None:
        known |= {name: Layout(map(TensorInfo.from_row, rows)) for name, rows in head["layouts"].items()}
        self._known, self._loose = known, head["loose"]
        try:
            self._content = [look_into(handle) for handle in files]
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
        return Weights(self._known[told["layout"]], flat)

    def _tensor(self, file: int, at: int, dtype: str, shape: list[int]) -> Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        size = torch.Size(shape).numel() * kind.itemsize
        if not size:
            return torch.empty(shape, dtype=kind)
        start = self._loose[at] if file < 0 else 0
        return self._content[file][start : start + size].view(kind).view(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _close(files: Sequence[int]) -> None:
    for handle in files:
        os.close(handle)
