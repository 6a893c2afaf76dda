"""Batch norm in models that are not simply trained or tested: teachers, and passes that must leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from fedreel.core.frozen import is_resting


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Within this, a model in training mode normalises by its batches but leaves its running statistics alone."""
    norms = [norm for norm in active_norms(model) if norm.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextmanager
def settling(model: nn.Module) -> Iterator[None]:
    """What a model sees within this, in batches, is what its running statistics are of, by plain averages over the
    batches. Afterwards it is in eval mode."""
    norms = [norm for norm in active_norms(model) if norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average
    model.train()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        model.eval()


def by_batch(model: nn.Module) -> nn.Module:
    """The model in eval mode but for batch norm, which goes by the batch it sees: for weights to which no running
    statistics belong."""
    model.eval()
    for norm in active_norms(model):
        norm.train()
    return model


def active_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Those that do not rest: a frozen one goes by its statistics whatever happens."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and not is_resting(m)]
