import copy
import importlib.util
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedreel.kernels import norm as norms
from fedreel.kernels.norm import fused, normed
from fedreel.models.efficientnet import EfficientNetLite0
from fedreel.models.resnet import ResNet, ResNet18Config
from support.networks import tiny_r3d

GPU = torch.cuda.is_available()
SHAPES = [(4, 8, 5, 3), (3, 104, 2, 4, 4), (1, 136, 1, 7), (5, 64, 9, 31)] + (
    [(104, 64, 32, 32), (5, 512, 2, 7, 7)] if GPU else []
)


@pytest.fixture
def device(monkeypatch):
    """Where the kernels run: on a GPU, or in Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton, which comes with PyTorch for GPUs")
    if not GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return "cuda" if GPU else "cpu"


def together(x):
    return x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def example(shape, device, dtype):
    """A norm that is not as it starts, values far from zero, and what flows back."""
    torch.manual_seed(0)
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm3d)(shape[1], eps=1e-3, momentum=0.3)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    far = 50 * torch.randn(shape[1], *[1] * (len(shape) - 2))
    x, shortcut, given = (together(t.to(device, dtype)) for t in (torch.randn(shape) + far, *torch.randn(2, *shape)))
    return norm.to(device), x, shortcut, given


def results(way, norm, x, shortcut, given, then):
    x = x.detach().requires_grad_()
    shortcut = None if shortcut is None else shortcut.detach().requires_grad_()
    y = way(norm, x, shortcut, then)
    wanted = [x, norm.weight, norm.bias] + ([] if shortcut is None else [shortcut])
    return [y.detach(), *torch.autograd.grad(y, wanted, given), norm.running_mean, norm.running_var]


def as_torch(norm, x, shortcut, then):
    y = norm(x) if shortcut is None else norm(x) + shortcut
    return y if then is None else F.relu(y) if then == "relu" else F.relu6(y)


@pytest.mark.parametrize("then", [None, "relu", "relu6"])
@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_compute_what_the_three_operations_do(device, shape, shortened, then):
    norm, x, shortcut, given = example(shape, device, torch.float32)
    exact = type(norm)(shape[1], norm.eps, norm.momentum).to(device).double()
    exact.load_state_dict(norm.state_dict())
    shortcut = shortcut if shortened else None
    doubles = (None if t is None else t.double() for t in (x, shortcut, given))
    expected = results(as_torch, exact, *doubles, then)
    found = results(fused, norm, x, shortcut, given, then)
    for ours, right in zip(found, expected, strict=True):  # a value next to zero may fall on the rectifier's other side
        assert (ours - right).norm() <= (3e-5 if x.numel() < 1e5 else 2e-3) * right.norm()
    assert norm.num_batches_tracked == exact.num_batches_tracked == 1
    assert found[0].stride() == x.stride()


def test_half_the_digits_are_lost_once_only(device):
    """Sums are taken in fp32: statistics and gradients of weights are as exact as if bf16 values were exact."""
    norm, x, _, given = example((4, 24, 8, 8), device, torch.bfloat16)
    exact = nn.BatchNorm2d(24, norm.eps, norm.momentum).to(device)
    exact.load_state_dict(norm.state_dict())
    y, dx, *rest = results(fused, norm, x, None, given, "relu")
    expected_y, expected_dx, *expected = results(as_torch, exact, x.float(), None, given.float(), "relu")
    assert y.dtype == dx.dtype == torch.bfloat16
    for ours, right in ((y, expected_y), (dx, expected_dx)):
        assert (ours - right).norm() < 4e-3 * right.norm()
    for ours, right in zip(rest, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)


def test_statistics_may_be_left_alone(device):
    norm, x, _, _ = example((4, 8, 3, 3), device, torch.float32)
    before = {name: t.clone() for name, t in norm.state_dict().items()}
    norm.track_running_stats = False
    y = fused(norm, x)
    assert all(torch.equal(t, before[name]) for name, t in norm.state_dict().items())
    exact = F.batch_norm(
        *(None if t is None else t.double() for t in (x, None, None, norm.weight, norm.bias)), True, eps=norm.eps
    )
    assert (y - exact).norm() < 3e-5 * exact.norm()


def test_gradients_of_another_layout(device):
    norm, x, _, given = example((4, 8, 3, 3), device, torch.float32)
    spread = torch.ones((), device=device).expand(given.shape)
    for odd, usual in ((spread, torch.ones_like(given)), (given.contiguous(), given)):
        assert odd.stride() != usual.stride()
        found, expected = (results(fused, norm, x, None, flows, "relu")[:4] for flows in (odd, usual))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("then", [None, "relu", "relu6"])
@pytest.mark.parametrize("shortened", [False, True])
def test_elsewhere_it_is_torch_to_the_bit(shortened, then):
    norm, x, shortcut, given = example((4, 8, 5, 3), "cpu", torch.float32)
    twin = nn.BatchNorm2d(8, norm.eps, norm.momentum)
    twin.load_state_dict(norm.state_dict())
    shortcut = shortcut if shortened else None
    for ours, right in zip(
        results(normed, norm, x, shortcut, given, then), results(as_torch, twin, x, shortcut, given, then), strict=True
    ):
        assert torch.equal(ours, right)


def test_without_triton_it_is_said_once_and_torch_goes_on(monkeypatch, caplog):
    def missing(*_):
        raise ImportError("no triton")

    monkeypatch.setattr(norms, "fused", missing)
    norms.works.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not norms.works(torch.device("cpu"))
        assert not norms.works(torch.device("cpu"))
    norms.works.cache_clear()
    assert [r.getMessage() for r in caplog.records] == [
        "networks take longer than they need to: Triton's kernels do not work here (no triton)"
    ]


@pytest.mark.parametrize(
    "suits", ["training", "eval", "channels apart", "nine channels", "double", "shortcut of another type"]
)
def test_which_maps_the_kernels_take(suits):
    norm, x, shortcut, _ = example((4, 8, 5, 3), "cpu", torch.float32)
    norm.train(suits != "eval")
    if suits == "nine channels":
        norm, x, shortcut, _ = example((4, 9, 5, 3), "cpu", torch.float32)
    x = x.contiguous() if suits == "channels apart" else x
    x, shortcut = (x.double(), shortcut.double()) if suits == "double" else (x, shortcut)
    shortcut = shortcut.double() if suits == "shortcut of another type" else shortcut
    assert norms._suits(norm, x, shortcut) == (suits == "training")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("apart", [False, True])
def test_which_maps_of_several_clients_the_kernels_take(dim, apart):
    norm, x, _, _ = example((4, 8, 5, 3), "cpu", torch.float32)
    found, many = [], torch.stack([x.movedim(1, -1)] * 3).movedim(-1, 2)
    many = many.contiguous() if apart else many
    torch.func.vmap(lambda one: (found.append(norms._suits(norm, one, None)), one)[1], dim)(many.movedim(0, dim))
    assert found == [not apart]


class Fused(nn.Module):
    def __init__(self, norm, then):
        super().__init__()
        self.norm, self.then = norm, then

    def forward(self, x, shortcut):
        return fused(self.norm, x, shortcut, self.then)


@pytest.mark.parametrize("then", [None, "relu", "relu6"])
@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_several_clients_have_what_each_has_alone(device, shortened, then, dim):
    """Maps, derivatives and running statistics, wherever the dimension of clients is."""
    made = [example((4, 24, 5, 3), device, torch.float32) for _ in range(3)]
    for i, (norm, *maps) in enumerate(made):
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, *maps):
            tensor.mul_(1 + 0.3 * i)
    module = Fused(copy.deepcopy(made[0][0]), then)
    own = {f"norm.{n}": torch.stack([m[0].state_dict()[n] for m in made]) for n in made[0][0].state_dict()}
    alone = [results(fused, norm, x, beside if shortened else None, given, then) for norm, x, beside, given in made]
    x, beside, given = (
        torch.stack([m[i].movedim(1, -1) for m in made]).movedim(-1, 2).movedim(0, dim) for i in (1, 2, 3)
    )
    trained = {name: own.pop(name) for name in ("norm.weight", "norm.bias")}

    def value(x, shortcut, trained, kept, given):
        y = torch.func.functional_call(module, {**kept, **trained}, (x, shortcut if shortened else None))
        return (y * given).sum(), y

    step = torch.func.grad(value, argnums=(0, 1, 2) if shortened else (0, 2), has_aux=True)
    (dx, *others, of), y = torch.func.vmap(step, (dim, dim, 0, 0, dim))(x, beside, trained, own, given)
    found = [y, dx, of["norm.weight"], of["norm.bias"], *others, own["norm.running_mean"], own["norm.running_var"]]
    for ours, right in zip(found, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.stack(right), rtol=0, atol=0)
    assert own["norm.num_batches_tracked"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: ResNet(ResNet18Config(width=8, small_stem=True)), (4, 3, 16, 16)),
        (lambda: EfficientNetLite0(small_stem=True), (4, 3, 16, 16)),
        (lambda: tiny_r3d(width=8), (2, 3, 4, 16, 16)),
    ],
    ids=["resnet", "efficientnet", "r3d"],
)
def test_networks_have_the_same_gradients_with_and_without(monkeypatch, device, make, shape):
    torch.manual_seed(0)
    net = make().to(device)
    x, found = together(torch.randn(shape, device=device)), []
    monkeypatch.setattr(norms, "DEVICES", (device,))
    for works in (False, True):
        monkeypatch.setattr(norms, "works", lambda _, works=works: works)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            found.append(torch.autograd.grad(net(x).square().sum(), list(net.parameters())))
    assert any(not torch.equal(*pair) for pair in zip(*found, strict=True)), "the kernels were not used"
    noise = 1e-7 * sum(gradient.norm() for gradient in found[0])  # all that biases have which a later norm takes away
    for with_torch, with_kernels in zip(*found, strict=True):
        # one number so near zero that it is rectified in one of the two only makes 2 percent
        assert (with_torch - with_kernels).norm() <= 5e-2 * with_torch.norm() + noise
