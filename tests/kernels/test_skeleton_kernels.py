"""Convolutions over joints and over time by Triton's kernels: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedreel.core.batchnorm import statistics_kept
from fedreel.kernels import norm
from fedreel.machine.device import full_precision
from fedreel.tasks.skeleton import by_joint
from fedreel.tasks.skeleton.joints import find_joints
from fedreel.tasks.skeleton.network import Skeleton
from fedreel.tasks.skeleton.stgcn import STGCN, STGCNConfig

GPU = torch.cuda.is_available()
CLOSE = 1e-5  # relative to the result's length, of sums in float32; TF32 is a hundred times further away

Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton, which comes with PyTorch for GPUs")
    if not GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return "cuda" if GPU else "cpu"


def assert_near(found: Tensor, expected: Tensor, most: float = CLOSE) -> None:
    assert found.shape == expected.shape
    assert (found - expected).norm() <= most * expected.norm()


def check(ours: Function, plain: Function, inputs: list[Tensor]) -> None:
    """The value and all derivatives, of one client and of three with inputs of their own, as in float64."""
    exact = [t.double() for t in inputs]
    several = [torch.stack([t * factor for factor in (1, -0.5, 1.5)]) for t in inputs]
    every = tuple(range(len(inputs)))

    def slopes(function: Function) -> Function:
        def value(*given: Tensor) -> Tensor:
            return (function(*given).square() * weights.to(given[0])).sum()

        return grad(value, every)

    weights = torch.rand_like(plain(*inputs))
    with full_precision():
        assert_near(ours(*inputs), plain(*exact))
        for found, expected in zip(slopes(ours)(*inputs), slopes(plain)(*exact), strict=True):
            assert_near(found, expected)
        stacked = vmap(slopes(ours))(*several)
        for found, expected in zip(stacked, vmap(slopes(plain))(*[t.double() for t in several]), strict=True):
            assert_near(found, expected)


@pytest.mark.parametrize(
    ("shape", "made", "taps", "how"),
    [
        ((5, 7, 16), 16, 9, (1, 4, 1)),
        ((12, 10, 16), 24, 9, (2, 4, 1)),
        ((6, 13, 20), 40, 5, (2, 4, 2)),
        ((4, 9, 64), 128, 3, (1, 1, 1)),
        ((2, 3, 8), 8, 9, (1, 4, 1)),
        ((3, 20, 80), 8, 3, (3, 1, 1)),
        ((2, 150, 16), 16, 9, (2, 4, 1)),
    ],
    ids=str,
)
def test_convolutions_over_time(device: str, shape: Any, made: int, taps: int, how: Any) -> None:
    from fedreel.kernels.time_triton import Convolved

    stride, before, apart = how

    def plain(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv1d(maps.transpose(1, 2), weight, bias, stride, before, apart).transpose(1, 2)

    inputs = [torch.randn(s, device=device) for s in (shape, (made, shape[2], taps), (made,))]
    check(lambda *given: Convolved.apply(*given, how)[0], plain, inputs)


@pytest.mark.parametrize(
    ("joints", "rows", "channels", "made", "many"),
    [(20, 35, 3, 16, 3), (20, 18, 16, 16, 3), (25, 9, 32, 64, 3), (17, 5, 64, 128, 2), (5, 7, 80, 20, 1)],
)
def test_graph_convolutions(device: str, joints: int, rows: int, channels: int, made: int, many: int) -> None:
    from fedreel.kernels.joints_triton import Spread

    def plain(maps: Tensor, matrices: Tensor, weight: Tensor, beside: Tensor) -> Tensor:
        return torch.einsum("vrc,kvw,kcd->wrd", maps, matrices, weight) + beside[:, None, :]

    shapes = ((joints, rows, channels), (many, joints, joints), (many, channels, made), (joints, made))
    check(lambda *given: Spread.apply(*given)[0], plain, [torch.randn(s, device=device) for s in shapes])


@pytest.mark.parametrize("topology", ["graph", "learnable"])
def test_networks_of_one_client_and_of_several(device: str, monkeypatch: pytest.MonkeyPatch, topology: Any) -> None:
    joints = find_joints("kinect-v1")
    sample = Skeleton(len(joints.names), joints.bones, joints.centre)
    torch.manual_seed(0)
    nets = [STGCN(STGCNConfig(width=8, features=24, topology=topology), sample).to(device) for _ in range(2)]
    x = torch.randn(2, 2, 3, 8, sample.joints, 1, device=device)
    named = [{n: p.detach() for n, p in net.named_parameters()} for net in nets]
    trained = {name: torch.stack([own[name] for own in named]) for name in named[0]}

    def loss(trained: dict[str, Tensor], x: Tensor) -> Tensor:
        with statistics_kept(nets[0]):
            return functional_call(nets[0], trained, (x,)).square().sum()

    def with_kernels(there: bool) -> None:
        for module in (norm, by_joint):
            monkeypatch.setattr(module, "DEVICES", (device,) if there else ())
            monkeypatch.setattr(module, "works", lambda device: True)

    with full_precision():
        with_kernels(False)
        nets[0].cpu().double()  # on a GPU not all that is stacked can be laid as convolutions there want it
        exact = vmap(grad(loss))({n: t.cpu().double() for n, t in trained.items()}, x.cpu().double())
        nets[0].to(device).float()
        with_kernels(True)
        assert by_joint.pays(nets[0].layers[0].temporal, x[0, ..., 0])
        stacked = vmap(grad(loss))(trained, x)
        alone = [grad(loss)({n: t[i] for n, t in trained.items()}, x[i]) for i in range(2)]
    noise = 1e-6 * sum(t.norm() for t in exact.values())  # all that biases have which a later norm takes away
    for name, expected in exact.items():
        for found in (stacked[name], torch.stack([own[name] for own in alone])):
            # one number so near zero that it is rectified in one of the two only makes 2 percent
            assert (found.cpu() - expected).norm() <= 5e-2 * expected.norm() + noise


@pytest.mark.parametrize(("found", "enough"), [(64 * 1024, False), (99 * 1024, True), (None, False)])
def test_cards_with_little_memory_for_a_block_do_without(
    monkeypatch: pytest.MonkeyPatch, found: int | None, enough: bool
) -> None:
    told = SimpleNamespace() if found is None else SimpleNamespace(shared_memory_per_block_optin=found)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    assert by_joint.has_room.__wrapped__(torch.device("cuda", 0)) is enough
