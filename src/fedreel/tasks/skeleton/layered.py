"""What ST-GCN, CTR-GCN and MST-GCN share: ten layers in three blocks, and a graph in three subsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fedreel.tasks.skeleton.graph import Partition, subsets
from fedreel.tasks.skeleton.network import Skeleton, SkeletonBackbone, SkeletonConfig, Topologies

WIDTHS = (1, 1, 1, 1, 2, 2, 2, 4, 4)  # of all layers but the last, times the first's; time is halved where it doubles
LAST = (4, 7, 10)  # layers after which a block ends
Make = Callable[[int, int, Tensor, int, float, bool], nn.Module]


@dataclass(frozen=True)
class LayeredConfig(SkeletonConfig):
    """The graph is ST-GCN's; `true_spatial` counts distances beyond one bone."""

    graph: Partition = "official"


class LayeredBackbone(SkeletonBackbone):
    """`layer` makes one of (channels, channels out, graph, stride in time, dropout, whether it is the first); that is
    called with features and the matrices (subsets, V, V) to move them along."""

    topologies: Topologies

    def __init__(self, config: LayeredConfig, skeleton: Skeleton, layer: Make) -> None:
        super().__init__(config, skeleton)
        graph = subsets(skeleton.joints, skeleton.bones, skeleton.centre, config.graph)
        channels = [3, *(config.width * w for w in WIDTHS), config.channels]
        strides = [2 if i in LAST[:-1] else 1 for i in range(len(channels) - 1)]
        self.add_matrices(config, graph, len(strides))
        self.layers = nn.ModuleList(
            layer(channels[i], channels[i + 1], graph, strides[i], config.dropout, i == 0) for i in range(len(strides))
        )

    def add_matrices(self, config: LayeredConfig, graph: Tensor, layers: int) -> None:
        self.topologies = Topologies(graph, config.topology, layers, config.per_layer)

    def matrices_of(self, layers: range) -> list[Tensor]:
        return self.topologies.matrices(layers)

    def block(self, number: int, h: Tensor) -> Tensor:
        layers = range(LAST[number - 1] if number else 0, LAST[number])
        for i, matrices in zip(layers, self.matrices_of(layers)):
            h = self.layers[i](h, matrices)
        return h
