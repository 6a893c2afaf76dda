"""Orders and results as frames: what goes in comes out, bit for bit; what nobody packed is refused, never believed."""

from __future__ import annotations

import copy
import json
import math
import random
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
import torch
from torch import Tensor

from fedreel.core.timing import Times
from fedreel.core.update import ASK, TRAIN, Answer, Failure, Order, Result, Update, Value, buffers
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.engines.flower import wire
from fedreel.engines.flower.pipe import Frame, receive, send
from fedreel.engines.flower.wire import pack_orders, pack_results, unpack_orders, unpack_results

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SHAPES = ((), (1,), (3,), (2, 3), (0,), (2, 0), (17,), (2, 1, 4))


def numbers(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -100, 100, shape, generator=g).to(dtype)
    values = torch.randn(shape, generator=g).to(dtype)
    if values.numel() > 3:
        values.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    return values


def model(seed: int = 0, *dtypes: torch.dtype) -> Weights:
    return Weights.of({f"{d}/{s}": numbers(d, s, seed) for d in dtypes or DTYPES for s in SHAPES})


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same_weights(a: Weights, b: Weights) -> bool:
    return a.layout.tensors == b.layout.tensors and all(bits(a[n]) == bits(b[n]) for n in a)


def same_value(a: Value, b: Value) -> bool:
    if isinstance(a, Weights):
        return isinstance(b, Weights) and same_weights(a, b)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    return type(a) is type(b) and repr(a) == repr(b)


def same_order(a: Order, b: Order) -> bool:
    plain = [(o.round, o.step, o.client, o.kind, o.question, o.limit, list(o.models), list(o.args)) for o in (a, b)]
    parts = [*zip(a.models.values(), b.models.values()), *zip(a.args.values(), b.args.values())]
    return plain[0] == plain[1] and all(same_value(x, y) for x, y in parts)


def over_a_socket(frame: Frame) -> Frame:
    """As the other side of a real socket pair reads it."""
    here, there = Pipe()
    with here, there:
        sender = threading.Thread(target=send, args=(here, frame))
        sender.start()
        got = receive(there)
        sender.join()
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_of_every_dtype_come_out_bit_for_bit(dtype: torch.dtype) -> None:
    sent = model(1, dtype)
    frame = over_a_socket(pack_orders([Order(1, 2, "c", TRAIN, {"global": sent})]))
    got = unpack_orders(frame)[0].models["global"]
    assert got.layout == sent.layout
    assert same_weights(got, sent)


def test_roles_of_tensors_survive() -> None:
    roles = ("parameter", "norm", "statistics", "buffer")
    sent = Weights.zeros(Layout(TensorInfo(r, (2,), torch.float32, r) for r in roles))
    got = unpack_orders(pack_orders([Order(1, 1, "c", TRAIN, {"m": sent})]))[0].models["m"]
    assert [t.role for t in got.layout.tensors] == list(roles)


def test_orders_come_out_as_they_went_in() -> None:
    shared, other = model(1), model(2, torch.float32)
    args: dict[str, Value] = {
        "yes": True,
        "no": False,
        "zero": 0,
        "one": 1,
        "big": 2**80,
        "negative": -3,
        "third": 1 / 3,
        "tiny": 5e-324,
        "minus": -0.0,
        "inf": math.inf,
        "nan": math.nan,
        "whole": 2.0,
        "text": 'ä "quoted"\n\0',
        "empty": "",
        "scalar": torch.tensor(1.5),
        "row": torch.arange(3),
        "none": torch.zeros(0, 3),
        "turned": torch.randn(3, 4).t(),
        "trained": torch.ones(2, requires_grad=True),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "weights": other,
        "nothing": Weights.of({}),
    }
    orders = [
        Order(1, 1, "c1", TRAIN, {"global": shared, "teacher": other}, args),
        Order(1, 2, "ein Client / mit Namen", "ask", {}, {}, "how_many", 12.5),
        Order(1, 3, "c1", "evaluate", {"global": shared}),
    ]
    got = unpack_orders(over_a_socket(pack_orders(orders, type="orders")))
    assert len(got) == len(orders)
    assert all(same_order(a, b) for a, b in zip(orders, got))


