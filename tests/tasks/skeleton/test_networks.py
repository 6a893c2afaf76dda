"""Graph networks over skeletons: what all four promise, and their parts against the published computation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.errors import RecipeError
from fedreel.tasks.skeleton import stgcn
from fedreel.tasks.skeleton.by_joint import joints_first, joints_last, over_joints, over_time, pays
from fedreel.tasks.skeleton.ctrgcn import CTRGCNConfig, Product, RefinedConvolution
from fedreel.tasks.skeleton.graph import adjacency, hops, scales, subsets
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2, Joints
from fedreel.tasks.skeleton.msg3d import SCALES, WINDOW_SCALES, MSG3DConfig, Window, window_shares
from fedreel.tasks.skeleton.mstgcn import Layer as MSTLayer
from fedreel.tasks.skeleton.mstgcn import MSTGCNConfig
from fedreel.tasks.skeleton.network import (
    Pointwise,
    Skeleton,
    SkeletonBackbone,
    SkeletonConfig,
    spread_at_once,
    spread_by_frame,
)
from fedreel.tasks.skeleton.stgcn import Layer, STGCNConfig
from fedreel.tasks.skeleton.temporal import Branches, Timewise

Config = Callable[..., SkeletonConfig]
SMALL: dict[str, tuple[Config, int]] = {
    "ST": (STGCNConfig, 4),
    "CTR": (CTRGCNConfig, 8),
    "MST": (MSTGCNConfig, 4),
    "MS-G3D": (MSG3DConfig, 6),
}
TOPOLOGIES = {"ST": 10, "CTR": 10, "MST": 10, "MS-G3D": 3}  # if layers do not share
every_network = pytest.mark.parametrize("which", SMALL)


def body(joints: Joints = KINECT_V1) -> Skeleton:
    return Skeleton(len(joints.names), joints.bones, joints.centre)


def small(which: str, skeleton: Skeleton | None = None, features: int = 12, **options: Any) -> SkeletonBackbone:
    torch.manual_seed(0)
    config, width = SMALL[which]
    return config(width=width, features=features, **options).network(skeleton or body()).double()


def moves(joints: int = 20, bodies: int = 1, frames: int = 13, n: int = 2) -> Tensor:
    return torch.randn(n, 3, frames, joints, bodies, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def awake(net: SkeletonBackbone) -> SkeletonBackbone:
    """CTR-GCN's graph and what refines it start next to nothing: make both count."""
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, RefinedConvolution):
                module.strength.fill_(0.5)
        for name, parameter in net.named_parameters():
            if name.endswith("spatial_bn.weight"):
                parameter.fill_(1)
    return net


def joint_bound(name: str) -> bool:
    """Tensors whose entries belong to joints."""
    return name.endswith((".mask", ".importance")) or ".matrices." in f".{name}" or name.startswith("data_bn")


@every_network
@pytest.mark.parametrize("frames", [13, 50])
@pytest.mark.parametrize(("joints", "bodies"), [(KINECT_V1, 1), (KINECT_V2, 2), (KINECT_V2, 1)])
def test_features_come_out_for_any_skeleton_bodies_and_length(
    which: str, joints: Joints, bodies: int, frames: int
) -> None:
    net, x = small(which, body(joints)), moves(len(joints.names), bodies, frames)
    assert net(x).shape == (2, net.out_channels) == (2, 12)


@every_network
@pytest.mark.parametrize("training", [True, False])
def test_the_blocks_one_by_one_are_the_network_bit_for_bit(which: str, training: bool) -> None:
    net, x = small(which).train(training), moves(bodies=2)
    h, lengths = net.enter(x), []
    for number in range(3):
        h = net.block(number, h)
        lengths.append(h.shape[2])
    assert torch.equal(net.leave(h, 2), net(x))
    assert lengths == [13, 7, 4]


@pytest.mark.parametrize("spread", [spread_at_once, spread_by_frame])
def test_maps_move_along_their_matrices_and_add_up(spread: Callable[[Tensor, Tensor], Tensor]) -> None:
    maps, matrices = torch.randn(2, 3 * 4, 5, 7), torch.randn(3, 7, 6)
    expected = torch.einsum("nkctv,kvw->nctw", maps.view(2, 3, 4, 5, 7), matrices)
    together = maps.to(memory_format=torch.channels_last)
    torch.testing.assert_close(spread(together, matrices), expected)


