"""FSAR's topology: which parts a kind has, the formula by hand, and who is spared the weight decay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedreel.tasks.skeleton.network import Topologies
from fedreel.tasks.skeleton.topology import START, Kind, Topology

PARTS: dict[Kind, set[str]] = {
    "graph": set(),
    "inflected": {"inflected"},
    "unique": {"unique"},
    "both": {"inflected", "unique"},
    "learnable": {"inflected", "unique", "coefficients"},
}
every_kind = pytest.mark.parametrize("kind", PARTS)


def graph() -> Tensor:
    return torch.arange(12.0).view(3, 2, 2)


@every_kind
def test_a_kind_has_its_own_parts_and_no_others(kind: Kind) -> None:
    topology = Topology(graph(), kind)
    assert {name for name, _ in topology.named_parameters()} == set(topology.state_dict()) == PARTS[kind]


@every_kind
def test_every_kind_starts_next_to_the_graph(kind: Kind) -> None:
    parts = len(PARTS[kind] - {"coefficients"})
    torch.testing.assert_close(Topology(graph(), kind)().double(), graph().double() + parts * START, rtol=0, atol=1e-6)


@every_kind
def test_the_sum_is_that_of_the_parts_by_hand(kind: Kind) -> None:
    topology = Topology(graph(), kind)
    values = {"inflected": 10.0, "unique": 100.0}
    with torch.no_grad():
        for name, parameter in topology.named_parameters():
            parameter.copy_(torch.tensor([2.0, 3.0, 5.0]) if name == "coefficients" else values[name])
    expected = {
        "graph": graph(),
        "inflected": graph() + 10,
        "unique": graph() + 100,
        "both": graph() + 110,
        "learnable": 2 * graph() + 530,
    }
    torch.testing.assert_close(topology(), expected[kind])


@every_kind
def test_all_of_it_is_spared_the_weight_decay(kind: Kind) -> None:
    assert all(p.no_decay for p in Topology(graph(), kind).parameters())  # type: ignore[attr-defined]


def test_gradients_by_hand() -> None:
    """Of the sum of all entries: how often each entry of I and U counts, and what stands beside each coefficient."""
    topology = Topology(graph(), "learnable")
    with torch.no_grad():
        topology.coefficients.copy_(torch.tensor([1.0, 2.0, 3.0]))
        topology.inflected.fill_(0.5)
        topology.unique.fill_(0.25)
    topology().sum().backward()
    torch.testing.assert_close(topology.inflected.grad, torch.full((3, 2, 2), 2.0))
    torch.testing.assert_close(topology.unique.grad, torch.full((3, 2, 2), 3.0))
    torch.testing.assert_close(topology.coefficients.grad, torch.tensor([66.0, 6.0, 3.0]))


def test_nothing_unique_is_learned_where_all_is_shared() -> None:
    topology = Topology(graph(), "inflected")
    topology().sum().backward()
    assert not hasattr(topology, "unique")
    assert [name for name, p in topology.named_parameters() if p.grad is not None] == ["inflected"]


def test_the_graph_is_a_copy_and_no_part_of_the_state() -> None:
    given = graph()
    topology = Topology(given, "both")
    given.zero_()
    assert topology.graph.sum() == 66
    assert "graph" not in topology.state_dict()


@pytest.mark.parametrize(("per_layer", "sets"), [(False, 1), (True, 3)])
def test_layers_share_one_topology_or_have_their_own(per_layer: bool, sets: int) -> None:
    topologies = Topologies(graph(), "both", 3, per_layer)
    assert len(list(topologies.parameters())) == 2 * sets
    with torch.no_grad():
        topologies[0].unique.fill_(1)
    changed = [bool((topologies.matrix(layer) >= graph() + 1).all()) for layer in range(3)]
    assert changed == [True, not per_layer, not per_layer]
