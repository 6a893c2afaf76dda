"""Forms of few bytes: what each loses, to the closed form, and that rubbish in any of them is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedreel.config import TransferConfig
from fedreel.core.transfer.codes import (
    BLOCK,
    INDEX,
    SCALE,
    VALUE,
    Bf16,
    Code,
    Damaged,
    Int8,
    TopK,
    join,
    largest,
    make_code,
    split,
)
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.errors import RecipeError

CODES: list[Code] = [Bf16(), Int8(), TopK(0.3)]
numbers = arrays(np.float32, st.integers(1, 700), elements=st.floats(-(2.0**100), 2.0**100, width=32))


def layout_of(n: int) -> Layout:
    """So many numbers in two tensors, or in one if there is only one."""
    first = n // 3
    shapes = [(first,), (n - first, 1)] if first else [(n,)]
    return Layout(TensorInfo(f"t{i}", shape, torch.float32) for i, shape in enumerate(shapes))


def coded(code: Code, vector: Tensor) -> tuple[Weights, Layout]:
    of = layout_of(len(vector))
    made = Weights.zeros(Layout(code.layout(of)))
    code.write(vector, of, made)
    return made, of


def passed(code: Code, vector: Tensor) -> Tensor:
    made, of = coded(code, vector)
    return code.read(made, of)


@settings(max_examples=40, deadline=None)
@given(values=numbers)
def test_bf16_is_torchs_bf16_and_exact_where_bf16_is(values: np.ndarray) -> None:
    vector = torch.from_numpy(values)
    once = passed(Bf16(), vector)
    assert torch.equal(once, vector.bfloat16().float())
    assert torch.equal(passed(Bf16(), once), once)


def test_bf16_stays_finite_at_the_end_of_float32() -> None:
    most = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max])
    assert passed(Bf16(), most).tolist() == [torch.finfo(torch.bfloat16).max, torch.finfo(torch.bfloat16).min]


@settings(max_examples=40, deadline=None)
@given(values=numbers)
def test_int8_is_half_a_scale_off_at_most(values: np.ndarray) -> None:
    vector = torch.from_numpy(values)
    found = passed(Int8(), vector)
    for start in range(0, len(vector), BLOCK):
        block, got = vector[start : start + BLOCK].double(), found[start : start + BLOCK].double()
        scale = float(block.abs().max()) / 127
        assert float((block - got).abs().max()) <= scale / 2 * (1 + 1e-5) + 1e-38


def test_int8_by_hand() -> None:
    made, of = coded(Int8(), torch.tensor([127.0, -63.4, 0.5, 2.5, 0.0]))
    assert made[SCALE].tolist() == [1.0]
    assert join(made, of).tolist() == [127, -63, 0, 2, 0]  # to the nearest, halves to the even one
    assert passed(Int8(), torch.zeros(300)).tolist() == [0.0] * 300


@settings(max_examples=60, deadline=None)
@given(values=arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.5])))
def test_the_largest_are_those_of_brute_force(values: np.ndarray) -> None:
    vector = torch.from_numpy(values)
    for k in {1, math.ceil(0.3 * len(values)), len(values)}:
        expected = sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k])
        assert largest(vector, k).tolist() == expected
    made, of = coded(TopK(0.3), vector)
    kept = made[INDEX].long()
    assert len(kept) == math.ceil(0.3 * len(values))
    expected_vector = torch.zeros(len(vector)).index_copy(0, kept, vector[kept])
    assert torch.equal(TopK(0.3).read(made, of), expected_vector)


@pytest.mark.parametrize(("code", "bytes_for_1024"), [(Bf16(), 2048), (Int8(), 1024 + 16), (TopK(1 / 64), 16 * 8)])
def test_bytes_by_hand(code: Code, bytes_for_1024: int) -> None:
    assert Layout(code.layout(layout_of(1024))).nbytes == bytes_for_1024


def test_numbers_come_back_into_tensors_of_other_types() -> None:
    of = Layout([TensorInfo("a", (2, 3), torch.float64), TensorInfo("b", (), torch.bfloat16)])
    weights = Weights.zeros(of)
    split(torch.arange(7.0), of, weights)
    assert weights["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert join(weights, of).tolist() == [*range(7)]


def spoil(name: str, value: float) -> Callable[[Weights], None]:
    return lambda made: made[name].view(-1)[:1].fill_(value)  # type: ignore[return-value]


def turn(made: Weights) -> None:
    made[INDEX].copy_(made[INDEX].flip(0))


def twice(made: Weights) -> None:
    made[INDEX][1] = made[INDEX][0]


@pytest.mark.parametrize(
    ("code", "harm", "reason", "detail"),
    [
        (Bf16(), spoil("t0", math.nan), "not-finite", "a change"),
        (Bf16(), spoil("t1", math.inf), "not-finite", "a change"),
        (Int8(), spoil(SCALE, math.nan), "not-finite", "scales"),
        (Int8(), spoil(SCALE, -1.0), "range", "below 0"),
        (Int8(), spoil(SCALE, 3e38), "not-finite", "a change"),
        (TopK(0.3), spoil(INDEX, -1), "range", "from -1 to"),
        (TopK(0.3), spoil(INDEX, 100), "range", "to 100, and there are 100 numbers"),
        (TopK(0.3), turn, "range", "ascend"),
        (TopK(0.3), twice, "range", "twice"),
        (TopK(0.3), spoil(VALUE, math.nan), "not-finite", "a change"),
    ],
)
def test_what_no_code_writes_is_refused(code: Code, harm: Callable, reason: str, detail: str) -> None:
    made, of = coded(code, torch.arange(100.0) + 1)
    code.read(made, of)
    harm(made)
    with pytest.raises(Damaged, match=detail) as refused:
        code.read(made, of)
    assert refused.value.reason == reason


def test_the_recipe_names_the_code() -> None:
    assert make_code(None) is make_code(TransferConfig()) is None
    made = [make_code(TransferConfig(up=up, keep=0.5)) for up in ("bf16", "int8", "top-k")]
    assert made == [Bf16(), Int8(), TopK(0.5)]
    for share in (0.0, -1.0, 1.01, math.nan):
        with pytest.raises(RecipeError, match="keep is out of range"):
            TransferConfig(keep=share)
