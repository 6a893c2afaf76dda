"""Orders, updates and failures as frames: what goes over the wire to a site and back. What comes in is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedreel.core.timing import Times
from fedreel.core.update import ASK, EVALUATE, SECURE, TRAIN, Answer, Failure, Named, Order, Result, Update, Value
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.engines.flower.pipe import Bytes, Frame
from fedreel.engines.flower.versions import Held, Versions
from fedreel.errors import FedreelError, plain

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_NAMES = 256  # numbers and tensors of one result
_ROWS = 1000  # tensors of a layout that the server does not know
_MORE = 2  # tensors that a code adds to a model's
_SPARE = 64 << 20  # bytes that an answer may hold beside a model for each that was sent
REASONS = ("error", "diverged", "memory", "timeout", "policy")  # for which a site says that it has no answer
_ROLES = ("parameter", "norm", "statistics", "buffer")


def pack_orders(orders: Sequence[Order], node: str = "", versions: Versions | None = None, **head: Any) -> Frame:
    """Several orders in one frame; a model that many of them carry is in it once. With `versions`, of a model that the
    node has, or nearly, only what is new."""
    packer = _Packer(node, versions)
    rows = [
        {
            "round": o.round,
            "step": o.step,
            "client": o.client,
            "kind": o.kind,
            "question": o.question,
            "limit": o.limit,
            **({"together": [*o.together]} if o.together else {}),
            "models": {name: packer.model(w) for name, w in o.models.items()},
            "args": {name: packer.value(v) for name, v in o.args.items()},
        }
        for o in orders
    ]
    return packer.frame(orders=rows, **head)


def unpack_orders(frame: Frame, held: Held | None = None) -> list[Order]:
    """The orders of a frame; raises if one of them is none that a server of ours would give, or Lacking if it refers to
    a model that is not `held`. Those that came are, afterwards."""
    reader = _Reader(frame, held=held)
    for row in frame.head["orders"]:
        _check_order(row)
    orders = [
        Order(
            row["round"],
            row["step"],
            row["client"],
            row["kind"],
            {name: reader.weights(at) for name, at in row["models"].items()},
            {name: reader.value(v) for name, v in row["args"].items()},
            row["question"],
            row["limit"],
            tuple(row.get("together", ())),
        )
        for row in frame.head["orders"]
    ]
    if held is not None and reader.versions:
        held.keep({str(told["digest"]): reader.weights(int(at)) for at, told in reader.versions.items()})
    return orders


def _check_order(row: Mapping[str, Any]) -> None:
    limit = row["limit"]
    sound = {
        "round and step from 0": all(type(row[n]) is int and 0 <= row[n] < 2**31 for n in ("round", "step")),
        "a client's name": isinstance(row["client"], str) and 0 < len(row["client"]) <= 200,
        "a kind of order": row["kind"] in (TRAIN, ASK, EVALUATE, SECURE) and isinstance(row["question"], str),
        "a limit of seconds, or none": limit is None or (type(limit) in (int, float) and 0 < limit < math.inf),
        "names of numbers to weigh by": _are_names(row.get("together", [])),
        "a model to train": bool(row["models"]) or not (row["kind"] == TRAIN or row["question"] == "masked"),
    }
    if missing := [what for what, there in sound.items() if not there]:
        raise FedreelError("an order cannot be carried out", expected=", ".join(missing))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _NAMES and all(isinstance(name, str) for name in value)


def pack_results(results: Sequence[Result], **head: Any) -> Frame:
    packer = _Packer()
    rows = []
    for r in results:
        row: dict[str, Any] = {"round": r.round, "step": r.step, "client": r.client}
        if isinstance(r, Failure):
            row |= {"reason": r.reason, "detail": r.detail}
        else:
            row |= {"numbers": r.numbers, "tensors": {name: packer.value(v) for name, v in r.tensors.items()}}
            if isinstance(r, Update):
                row |= {"weights": packer.weights(r.weights), **({"times": r.times.row()} if r.times else {})}
                row |= {"means": {by: packer.weights(w) for by, w in r.means.items()}} if r.means else {}
        rows.append(row)
    return packer.frame(results=rows, **head)


def unpack_results(frame: Frame, orders: Sequence[Order]) -> list[Result]:
    """The results of these orders, in their order. Whatever a frame holds, each order gets its result or a failure."""
    try:
        sent = {w.layout.id: w.layout for order in orders for w in order.models.values()}
        _check_size(frame, orders)
        reader = _Reader(frame, sent)
        rows = {(row["round"], row["step"]): row for row in frame.head["results"]}
    except Exception as error:
        return [_rubbish(order, error) for order in orders]
    results: list[Result] = []
    carried: set[int] = set()
    for order in orders:
        try:
            results.append(_result(rows[order.key], order, reader, carried))
        except Exception as error:
            results.append(_rubbish(order, error))
    return results


def _result(row: dict[str, Any], order: Order, reader: _Reader, carried: set[int]) -> Result:
    """`carried` are the models that came with results before: of several clients' mean, the bytes count once."""
    if row["client"] != order.client:
        raise ValueError(f"answers for '{row['client']}'")
    if "reason" in row:
        reason = row["reason"] if row["reason"] in REASONS else "error"
        return Failure(*order.key, order.client, reason, plain(str(row["detail"])[:2000]))
    if len(row["numbers"]) + len(row["tensors"]) > _NAMES:
        raise ValueError(f"{len(row['numbers']) + len(row['tensors'])} numbers and tensors")
    numbers = {str(name): float(value) for name, value in row["numbers"].items()}
    tensors = {str(name): _named(reader.value(packed)) for name, packed in row["tensors"].items()}
    if order.kind == TRAIN:
        again = row["weights"] in carried
        carried.add(row["weights"])
        means = {by: reader.weights(row["means"][by]) for by in order.together[1:]}
        weights, bytes_once = reader.weights(row["weights"]), 0 if again else None
        times = Times.of_row(row.get("times"))
        return Update(*order.key, order.client, weights, numbers, tensors, means, bytes_once, times)
    return Answer(*order.key, order.client, numbers, tensors)


