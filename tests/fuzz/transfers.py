"""Harnesses for what travels in few bytes: updates in each code, and models as what is new in them."""

from __future__ import annotations

from functools import partial

import torch

from fedreel.config import TransferConfig
from fedreel.core.admission import Admission
from fedreel.core.declared import declared
from fedreel.core.state import State
from fedreel.core.transfer.coded import Coded, make_coded
from fedreel.core.transfer.difference import apply, difference, digest
from fedreel.core.update import TRAIN, Failure, Order, Update
from fedreel.core.weights import Weights
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.versions import Held, Versions
from fedreel.engines.flower.wire import pack_orders, pack_results, unpack_orders, unpack_results
from fedreel.errors import plain
from fedreel.methods.scaffold import SCAFFOLD
from fuzz.harness import Harness
from fuzz.messages import frame_of, packed, spoil_frame
from support.toy import Toy

OLD = Weights.of({"w": torch.arange(40.0), "n": torch.tensor(3)})
NEW = OLD.map(lambda w: 1.01 * w + 0.1)
ORDERS = tuple(Order(1, i, f"c{i}", TRAIN, models) for i, models in enumerate([{"a": OLD}, {"a": OLD, "b": NEW}]))
NUMBERS = {"samples": 5.0, "loss": 1.0, "frames": 9.0}


def way(up: str) -> Coded:
    made = make_coded(TransferConfig(up=up, keep=0.2), OLD.layout)  # type: ignore[arg-type]
    assert made is not None
    return made


def updates(up: str) -> bytes:
    done = []
    for order in ORDERS:
        control = way(up).write_beside(order, {"control": NEW.trained}, State())
        done.append(Update(*order.key, order.client, way(up).write(order, NEW, State()), dict(NUMBERS), control))
    return packed(pack_results(done, site="s"))


def judged(up: str, data: bytes) -> object:
    """Whatever comes, each order has one result, admission has an opinion, and what it lets in is a finite model."""
    frame = frame_of(data)
    if frame is None:
        return None
    found = unpack_results(frame, ORDERS)
    admission = Admission(OLD.layout, 100.0, lambda order: declared(SCAFFOLD(), Toy(), order), coded=way(up))
    for order in ORDERS:
        admission.expect(order)
    told = [r if isinstance(r, Failure) else admission.judge(r) for r in found]
    for result, failure in zip(found, told):
        assert failure is None or plain(failure.detail) == failure.detail
        if failure is None:
            assert isinstance(result, Update)
            assert result.weights.layout == OLD.layout
            assert bool(result.weights["w"].isfinite().all())
    return told


def news() -> bytes:
    """An order whose model is told as what is new against one that the site has."""
    versions = Versions()
    versions.answered("n", ORDERS[:1])
    return packed(pack_orders([Order(2, 1, "c0", TRAIN, {"a": NEW})], "n", versions))


def read_news(data: bytes) -> object:
    """Errors are answers that say so. A model that a site makes of another has the digest that it was told."""
    frame, held = frame_of(data), Held({digest(OLD): OLD})
    try:
        orders = unpack_orders(frame, held) if frame is not None else []
    except Exception:
        return None
    for name, model in held.models.items():
        assert name == digest(model) or not _from_base(frame, name)
    return orders


def _from_base(frame: Frame | None, name: str) -> bool:
    """Whether a site has made the model of this digest of another one: what comes whole is the server's word."""
    told = frame.head.get("versions", {}) if frame is not None else {}
    return any(str(version["digest"]) == name and "base" in version for version in told.values())


HARNESSES = (
    *(Harness(f"updates in {up}", partial(lambda up: [updates(up)], up), partial(judged, up), spoil_frame)
      for up in ("bf16", "int8", "top-k")),
    Harness("news", lambda: [news()], read_news, spoil_frame),
    Harness("difference", lambda: [difference(NEW, OLD)[torch.float32]],
            lambda data: apply(OLD, {torch.float32: data, torch.int64: difference(NEW, OLD)[torch.int64]}),
            errors=(ValueError,)),
)  # fmt: skip
