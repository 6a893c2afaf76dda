"""Stacked convolutions and layer norms as a GPU makes them: what each client's own would give, in fewer kernels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fedreel.config import RoundConfig
from fedreel.core.method import Method
from fedreel.core.task import Outputs
from fedreel.engines.stacked import convolutions, step
from fedreel.engines.stacked.convolutions import convolution, pays
from fedreel.engines.stacked.norms import layer_norm
from fedreel.engines.stacked.step import ChannelsApart
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.moon import MOON
from support.stacked import EqualPoints, assert_close, both, count_stacked

CLIENTS, EXAMPLES, CHANNELS, MADE = 3, 2, 4, 5
Conv = Callable[..., Tensor]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convolutions, step):
        monkeypatch.setattr(module, "DEVICES", ("cpu",))


@pytest.fixture
def seen() -> Any:
    """The operations that are carried out within it, by name."""

    class Noting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []
            self.masks: list[list[bool]] = []  # which derivatives of convolutions were asked for

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func._schema.name.rpartition(":")[2])
            if func is torch.ops.aten.convolution_backward.default:
                self.masks.append(args[-1])
            return func(*args, **(kwargs or {}))

    return Noting()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same(conv: Conv, size: tuple[int, ...], kernel: tuple[int, ...], dim: int, biased: bool, **how: Any) -> None:
    """Maps and the derivatives by maps, weight and bias, of clients whose maps are stacked along `dim`."""
    maps = drawn(CLIENTS, EXAMPLES, CHANNELS, *size).movedim(0, dim).contiguous()
    own = (drawn(CLIENTS, MADE, CHANNELS, *kernel, seed=1), *([drawn(CLIENTS, MADE, seed=2)] if biased else []))

    def found(function: Conv) -> tuple[Tensor, ...]:
        def made(maps: Tensor, own: tuple[Tensor, ...]) -> Tensor:
            return function(maps, *own, **how)

        def loss(maps: Tensor, own: tuple[Tensor, ...]) -> Tensor:
            return made(maps, own).sin().sum()

        by_maps, by_own = vmap(grad(loss, argnums=(0, 1)), in_dims=(dim, 0))(maps, own)
        return vmap(made, in_dims=(dim, 0))(maps, own), by_maps, *by_own

    for plain, ours in zip(found(conv), found(convolution), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kernel", "size"), [((3, 3), (9, 8)), ((1, 1), (5, 6)), ((3, 1), (7, 4)), ((3, 3), (5, 5))])
@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
def test_stacked_convolutions_are_those_of_each_client(
    kernel: tuple[int, int], size: tuple[int, int], stride: Any
) -> None:
    """Also where a weight is larger than a map: of 5 x 5 places with nine of four channels each."""
    for padding, dilation, dim, biased in product((0, 1, (0, 2)), (1, 2), (0, 1), (True, False)):
        assert_same(torch.conv2d, size, kernel, dim, biased, stride=stride, padding=padding, dilation=dilation)


@pytest.mark.parametrize(
    ("conv", "size", "kernel", "how"),
    [
        (torch.conv1d, (9,), (3,), {"stride": 2, "padding": 1}),
        (torch.conv3d, (5, 6, 5), (3, 2, 2), {"stride": (1, 2, 1), "padding": (1, 0, 1)}),
        (torch.conv3d, (3, 4, 3), (1, 1, 1), {}),
    ],
)
def test_so_are_those_over_lines_and_clips(conv: Conv, size: Any, kernel: Any, how: dict[str, Any]) -> None:
    for dim in (0, 1, 2):
        assert_same(conv, size, kernel, dim, True, **how)


def test_so_are_those_whose_places_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch, seen: Any) -> None:
    monkeypatch.setattr(convolutions, "MOST_BYTES", CLIENTS * EXAMPLES * 25 * 36 * 8 - 1)
    assert_same(torch.conv2d, (5, 5), (3, 3), 0, True, padding=1)
    with seen:
        vmap(lambda x, w: convolution(x, w, padding=1))(drawn(3, 2, 4, 5, 5), drawn(3, 5, 4, 3, 3))
    assert "bmm" not in seen.names


def test_a_layer_that_all_clients_share_is_one_convolution(seen: Any) -> None:
    maps, weight, bias = drawn(3, 2, 4, 5, 5), drawn(5, 4, 3, 3), drawn(5)
    with seen:
        found = vmap(lambda x: convolution(x, weight, bias))(maps)
    assert seen.names.count("convolution") == 1
    torch.testing.assert_close(found, torch.stack([F.conv2d(x, weight, bias) for x in maps]))


def test_a_first_layer_has_no_derivative_by_its_maps(seen: Any) -> None:
    def loss(own: tuple[Tensor, Tensor], maps: Tensor) -> Tensor:
        return convolution(convolution(maps, own[0]), own[1]).sum()

    with seen:
        vmap(grad(loss))((drawn(3, 4, 4, 3, 3), drawn(3, 4, 4, 3, 3)), drawn(3, 2, 4, 8, 8))
    assert sorted(seen.masks) == [[False, True, False], [True, True, False]]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    ("weight", "more", "expected"),
    [
        ((16, 3, 3, 3), {}, True),
        ((15, 3, 3, 3), {}, False),
        ((16, 1, 3, 3), {"groups": 3}, False),
        ((16, 3, 3, 3), {"padding": "same"}, False),
    ],
    ids=["enough channels", "few channels", "groups", "margins by name"],
)
def test_it_pays_where_many_channels_are_made_of_all(
    weight: tuple[int, ...], more: dict[str, Any], expected: bool
) -> None:
    args = torch.zeros(2, 3, 8, 8), torch.zeros(weight)
    assert pays(torch.conv2d, args, more) is expected
    assert not pays(torch.conv_transpose2d, args, more)


def test_on_a_cpu_it_does_not_pay() -> None:
    assert not pays(torch.conv2d, (torch.zeros(2, 3, 8, 8), torch.zeros(16, 3, 3, 3)), {})


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("biased", [True, False])
def test_stacked_layer_norms_are_those_of_each_client(biased: bool) -> None:
    x, weight, bias = drawn(3, 2, 7, 4), drawn(3, 4, seed=1), drawn(3, 4, seed=2)

    def loss(own: tuple[Tensor, ...], x: Tensor) -> Tensor:
        return F.layer_norm(x, (4,), *own).sin().sum()

    own = (weight, bias) if biased else (weight,)
    plain = vmap(grad(loss, argnums=(0, 1)))(own, x)
    with ChannelsApart():
        ours = vmap(grad(loss, argnums=(0, 1)))(own, x)
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer_norm(x[0], (4,)), F.layer_norm(x[0], (4,)))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_stacked_layer_norm_makes_nothing_anew_for_its_derivative(seen: Any) -> None:
    """vmap's own rule takes means away and divides by deviations once more; the derivative of torch.addcmul multiplies
    by one. Two products are left, by the weight and for its own derivative."""

    def loss(own: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        return F.layer_norm(x, (4,), *own).sum()

    with ChannelsApart(), seen:
        vmap(grad(loss, argnums=(0, 1)))((drawn(3, 4), drawn(3, 4)), drawn(3, 2, 7, 4))
    assert "sub" not in seen.names
    assert seen.names.count("native_layer_norm") == seen.names.count("addcmul") == 1
    assert seen.names.count("mul") == 2


@dataclass(frozen=True)
class Pictures(EqualPoints):
    """Points as pictures: a convolution of many channels, one of few, a layer norm."""

    def model(self) -> nn.Module:
        layers = nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 1), nn.Flatten(), nn.LayerNorm(24)
        return nn.Sequential(OrderedDict(backbone=nn.Sequential(*layers), head=nn.Linear(24, 2)))

    def forward(self, model: Any, batch: tuple[Tensor, Tensor]) -> Outputs:
        shades = torch.linspace(0, 1, 6, device=batch[0].device).view(2, 3)
        features = model.backbone(batch[0][:, :, None, None] * shades)
        return Outputs(features, model.head(features))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("method", [FedAvg(), MOON(mu=0.5)], ids=lambda m: type(m).__name__)
def test_clients_with_convolutions_end_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(step, "convolution", lambda *a, **k: (made.append(a), convolution(*a, **k))[1])
    stacked = count_stacked(monkeypatch)
    one, _, many, _ = both(tmp_path, method, RoundConfig(rounds=2), task=Pictures())
    assert stacked == [5, 5]
    assert made
    assert all(len(weight) == 16 for _, weight, *_ in made)
    assert_close(one.weights, many.weights)
