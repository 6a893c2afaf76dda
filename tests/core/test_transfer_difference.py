"""What is new in a model: the other end has every bit of it, or an error; and a small change takes few bytes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.core.transfer.difference import apply, difference, digest
from fedreel.core.weights import Layout, TensorInfo, Weights

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
ALL = Layout(TensorInfo(str(dtype), (70,), dtype) for dtype in DTYPES)


def bits(seed: int) -> Weights:
    """Any bits whatever: NaN, infinities and -0 among them."""
    weights, draw = Weights.zeros(ALL), np.random.default_rng(seed)
    for dtype, flat in weights.flat.items():
        high = 2 if dtype == torch.bool else 256
        flat.view(torch.uint8).numpy()[:] = draw.integers(0, high, flat.nbytes)
    return weights


def same(one: Weights, other: Weights) -> bool:
    views = [{d: bytes(f.view(torch.uint8).numpy()) for d, f in w.flat.items()} for w in (one, other)]
    return one.layout == other.layout and views[0] == views[1]


@settings(max_examples=30, deadline=None)
@given(one=st.integers(0, 2**32), other=st.integers(0, 2**32))
def test_every_bit_arrives(one: int, other: int) -> None:
    old, new = bits(one), bits(other)
    made = apply(old, difference(new, old))
    assert same(made, new)
    assert digest(made) == digest(new)
    assert (digest(old) == digest(new)) == (one == other)


def test_a_digest_tells_a_bit_and_a_layout_apart() -> None:
    zero, minus = Weights.of({"w": torch.zeros(3)}), Weights.of({"w": -torch.zeros(3)})
    assert zero.equal(minus)
    assert len({digest(w) for w in (zero, minus, Weights.of({"v": torch.zeros(3)}))}) == 3


@pytest.mark.parametrize(("moved", "left"), [(0.0, 0.01), (1e-5, 0.45), (1e-3, 0.65), (1.0, 1.01)])
def test_small_changes_take_few_bytes(moved: float, left: float) -> None:
    """A relative change of 2^-k leaves about 23 - k of a float32's 32 bits, of which whole bytes are packed."""
    draw = torch.Generator().manual_seed(0)
    old = Weights.of({"w": torch.randn(50_000, generator=draw)})
    new = old.map(lambda w: w * (1 + moved * torch.randn(len(w), generator=draw)))
    assert sum(map(len, difference(new, old).values())) < left * old.nbytes


def damaged(packed: bytes, what: str) -> bytes:
    return {
        "cut": packed[:-1],
        "longer": packed + b"\0",
        "a bomb": b"\1" + (len(bomb := zlib.compress(bytes(10_000_000)))).to_bytes(8, "little") + bomb,
        "no zlib": b"\1" + (4).to_bytes(8, "little") + b"abcd" + packed,
        "another kind": b"\7" + packed[1:],
        "nothing": b"",
    }[what]


@pytest.mark.parametrize("what", ["cut", "longer", "a bomb", "no zlib", "another kind", "nothing"])
def test_what_is_no_difference_is_refused(what: str) -> None:
    old = Weights.of({"w": torch.arange(1000.0)})
    packed = difference(1.001 * old, old)
    with pytest.raises(ValueError, match=r"difference"):
        apply(old, {d: damaged(data, what) for d, data in packed.items()})
