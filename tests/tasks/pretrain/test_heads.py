"""Heads of pretexts: shapes, and sums worked by hand."""

from __future__ import annotations

import pytest
import torch

from fedreel.tasks.pretrain.heads import OrderHead, SpeedHead, strided
from support.networks import tiny_r3d


def test_the_speed_head_is_a_linear_layer_on_the_mean_of_the_map() -> None:
    torch.manual_seed(0)
    head = SpeedHead(6, 7).eval()
    maps = torch.randn(3, 6, 2, 4, 4)
    assert torch.allclose(head(maps), maps.mean((2, 3, 4)) @ head.fc.weight.T)
    assert SpeedHead(512, 7).fc.weight.std().item() == pytest.approx(0.001, rel=0.1)


def test_the_order_head_has_the_papers_size() -> None:
    head = OrderHead(512, 3, 6)
    assert head(torch.zeros(2 * 3, 512, 2, 7, 7)).shape == (2, 6)
    assert head.pair[0].weight.shape == (512, 1024)
    assert head.fc.weight.shape == (6, 1536)


def test_the_order_head_reads_pairs_of_a_samples_own_clips() -> None:
    torch.manual_seed(0)
    head = OrderHead(4, 3, 6).eval()
    maps = torch.randn(2 * 3, 4, 1, 2, 2)
    v = maps.mean((2, 3, 4)).view(2, 3, 4)
    weight, bias = head.pair[0].weight, head.pair[0].bias
    pairs = [(torch.cat([v[:, i], v[:, j]], 1) @ weight.T + bias).relu() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert torch.allclose(head(maps), torch.cat(pairs, 1) @ head.fc.weight.T + head.fc.bias, atol=1e-6)


def test_a_backbone_gets_its_stride_back_for_as_long_as_it_is_asked_to() -> None:
    torch.manual_seed(0)
    fine = tiny_r3d(width=2).eval()
    fine.last_stride = 1
    coarse = tiny_r3d(width=2).eval()
    coarse.load_state_dict(fine.state_dict())
    x = torch.randn(1, 3, 8, 32, 32)
    with strided(fine):
        assert torch.equal(fine.features(x), coarse.features(x))
    assert fine.features(x).shape == (1, 16, 1, 4, 4)
    with strided(coarse):
        assert coarse.features(x).shape == (1, 16, 1, 2, 2)
    assert coarse.features(x).shape == (1, 16, 1, 2, 2)
