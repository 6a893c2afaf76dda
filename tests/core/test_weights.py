"""Weights are the model: packing, parts, arithmetic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedreel.core.weights import Layout, TensorInfo, Weights, bind, still_bound
from support.toy import ToyNet


def test_binding_changes_nothing_and_ties_model_and_weights() -> None:
    torch.manual_seed(0)
    model = ToyNet(5).eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    x = torch.randn(3, 2)
    y = model.head(model.backbone(x))
    weights = bind(model)
    assert all(torch.equal(weights[n], before[n]) for n in before)
    assert list(weights) == list(before)
    assert torch.equal(model.head(model.backbone(x)), y)
    weights["head.bias"].fill_(7.0)
    assert torch.equal(model.head.bias.detach(), torch.full((2,), 7.0))
    model.backbone.train()(x)
    assert int(weights["backbone.1.num_batches_tracked"]) == 1
    assert still_bound(model, weights)


def test_training_a_bound_model_equals_training_a_free_one() -> None:
    def train(model: nn.Module) -> dict[str, torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for i in range(4):
            x = torch.randn(6, 2, generator=torch.Generator().manual_seed(i))
            optimizer.zero_grad()
            model.head(model.backbone(x)).square().sum().backward()
            optimizer.step()
        return model.state_dict()

    torch.manual_seed(1)
    free = ToyNet(4)
    torch.manual_seed(1)
    bound = ToyNet(4)
    weights = bind(bound)
    expected = train(free)
    train(bound)
    assert all(torch.equal(weights[n], expected[n]) for n in expected)


def test_a_replaced_buffer_is_noticed() -> None:
    model = ToyNet(3)
    weights = bind(model)
    model.backbone[1].running_mean = torch.zeros(3)
    assert not still_bound(model, weights)


def test_roles_tell_batch_norm_apart() -> None:
    roles = {t.name: t.role for t in bind(ToyNet(3)).layout.tensors}
    assert roles["backbone.0.weight"] == "parameter"
    assert roles["backbone.1.weight"] == roles["backbone.1.bias"] == "norm"
    assert roles["backbone.1.running_var"] == roles["backbone.1.num_batches_tracked"] == "statistics"


def test_tied_parameters_appear_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert list(bind(model)) == ["0.weight", "0.bias", "1.bias"]


_SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=8)
_TYPES = st.sampled_from([torch.float32, torch.int64, torch.bfloat16, torch.float64])


@given(_SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_any_part_can_be_taken_out_and_put_back(shapes: list[list[int]], data: st.DataObject) -> None:
    infos = [TensorInfo(f"t{i}", tuple(s), data.draw(_TYPES)) for i, s in enumerate(shapes)]
    whole = Weights.zeros(Layout(infos))
    whole.fill({t.name: torch.randn(t.shape).mul(9).to(t.dtype) for t in infos})
    chosen = data.draw(st.sets(st.sampled_from([t.name for t in infos])))
    part = whole.take(whole.layout.only(lambda t: t.name in chosen))
    assert set(part) == chosen
    assert all(torch.equal(part[n], whole[n]) for n in chosen)
    other = Weights.zeros(whole.layout)
    other.put(part)
    for name in whole:
        assert torch.equal(other[name], whole[name] if name in chosen else torch.zeros_like(whole[name]))
    assert part.nbytes == sum(t.nbytes for t in infos if t.name in chosen)


def test_arithmetic_moves_floats_and_keeps_integers_of_the_left() -> None:
    a = Weights.of({"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)})
    b = Weights.of({"w": torch.tensor([5.0, 4.0]), "n": torch.tensor(9)})
    c = a + 0.5 * (b - a)
    assert c["w"].tolist() == [3.0, 3.0]
    assert int(c["n"]) == 3
    assert a.distance(b) == pytest.approx(20**0.5)


def test_a_servers_step_leaves_statistics_alone() -> None:
    weights = bind(ToyNet(2)).clone()
    average = weights.clone()
    average["backbone.1.running_var"].fill_(0.25)
    average["backbone.1.num_batches_tracked"].fill_(5)
    average["head.bias"].add_(1.0)
    moved = (weights + 10.0 * (average - weights)).with_state_of(average)
    assert moved["backbone.1.running_var"].tolist() == [0.25, 0.25]
    assert int(moved["backbone.1.num_batches_tracked"]) == 5
    assert torch.allclose(moved["head.bias"], weights["head.bias"] + 10.0)


def test_distance_is_not_finite_if_anything_is_not() -> None:
    a = Weights.of({"w": torch.zeros(3), "h": torch.zeros(2, dtype=torch.bfloat16)})
    for name in ("w", "h"):
        b = a.clone()
        b[name][1] = float("nan")
        assert not a.distance(b) < float("inf")


def test_recurrent_layers_leave_their_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they move them when they find them changed, as they are after a call with others in their place."""

    def moves(module: nn.RNNBase) -> None:
        for tensor in module.parameters():
            tensor.data = tensor.data.clone()

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moves)
    model = nn.LSTM(3, 4)
    weights = bind(model)
    others = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
    steps = torch.randn(5, 1, 3)
    torch.func.functional_call(model, others, steps)
    model(steps)
    assert still_bound(model, weights)
