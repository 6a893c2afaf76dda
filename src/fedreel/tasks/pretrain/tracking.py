"""The head of Catch-the-Patch: where patches seen in the first frame are in all frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedreel.kernels.roi_align import roi_align


class TrackHead(nn.Module):
    """A map (B, channels, time_extent, h, w) and first boxes (B, P, 4) to targets (B, P, frames, 4), as
    `tasks.pretrain.patches.targets` makes them. A convolution squeezes time; RoIAlign looks at the first boxes."""

    def __init__(self, channels: int, frames: int, time_extent: int, output: int = 5, hidden: int = 512) -> None:
        super().__init__()
        self.frames, self.output = frames, output
        self.squeeze = nn.Conv3d(channels, hidden, (time_extent, 1, 1))
        self.fc1 = nn.Linear(hidden * output**2, hidden)
        self.fc2 = nn.Linear(hidden, frames * 4)
        nn.init.kaiming_normal_(self.squeeze.weight, mode="fan_out", nonlinearity="relu")
        for layer in (self.fc1, self.fc2):
            nn.init.normal_(layer.weight, std=0.001)
        for bias in (self.squeeze.bias, self.fc1.bias, self.fc2.bias):
            assert bias is not None
            nn.init.zeros_(bias)

    def forward(self, features: Tensor, first_boxes: Tensor, size: int) -> Tensor:
        """`size` is the side of the frames in pixels, in which boxes are given."""
        flat = self.squeeze(features).squeeze(2).relu()
        b, p = first_boxes.shape[:2]
        which = torch.arange(b * p, device=flat.device) // p
        seen = roi_align(flat, first_boxes.flatten(0, 1), which, self.output, flat.shape[2] / size)
        return self.fc2(self.fc1(seen.flatten(1)).relu()).view(b, p, self.frames, 4)
