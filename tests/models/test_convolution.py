"""Convolutions that go a quicker way on CPUs, against PyTorch's own: the same numbers, and where they go it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fedreel.models import convolution
from fedreel.models.convolution import Conv2d, Conv3d, Depthwise, Depthwise2d


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    yield
    torch.backends.mkldnn.enabled = before  # type: ignore[assignment]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The layers that went the quicker way."""
    layers: list[object] = []
    original = convolution._bordered
    monkeypatch.setattr(convolution, "_bordered", lambda layer, x: (layers.append(layer), original(layer, x))[1])
    return layers


CLIPS = [((1, 1, 1), 1, 7), ((1, 2, 2), 1, 9), ((2, 2, 2), (1, 0, 2), 6)]


@pytest.mark.parametrize(("stride", "padding", "side"), CLIPS)
def test_a_bordered_clip_gives_the_same_bits(
    taken: list[object], stride: tuple[int, int, int], padding: int | tuple[int, int, int], side: int
) -> None:
    layer = Conv3d(3, 5, 3, stride, padding)
    check(layer, nn.Conv3d(3, 5, 3, stride, padding), torch.randn(2, 3, 4, side, side), exactly=True)
    assert taken


@pytest.mark.parametrize(("images", "side", "kernel"), [(2, 15, 7), (3, 14, 3), (16, 4, 3)])
def test_an_image_as_a_clip_gives_the_same(taken: list[object], images: int, side: int, kernel: int) -> None:
    settings = (4, 6, kernel, 2, kernel // 2)
    check(Conv2d(*settings), nn.Conv2d(*settings), torch.randn(images, 4, side, side), exactly=images < 16)
    assert taken


OTHERS = [
    (Conv3d(3, 4, 3, padding=1), (2, 3, 3, 4, 4)),  # short rows
    (Conv3d(3, 4, 3), (2, 3, 3, 8, 8)),  # no border
    (Conv2d(3, 4, 3, padding=1), (2, 3, 16, 16)),  # no stride
    (Conv2d(4, 4, 3, 2, 1, groups=2), (2, 4, 16, 16)),
    (Conv2d(4, 4, 3, 2, 1, padding_mode="circular"), (2, 4, 16, 16)),
    (Conv2d(4, 4, 3, 2, 1, dilation=2), (2, 4, 16, 16)),
    (Conv2d(4, 4, 3, 2, 1), (2, 4, 8, 8)),  # a small map of few images
]


@pytest.mark.parametrize(("layer", "shape"), OTHERS)
def test_others_are_left_to_pytorch(taken: list[object], layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer(torch.randn(shape))
    assert not taken


def test_mapped_over_clients_it_is_pytorchs(taken: list[object]) -> None:
    layer, x = Conv3d(2, 3, 3, padding=1), torch.randn(4, 2, 2, 3, 7, 7)
    mapped = torch.vmap(layer)(x)
    assert not taken
    torch.testing.assert_close(mapped, torch.stack([layer(one) for one in x]))


def check(layer: nn.Conv2d | nn.Conv3d, plain: nn.Conv2d | nn.Conv3d, x: Tensor, exactly: bool) -> None:
    """The same map and gradients, to the bit or up to rounding."""
    plain.load_state_dict(layer.state_dict())
    for mine, theirs in zip(*(_of_step(module, x) for module in (layer, plain)), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, **({"rtol": 0, "atol": 0} if exactly else {}))


def _of_step(layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    y = layer(x)
    return (y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "sides"), [(3, 1, 1, (4, 5)), (5, 2, 1, (6, 7)), (3, 2, 0, (6, 4))]
)
def test_gradients_of_a_depthwise_convolution_are_right(
    kernel: int, stride: int, padding: int, sides: tuple[int, int]
) -> None:
    x = torch.randn(2, 3, *sides, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 1, kernel, kernel, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: Depthwise.apply(x, weight, stride, padding), (x, weight))


@pytest.mark.parametrize(("machine", "ours"), [("aarch64", True), ("x86_64", False)])
def test_a_depthwise_convolution_trains_alike_on_every_machine(
    machine: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution.platform, "machine", lambda: machine)
    layer, plain = Depthwise2d(4, 5, 2, 2), nn.Conv2d(4, 4, 5, 2, 2, groups=4, bias=False)
    check(layer, plain, torch.randn(3, 4, 9, 9), exactly=False)
    x = torch.randn(1, 4, 9, 9)
    assert ("Depthwise" in str(layer(x).grad_fn)) == ours


def test_depthwise_gradients_are_for_each_client_where_clients_are_stacked() -> None:
    layer, x = Depthwise2d(2, 3, 1, 1), torch.randn(3, 1, 2, 4, 4)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, x).square().sum()

    stacked = torch.func.vmap(torch.func.grad(loss), (None, 0))(layer.weight, x)
    alone = [torch.autograd.grad(loss(layer.weight, one), layer.weight)[0] for one in x]
    torch.testing.assert_close(stacked, torch.stack(alone))
