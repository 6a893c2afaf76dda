"""Sums of shifted products, against PyTorch's convolution with a kernel for each channel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.tasks.moments.shifted import shifted_sum


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("kernel", [1, 2, 7])
def test_it_is_a_convolution_of_each_channel_by_itself(kernel: int) -> None:
    x, along = drawn(3, 9, 5), drawn(kernel, 5)
    expected = F.conv1d(x.transpose(1, 2), along.T.unsqueeze(1), groups=5).transpose(1, 2)
    torch.testing.assert_close(shifted_sum(x, along), expected)
    torch.testing.assert_close(shifted_sum(x[0], along), expected[0])


@pytest.mark.parametrize("shape", [(9, 4), (2, 9, 4), (2, 3, 9, 4)])
def test_gradients_are_those_of_finite_differences(shape: tuple[int, ...]) -> None:
    assert torch.autograd.gradcheck(shifted_sum, (drawn(*shape).requires_grad_(), drawn(3, 4).requires_grad_()))


def test_what_needs_no_gradient_gets_none() -> None:
    x, along = drawn(2, 9, 4), drawn(3, 4).requires_grad_()
    (of_kernel,) = torch.autograd.grad(shifted_sum(x, along).sum(), along)
    torch.testing.assert_close(of_kernel, torch.stack([x[:, k : k + 7].sum((0, 1)) for k in range(3)]))
    x.requires_grad_()
    (of_x,) = torch.autograd.grad(shifted_sum(x, along.detach()).sum(), x)
    torch.testing.assert_close(of_x[0, 4], along.detach().sum(0))  # in the middle every place of the kernel sees it


def test_clients_stacked_by_vmap_get_the_same() -> None:
    x, along = drawn(4, 2, 9, 5), drawn(4, 3, 5)
    stacked = torch.func.vmap(shifted_sum)(x, along)
    torch.testing.assert_close(stacked, torch.stack([shifted_sum(a, b) for a, b in zip(x, along)]))