def test_a_model_of_many_orders_is_in_the_frame_once() -> None:
    shared, own = model(1, torch.float32, torch.int64), model(2, torch.float32)
    one = pack_orders([Order(1, 0, "c0", TRAIN, {"global": shared})])
    many = pack_orders([Order(1, n, f"c{n}", TRAIN, {"global": shared, "again": shared}) for n in range(50)])
    assert len(many.arrays) == len(one.arrays) == 2
    assert len(pack_orders([Order(1, 0, "c", TRAIN, {"a": shared, "b": own}, {"c": own})]).arrays) == 3
    got = unpack_orders(many)
    assert all(same_weights(w, shared) for order in got for w in order.models.values())


def test_tensors_made_for_a_moment_are_not_taken_for_each_other() -> None:
    """Arguments are packed as weights that live no longer than the packing: an id may come twice."""
    orders = [Order(1, n, "c", "ask", {}, {"value": torch.full((3,), float(n))}) for n in range(100)]
    got = unpack_orders(pack_orders(orders))
    assert [float(o.args["value"][0]) for o in got] == list(range(100))  # type: ignore[index]


def test_what_is_unpacked_may_be_changed_without_changing_the_frame() -> None:
    frame = over_a_socket(pack_orders([Order(1, 1, "c", TRAIN, {"m": Weights.of({"w": torch.ones(4)})})]))
    unpack_orders(frame)[0].models["m"]["w"].mul_(7)
    assert unpack_orders(frame)[0].models["m"]["w"].tolist() == [1, 1, 1, 1]


def test_the_head_keeps_what_else_it_was_given() -> None:
    head = over_a_socket(pack_orders([], run="r", start=3, recipe={"task": {"name": "x"}})).head
    assert (head["run"], head["start"], head["recipe"]) == ("r", 3, {"task": {"name": "x"}})


def results() -> tuple[list[Order], list[Result]]:
    orders = [Order(2, n, f"c{n}", ASK if n == 2 else TRAIN, {}) for n in range(4)]
    made: list[Result] = [
        Update(2, 0, "c0", model(3, torch.float32, torch.bfloat16), {"samples": 8.0}, times=Times(3.5, 0.1)),
        Failure(2, 1, "c1", "policy", "this site lets no weights out"),
        Answer(2, 2, "c2", {"top1": 0.5, "n": math.nan}, {"centre": torch.arange(3)}),
        Update(2, 3, "c3", model(4, torch.float32), {}, {"control": model(5, torch.float32), "mean": torch.ones(2)}),
    ]
    return orders, made


def test_results_come_out_as_they_went_in_whatever_their_order_in_the_frame() -> None:
    orders, made = results()
    for sent in (made, made[::-1]):
        got = unpack_results(over_a_socket(pack_results(sent, site="s")), orders)
        assert [type(r) for r in got] == [type(r) for r in made]
        for a, b in zip(made, got):
            assert (a.round, a.step, a.client) == (b.round, b.step, b.client)
            if isinstance(a, Failure) or isinstance(b, Failure):
                assert a == b
                continue
            assert repr(a.numbers) == repr(b.numbers)
            assert a.tensors.keys() == b.tensors.keys()
            for one, other in zip(buffers(a), buffers(b)):
                assert one.dtype == other.dtype
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))  # NaN is like no number
            if isinstance(a, Update) and isinstance(b, Update):
                assert same_weights(a.weights, b.weights)
                assert a.times == b.times


@pytest.mark.parametrize("times", [[1.0, 2.0], ["long", 0.0], {"training": 1.0}, 3])
def test_an_update_with_times_that_are_none_is_rubbish(times: Any) -> None:
    orders, made = results()
    frame = pack_results(made)
    frame.head["results"][0]["times"] = times
    got = unpack_results(frame, orders)
    assert [isinstance(r, Failure) and r.reason for r in got] == ["rubbish", "policy", False, False]