def _named(value: Value) -> Named:
    if not isinstance(value, Tensor | Weights):
        raise ValueError("a tensor is none")
    return value


def _rubbish(order: Order, error: Exception) -> Failure:
    found = plain(f"{type(error).__name__}: {error}", 200)
    return Failure(*order.key, order.client, "rubbish", f"the site's answer cannot be read ({found})")


class _Packer:
    def __init__(self, node: str = "", versions: Versions | None = None) -> None:
        self._node, self._versions = node, versions
        self._told: dict[str, dict[str, str]] = {}
        self._arrays: dict[str, Bytes] = {}
        self._layouts: dict[str, list[list[object]]] = {}
        self._known: dict[int, int] = {}
        self._weights: list[str] = []
        self._alive: list[Weights] = []  # an id is only good as long as its object lives

    def model(self, weights: Weights) -> int:
        """All of a model, or what is new in it for the node."""
        if self._versions is None or id(weights) in self._known:
            return self.weights(weights)
        told, arrays = self._versions.told(self._node, weights)
        self._told[str(len(self._weights))] = told
        return self.weights(weights, arrays)

    def weights(self, weights: Weights, arrays: Mapping[torch.dtype, Bytes] | None = None) -> int:
        """Where weights are in the frame; these `arrays` stand for them, or they themselves."""
        if id(weights) not in self._known:
            at = self._known[id(weights)] = len(self._weights)
            layout = weights.layout
            self._alive.append(weights)
            self._weights.append(layout.id)
            self._layouts[layout.id] = [t.row() for t in layout.tensors]
            if arrays is None:
                arrays = {dtype: _bytes(flat) for dtype, flat in weights.flat.items()}
            self._arrays |= {f"{at}/{_name(dtype)}": array for dtype, array in arrays.items()}
        return self._known[id(weights)]

    def value(self, value: Value) -> dict[str, Any]:
        if isinstance(value, Weights):
            return {"weights": self.weights(value)}
        if isinstance(value, Tensor):
            return {"tensor": self.weights(Weights.of({"value": value}))}
        return {"value": value}

    def frame(self, **head: Any) -> Frame:
        versions = {"versions": self._told} if self._told else {}
        return Frame({**head, **versions, "weights": self._weights, "layouts": self._layouts}, self._arrays)


