"""RoIAlign (He et al. 2017): what a map holds inside boxes, as grids of one size, with torchvision's border rules."""

from __future__ import annotations

import torch
from torch import Tensor

from fedreel.errors import RecipeError


def roi_align(
    features: Tensor,
    boxes: Tensor,
    which: Tensor,
    output: int = 5,
    scale: float = 1 / 8,
    sampling: int = 2,
    aligned: bool = True,
) -> Tensor:
    """Maps (N, C, H, W) seen through boxes (R, 4), as (R, C, output, output). A box is x1, y1, x2, y2 in pixels of the
    input, `scale` times which are cells of the map; `which` (R,) int64 names its image. Each cell of the result is the
    mean of sampling x sampling values, interpolated linearly; those further than a cell outside the map are zero.

    The samples of a box form a grid, so it is one weighted sum over rows and one over columns, for all boxes at once:
    no step depends on values, and a CUDA graph may hold it. Gradients go to the features alone, as in torchvision;
    under autocast the sums are taken in its precision, as all matrix products are.
    """
    if sampling < 1:
        raise RecipeError(
            "RoIAlign takes as many samples in every box", expected="sampling of 1 or more", found=str(sampling)
        )
    exact = boxes.detach().to(torch.promote_types(features.dtype, torch.float32)) * scale - (0.5 if aligned else 0.0)
    columns = _axis_weights(exact[:, 0], exact[:, 2], features.shape[3], output, sampling, aligned)
    rows = _axis_weights(exact[:, 1], exact[:, 3], features.shape[2], output, sampling, aligned)
    own = features[which]  # not index_select, whose gradient on a GPU sums in any order
    seen = torch.einsum("rchw,rxw->rchx", own, columns.to(features.dtype))
    return torch.einsum("rchx,ryh->rcyx", seen, rows.to(seen.dtype))


def linear_weights(at: Tensor, length: int) -> Tensor:
    """Weights (..., length) with which `length` cells make up the values at positions (...) by linear interpolation.
    Cell i is at position i; positions outside take the cell at the end."""
    cells = torch.arange(length, device=at.device, dtype=at.dtype)
    return (1 - (at.clamp(0, length - 1)[..., None] - cells).abs()).clamp(min=0)


def _axis_weights(start: Tensor, end: Tensor, length: int, output: int, sampling: int, aligned: bool) -> Tensor:
    """Weights (R, output, length) of one axis."""
    extent = end - start if aligned else (end - start).clamp(min=1)
    steps = (torch.arange(output * sampling, device=start.device, dtype=start.dtype) + 0.5) / (output * sampling)
    at = start[:, None] + extent[:, None] * steps
    inside = (at >= -1) & (at <= length)
    return (linear_weights(at, length) * inside[..., None]).unflatten(1, (output, sampling)).mean(2)
