"""What passes between processes of one machine arrives as it was sent, is written once, and leaves nothing open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from fedreel.core.timing import Times
from fedreel.core.update import ASK, EVALUATE, TRAIN, Answer, Failure, Order, Result, Update
from fedreel.core.weights import Weights
from fedreel.engines.processes import memory, messages
from fedreel.engines.processes.forecast import Forecast
from fedreel.engines.processes.memory import Region, look_into
from fedreel.engines.processes.messages import Channel, Ended, Shared, new_line
from support.open_files import open_files

TENSORS = [
    torch.arange(5, dtype=torch.int64),
    torch.tensor(2.5),
    torch.empty(0, 3),
    torch.tensor([True, False]),
    torch.randn(3, 4).T,
    torch.randn(7, dtype=torch.bfloat16),
    torch.full((2, 2), torch.nan, dtype=torch.float64),
]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    before = open_files()
    here, line = new_line()
    there = Channel(line)
    yield here, there
    here.close()
    there.close()
    assert open_files() <= before


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.nan_to_num(9), other.nan_to_num(9))


def pass_result(ends: tuple[Channel, Channel], result: Result) -> Result:
    ends[0].send_result(result, seconds=1.5)
    found, beside = ends[1].receive_result()
    assert beside == {"seconds": 1.5}
    return found


def test_an_order_arrives_as_it_was_sent(ends: tuple[Channel, Channel]) -> None:
    models = {"a": Weights.of({"w": torch.randn(40_000), "n": torch.tensor(3)}), "b": Weights.of({"w": torch.ones(2)})}
    args = {"x": torch.randn(3, 2), "w": models["a"], "n": 3, "f": 0.1, "t": "text", "yes": True}
    order = Order(2, 7, "c1", ASK, models, args, "question", 2.5, ("samples",), True)
    shared = Shared()
    for _ in range(2):  # the second time layouts are known at the other end
        ends[0].send_order(order, shared)
        found = ends[1].receive_order()
        fields = ("round", "step", "client", "kind", "question", "limit", "together", "awaited")
        assert [getattr(found, f) for f in fields] == [getattr(order, f) for f in fields]
        assert all(found.models[name].equal(models[name]) for name in models)
        assert {n: found.args[n] for n in ("n", "f", "t", "yes")} == {"n": 3, "f": 0.1, "t": "text", "yes": True}
        assert torch.equal(found.args["x"], args["x"])  # type: ignore[arg-type]
        assert found.args["w"].equal(models["a"])  # type: ignore[union-attr]
    shared.release(order.key)


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{[*t.shape]}")
def test_a_tensor_arrives_bit_for_bit(ends: tuple[Channel, Channel], tensor: torch.Tensor) -> None:
    found = pass_result(ends, Answer(1, 2, "c0", {"n": 0.1}, {"t": tensor, "of it": Weights.of({"a": tensor})}))
    assert isinstance(found, Answer)
    assert found.numbers == {"n": 0.1}
    assert same(found.tensor("t"), tensor)
    assert same(found.tensors["of it"]["a"], tensor)  # type: ignore[index]


def test_an_update_and_a_failure_arrive(ends: tuple[Channel, Channel]) -> None:
    weights, mean = Weights.of({"w": torch.randn(5)}), Weights.of({"w": torch.randn(5)})
    found = pass_result(ends, Update(1, 2, "c0", weights, {"samples": 4.0}, {}, {"equal": mean}, 17, Times(3.5, 0.1)))
    assert isinstance(found, Update)
    assert found.weights.equal(weights)
    assert found.means["equal"].equal(mean)
    assert (found.carried, found.samples, found.times) == (17, 4.0, Times(3.5, 0.1))
    failure = Failure(1, 2, "c0", "error", "why")
    assert pass_result(ends, failure) == failure


def test_writing_to_what_came_is_seen_by_nobody_else() -> None:
    region = Region([torch.zeros(100)])
    one, other = look_into(region.handle), look_into(region.handle)
    region.close()
    one.fill_(7)
    assert not other.any()


def test_where_files_have_no_numbers_content_is_copied() -> None:
    region = Region(TENSORS)
    with mock.patch.object(memory, "_BY_NUMBER", "/nowhere"):
        assert torch.equal(look_into(region.handle), look_into(region.handle))
        copied = look_into(region.handle)
    assert torch.equal(copied, look_into(region.handle))


def test_without_memory_files_a_file_without_a_name_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    region = Region([torch.arange(10)])
    assert torch.equal(look_into(region.handle)[:80].view(torch.int64), torch.arange(10))


def test_a_model_that_many_get_is_written_once_and_goes_with_the_last(ends: tuple[Channel, Channel]) -> None:
    shared, weights = Shared(), Weights.of({"w": torch.randn(40_000)})
    with mock.patch.object(messages, "Region", wraps=Region) as made:
        for step in range(3):
            ends[0].send_order(Order(1, step, f"c{step}", TRAIN, {"global": weights}), shared)
            ends[1].receive_order()
        assert made.call_count == 1
        weights["w"].add_(1)  # from now on it is another model
        ends[0].send_order(Order(1, 3, "c3", TRAIN, {"global": weights}), shared)
        assert ends[1].receive_order().models["global"].equal(weights)
        assert made.call_count == 2
    opened = open_files()
    for step in range(4):
        shared.release((1, step))
    assert open_files() == opened - 2


def test_what_is_looked_at_is_not_written_over_and_the_rest_is_used_again(ends: tuple[Channel, Channel]) -> None:
    """A median keeps all updates of a round; a mean looks at one after another."""
    sent = [Weights.of({"w": torch.randn(50)}) for _ in range(12)]
    back = Order(1, 1, "c", TRAIN, {})
    with mock.patch.object(memory, "Region", wraps=Region) as made:
        for weights in sent:
            found = pass_result(ends, Update(1, 1, "c", weights, {}))
            assert isinstance(found, Update)
            assert found.weights.equal(weights)
            del found
            ends[1].send_order(back, Shared())  # says what has been let go
            ends[0].receive_order()
        assert made.call_count == 1
        kept = [pass_result(ends, Update(1, 1, "c", weights, {})) for weights in sent]
        assert made.call_count == 12
        assert all(update.weights.equal(weights) for update, weights in zip(kept, sent))  # type: ignore[union-attr]


def test_a_larger_model_gets_memory_of_its_own_and_few_regions_wait(ends: tuple[Channel, Channel]) -> None:
    opened = open_files()
    sizes = [10, 1000, 10, 3000, 20, 100_000, 5]
    for _ in range(3):
        found = [pass_result(ends, Answer(1, 1, "c", {}, {"t": torch.full((n,), n)})) for n in sizes]
        assert [answer.tensor("t").unique().tolist() for answer in found] == [[n] for n in sizes]  # type: ignore[union-attr]
        del found
        ends[1].send_order(Order(1, 1, "c", ASK, {}), Shared())
        ends[0].receive_order()
        assert open_files() == opened + 2
    assert len(ends[1].views._content) <= 7  # those that were closed are forgotten with the next message
    pass_result(ends, Answer(1, 1, "c", {}))
    assert len(ends[1].views._content) == 2


def test_who_is_gone_is_noticed(ends: tuple[Channel, Channel]) -> None:
    ends[1].close()
    with pytest.raises(Ended):
        ends[0].receive()
    with pytest.raises(Ended):
        ends[0].send({})


def test_what_is_sent_is_no_file_by_name(tmp_path: Path) -> None:
    region = Region([torch.zeros(4)])
    assert "memfd:fedreel (deleted)" in os.readlink(f"/proc/self/fd/{region.handle}")


def test_how_long_a_client_took_counts_and_before_that_how_much_it_has() -> None:
    told = Forecast({"classes": ["no", "yes"], "train": {"a": [1, 3], "b": 10}, "test": {"a": {"yes": 2}}})
    train = {c: Order(1, 1, c, TRAIN, {}) for c in "abc"}
    assert [told.seconds(train[c]) for c in "abc"] == [4, 10, float("inf")]
    assert told.seconds(Order(1, 1, "a", EVALUATE, {})) == 2
    told.note(train["a"], 8.0)  # two seconds a sample
    assert [told.seconds(train[c]) for c in "abc"] == [8, 20, float("inf")]
    told.note(train["c"], 0.5)
    assert told.seconds(train["c"]) == 0.5
    assert told.seconds(Order(1, 1, "a", ASK, {}, question="other")) == 4
