"""ST-GCN (Yan et al. 2018): graph convolution over joints, convolution over time, ten layers; FSAR's topology in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.kernels.norm import normed
from fedreel.models.backbone import Published
from fedreel.models.pretrained import load_pretrained
from fedreel.tasks.skeleton.by_joint import joints_first, joints_last, over_joints, over_time, pays, pointwise
from fedreel.tasks.skeleton.layered import LayeredBackbone, LayeredConfig
from fedreel.tasks.skeleton.network import FSARS, Pointwise, Skeleton, spread
from fedreel.tasks.skeleton.temporal import Timewise, shortcut

TEMPORAL = 9  # frames that a temporal convolution sees
NAMES = (  # in the files of ST-GCN's authors, and in pyskl's
    (r"^(st_gcn_networks|gcn)\.(\d+)\.", r"layers.\2."),
    (r"^edge_importance\.(\d+)$", r"layers.\1.importance"),
    (r"^(layers\.\d+)\.gcn\.PA$", r"\1.importance"),
    (r"^(layers\.\d+\.gcn\.)?A$", "topologies.0.graph"),
    (r"\.gcn\.conv\.", ".spatial."),
    (r"\.(gcn\.bn|tcn\.0)\.", ".spatial_bn."),
    (r"\.tcn\.(conv|2)\.", ".temporal."),
    (r"\.tcn\.(bn|3)\.", ".temporal_bn."),
    (r"\.residual\.conv\.", ".residual.0."),
    (r"\.residual\.bn\.", ".residual.1."),
)


@dataclass(frozen=True)
class STGCNConfig(LayeredConfig):
    """Width 16 is FSAR's quarter; 64 with 256 features is the original."""

    features: int = 128

    def network(self, sample: Skeleton) -> STGCN:
        return load_pretrained(STGCN(self, sample), self.init)


class STGCN(LayeredBackbone):
    """Graph convolution over joints, then convolution over time."""

    published = Published(
        renamed=NAMES,
        elsewhere=("fcn.", "fc."),
        optional=rf"{FSARS}|\.importance$",
        hint="set width, features, graph and task.joints to those of the file: for NTU's 25 joints these are kinect-v2"
        " in files of ST-GCN's authors, kinect-v2-pyskl in pyskl's",
    )

    def __init__(self, config: STGCNConfig, skeleton: Skeleton) -> None:
        super().__init__(config, skeleton, Layer)


class Layer(nn.Module):
    """Spatial: 1 x 1 convolution to one map per subset, moved along the edges. Temporal: 9 frames. `importance` is the
    learnable mask of the edges."""

    def __init__(self, channels: int, out: int, graph: Tensor, stride: int, dropout: float, first: bool) -> None:
        super().__init__()
        self.importance = nn.Parameter(torch.ones_like(graph))
        self.spatial = Pointwise(channels, len(graph) * out)
        self.spatial_bn = nn.BatchNorm2d(out)
        self.temporal = Timewise(out, out, TEMPORAL, stride)
        self.temporal_bn = nn.BatchNorm2d(out)
        self.dropout = dropout
        self.residual = None if first else shortcut(channels, out, stride)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        if pays(self.temporal, x):
            return joints_last(self._by_joint(joints_first(x), matrices * self.importance))
        h = normed(self.spatial_bn, spread(self.spatial(x), matrices * self.importance), then="relu")
        return self._ended(self.temporal(h), None if self.residual is None else self.residual(x))

    def _by_joint(self, x: Tensor, matrices: Tensor) -> Tensor:
        h = over_time(self.temporal, normed(self.spatial_bn, over_joints(self.spatial, x, matrices), then="relu"))
        if not isinstance(self.residual, nn.Sequential):
            return self._ended(h, None if self.residual is None else x)
        conv, norm = self.residual
        assert isinstance(conv, Pointwise)
        return self._ended(h, normed(norm, pointwise(conv, x)))

    def _ended(self, h: Tensor, beside: Tensor | None) -> Tensor:
        if not self.dropout:
            return normed(self.temporal_bn, h, beside, "relu")
        h = F.dropout(self.temporal_bn(h), self.dropout, self.training)
        return F.relu(h if beside is None else h + beside)
