"""Skeleton networks that begin with weights of others: files in the layouts of ST-GCN's authors and of pyskl."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fedreel.errors import DataError
from fedreel.models.classifier import Classifier
from fedreel.tasks.skeleton.ctrgcn import CTRGCNConfig
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2, KINECT_V2_PYSKL
from fedreel.tasks.skeleton.msg3d import MSG3DConfig
from fedreel.tasks.skeleton.mstgcn import MSTGCNConfig
from fedreel.tasks.skeleton.network import Skeleton, SkeletonConfig
from fedreel.tasks.skeleton.stgcn import STGCN, STGCNConfig
from fedreel.tasks.skeleton.task import SkeletonRecognition

BODY, PYSKLS = (Skeleton(len(j.names), j.bones, j.centre) for j in (KINECT_V2, KINECT_V2_PYSKL))
WIDTHS = (3, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8)  # of a network of width 2 with 8 features
LIMBS = (  # bones as the published code counts joints, from 1; the centre is 21
    *((1, 2), (2, 21), (3, 21), (4, 3), (5, 21), (6, 5), (7, 6), (8, 7), (9, 21), (10, 9), (11, 10), (12, 11)),
    *((13, 1), (14, 13), (15, 14), (16, 15), (17, 1), (18, 17), (19, 18), (20, 19)),
)
HANDS = {
    "original": ((22, 23), (23, 8), (24, 25), (25, 12)),
    "pyskl": ((22, 8), (23, 8), (24, 12), (25, 12)),
}
State = dict[str, Tensor]


def published_graph(layout: str) -> Tensor:
    """The spatial strategy, entry by entry: distances of more than one bone are not known, and equal."""
    away = np.full((25, 25), np.inf)
    for i, j in (*LIMBS, *HANDS[layout]):
        away[i - 1, j - 1] = away[j - 1, i - 1] = 1
    np.fill_diagonal(away, 0)
    near = (away <= 1).astype(float)
    normal = near / near.sum(axis=0)
    found = np.zeros((3, 25, 25))
    for j in range(25):
        for i in range(25):
            if away[j, i] == 0:
                found[0, j, i] = normal[j, i]
            elif away[j, i] == 1:
                found[1 if away[j, 20] >= away[i, 20] else 2, j, i] = normal[j, i]
    return torch.from_numpy(found).float()


def norm(name: str, channels: int, drawn: torch.Generator) -> State:
    positive = {key: torch.rand(channels, generator=drawn) + 0.5 for key in ("weight", "running_var")}
    free = {key: torch.randn(channels, generator=drawn) for key in ("bias", "running_mean")}
    counter = {f"{name}.num_batches_tracked": torch.tensor(7)}
    return {f"{name}.{key}": value for key, value in {**positive, **free}.items()} | counter


def conv(name: str, channels: int, out: int, kernel: int, drawn: torch.Generator) -> State:
    weight = torch.randn(out, channels, kernel, 1, generator=drawn) * (channels * kernel) ** -0.5
    return {f"{name}.weight": weight, f"{name}.bias": torch.randn(out, generator=drawn)}


def original(layout: str = "original") -> State:
    """A file of ST-GCN's authors, with numbers of its own."""
    drawn = torch.Generator().manual_seed(5)
    state = {"A": published_graph(layout), **norm("data_bn", 75, drawn)}
    for i, (channels, out) in enumerate(pairwise(WIDTHS)):
        layer = f"st_gcn_networks.{i}"
        state |= {f"edge_importance.{i}": torch.rand(3, 25, 25, generator=drawn)}
        state |= conv(f"{layer}.gcn.conv", channels, 3 * out, 1, drawn) | norm(f"{layer}.tcn.0", out, drawn)
        state |= conv(f"{layer}.tcn.2", out, out, 9, drawn) | norm(f"{layer}.tcn.3", out, drawn)
        if i in (4, 7):
            state |= conv(f"{layer}.residual.0", channels, out, 1, drawn) | norm(f"{layer}.residual.1", out, drawn)
    return state | conv("fcn", 8, 60, 1, drawn)


def pyskl(state: State) -> State:
    """The same weights as pyskl names them."""
    found = {f"backbone.{name}": value for name, value in state.items() if name.startswith("data_bn.")}
    places = {"gcn.conv": "gcn.conv", "tcn.0": "gcn.bn", "tcn.2": "tcn.conv", "tcn.3": "tcn.bn"}
    places |= {"residual.0": "residual.conv", "residual.1": "residual.bn"}
    for name, value in state.items():
        if name.startswith("st_gcn_networks."):
            _, number, first, second, key = name.split(".")
            found[f"backbone.gcn.{number}.{places[f'{first}.{second}']}.{key}"] = value
    for i in range(10):
        found[f"backbone.gcn.{i}.gcn.A"] = state["A"]
        found[f"backbone.gcn.{i}.gcn.PA"] = state[f"edge_importance.{i}"]
    return found | {"cls_head.fc_cls.weight": torch.zeros(60, 8), "cls_head.fc_cls.bias": torch.zeros(60)}


