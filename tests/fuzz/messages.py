"""Harnesses for what sites and server send each other, as Flower's records, frames, orders, results and rosters."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict

from fedreel.core.admission import Admission
from fedreel.core.declared import declared
from fedreel.core.trust import calibration_bins, calibration_sums
from fedreel.core.update import ASK, EVALUATE, TRAIN, Answer, Failure, Order, Update
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.relay import unwrap
from fedreel.engines.flower.roster import make_roster
from fedreel.engines.flower.wire import pack_orders, pack_results, unpack_orders, unpack_results
from fedreel.errors import FedreelError, plain
from fedreel.methods.scaffold import SCAFFOLD
from fuzz.harness import Harness
from fuzz.mutate import spoil_bytes, spoil_json
from support.toy import Toy

MODEL = Weights.of({"w": torch.arange(4.0), "n": torch.tensor(3)})
ORDERS = (
    Order(1, 1, "c0", TRAIN, {"global": MODEL}, {"lr": 0.5, "t": torch.ones(2)}),
    Order(1, 2, "c1", EVALUATE, {"global": MODEL}),
    Order(1, 3, "c2", ASK, {}, question=calibration_sums.__name__),
    Order(1, 4, "c3", ASK, {}, question=calibration_bins.__name__),
)
UNREADABLE = (FedreelError, KeyError, ValueError, TypeError, AttributeError, RecursionError)


def packed(frame: Frame) -> bytes:
    """A frame as bytes: the head with the arrays' names and sizes, then the arrays."""
    head = json.dumps([frame.head, {name: len(data) for name, data in frame.arrays.items()}]).encode()
    return struct.pack("<I", len(head)) + head + b"".join(bytes(data) for data in frame.arrays.values())


def split(data: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack("<I", data[:4])
    return data[4 : 4 + length], data[4 + length :]


def spoil_frame(data: bytes, rng: random.Random) -> bytes:
    head, arrays = split(data)
    if rng.random() < 0.8:
        head = spoil_json(head, rng)
    if rng.random() < 0.3:
        arrays = spoil_bytes(arrays, rng)
    return struct.pack("<I", len(head)) + head + arrays


def content(data: bytes) -> RecordDict:
    head, arrays = split(data)
    return RecordDict({"0": ConfigRecord({"json": head.decode("utf-8", "replace"), "bytes": arrays})})


def frame_of(data: bytes) -> Frame | None:
    try:
        return unwrap(content(data))
    except UNREADABLE:
        return None


def results() -> bytes:
    numbers = {"samples": 5.0, "loss": 1.0, "frames": 9.0}
    bins = torch.ones(15, 3, dtype=torch.float64)
    sums: dict[str, Any] = {"total": torch.ones(3).double(), "products": 3 * torch.eye(3).double()}
    done = [
        Update(1, 1, "c0", MODEL, numbers, {"control": MODEL.trained}),
        Answer(1, 2, "c1", {"top1": 0.5, "n": 3.0}),
        Answer(1, 3, "c2", {"samples": 3.0, "learned": 3.0}, sums),
        Answer(1, 4, "c3", {"samples": 3.0}, {"before": bins, "after": bins}),
    ]
    return packed(pack_results(done, site="s"))


def failures() -> bytes:
    return packed(pack_results([Failure(1, o.step, o.client, "error", "why") for o in ORDERS], site="s"))


def judged(data: bytes) -> object:
    """Relay, wire and admission, one after another: each order has one result, and admission an opinion."""
    frame = frame_of(data)
    if frame is None:
        return None
    found = unpack_results(frame, ORDERS)
    assert [(r.round, r.step, r.client) for r in found] == [(o.round, o.step, o.client) for o in ORDERS]
    admission = Admission(MODEL.layout, 100.0, lambda order: declared(SCAFFOLD(), Toy(), order))
    for order in ORDERS:
        admission.expect(order)
    told = [r if isinstance(r, Failure) else admission.judge(r) for r in found]
    assert all(one is None or plain(one.detail) == one.detail for one in told)
    return told


def orders(data: bytes) -> object:
    """At a site every error in an order is an answer that says so."""
    frame = frame_of(data)
    return None if frame is None else unpack_orders(frame)


def roster(data: bytes) -> object:
    answers = json.loads(data)
    wanted = {"north": "1", "south": "2"}
    given = {site: answers.get(site, {}) if isinstance(answers, dict) else answers for site in wanted}
    return make_roster(wanted, given)


ROSTER = {
    "north": {"site": "north", "clients": ["c0", "c1"], "agreement": "ab", "fedreel": "1"},
    "south": {"site": "south", "clients": ["c2"], "agreement": "ab", "fedreel": "1"},
}
EVERYTHING = (Exception,)
HARNESSES = (
    Harness("results", lambda: [results(), failures()], judged, spoil_frame),
    Harness(
        "orders",
        lambda: [packed(pack_orders(ORDERS, run="r", start=1, type="orders"))],
        orders,
        spoil_frame,
        errors=EVERYTHING,
    ),
    Harness("records", lambda: [results()], lambda data: unwrap(content(data)), spoil_frame, errors=UNREADABLE),
    Harness(
        "roster",
        lambda: [json.dumps(ROSTER).encode()],
        roster,
        spoil_json,
        errors=(FedreelError, json.JSONDecodeError, UnicodeDecodeError),
    ),
)