class _Reader:
    """Reads weights out of a frame. Sizes are checked against the bytes that came before anything is made of them. Of
    an answer, layouts are those that were `sent` or have few tensors."""

    def __init__(self, frame: Frame, sent: Mapping[str, Layout] | None = None, held: Held | None = None) -> None:
        self._arrays, self._rows, self._sent = frame.arrays, frame.head["layouts"], sent
        self._held = held
        self.versions: dict[str, Any] = {} if held is None else frame.head.get("versions", {})
        self._weights: list[str] = frame.head["weights"]
        self._layouts: dict[str, Layout] = {}
        self._made: dict[int, Weights] = {}

    def _layout(self, key: str) -> Layout:
        """Read when it is first wanted."""
        if key not in self._layouts:
            rows, sent = self._rows[key], self._sent or {}
            if key in sent and rows == [t.row() for t in sent[key].tensors]:
                self._layouts[key] = sent[key]
            elif self._sent is not None and len(rows) > _MORE + max([_ROWS, *(len(w.tensors) for w in sent.values())]):
                raise ValueError(f"a layout of {len(rows)} tensors")
            else:
                self._layouts[key] = _layout(rows)
        return self._layouts[key]

    def weights(self, at: int) -> Weights:
        if at not in self._made and self._held is not None and "base" in self.versions.get(str(at), {}):
            layout = self._layout(self._weights[at])
            arrays = {d: self._arrays[key] for d in layout.sizes if (key := f"{at}/{_name(d)}") in self._arrays}
            self._made[at] = self._held.model(self.versions[str(at)], arrays)
        if at not in self._made:
            layout = self._layout(self._weights[at])
            for dtype, n in layout.sizes.items():
                found = len(self._arrays[f"{at}/{_name(dtype)}"])
                if found != n * dtype.itemsize:
                    raise ValueError(f"{found} bytes of {_name(dtype)} instead of {n * dtype.itemsize}")
            made = Weights.zeros(layout)
            for dtype, flat in made.flat.items():
                array = np.frombuffer(self._arrays[f"{at}/{_name(dtype)}"], np.uint8)
                flat.view(torch.uint8).numpy()[:] = array
            self._made[at] = made
        return self._made[at]

    def value(self, packed: dict[str, Any]) -> Value:
        if "weights" in packed:
            return self.weights(packed["weights"])
        return self.weights(packed["tensor"])["value"].clone() if "tensor" in packed else packed["value"]


def _check_size(frame: Frame, orders: Sequence[Order]) -> None:
    """An answer is about as large as what was sent; under secure sums it may be 64 bits for 32, twice."""
    found = sum(map(len, frame.arrays.values()))
    most = sum(
        (4 if order.kind == SECURE else 3) * max((w.nbytes for w in order.models.values()), default=0) + _SPARE
        for order in orders
    )
    if found > most:
        raise ValueError(f"{found} bytes where {most} would be many")


def _layout(rows: list[list[Any]]) -> Layout:
    for name, shape, dtype, role, part in rows:
        sound = isinstance(name, str) and dtype in _DTYPES and role in _ROLES and isinstance(part, str)
        sizes = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
        if not sound or not sizes or math.prod(shape) >= 2**40:
            raise FedreelError("a layout of tensors is malformed", found=str([name, shape, dtype, role, part])[:200])
    return Layout(TensorInfo.from_row(row) for row in rows)


def _bytes(flat: Tensor) -> memoryview:
    return flat.detach().cpu().contiguous().view(torch.uint8).numpy().data


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