def published_features(state: State, x: Tensor) -> Tensor:
    """What the published network makes of bodies (N, 3, T, V, M), in the order in which its paper says it."""

    def normalised(name: str, h: Tensor) -> Tensor:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(h, mean, var, state[f"{name}.weight"], state[f"{name}.bias"])

    def convolved(name: str, h: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(h, weight, state[f"{name}.bias"], (stride, 1), (weight.shape[2] // 2, 0))

    n, c, t, v, m = x.shape
    h = normalised("data_bn", x.permute(0, 4, 3, 1, 2).reshape(n * m, v * c, t))
    h = h.view(n * m, v, c, t).permute(0, 2, 3, 1)
    for i in range(10):
        layer, stride = f"st_gcn_networks.{i}", 2 if i in (4, 7) else 1
        maps = convolved(f"{layer}.gcn.conv", h).unflatten(1, (3, -1))
        g = torch.einsum("nkctv,kvw->nctw", maps, state["A"] * state[f"edge_importance.{i}"])
        g = convolved(f"{layer}.tcn.2", F.relu(normalised(f"{layer}.tcn.0", g)), stride)
        g = normalised(f"{layer}.tcn.3", g)
        if stride == 2:
            g = g + normalised(f"{layer}.residual.1", convolved(f"{layer}.residual.0", h, 2))
        h = F.relu(g + h if i and stride == 1 else g)
    return h.mean(dim=(2, 3)).view(n, m, -1).mean(dim=1)


def begun(file: Path, body: Skeleton = BODY, **options: Any) -> STGCN:
    torch.manual_seed(0)
    return STGCNConfig(width=2, features=8, init=str(file), **options).network(body).eval()


@pytest.mark.parametrize("layout", ["original", "pyskl"])
@pytest.mark.parametrize("topology", ["graph", "learnable"])
def test_a_published_network_computes_here_what_it_computes_there(layout: str, topology: str, tmp_path: Path) -> None:
    state = original(layout)
    if layout == "original":
        torch.save(state, tmp_path / "w.pt")
    else:
        torch.save({"meta": {"epoch": 16}, "state_dict": pyskl(state)}, tmp_path / "w.pt")
    x = torch.randn(2, 3, 16, 25, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = begun(tmp_path / "w.pt", PYSKLS if layout == "pyskl" else BODY, topology=topology)(x)
        expected = published_features(state, x)
    assert expected.std() > 0.01
    # I and U start at 1e-6 for every pair of joints
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 if topology == "learnable" else 1e-4)


def test_what_a_file_lacks_and_what_it_has_too_much_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "w.pt"
    without = {name: value for name, value in original().items() if not name.startswith("edge_importance.")}
    torch.save(without, file)
    net = begun(file, topology="both", neck=4)
    state = net.state_dict()
    assert all((state[f"layers.{i}.importance"] == 1).all() for i in range(10))
    assert (state["topologies.0.inflected"] == 1e-6).all()
    assert torch.equal(state["data_bn.weight"], without["data_bn.weight"])
    kept, unused = caplog.messages
    assert kept.startswith(f"not in {file}, so as initialised: ")
    assert {"topologies.0.inflected", "topologies.0.unique", "layers.9.importance", "neck.0.weight"} <= set(
        kept.split(": ")[1].split(", ")
    )
    assert unused == f"not used of {file}: fcn.bias, fcn.weight"


def test_weights_for_another_graph_width_or_network_are_refused(tmp_path: Path) -> None:
    file, state = tmp_path / "w.pt", original()
    torch.save(state, file)
    for other in (lambda: begun(file, graph="true_spatial"), lambda: begun(file, PYSKLS)):
        with pytest.raises(DataError, match=r"of other values: topologies\.0\.graph(.|\n)*kinect-v2-pyskl"):
            other()
    with pytest.raises(DataError, match=r"layers\.9\.spatial\.weight \(24, 8, 1, 1\) instead of \(48, 8, 1, 1\)"):
        STGCNConfig(width=2, features=16, init=str(file)).network(BODY)
    with pytest.raises(DataError, match=r"data_bn\.weight \(75,\) instead of \(60,\)"):
        begun(file, Skeleton(len(KINECT_V1.names), KINECT_V1.bones, KINECT_V1.centre))
    with pytest.raises(DataError, match=r"missing: .*layers\.0\.temporal"):
        CTRGCNConfig(width=8, init=str(file)).network(BODY)
    torch.save({name: value for name, value in state.items() if "tcn.2" not in name}, file)
    with pytest.raises(DataError, match=r"missing: layers\.0\.temporal\.weight"):
        begun(file)


@pytest.mark.parametrize(
    "config", [STGCNConfig(width=2), CTRGCNConfig(width=8), MSTGCNConfig(width=4), MSG3DConfig(width=6)]
)
def test_every_network_begins_with_a_model_of_this_package(config: SkeletonConfig, tmp_path: Path) -> None:
    file = tmp_path / "global.safetensors"
    torch.manual_seed(1)
    source = Classifier(config.network(BODY), 5)
    save_file(source.state_dict(), file)
    settings = {name: getattr(config, name) for name in ("width", "features")}
    task = SkeletonRecognition(classes=3, backbone=type(config)(**settings, init=str(file)))
    found = task.model().backbone.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in source.backbone.state_dict().items())