def test_an_order_without_an_answer_or_with_that_of_another_client_fails() -> None:
    orders, made = results()
    made[3] = Answer(2, 3, "c0", {"samples": 1e9})
    got = unpack_results(pack_results(made[1:]), orders)
    assert [isinstance(r, Failure) and r.reason for r in got] == ["rubbish", "policy", False, "rubbish"]
    assert isinstance(got[3], Failure)
    assert "answers for 'c0'" in got[3].detail


def test_texts_of_a_failure_are_cut() -> None:
    order = Order(1, 1, "c", TRAIN, {})
    got = unpack_results(pack_results([Failure(1, 1, "c", "r" * 10**6, "d" * 10**6)]), [order])[0]
    assert isinstance(got, Failure)
    assert len(got.reason) + len(got.detail) < 3000


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"dtype": "load"}, 64),
        ({"dtype": "Tensor"}, 64),
        ({"dtype": "complex64"}, 64),
        ({"dtype": "float64"}, 64),
        ({"role": "boss"}, 64),
        ({"shape": [2**39]}, 64),
        ({"shape": [2**62]}, 64),
        ({"shape": [-1]}, 64),
        ({"shape": [2.0]}, 64),
        ({"shape": "2"}, 64),
        ({"shape": 2}, 64),
        ({"name": None}, 64),
        ({}, 64 - 4),
        ({}, 64 + 4),
        ({}, 0),
    ],
    ids=str,
)
def test_a_tensor_that_the_bytes_do_not_cover_is_rubbish(change: dict[str, Any], count: int) -> None:
    info = {"name": "w", "shape": [6], "dtype": "float32", "role": "parameter", **change}
    got = unpack_results(handmade([[info["name"], info["shape"], info["dtype"], info["role"]]], count), [ORDER])[0]
    assert isinstance(got, Failure)
    assert got.reason == "rubbish"


@pytest.mark.parametrize("shape", [[2**39, 2**39], [2**32, 2**32, 3], [2**33, 2**31, 1], [True, 6]], ids=str)
def test_a_shape_that_no_tensor_can_have_is_rubbish(shape: list[int]) -> None:
    got = unpack_results(handmade([["w", shape, "float32", "parameter", "head"]], 64), [ORDER])[0]
    assert isinstance(got, Failure)


ORDER = Order(1, 1, "c", TRAIN, {})


def handmade(rows: list[list[Any]], count: int) -> Frame:
    """An answer with one model of this layout and so many bytes; 16 floats are what a small tensor takes."""
    result = {"round": 1, "step": 1, "client": "c", "numbers": {}, "tensors": {}, "weights": 0}
    return Frame({"results": [result], "weights": ["l"], "layouts": {"l": rows}}, {"0/float32": bytes(count)})


def test_the_handmade_frame_is_right_where_nothing_is_changed() -> None:
    got = unpack_results(handmade([["w", [6], "float32", "parameter", "head"]], 64), [ORDER])[0]
    assert isinstance(got, Update)


