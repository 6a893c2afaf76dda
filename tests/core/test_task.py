"""Batches: every sample once, shuffled by the generator alone, and never a single one left over."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.core.task import Tensors


@given(st.integers(1, 40), st.integers(1, 12), st.booleans())
@settings(max_examples=80, deadline=None)
def test_batches_cover_everything_once(n: int, size: int, shuffled: bool) -> None:
    data = Tensors((torch.arange(n), torch.arange(n) * 2))
    generator = torch.Generator().manual_seed(n) if shuffled else None
    batches = list(data.batches(size, generator))
    seen = torch.cat([b[0] for b in batches])
    assert sorted(seen.tolist()) == list(range(n))
    assert torch.equal(torch.cat([b[1] for b in batches]), 2 * seen)
    lengths = [len(b[0]) for b in batches]
    assert all(length == size for length in lengths[:-1])
    assert lengths[-1] <= size + (size > 1)
    assert min(lengths) > 1 or n == 1 or size == 1
    if not shuffled:
        assert seen.tolist() == list(range(n))


def test_the_shuffle_depends_on_the_generator_alone() -> None:
    data = Tensors((torch.arange(30),))

    def order(seed: int) -> list[int]:
        return torch.cat([b[0] for b in data.batches(7, torch.Generator().manual_seed(seed))]).tolist()

    assert order(1) == order(1) != order(2)
