"""How alike two networks see the same samples: linear centred kernel alignment (Kornblith et al. 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedreel.errors import DataError


def linear_cka(x: Tensor, y: Tensor) -> float:
    """||Y'X||^2 / (||X'X|| ||Y'Y||) of features (n, p) and (n, q) of the same n samples, columns centred: from 0 to 1,
    the same after a rotation or a scaling of either. nan if all samples have the same features."""
    _check(x, y)
    a, b = _centred(x), _centred(y.to(x.device))
    if not a.any() or not b.any():
        return math.nan
    if len(a) < max(a.shape[1], b.shape[1]):
        return _by_samples(a, b)
    return _by_features(a, b)


def _by_features(x: Tensor, y: Tensor) -> float:
    common = torch.linalg.norm(y.T @ x) ** 2
    return float(common / (torch.linalg.norm(x.T @ x) * torch.linalg.norm(y.T @ y)))


def _by_samples(x: Tensor, y: Tensor) -> float:
    """The same number from the n x n products: tr(X'Y Y'X) = tr(XX' YY')."""
    k, m = x @ x.T, y @ y.T
    return float((k * m).sum() / (torch.linalg.norm(k) * torch.linalg.norm(m)))


def _centred(x: Tensor) -> Tensor:
    """In float64, of size about 1 so that fourth powers do not overflow. Differences to the first row make constant
    columns exactly 0, where a mean would leave rounding to be compared."""
    moved = x.double() - x[:1].double()
    moved = moved - moved.mean(dim=0)
    most = moved.abs().max()
    return moved / most if most else moved


def _check(x: Tensor, y: Tensor) -> None:
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or not x.numel() or not y.numel():
        raise DataError(
            "these features cannot be compared",
            expected="(n, p) and (n, q), of the same n samples",
            found=f"{tuple(x.shape)} and {tuple(y.shape)}",
        )
    if not (x.isfinite().all() and y.isfinite().all()):
        strange = int((~x.isfinite()).sum() + (~y.isfinite()).sum())
        raise DataError("these features cannot be compared", expected="finite numbers", found=f"{strange} that are not")