def test_on_a_gpu_maps_are_moved_with_channels_together() -> None:
    """Else the batch norm and the convolution that follow would each copy them."""
    maps = torch.randn(2, 3 * 4, 5, 7).to(memory_format=torch.channels_last)
    assert spread_by_frame(maps, torch.randn(3, 7, 7)).is_contiguous(memory_format=torch.channels_last)


@every_network
def test_bodies_are_seen_alike_and_averaged(which: str) -> None:
    net, x = awake(small(which)).eval(), moves(bodies=2)
    torch.testing.assert_close(net(x), net(x.flip(4)))
    torch.testing.assert_close(net(x), (net(x[..., :1]) + net(x[..., 1:])) / 2)


@every_network
def test_a_topology_that_learned_nothing_is_the_graph(which: str) -> None:
    plain, adaptive = awake(small(which)).eval(), small(which, topology="both").eval()
    missing, unexpected = adaptive.load_state_dict(plain.state_dict(), strict=False)
    assert all(name.endswith((".inflected", ".unique")) for name in missing)
    assert all(name.startswith("matrices.") for name in unexpected)  # CTR-GCN's own, which start as the graph
    x = moves()
    assert not torch.equal(plain(x), adaptive(x))
    with torch.no_grad():
        for name in missing:
            adaptive.get_parameter(name).zero_()
    assert torch.equal(plain(x), adaptive(x))


@every_network
@pytest.mark.parametrize("per_layer", [True, False])
def test_the_tensors_of_a_topology_are_named_once_or_once_per_layer(which: str, per_layer: bool) -> None:
    names = list(small(which, topology="learnable", per_layer=per_layer).state_dict())
    for part in ("inflected", "unique", "coefficients"):
        assert sum(name.endswith(f".{part}") for name in names) == (TOPOLOGIES[which] if per_layer else 1)


@every_network
def test_every_parameter_matters(which: str) -> None:
    torch.manual_seed(0)
    config, width = SMALL[which]
    settings = config(width=4 * width, features=48, topology="learnable", per_layer=True)
    net, x = settings.network(body()).double(), moves(bodies=2)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 1  # one pass gives the statistics; a bias before a norm by batches would not matter
    net(x)
    net.eval()

    def idle() -> set[str]:
        net.zero_grad()
        net(x).square().mean().backward()
        return {name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()}

    refining = {n for n, _ in net.named_parameters() if any(f".{r}." in n for r in ("source", "target", "refine"))}
    assert idle() == refining  # none but in CTR-GCN, where they are multiplied by a strength of 0
    torch.optim.SGD(net.parameters(), lr=1e-3).step()
    assert idle() == set()


@every_network
@pytest.mark.parametrize("topology", ["graph", "learnable"])
def test_every_tensor_has_one_name_and_buffers_stay_in_place(which: str, topology: str) -> None:
    net = small(which, topology=topology)
    places = [t.data_ptr() for t in net.state_dict(keep_vars=True).values()]
    assert len(set(places)) == len(places)
    assert len(list(net.named_parameters(remove_duplicate=False))) == len(list(net.parameters()))
    buffers = dict(net.named_buffers())
    net(moves())
    assert all(net.get_buffer(name) is buffer for name, buffer in buffers.items())


@every_network
def test_memory_format_makes_no_difference(which: str) -> None:
    net, x = awake(small(which)).eval(), moves()
    h = net.enter(x)
    assert h.is_contiguous(memory_format=torch.channels_last)
    for number in range(3):
        plain = net.block(number, h.contiguous())
        h = net.block(number, h)
        torch.testing.assert_close(plain, h)


@every_network
def test_evaluation_repeats_and_a_copy_agrees(which: str) -> None:
    net, x = small(which, topology="both", dropout=0.5, neck=8).eval(), moves()
    assert torch.equal(net(x), net(x))
    assert torch.equal(copy.deepcopy(net)(x), net(x))
    assert net(x).shape == (2, 8)


@every_network
def test_dropout_acts_in_training_alone(which: str) -> None:
    with_, without, x = small(which, dropout=0.5), small(which), moves()
    torch.manual_seed(2)
    assert not torch.allclose(with_(x), without(x))
    with_.load_state_dict(without.state_dict())
    assert torch.equal(with_.eval()(x), without.eval()(x))