JUNK: tuple[Any, ...] = (
    *(None, 0, 1, -1, 2, 2**39, 2**62, 10**400, 0.5, math.nan, math.inf),
    *("", "load", "float32", "int64", "bool", "c1", "x" * 1000, [], {}, [[]], [1, 2], {"weights": 0}),
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from places(tree[key])


def harm_head(head: dict[str, Any], rng: random.Random) -> None:
    spots = list(places(head))
    where, key = rng.choice(spots)
    other, there = rng.choice(spots)
    match rng.randrange(4):
        case 0:
            del where[key]
        case 1:
            where[key] = copy.deepcopy(rng.choice(JUNK))
        case 2:
            where[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(where[key])
        case 3 if isinstance(where, list):
            where.insert(key, copy.deepcopy(other[there]))


def harm_arrays(arrays: dict[str, bytes], rng: random.Random) -> None:
    if not arrays:
        return
    name, other = rng.choice(list(arrays)), rng.choice(list(arrays))
    match rng.randrange(5):
        case 0:
            arrays[name] = arrays[name][: rng.randrange(len(arrays[name]) + 1)]
        case 1:
            arrays[name] += rng.randbytes(rng.randrange(1, 70))
        case 2:
            arrays[name], arrays[other] = arrays[other], arrays[name]
        case 3:
            arrays[rng.choice(("", "0/load", "1/float32", "9/float32"))] = arrays.pop(name)
        case 4:
            arrays[name] = rng.randbytes(len(arrays[name]))


def test_whatever_a_site_sends_each_order_gets_one_result_and_no_more_memory_than_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    zeros = Weights.zeros

    def count(layout: Layout, device: str = "cpu") -> Weights:
        made.append(sum(n * d.itemsize for d, n in layout.sizes.items()))
        assert made[-1] <= 2**20, "the limit of this test, before the memory is taken"
        return zeros(layout, device)

    monkeypatch.setattr(Weights, "zeros", staticmethod(count))
    orders, sent = results()
    good = over_a_socket(pack_results(sent, site="s"))
    rng = random.Random(0)
    kinds = set()
    for _ in range(3000):
        head, arrays = copy.deepcopy(good.head), {name: bytes(a) for name, a in good.arrays.items()}
        for _ in range(rng.randrange(1, 4)):
            harm_head(head, rng) if rng.random() < 0.8 else harm_arrays(arrays, rng)
        made.clear()
        got = unpack_results(Frame(head, arrays), orders)
        assert [(r.round, r.step, r.client) for r in got] == [(*o.key, o.client) for o in orders]
        assert sum(made) <= sum(len(a) for a in arrays.values())
        for result in got:
            kinds.add(type(result))
            if isinstance(result, Update):
                assert all(type(v) is float for v in result.numbers.values())
                assert all(isinstance(t, Tensor) for t in (result.weights or {}).values())
    assert kinds == {Update, Answer, Failure}


@pytest.mark.parametrize(
    "head", [{}, [], None, "text", 5, {"results": 5}, {"results": [5]}, {"results": [{}]}], ids=str
)
def test_a_head_of_another_form_fails_all_orders(head: Any) -> None:
    orders, _ = results()
    got = unpack_results(Frame(head), orders)
    assert [isinstance(r, Failure) and r.reason for r in got] == ["rubbish"] * len(orders)


def test_frames_follow_each_other_on_one_pipe_and_its_end_is_an_error() -> None:
    here, there = Pipe()
    with here, there:
        for n in range(3):
            send(here, Frame({"n": n}, {"a": bytes([n]), "empty": b"", "view": memoryview(b"xyz")}))
        for n in range(3):
            got = receive(there)
            assert got.head == {"n": n}
            assert dict(got.arrays) == {"a": bytes([n]), "empty": b"", "view": b"xyz"}
        here.close()
        with pytest.raises(EOFError):
            receive(there)


def test_a_head_is_plain_json() -> None:
    frame = pack_results(results()[1], site="s")
    assert json.loads(json.dumps(frame.head, allow_nan=True)).keys() == frame.head.keys()


def test_a_layout_of_very_many_tensors_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 names would take the server's only thread a quarter of a minute."""
    made = []
    monkeypatch.setattr(wire, "_layout", lambda rows: made.append(len(rows)))
    most = wire._ROWS + wire._MORE
    for count in (most, most + 1):
        rows = [[f"t{i}", [], "float32", "norm", ""] for i in range(count)]
        got = unpack_results(handmade(rows, 64), [ORDER])[0]
        assert isinstance(got, Failure)
        assert (f"a layout of {most + 1} tensors" in got.detail) == (count > most)
    assert made == [most]
