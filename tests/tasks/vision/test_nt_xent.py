"""NT-Xent against hand-worked cases, closed forms and the double sum of its definition."""

from __future__ import annotations

import math

import pytest
import torch

from fedreel.tasks.vision.nt_xent import nt_xent


def embeddings(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def by_definition(z: torch.Tensor, temperature: float) -> float:
    rows = [[float(v) for v in row] for row in z]
    unit = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in rows]
    n, total = len(rows) // 2, 0.0
    for i in range(2 * n):
        e = [math.exp(sum(a * b for a, b in zip(unit[i], other)) / temperature) for other in unit]
        total -= math.log(e[(i + n) % (2 * n)] / sum(e[k] for k in range(2 * n) if k != i))
    return total / (2 * n)


def test_four_embeddings_worked_by_hand() -> None:
    # a = east and its other view 60 degrees to the north of it, b = north and its other view west
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, math.sqrt(3) / 2], [-1.0, 0.0]])
    a, b = 2 * math.sqrt(3) / 2, 2 * 0.5  # cosines of 30 and 60 degrees, over the temperature
    expected = [
        -math.log(math.exp(b) / (math.exp(0) + math.exp(b) + math.exp(-2))),  # east with 60 degrees
        -math.log(math.exp(0) / (math.exp(0) + math.exp(a) + math.exp(0))),  # north with west
        -math.log(math.exp(b) / (math.exp(b) + math.exp(a) + math.exp(-b))),
        -math.log(math.exp(0) / (math.exp(-2) + math.exp(0) + math.exp(-b))),
    ]
    assert float(nt_xent(z, 0.5)) == pytest.approx(sum(expected) / 4, abs=1e-6)


@pytest.mark.parametrize(("pairs", "width", "temperature"), [(1, 3, 0.5), (2, 2, 0.1), (5, 4, 0.07), (8, 16, 1.0)])
def test_the_loss_is_the_double_sum_of_its_definition(pairs: int, width: int, temperature: float) -> None:
    z = embeddings(2 * pairs, width, seed=pairs)
    assert float(nt_xent(z, temperature)) == pytest.approx(by_definition(z, temperature), abs=1e-4)


def test_which_view_comes_first_does_not_matter() -> None:
    z = embeddings(12, 5)
    assert torch.allclose(nt_xent(z, 0.1), nt_xent(torch.cat([z[6:], z[:6]]), 0.1), atol=1e-5)
    some = torch.cat([z[:2], z[8:], z[6:8], z[2:6]])  # swapped of samples 2 to 5 only
    assert torch.allclose(nt_xent(z, 0.1), nt_xent(some, 0.1), atol=1e-5)


def test_the_lengths_of_embeddings_do_not_matter_but_pairs_do() -> None:
    z = embeddings(10, 6)
    lengths = torch.linspace(0.01, 30, 10)[:, None]
    assert torch.allclose(nt_xent(z, 0.1), nt_xent(z * lengths, 0.1), atol=1e-4)
    assert not torch.allclose(nt_xent(z, 0.1), nt_xent(torch.cat([z[:5], z[5:].roll(1, 0)]), 0.1), atol=1e-2)


@pytest.mark.parametrize("temperature", [0.07, 0.1, 0.5])
def test_equal_pairs_with_all_others_orthogonal_have_a_closed_form(temperature: float) -> None:
    n = 8
    loss = nt_xent(3.0 * torch.eye(n).repeat(2, 1), temperature)
    assert float(loss) == pytest.approx(math.log(1 + (2 * n - 2) * math.exp(-1 / temperature)), abs=1e-6)


def test_random_embeddings_lose_the_logarithm_of_the_number_of_candidates() -> None:
    loss = nt_xent(embeddings(512, 4096), 0.5)  # in so many dimensions cosines are within some hundredths of 0
    assert float(loss) == pytest.approx(math.log(511), abs=0.02)
    assert math.log(511) == pytest.approx(6.24, abs=0.005)


def test_a_step_against_the_gradient_brings_pairs_together() -> None:
    z = embeddings(16, 4).requires_grad_()

    def likeness(z: torch.Tensor) -> float:
        return float(torch.cosine_similarity(z[:8], z[8:]).mean())

    loss = nt_xent(z, 0.5)
    (gradient,) = torch.autograd.grad(loss, z)
    moved = (z - gradient).detach()
    assert gradient.isfinite().all()
    assert likeness(moved) > likeness(z.detach())
    assert nt_xent(moved, 0.5) < loss


def test_autocast_does_not_change_the_loss() -> None:
    z = embeddings(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nt_xent(z, 0.07)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, nt_xent(z, 0.07))
    assert nt_xent(z.bfloat16(), 0.07).dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_loss_and_its_gradient_can_be_recorded_and_replayed() -> None:
    z = embeddings(16, 8).cuda().requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(nt_xent(z, 0.1), z)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = nt_xent(z, 0.1)
        (gradient,) = torch.autograd.grad(loss, z)
    other = embeddings(16, 8, seed=1).cuda()
    with torch.no_grad():
        z.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    other.requires_grad_()
    expected = nt_xent(other, 0.1)
    assert torch.allclose(loss, expected, atol=1e-5)
    assert torch.allclose(gradient, torch.autograd.grad(expected, other)[0], atol=1e-5)