@every_network
@pytest.mark.parametrize("topology", ["graph", "both"])
def test_joints_by_other_numbers_give_the_same_features(which: str, topology: str) -> None:
    given = body(KINECT_V2)
    order = np.random.default_rng(3).permutation(given.joints)  # the new joint i is the old order[i]
    number = np.argsort(order)
    bones = [(int(number[a]), int(number[b])) for a, b in given.bones]
    relabelled = Skeleton(given.joints, bones, int(number[given.centre]))
    old, new = (awake(small(which, skeleton, topology=topology)).eval() for skeleton in (given, relabelled))
    new.load_state_dict({n: t for n, t in old.state_dict().items() if not joint_bound(n)}, strict=False)
    if which == "MS-G3D":  # its masks start at random
        with torch.no_grad():
            for net in (old, new):
                for name, parameter in net.named_parameters():
                    if name.endswith(".mask"):
                        parameter.zero_()
    x = moves(given.joints)
    torch.testing.assert_close(new.features(x[:, :, :, order]), old.features(x)[..., order])
    assert not torch.allclose(new(x), old(x))


@pytest.mark.parametrize(
    ("config", "width", "features", "count"),
    [
        (STGCNConfig, 64, 256, 3_083_412),
        (STGCNConfig, 16, 64, 212_868),
        (STGCNConfig, 16, 128, 344_836),
        (STGCNConfig, 16, 256, 821_380),
        (CTRGCNConfig, 64, 256, 1_431_102),  # published: 1.46 M, of which 30,840 classify into 120
        (CTRGCNConfig, 16, 64, 111_846),
        (CTRGCNConfig, 16, 128, 163_622),
        (MSTGCNConfig, 112, 448, 2_864_261),  # published: about 3 M with a classifier
        (MSTGCNConfig, 28, 112, 249_593),
        (MSG3DConfig, 96, 384, 3_171_345),  # published: 3.2 M, of which 23,100 classify into 60
        (MSG3DConfig, 24, 96, 584_889),
    ],
)
def test_networks_have_as_many_parameters_as_published(config: Config, width: int, features: int, count: int) -> None:
    net = config(width=width, features=features).network(body(KINECT_V2))
    assert sum(p.numel() for p in net.parameters()) == count


@pytest.mark.parametrize("which", ["CTR", "MST", "MS-G3D"])
def test_features_are_four_times_the_width_unless_told(which: str) -> None:
    config, width = SMALL[which]
    assert config(width=width).network(body()).out_channels == 4 * width


@pytest.mark.parametrize(
    ("config", "width", "features", "problem"),
    [
        (CTRGCNConfig, 12, 64, r"width\n +expected: a multiple of 8, such as 8 or 16"),
        (CTRGCNConfig, 16, 66, r"features\n +expected: a multiple of 4, such as 64 or 68"),
        (MSTGCNConfig, 30, 112, r"width\n +expected: a multiple of 4, such as 28 or 32"),
        (MSTGCNConfig, 28, 1, r"features\n +expected: a multiple of 4, such as 4 or 8"),
        (MSG3DConfig, 16, 96, r"width\n +expected: a multiple of 6, such as 12 or 18"),
        (MSG3DConfig, 24, 128, r"features\n +expected: a multiple of 6, such as 126 or 132"),
    ],
)
def test_widths_that_branches_cannot_share_are_refused(config: Config, width: int, features: int, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        config(width=width, features=features)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(9, 1, 1), (9, 2, 1), (5, 1, 2), (3, 2, 4)])
def test_a_convolution_over_time_is_pytorchs(kernel: int, stride: int, dilation: int) -> None:
    conv = Timewise(4, 6, kernel, stride, dilation).double()
    x = moves().flatten(3)[:, :1].expand(-1, 4, -1, -1) * torch.arange(1.0, 5.0)[:, None, None]
    torch.testing.assert_close(conv(x), nn.Conv2d.forward(conv, x))


