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


def test_what_is_trained_is_compared_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a copy of it, in double precision; also where a CPU goes piece by piece."""
    net = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 20).bfloat16(), nn.BatchNorm1d(20))
    a = bind(net)
    b = a.map(lambda flat: flat + torch.randn(flat.shape).to(flat.dtype) * (flat != 0))
    for piece in (1 << 18, 48):
        monkeypatch.setattr("fedreel.core.weights._PIECE", piece)
        for one, other in ((a, b), (a.trained, b.trained)):
            squares = {t.name: (one[t.name].double() - other[t.name].double()).square().sum() for t in floats(one)}
            trained = [squares[t.name] for t in floats(one) if t.trained]
            expected = (float(sum(squares.values())) ** 0.5, float(sum(trained)) ** 0.5)
            assert one.apart(other) == pytest.approx(expected, rel=1e-5)
            zero = 0.0 * one
            assert one.lengths == pytest.approx(one.apart(zero), rel=1e-5)
            assert one.lengths[0] == pytest.approx(one.norm(), rel=1e-5)
    assert a.apart(b)[0] > a.apart(b)[1] > 0  # statistics have moved too
    assert Weights.zeros(Layout([])).apart(Weights.zeros(Layout([]))) == (0.0, 0.0)


def test_a_part_that_is_taken_has_nothing_between_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that it is given may hold anything; norms go over all of it."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **kind: empty(*size, **kind).fill_(77))
    whole = bind(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    part = whole.take(whole.layout.trained)
    expected = Weights.zeros(whole.layout.trained)
    expected.fill(whole)
    assert all(torch.equal(part.flat[d], flat) for d, flat in expected.flat.items())


def floats(weights: Weights) -> list[TensorInfo]:
    return [t for t in weights.layout.tensors if t.dtype.is_floating_point]


@pytest.mark.parametrize("rate", [1.0, 0.3, -2.0, 0.0])
def test_a_move_toward_other_weights_is_the_sum_to_the_bit(rate: float) -> None:
    a, b = (bind(nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2).half())) for _ in range(2))
    b.flat[torch.int64] += 3
    assert a.toward(b, rate).equal(a + rate * (b - a))
