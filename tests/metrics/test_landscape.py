"""Landscapes of losses known in closed form, and a model that comes back as it was."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.errors import DataError
from fedreel.metrics.landscape import Landscape, directions, landscape, mean_perturbed_loss, sharpness


class Quadratic(nn.Module):
    """A model that is one matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(6, 4, generator=generator, dtype=torch.double))
        self.vector = nn.Parameter(torch.randn(5, generator=generator, dtype=torch.double))


def half_square(model: nn.Module) -> float:
    return 0.5 * float(model.matrix.detach().square().sum())


def inner(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())


def conv_net(seed: int = 0) -> nn.Sequential:
    """Convolutions without bias, each before a batch norm with hardly any eps: the scale of a filter has no effect."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4, eps=1e-14), nn.ReLU()]
    layers += [nn.Conv2d(4, 3, 3, bias=False), nn.BatchNorm2d(3, eps=1e-14), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers).double()


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 2, 8, 8, generator=generator, dtype=torch.double)
    return x, torch.randint(0, 3, (32,), generator=generator)


def cross_entropy(model: nn.Module) -> float:
    x, y = images()
    return float(F.cross_entropy(model(x), y).detach())


def with_statistics(model: nn.Module) -> nn.Module:
    """Running statistics set to those of the images."""
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 1.0
    model.train()(images()[0].to(next(model.parameters())))
    return model


def test_directions_have_the_norm_of_every_filter_and_leave_out_vectors() -> None:
    model = conv_net()
    with torch.no_grad():
        model[0].weight[1] = 0
    first, second = directions(model, seed=3)
    assert set(first) == set(second) == {"0.weight", "3.weight"}
    for name in first:
        own = model.get_parameter(name).detach().flatten(1).norm(dim=1)
        for direction in (first, second):
            assert direction[name].shape == model.get_parameter(name).shape
            torch.testing.assert_close(direction[name].flatten(1).norm(dim=1), own)
        assert not torch.allclose(first[name], second[name])


def test_directions_depend_on_the_seed_alone() -> None:
    model = conv_net()
    torch.manual_seed(5)
    one, same, other = (directions(model, seed)[0]["0.weight"] for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_quadratic_has_the_landscape_of_its_closed_form() -> None:
    model = Quadratic()
    w, (first, second) = model.matrix.detach(), directions(model, seed=2)
    d, e = first["matrix"], second["matrix"]
    found = landscape(model, half_square, seed=2, points=5, reach=0.5)
    assert found.axis.tolist() == [-0.5, -0.25, 0.0, 0.25, 0.5]
    for i, a in enumerate(found.axis):
        for j, b in enumerate(found.axis):
            squares = inner(w, w) * (1 + a * a + b * b)  # as both directions have the norm of the matrix
            crossed = 2 * (a * inner(w, d) + b * inner(w, e) + a * b * inner(d, e))
            assert found.values[i, j] == pytest.approx((squares + crossed) / 2, rel=1e-9)


def test_the_sharpness_of_a_quadratic_is_half_its_mean_square_step() -> None:
    """What is odd in either step cancels over the disc, so the directions do not matter."""
    model = Quadratic()
    found = landscape(model, half_square, seed=7, points=5, reach=1.0)
    steps = [a * a + b * b for a in (-1, -0.5, 0, 0.5, 1) for b in (-1, -0.5, 0, 0.5, 1)]
    for radius in (0.5, 0.75, 1.0):
        within = [s for s in steps if s <= radius * radius]
        assert sharpness(found, radius) == pytest.approx(half_square(model) * sum(within) / len(within), rel=1e-9)


def test_sharpness_counts_points_on_the_circle_whatever_their_rounding() -> None:
    axis = 0.3 * np.arange(-1, 2)  # 0.3 * 1 and 0.1 * 3 differ in the last bit
    assert sharpness(Landscape(axis, np.array([[9.0, 2.0, 9.0], [2.0, 1.0, 2.0], [9.0, 2.0, 9.0]])), 0.1 * 3) == 0.8
    assert sharpness(Landscape(0.1 * 3 * np.arange(-1, 2), np.eye(3)), 0.3) == pytest.approx(0.2 - 1)


@pytest.mark.parametrize("radius", [0.0, 0.4, 1.1, math.nan])
def test_a_radius_the_grid_does_not_cover_is_refused(radius: float) -> None:
    with pytest.raises(DataError, match=r"from one step of the grid, 0\.5, to its reach, 1"):
        sharpness(Landscape(np.linspace(-1, 1, 5), np.zeros((5, 5))), radius)


@pytest.mark.parametrize("points", [3, 21, 99])
def test_the_middle_is_the_model_itself(points: int) -> None:
    model = Quadratic()
    before = model.matrix.detach().clone()
    found = landscape(model, lambda m: float(torch.equal(m.matrix, before)), seed=0, points=points, reach=0.7)
    assert np.argwhere(found.values).tolist() == [[points // 2, points // 2]]
    assert (found.axis[0], found.axis[points // 2], found.axis[-1]) == (-0.7, 0.0, 0.7)


@pytest.mark.parametrize(("points", "reach"), [(20, 1.0), (1, 1.0), (-3, 1.0), (5, 0.0), (5, -1.0), (5, math.nan)])
def test_a_grid_without_the_model_in_its_middle_is_refused(points: int, reach: float) -> None:
    with pytest.raises(DataError, match="no grid around a model"):
        landscape(Quadratic(), half_square, seed=0, points=points, reach=reach)


def test_the_middle_of_a_trained_networks_landscape_is_its_loss_in_eval_mode() -> None:
    model = with_statistics(conv_net())
    expected = cross_entropy(copy.deepcopy(model).eval())
    assert model.training
    assert landscape(model, cross_entropy, seed=0, points=3).values[1, 1] == expected
    assert mean_perturbed_loss(model, cross_entropy, [0.0], [0, 1]) == [(0.0, expected, 0.0)]


@pytest.mark.parametrize("measure", ["landscape", "perturbed"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_model_comes_back_bit_for_bit_in_place_and_in_its_modes(measure: str, fails: bool) -> None:
    model = with_statistics(conv_net().float())
    model[1].eval()
    before, places = copy.deepcopy(model.state_dict()), [t.data_ptr() for t in model.state_dict().values()]
    seen: list[Tensor] = []

    def loss(m: nn.Module) -> float:
        assert not any(part.training for part in m.modules())
        seen.append(m.get_parameter("0.weight").detach().clone())
        m.get_buffer("1.running_mean").add_(1.0)
        if fails and len(seen) == 4:
            raise ZeroDivisionError
        return 0.0

    def run() -> None:
        if measure == "landscape":
            landscape(model, loss, seed=0, points=3)
        else:
            mean_perturbed_loss(model, loss, [0.1, 0.2, 0.3], [0, 1], noise="standard")

    if fails:
        with pytest.raises(ZeroDivisionError):
            run()
    else:
        run()
    assert not all(torch.equal(seen[0], other) for other in seen[1:])
    after = model.state_dict()
    assert all(before[name].numpy().tobytes() == after[name].numpy().tobytes() for name in before)
    assert places == [t.data_ptr() for t in after.values()]
    assert [m.training for m in (model, model[0], model[1], model[4])] == [True, True, False, True]
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_the_scale_of_filters_before_a_batch_norm_does_not_matter() -> None:
    """Statistics are taken anew after scaling, as training would: in eval mode they are part of the model."""
    model, large = conv_net(), conv_net()
    with torch.no_grad():
        for p in large.parameters():
            p.mul_(10.0 if p.ndim > 1 else 1.0)
    found, scaled = (landscape(with_statistics(m), cross_entropy, seed=4, points=5) for m in (model, large))
    np.testing.assert_allclose(found.values, scaled.values, rtol=1e-9)
    assert found.values.std() > 0.01


def test_a_step_and_its_opposite_have_the_mean_of_the_closed_form() -> None:
    model = Quadratic()
    there, back = mean_perturbed_loss(model, half_square, [0.3, -0.3], seeds=[0, 1, 2])
    assert (there[0], back[0]) == (0.3, -0.3)
    assert (there[1] + back[1]) / 2 == pytest.approx(half_square(model) * (1 + 0.3**2), rel=1e-9)
    assert there[1] != back[1]


def test_mean_and_deviation_are_those_of_a_sample_over_the_seeds() -> None:
    model = Quadratic()
    single = [mean_perturbed_loss(model, half_square, [0.5], [seed])[0] for seed in (4, 5)]
    a, b = (value for _, value, _ in single)
    assert all(math.isnan(deviation) for _, _, deviation in single)
    [(_, mean, deviation)] = mean_perturbed_loss(model, half_square, [0.5], [4, 5])
    assert (mean, deviation) == (pytest.approx((a + b) / 2), pytest.approx(abs(a - b) / math.sqrt(2)))


def test_a_seeds_noise_is_the_same_for_all_sizes() -> None:
    """So that a linear loss changes in proportion to the size."""
    model = Quadratic()
    rows = mean_perturbed_loss(model, lambda m: float(m.matrix.sum()), [0.0, 0.1, 0.4], seeds=[0, 1, 2])
    (_, start, none), (_, near, little), (_, far, much) = rows
    assert none == 0
    assert far - start == pytest.approx(4 * (near - start))
    assert much == pytest.approx(4 * little)


def test_standard_noise_moves_every_number_by_one_and_filter_noise_spares_vectors() -> None:
    model = nn.BatchNorm1d(5000)  # 5000 ones and 5000 zeros

    def mean_square_move(m: nn.Module) -> float:
        moves = torch.cat([m.get_parameter("weight") - 1, m.get_parameter("bias")])
        return float(moves.square().mean())

    [(_, spared, _)] = mean_perturbed_loss(model, mean_square_move, [0.1], seeds=[0])
    [(_, moved, _)] = mean_perturbed_loss(model, mean_square_move, [0.1], seeds=[0], noise="standard")
    assert spared == 0
    assert moved == pytest.approx(0.01, rel=0.06)  # four standard errors, sqrt(2 / 10,000) each


def test_no_seeds_are_refused() -> None:
    with pytest.raises(DataError, match="at least one seed"):
        mean_perturbed_loss(Quadratic(), half_square, [0.1], [])
