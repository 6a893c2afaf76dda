"""RoIAlign against a slow version that follows its definition sample by sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedreel.errors import RecipeError
from fedreel.kernels.roi_align import linear_weights, roi_align

SCALE = 1 / 8
FIXED = [  # on images of 56 x 40 pixels, maps of 7 x 5 cells
    (8.0, 8.0, 40.0, 32.0),  # inside
    (-30.0, -20.0, 25.0, 10.0),  # over two borders
    (45.0, 35.0, 80.0, 70.0),  # over the other two
    (20.0, 20.0, 20.0, 20.0),  # a point
    (21.3, 13.7, 21.4, 13.9),  # a tenth of a pixel
    (-500.0, -400.0, 900.0, 700.0),  # far larger than the image
    (200.0, 200.0, 240.0, 240.0),  # outside
    (0.0, 0.0, 40.0, 56.0),  # the image itself
]


def value(plane: np.ndarray, y: float, x: float) -> float:
    """One sample, by torchvision's rules."""
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    below, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    upper = (1 - u) * plane[top, left] + u * plane[top, right]
    lower = (1 - u) * plane[below, left] + u * plane[below, right]
    return float((1 - v) * upper + v * lower)


def slow(
    features: np.ndarray, boxes: np.ndarray, which: list[int], output: int, sampling: int, aligned: bool
) -> np.ndarray:
    found = np.zeros((len(boxes), features.shape[1], output, output))
    for r, box in enumerate(boxes):
        x1, y1, x2, y2 = (float(side) * SCALE - (0.5 if aligned else 0.0) for side in box)
        w, h = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        for c, i, j in np.ndindex(found.shape[1:]):
            samples = [
                value(
                    features[which[r], c],
                    y1 + h / output * (i + (a + 0.5) / sampling),
                    x1 + w / output * (j + (b + 0.5) / sampling),
                )
                for a in range(sampling)
                for b in range(sampling)
            ]
            found[r, c, i, j] = sum(samples) / len(samples)
    return found


def some_boxes() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    corners = torch.rand(12, 2, generator=generator, dtype=torch.float64) * 90 - 25
    sides = torch.exp(torch.rand(12, 2, generator=generator, dtype=torch.float64) * 9 - 4)
    return torch.cat([torch.tensor(FIXED, dtype=torch.float64), torch.cat([corners, corners + sides], dim=1)])


@pytest.mark.parametrize(("output", "sampling", "aligned"), [(5, 2, True), (5, 2, False), (3, 1, True), (1, 3, True)])
def test_it_is_the_definition_for_boxes_of_all_kinds(output: int, sampling: int, aligned: bool) -> None:
    features = torch.randn(3, 2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    boxes = some_boxes()
    which = torch.arange(len(boxes)) % 3
    expected = slow(features.numpy(), boxes.numpy(), which.tolist(), output, sampling, aligned)
    found = roi_align(features, boxes, which, output, SCALE, sampling, aligned)
    assert found.shape == (len(boxes), 2, output, output)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert np.abs(expected).max() > 0.5
    assert not expected[6].any(), "a box outside sees nothing"


def test_single_precision_agrees_with_double() -> None:
    features, boxes = torch.randn(3, 4, 7, 5, generator=torch.Generator().manual_seed(0)), some_boxes()
    which = torch.arange(len(boxes)) % 3
    found = roi_align(features, boxes.float(), which)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), roi_align(features.double(), boxes, which), atol=1e-4, rtol=1e-4)


def test_a_sample_just_outside_is_the_border_and_one_a_cell_outside_is_zero() -> None:
    features = torch.full((1, 1, 4, 4), 3.0)
    # One sample in the middle of a box a pixel wide: at cell x / 8 - 0.5 of the map.
    middles = torch.tensor([-3.5, -4.5, 35.5, 36.5])  # cells -0.94, -1.06, 3.94, 4.06
    boxes = torch.stack([middles - 0.5, torch.full((4,), 15.5), middles + 0.5, torch.full((4,), 16.5)], dim=1)
    found = roi_align(features, boxes, torch.zeros(4, dtype=torch.long), output=1, sampling=1)
    assert found.flatten().tolist() == [3.0, 0.0, 3.0, 0.0]


def test_of_a_linear_ramp_it_takes_the_middles_of_the_bins() -> None:
    ramp = torch.arange(14.0).expand(1, 1, 14, 14)  # the value of a cell is its column
    found = roi_align(ramp, torch.tensor([[16.0, 24.0, 96.0, 64.0]]), torch.tensor([0]))
    expected = torch.tensor([2 + 10 / 5 * (j + 0.5) - 0.5 for j in range(5)])  # columns 2 to 12, in five bins
    torch.testing.assert_close(found[0, 0], expected.expand(5, 5))


def test_gradients_are_those_of_finite_differences_and_go_to_the_features_alone() -> None:
    features = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    boxes, which = some_boxes()[:6].requires_grad_(), torch.tensor([1, 0, 1, 1, 0, 0])
    assert torch.autograd.gradcheck(lambda f: roi_align(f, boxes.detach(), which, 3), (features,))
    roi_align(features, boxes, which).sum().backward()
    assert features.grad is not None
    assert boxes.grad is None


def test_no_step_looks_at_a_value() -> None:
    features, boxes = torch.empty(2, 8, 14, 14, device="meta"), torch.empty(6, 4, device="meta")
    which = torch.empty(6, dtype=torch.long, device="meta")
    assert roi_align(features, boxes, which).shape == (6, 8, 5, 5)  # tensors without values


def test_weights_of_linear_interpolation_sum_to_one_and_give_the_position_back() -> None:
    at = torch.tensor([0.0, 0.25, 3.5, 4.0])
    weights = linear_weights(at, 5)
    assert weights.sum(-1).tolist() == [1.0] * 4
    assert (weights @ torch.arange(5.0)).tolist() == at.tolist()
    assert linear_weights(torch.tensor([-2.0, 9.0]), 5).tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]


def test_samples_whose_number_would_depend_on_the_box_are_refused() -> None:
    with pytest.raises(RecipeError, match="samples"):
        roi_align(torch.zeros(1, 1, 2, 2), torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), sampling=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_recording_sees_new_boxes() -> None:
    features, boxes = torch.randn(2, 8, 14, 14, device="cuda", requires_grad=True), some_boxes()[:6].float().cuda()
    which = torch.arange(6, device="cuda") // 3

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        found = roi_align(features, boxes, which)
        return found.detach(), torch.autograd.grad(found.square().sum(), features)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    boxes += 3.25
    graph.replay()
    for found, expected in zip(recorded, step()):
        assert math.isfinite(float(expected.sum()))
        torch.testing.assert_close(found, expected)