@pytest.mark.parametrize(("channels", "stride", "first"), [(8, 1, False), (8, 2, False), (3, 1, True), (4, 1, False)])
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_by_joint_is_the_layer_by_channel(
    monkeypatch: pytest.MonkeyPatch, channels: int, stride: int, first: bool, training: bool
) -> None:
    """Results, gradients and running statistics; with shortcuts of every kind."""
    torch.manual_seed(0)
    graph = subsets(20, KINECT_V1.bones, KINECT_V1.centre)
    layers = [Layer(channels, 8, graph, stride, 0.0, first).double().train(training)]
    layers.append(copy.deepcopy(layers[0]))
    found = []
    for layer, by_joint in zip(layers, (True, False)):
        x = torch.randn(2, channels, 11, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        x.requires_grad_()
        assert pays(layer.temporal, x)
        monkeypatch.setattr(stgcn, "pays", lambda *_, by_joint=by_joint: by_joint)
        y = layer(x, graph.double())
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
        gradients = torch.autograd.grad((y * weights).sum(), (x, *layer.parameters()))
        found.append((y, *gradients, *(b.double() for b in layer.buffers())))
    assert found[0][0].shape == (2, 8, -(-11 // stride), 20)
    for one, other in zip(*found):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("frames", [1, 3, 5, 20])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_all_frames_with_all_is_pytorchs_convolution_over_time(frames: int, stride: int) -> None:
    conv = nn.Conv2d(3, 4, (9, 1), (stride, 1), (4, 0)).double()
    x = torch.randn(2, 3, frames, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(joints_last(over_time(conv, joints_first(x))), conv(x))


def test_both_convolutions_read_what_the_one_before_wrote_without_a_copy() -> None:
    """That is what the order in memory is for."""
    torch.manual_seed(0)
    h = joints_first(torch.randn(2, 8, 11, 20))
    spatial, temporal = Pointwise(8, 3 * 8), Timewise(8, 8, 9)
    for written in (h, over_joints(spatial, h, torch.randn(3, 20, 20)), over_time(temporal, h)):
        assert written.shape == h.shape
        assert written.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("stride", [1, 2])
def test_branches_are_those_of_the_published_layer(stride: int) -> None:
    """Each branch apart: 1 x 1 convolution, batch norm, relu, then what it is for, batch norm; the last is bare."""
    torch.manual_seed(0)
    unit = Branches(5, 12, 3, (1, 2), stride).double()
    x = torch.randn(2, 5, 9, 4, dtype=torch.float64)
    found = []
    for i in range(3):
        rows = slice(3 * i, 3 * i + 3)
        h = F.relu(normed(F.conv2d(x, unit.reduce.weight[rows], unit.reduce.bias[rows])))
        if i < 2:
            conv = unit.dilated[i]
            h = F.conv2d(h, conv.weight, conv.bias, (stride, 1), (i + 1, 0), (i + 1, 1))
        else:
            h = F.max_pool2d(h, (3, 1), (stride, 1), (1, 0))
        found.append(normed(h))
    found.append(normed(F.conv2d(x, unit.direct.weight, unit.direct.bias, (stride, 1))))
    torch.testing.assert_close(unit(x), torch.cat(found, dim=1))


def test_ctr_gcn_refines_as_published_and_learns_as_autograd_says() -> None:
    torch.manual_seed(0)
    unit = RefinedConvolution(8, 5, 3).double()
    x = torch.randn(2, 8, 6, 4, dtype=torch.float64)
    matrices = torch.randn(3, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        unit.strength.fill_(0.7)
    a, b, each = F.conv2d(x, unit.source.weight, unit.source.bias), unit.target(x), unit.transform(x).chunk(3, dim=1)
    total = torch.zeros(())
    for s in range(3):  # one hidden channel per subset
        rows = slice(5 * s, 5 * s + 5)
        differences = torch.tanh(a[:, s].mean(1)[:, :, None] - b[:, s].mean(1)[:, None, :])
        refined = F.conv2d(differences[:, None], unit.refine.weight[rows], unit.refine.bias[rows])
        total = total + torch.einsum("ncvw,nctv->nctw", 0.7 * refined + matrices[s], each[s])
    torch.testing.assert_close(unit(x, matrices), total)
    small = [torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True), torch.randn(2, 2, 4, dtype=torch.float64)]
    assert torch.autograd.gradcheck(Product.apply, (small[0], small[1].requires_grad_()))


@pytest.mark.parametrize(("channels", "out", "stride"), [(8, 8, 1), (8, 16, 2), (8, 16, 1)])
def test_mst_gcn_passes_parts_on_where_shapes_agree(channels: int, out: int, stride: int) -> None:
    torch.manual_seed(0)
    graph = subsets(20, KINECT_V1.bones, KINECT_V1.centre).double()
    layer = MSTLayer(channels, out, graph, stride, 0.0, first=False).double()
    x = torch.randn(2, channels, 9, 20, dtype=torch.float64)

    h, done = normed(x), []
    for unit, part in zip(layer.spatial, h.chunk(4, dim=1)):
        part = part + done[-1] if done and channels == out else part
        maps = unit.conv(part).unflatten(1, (3, -1))
        done.append(normed(torch.einsum("nkctv,kvw->nctw", maps, 2 * graph)))  # the mask starts as the graph
    h = F.relu(torch.cat(done, dim=1) + layer.spatial_residual(x))
    done = []
    for (conv, _), part in zip(layer.temporal, h.chunk(4, dim=1)):
        part = part + done[-1] if done and stride == 1 else part
        done.append(normed(F.conv2d(part, conv.weight, conv.bias, (stride, 1), (4, 0))))
    expected = F.relu(torch.cat(done, dim=1) + layer.temporal_residual(h))
    torch.testing.assert_close(layer(x, graph), expected)


@pytest.mark.parametrize("size", [3, 5])
def test_windows_of_ms_g3d_have_the_published_graph(size: int) -> None:
    """The graph with self loops, tiled over all pairs of frames; its scales by matrix powers."""
    v = 25
    near = np.tile(adjacency(v, KINECT_V2.bones) + np.eye(v), (size, size)) + np.eye(v * size)
    reached = [np.minimum(np.linalg.matrix_power(near, k), 1) for k in range(WINDOW_SCALES)]
    graph = scales(v, KINECT_V2.bones, SCALES)
    shares = window_shares(body(KINECT_V2), graph, size)
    for k in range(WINDOW_SCALES):
        binary = np.eye(v * size) + (reached[k] - reached[k - 1] if k else 0)
        root = np.diag(binary.sum(axis=1) ** -0.5)
        published = (root @ binary @ root).reshape(size, v, size, v).transpose(1, 0, 3, 2)
        np.testing.assert_allclose(shares[k] * graph[k][:, None, :, None], published, atol=1e-6)


def test_what_is_learned_between_joints_is_shared_evenly_by_the_frames_of_a_window() -> None:
    far = torch.from_numpy(hops(20, KINECT_V1.bones)) > WINDOW_SCALES
    shares = window_shares(body(), scales(20, KINECT_V1.bones, SCALES), 3)
    assert far.any()
    assert (shares.permute(0, 1, 3, 2, 4)[:, far] == torch.tensor(1 / 3)).all()


@pytest.mark.parametrize("stride", [1, 2])
def test_a_window_of_ms_g3d_is_the_published_layer(stride: int) -> None:
    """Frame by frame: gather the window, move along every scale, 1 x 1 convolution, then one over the window."""
    torch.manual_seed(0)
    v, size, frames = 20, 3, 7
    graph = scales(v, KINECT_V1.bones, SCALES)[:WINDOW_SCALES].double()
    shares = window_shares(body(), graph, size).double()
    unit = Window(4, 6, 8, shares, stride).double()
    nn.init.normal_(unit.spatial.mask)
    x = torch.randn(2, 4, frames, v, dtype=torch.float64)
    matrices = shares * graph[:, :, None, :, None] + unit.spatial.mask.view(-1, v, size, v, size)
    padded = F.pad(x, (0, 0, 1, 1))
    windows = torch.stack([padded[:, :, t : t + size] for t in range(0, frames, stride)], dim=2)  # n c t frames v
    moved = torch.einsum("nctiv,kviwj->nkctjw", windows, matrices).flatten(1, 2)
    conv = unit.spatial.conv
    h = torch.einsum("nctjw,oc->notjw", moved, conv.weight[:, :, 0, 0]) + conv.bias[:, None, None, None]
    h = F.relu(normed(h))
    weight = unit.collapse.weight.view(8, size, 6)
    h = normed(torch.einsum("nctjw,ojc->notw", h, weight) + unit.collapse.bias[:, None, None])
    torch.testing.assert_close(unit(x, graph), h)


def normed(x: Tensor) -> Tensor:
    """A fresh batch norm in training."""
    over = [d for d in range(x.dim()) if d != 1]
    mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()
