"""The grid: how far the mean of a sum of integers may be from the mean of the numbers, and what cannot overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the extra `secure`")
from fedreel.core.aggregate import Mean
from fedreel.core.secure import fixed
from fedreel.core.secure.fixed import COUNTERS, RANGES, Form, Grid
from fedreel.core.secure.masks import Vector
from fedreel.core.weights import Weights
from fedreel.errors import Diverged, RecipeError, RunError

KINDS = {"samples": "count", "loss": "loss"}


def weights(values: list[float], counter: int = 0) -> Weights:
    return Weights.of({"w": torch.tensor(values), "n": torch.tensor(counter)})


def form(like: Weights, parties: int, **changes: object) -> Form:
    given = {"clip": 1.0, "bits": 32, "cap": 100.0, "by": ("samples",), "numbers": KINDS, "beside": ()}
    return Form(like.layout, parties=parties, **{**given, **changes})  # type: ignore[arg-type]


def summed(made: Form, sent: Weights, trained: list[Weights], numbers: list[dict[str, float]]) -> Vector:
    total = Vector.zeros(made.head, made.body, made.bits)
    for weights, told in zip(trained, numbers):
        total.add(made.encode(sent, weights, {}, told))
    return total


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_mean_is_the_plain_mean_up_to_the_grid(bits: int, data: st.DataObject) -> None:
    parties = data.draw(st.integers(1, 12))
    number = st.floats(-1.0, 1.0, width=32)
    sent = weights(data.draw(st.lists(number, min_size=3, max_size=3)), 7)
    counts = data.draw(st.lists(st.integers(1, 100), min_size=parties, max_size=parties))
    changes = [data.draw(st.lists(number, min_size=3, max_size=3)) for _ in counts]
    trained = [weights([a + b for a, b in zip(sent["w"].tolist(), change)], 9) for change in changes]
    numbers = [{"samples": float(n), "loss": 0.25 * n} for n in counts]
    made = form(sent, parties, bits=bits, clip=2.0)
    (found,) = made.decode(summed(made, sent, trained, numbers), sent, parties)
    plain = Mean()
    for one, count in zip(trained, counts):
        plain.add(one, count)
    bound = parties * made.step / sum(counts) + 4e-7  # and that of float32
    assert float((found.weights["w"] - plain.value["w"]).abs().max()) <= bound
    assert int(found.weights["n"]) == 9
    for name, kind, per in (("samples", "count", 1.0), ("loss", "loss", 0.25)):
        bound = parties * RANGES[kind] * made.cap / made.fine.levels / sum(counts) + 1e-9
        assert found.number(name) == pytest.approx(per * sum(n * n for n in counts) / sum(counts), abs=bound, rel=0)
    assert found.count == parties
    assert found.numbers == {}


def test_a_hand_worked_example() -> None:
    """Two clients, 32 bits: 29 bits are left of a number. Halves and quarters lie on the grid, thirds do not."""
    sent = weights([0.0, 1.0])
    made = form(sent, 2, cap=4.0)
    assert made.grid.levels == 2**29
    part = made.encode(sent, weights([0.5, 0.75]), {}, {"samples": 4.0, "loss": 1.0})
    at = made.layout.place["w"][1]
    assert part.body.view(np.int32)[at : at + 2].tolist() == [2**28, -(2**27)]
    part = made.encode(weights([0.0, 0.0]), weights([0.25, -0.25]), {}, {"samples": 3.0, "loss": 1.0})
    assert part.body.view(np.int32)[at : at + 2].tolist() == [3 * 2**25, -3 * 2**25]
    thirds = form(sent, 2, cap=3.0).encode(weights([0.0, 0.0]), weights([0.5, -0.5]), {}, {"samples": 1.0, "loss": 1.0})
    assert thirds.body.view(np.int32)[at : at + 2].tolist() == [2**28 // 3, -(2**28 // 3)]  # cut toward zero
    assert made.step == 4.0 / 2**29


@pytest.mark.parametrize(("bits", "parties"), [(32, 1), (32, 2), (32, 3), (32, 10), (32, 1000), (64, 3), (64, 5000)])
def test_a_sum_cannot_overflow(bits: int, parties: int) -> None:
    levels = Grid(bits, parties).levels
    assert parties * levels < 2 ** (bits - 1)
    assert levels < 2**53
    assert bits == 64 or 4 * levels * parties >= 2 ** (bits - 1)  # and no more than two bits are wasted


def test_what_is_at_the_ends_of_the_range_does_not_overflow_either() -> None:
    sent = weights([0.0, 0.0])
    made = form(sent, 10, by=("equal",))
    told = {"samples": 1.0, "loss": 0.0}
    (found,) = made.decode(summed(made, sent, [weights([9.0, -9.0])] * 10, [told] * 10), sent, 10)
    assert found.weights["w"].tolist() == pytest.approx([1.0, -1.0])  # clipped


def test_too_many_clients_for_the_bits_are_refused_with_the_way_out() -> None:
    with pytest.raises(RecipeError, match="do not fit into 32 bits"):
        Grid(32, 2**20)
    assert Grid(64, 2**20).levels == 2**42


def test_what_was_clipped_or_capped_is_told_in_sum() -> None:
    sent = weights([0.0, 0.0])
    made = form(sent, 3)
    parts = [weights([2.0, -3.0]), weights([0.5, 1.5]), weights([0.0, 1.0])]
    total = summed(made, sent, parts, [{"samples": n, "loss": 1.0} for n in (101.0, 100.0, 1e9)])
    assert made.remarks(total) == (3, 2)
    (found,) = made.decode(total, sent, 3)
    assert found.weights["w"].tolist() == pytest.approx([0.5, 1 / 3], abs=1e-6)  # each counts for 100


def test_weights_by_loss_are_those_of_the_softmax() -> None:
    sent = weights([0.0, 0.0])
    losses = [0.5, 2.0, 3.0]
    made = form(sent, 3, by=("loss", "equal"))
    parts = [weights([0.1 * i, -0.2 * i]) for i in range(3)]
    by_loss, equal = made.decode(
        summed(made, sent, parts, [{"samples": 5.0, "loss": loss} for loss in losses]), sent, 3
    )
    shares = [math.exp(-loss) for loss in losses]
    expected = sum(0.1 * i * share for i, share in enumerate(shares)) / sum(shares)
    assert float(by_loss.weights["w"][0]) == pytest.approx(expected, abs=1e-6)
    assert float(equal.weights["w"][0]) == pytest.approx(0.1)
    assert equal.number("loss") == pytest.approx(5.5 / 3)


def test_tensors_beside_the_model_and_pieces_are_in_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "_CHUNK", 7)
    sent = Weights.of({"w": torch.zeros(40), "half": torch.zeros(5, dtype=torch.bfloat16), "n": torch.tensor(1)})
    trained = Weights.of(
        {"w": torch.linspace(-1, 1, 40), "half": torch.full((5,), 0.5).bfloat16(), "n": torch.tensor(4)}
    )
    made = form(sent, 2, beside=("control",), by=("equal",))
    control = 0.25 * trained.trained
    total = Vector.zeros(made.head, made.body, 32)
    for _ in range(2):
        total.add(made.encode(sent, trained, {"control": control}, {"samples": 3.0, "loss": 1.0}))
    (found,) = made.decode(total, sent, 2)
    assert torch.allclose(found.weights["w"], trained["w"], atol=1e-6)
    assert torch.allclose(found.tensors("control")["w"], control["w"], atol=1e-6)
    assert torch.equal(found.weights["half"], trained["half"])
    assert int(found.weights["n"]) == 4
    assert COUNTERS / made.grid.levels < 0.5  # a counter comes out exactly where all count alike


def test_numbers_that_are_none_do_not_get_into_the_sum() -> None:
    sent = weights([0.0, 0.0])
    made = form(sent, 3)
    with pytest.raises(Diverged):
        made.encode(sent, weights([math.nan, 0.0]), {}, {"samples": 1.0, "loss": 1.0})
    with pytest.raises(Diverged):
        made.encode(sent, sent, {}, {"samples": 1.0, "loss": math.inf})


def test_masks_that_did_not_cancel_are_seen() -> None:
    sent = weights([0.0, 0.0])
    made = form(sent, 3)
    total = summed(made, sent, [sent] * 3, [{"samples": 1.0, "loss": 1.0}] * 3)
    total.head[2] ^= np.uint64(2**63)
    with pytest.raises(RunError, match="not the sum of the clients' parts"):
        made.decode(total, sent, 3)
    with pytest.raises(RunError, match="not the sum of the clients' parts"):
        made.decode(Vector.zeros(made.head, made.body, 32), sent, 3)
