"""Random numbers within a stacked step: who draws any, and steps that are compared without them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.engines.stacked.draws import NoDraws, OwnDraws

GIVEN = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0))  # queries, keys, values


def attended(share: float) -> tuple[Tensor, Tensor]:
    """What attention gives, and its derivative by the queries."""
    query, key, value = (tensor.clone() for tensor in GIVEN)
    query.requires_grad_()
    found = F.scaled_dot_product_attention(query, key, value, dropout_p=share)
    found.square().sum().backward()
    assert query.grad is not None
    return found.detach(), query.grad


def test_attention_draws_nothing_without_dropout() -> None:
    plain = attended(0.0)
    with NoDraws():
        without = attended(0.0)
    with OwnDraws([torch.get_rng_state()] * 2, torch.device("cpu")):
        own = attended(0.0)
    for one, two, three in zip(plain, without, own):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_attention_with_dropout_is_compared_without() -> None:
    plain = attended(0.0)
    with NoDraws():
        without = attended(0.5)
    for one, two in zip(plain, without):
        torch.testing.assert_close(one, two)
    assert not torch.allclose(plain[0], attended(0.5)[0])
