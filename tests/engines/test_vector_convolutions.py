"""Stacked operations as a GPU makes them: what each client's own would give, in fewer kernels."""

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
from fedreel.engines.stacked import convolutions, fastest, products, step
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


@pytest.fixture(params=[0, -1], ids=["groups", "products"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives are made this way; on a GPU whichever is the faster."""
    monkeypatch.setattr(convolutions, "fastest", lambda key, device, *ways: ways[request.param]())


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


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("kernel", "size"), [((3, 3), (9, 8)), ((1, 1), (5, 6)), ((3, 1), (7, 4)), ((3, 3), (5, 5))])
@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
def test_stacked_convolutions_are_those_of_each_client(
    kernel: tuple[int, int], size: tuple[int, int], stride: Any
) -> None:
    """Also where a weight is larger than a map: of 5 x 5 places with nine of four channels each."""
    for padding, dilation, dim, biased in product((0, 1, (0, 2)), (1, 2), (0, 1), (True, False)):
        assert_same(torch.conv2d, size, kernel, dim, biased, stride=stride, padding=padding, dilation=dilation)


@pytest.mark.usefixtures("way")
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


@pytest.mark.usefixtures("way")
def test_so_are_those_whose_places_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch, seen: Any) -> None:
    monkeypatch.setattr(products, "MOST_BYTES", CLIENTS * EXAMPLES * 25 * 36 * 8 - 1)
    assert_same(torch.conv2d, (5, 5), (3, 3), 0, True, padding=1)

    def loss(maps: Tensor, weight: Tensor) -> Tensor:
        return convolution(maps, weight, padding=1).sin().sum()

    with seen:
        vmap(grad(loss, argnums=(0, 1)))(drawn(3, 2, 4, 5, 5), drawn(3, 5, 4, 3, 3))
    assert "bmm" not in seen.names


def test_derivatives_by_products_are_of_no_groups(seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "fastest", lambda key, device, *ways: ways[-1]())
    with seen:
        vmap(grad(lambda w, x: convolution(x, w).sin().sum()))(drawn(3, 5, 4, 1, 1), drawn(3, 2, 4, 5, 5))
        vmap(grad(lambda x, w: convolution(x, w).sin().sum()))(drawn(3, 2, 4, 5, 5), drawn(3, 5, 4, 1, 1))
    assert "convolution_backward" not in seen.names
    assert seen.names.count("bmm") == 4


def test_the_fastest_way_is_measured_once_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    took, timed = {"slow": 2.0, "fast": 1.0}, []
    ways = {name: lambda name=name: torch.tensor(took[name]) for name in took}
    monkeypatch.setattr(fastest, "_measurable", lambda device: True)
    monkeypatch.setattr(fastest, "milliseconds", lambda way: (timed.append(way), float(way()))[1])
    choose, device = fastest.Fastest(), torch.device("cpu")
    assert [choose(key, device, *ways.values()) for key in "aab"] == [1.0, 1.0, 1.0]
    assert len(timed) == 4
    assert choose("c", device, ways["slow"]) == 2.0
    took["slow"] = 0.5
    assert [choose(key, device, *ways.values()) for key in "ad"] == [1.0, 0.5]
    assert len(timed) == 6


def test_where_nothing_can_be_measured_the_first_way_is_taken() -> None:
    choose = fastest.Fastest()
    assert choose("a", torch.device("cpu"), lambda: torch.zeros(()), lambda: torch.ones(())) == 0


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
    assert sorted(seen.masks) == [[False, True, False], [False, True, False], [True, False, False]]


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


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("how", [{}, {"stride": 1}, {"padding": 1, "ceil_mode": True}, {"dilation": (2, 1)}], ids=str)
def test_stacked_pooling_is_that_of_each_client(dim: int, how: dict[str, Any]) -> None:
    maps, wanted = drawn(3, 2, 4, 7, 6).movedim(0, dim).contiguous(), drawn(3, 1)

    def loss(maps: Tensor, wanted: Tensor) -> Tensor:
        return (F.max_pool2d(maps, 3, **how).sin() * wanted).sum()

    plain = [grad(loss)(maps.select(dim, i), wanted[i]) for i in range(3)]
    with ChannelsApart():
        ours = vmap(grad(loss), in_dims=(dim, 0))(maps, wanted)
        lone = vmap(lambda m: F.max_pool2d(m, 2))(maps.movedim(dim, 0)[:, 0])
    torch.testing.assert_close(ours, torch.stack(plain))
    torch.testing.assert_close(lone, F.max_pool2d(maps.movedim(dim, 0)[:, 0], 2))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dim", [0, 1])
def test_stacked_pooling_copies_nothing(seen: Any, dim: int) -> None:
    """Wherever clients lie, before the examples or after them."""
    maps = drawn(3, 2, 4, 6, 6).movedim(0, dim).contiguous()
    with ChannelsApart(), seen:
        vmap(grad(lambda m: F.max_pool2d(m, 2).exp().sum()), in_dims=dim)(maps)
    assert "max_pool2d_with_indices_backward" in seen.names
    assert not {"clone", "_reshape_copy"} & {*seen.names}


@pytest.mark.usefixtures("as_on_a_gpu")
def test_stacked_dropout_draws_for_each_client_and_is_derived_in_one_kernel(seen: Any) -> None:
    x = drawn(3, 400).abs() + 1

    def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
        left = F.dropout(x, 0.25)
        return left.sum(), left

    torch.manual_seed(0)
    with ChannelsApart(), seen:
        found, left = vmap(grad(dropped, has_aux=True), randomness="different")(x)
    kept = left != 0
    torch.testing.assert_close(left, torch.where(kept, x / 0.75, 0.0))
    torch.testing.assert_close(found, torch.where(kept, 1 / 0.75, 0.0).double())
    assert 0.6 < kept.double().mean() < 0.9
    assert not torch.equal(kept[0], kept[1])
    assert seen.names.count("native_dropout_backward") == 1
    assert "mul" not in seen.names


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("share", "training", "left"), [(0.5, False, 1.0), (0.0, True, 1.0), (1.0, True, 0.0)])
def test_dropout_of_nothing_or_of_all_draws_nothing(share: float, training: bool, left: float) -> None:
    with ChannelsApart():
        found = vmap(lambda x: F.dropout(x, share, training), randomness="different")(torch.ones(3, 5))
    torch.testing.assert_close(found, torch.full((3, 5), left))


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
