"""Batch norm, a shortcut and a rectifier at once, forwards and backwards, for maps with channels together in memory, by
Triton. `TOP` is the rectifier: None is none, 0 is ReLU, another number is where it ends (ReLU6).

A map is a matrix here, rows by channels, and there is one of each client: of one alone, or of several with norms of
their own. Between them the kernels read and write it eight times (eleven with a
shortcut); PyTorch's batch norm, addition and ReLU do so thirteen times (sixteen). Sums are taken in a fixed order, so
results do not change from call to call. Channels come as eighths, so that eight are read at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedreel.machine.mapped import DerivativeForClients, ForClients

TILE = 8192  # values a program holds at a time
PROGRAMS = 264  # wanted at once, two for each processor of a large GPU
MERGED = 32  # partial sums merged at a time
# One compilation for all sizes, and for weights wherever they lie in a model's memory.
ANY = {
    "do_not_specialize": ["rows", "each", "parts"],
    "do_not_specialize_on_alignment": ["weight", "bias", "running_mean", "running_var", "counter"],
}


@triton.jit
def _first(rows, channels):  # type: ignore[no-untyped-def]
    """Where the client's maps begin, and its numbers for each channel."""
    client = tl.program_id(2).to(tl.int64)
    return client * rows * channels, client * channels


@triton.jit
def _part():  # type: ignore[no-untyped-def]
    """Which one of all clients' partial sums is this program's."""
    return tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)


@triton.jit(**ANY)
def _moments(x, sums, rows, each, eighths, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of values and of their squares, over `each` rows, both relative to the first row: so nothing cancels."""
    channels = 8 * eighths
    x += _first(rows, channels)[0]
    c = tl.program_id(1) * C + tl.arange(0, C)
    inside = c < channels
    first = tl.load(x + c, inside, 0.0).to(tl.float32)
    total, squares = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    begin = tl.program_id(0) * each
    for r0 in range(begin, tl.minimum(begin + each, rows), R):
        r = r0 + tl.arange(0, R)
        there = (r < tl.minimum(begin + each, rows))[:, None] & inside[None, :]
        v = tl.load(x + r[:, None].to(tl.int64) * channels + c[None, :], there, 0.0).to(tl.float32)
        v = tl.where(there, v - first[None, :], 0.0)
        total += v
        squares += v * v
    place = sums + _part() * 2 * channels + c
    tl.store(place, tl.sum(total, 0), inside)
    tl.store(place + channels, tl.sum(squares, 0), inside)


@triton.jit
def _merged(sums, parts, c, inside, channels, S: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both sums of all of the client's parts."""
    sums += tl.program_id(2) * parts * 2 * channels
    one, two = tl.zeros([S, C], tl.float32), tl.zeros([S, C], tl.float32)
    for s0 in range(0, parts, S):
        s = s0 + tl.arange(0, S)
        there = (s < parts)[:, None] & inside[None, :]
        place = sums + s[:, None] * 2 * channels + c[None, :]
        one += tl.load(place, there, 0.0)
        two += tl.load(place + channels, there, 0.0)
    return tl.sum(one, 0), tl.sum(two, 0)


@triton.jit(**ANY)
def _statistics(  # type: ignore[no-untyped-def]
    x, sums, parts, mean, deviation, running_mean, running_var, counter, rows, eps, momentum,
    eighths, KEEP: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / standard deviation; and the running ones."""
    channels = 8 * eighths
    start, number = _first(rows, channels)
    x += start
    mean += number
    deviation += number
    c = tl.program_id(0) * C + tl.arange(0, C)
    inside = c < channels
    total, squares = _merged(sums, parts, c, inside, channels, S, C)
    off = total / rows
    var = tl.maximum(squares / rows - off * off, 0.0)
    m = off + tl.load(x + c, inside, 0.0).to(tl.float32)
    tl.store(mean + c, m, inside)
    tl.store(deviation + c, 1 / tl.sqrt(var + eps), inside)
    if KEEP:
        running_mean += number
        running_var += number
        counter += tl.program_id(2)
        old = tl.load(running_mean + c, inside, 0.0)
        tl.store(running_mean + c, old + momentum * (m - old), inside)
        old = tl.load(running_var + c, inside, 0.0)
        unbiased = var * rows / tl.maximum(rows - 1, 1)
        tl.store(running_var + c, old + momentum * (unbiased - old), inside)
        if tl.program_id(0) == 0:
            tl.store(counter, tl.load(counter) + 1)


@triton.jit
def _tile(rows, channels, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's channels, which of them there are; which values of its tile there are, and their places."""
    c = tl.program_id(1) * C + tl.arange(0, C)
    r = tl.program_id(0) * R + tl.arange(0, R)
    inside = c < channels
    there = (r < rows)[:, None] & inside[None, :]
    return c, inside, there, r[:, None].to(tl.int64) * channels + c[None, :]


@triton.jit(**ANY)
def _applied(  # type: ignore[no-untyped-def]
    x, shortcut, y, mean, deviation, weight, bias, rows,
    eighths, SHORTCUT: tl.constexpr, TOP: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    start, number = _first(rows, 8 * eighths)
    mean += number
    deviation += number
    weight += number
    bias += number
    c, inside, there, place = _tile(rows, 8 * eighths, R, C)
    place += start
    slope = tl.load(deviation + c, inside, 0.0) * tl.load(weight + c, inside, 0.0)
    v = tl.load(x + place, there, 0.0).to(tl.float32) - tl.load(mean + c, inside, 0.0)[None, :]
    v = v * slope[None, :] + tl.load(bias + c, inside, 0.0)[None, :]
    if SHORTCUT:
        v += tl.load(shortcut + place, there, 0.0).to(tl.float32)
    if TOP is not None:
        v = tl.maximum(v, 0.0)
        if TOP > 0:
            v = tl.minimum(v, TOP)
    tl.store(y + place, v, there)


@triton.jit
def _passed(g, v, TOP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient before the rectifier, of the one behind it and of a value on either side of it."""
    g = tl.where(v > 0, g, 0.0)
    if TOP > 0:
        g = tl.where(v < TOP, g, 0.0)
    return g


@triton.jit(**ANY)
def _gradient_sums(  # type: ignore[no-untyped-def]
    given, x, y, passed, mean, deviation, weight, bias, sums, rows, each,
    eighths, SHORTCUT: tl.constexpr, TOP: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient before the rectifier, and of that times the normalised values. With a shortcut that gradient
    is the shortcut's too and is written to `passed`; without, it is found again from x."""
    channels = 8 * eighths
    start, number = _first(rows, channels)
    mean += number
    deviation += number
    weight += number
    bias += number
    c = tl.program_id(1) * C + tl.arange(0, C)
    inside = c < channels
    m, d = tl.load(mean + c, inside, 0.0), tl.load(deviation + c, inside, 0.0)
    w, b = tl.load(weight + c, inside, 0.0), tl.load(bias + c, inside, 0.0)
    one, two = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    begin = tl.program_id(0) * each
    for r0 in range(begin, tl.minimum(begin + each, rows), R):
        r = r0 + tl.arange(0, R)
        there = (r < tl.minimum(begin + each, rows))[:, None] & inside[None, :]
        place = start + r[:, None].to(tl.int64) * channels + c[None, :]
        normal = (tl.load(x + place, there, 0.0).to(tl.float32) - m[None, :]) * d[None, :]
        g = tl.load(given + place, there, 0.0).to(tl.float32)
        if SHORTCUT:
            if TOP is not None:
                g = _passed(g, tl.load(y + place, there, 0.0).to(tl.float32), TOP)
                tl.store(passed + place, g, there)
        elif TOP is not None:
            g = _passed(g, normal * w[None, :] + b[None, :], TOP)
        one += g
        two += g * normal
    place = sums + _part() * 2 * channels + c
    tl.store(place, tl.sum(one, 0), inside)
    tl.store(place + channels, tl.sum(two, 0), inside)


@triton.jit(**ANY)
def _parameters(sums, parts, of_weight, of_bias, eighths, S: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    channels = 8 * eighths
    c = tl.program_id(0) * C + tl.arange(0, C)
    inside = c < channels
    bias, weight = _merged(sums, parts, c, inside, channels, S, C)
    own = tl.program_id(2) * channels + c
    tl.store(of_bias + own, bias, inside)
    tl.store(of_weight + own, weight, inside)


@triton.jit(**ANY)
def _gradient(  # type: ignore[no-untyped-def]
    given, x, out, mean, deviation, weight, bias, of_weight, of_bias, rows,
    eighths, TOP: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    start, number = _first(rows, 8 * eighths)
    mean += number
    deviation += number
    weight += number
    bias += number
    of_weight += number
    of_bias += number
    c, inside, there, place = _tile(rows, 8 * eighths, R, C)
    place += start
    d, w = tl.load(deviation + c, inside, 0.0), tl.load(weight + c, inside, 0.0)
    normal = (tl.load(x + place, there, 0.0).to(tl.float32) - tl.load(mean + c, inside, 0.0)[None, :]) * d[None, :]
    g = tl.load(given + place, there, 0.0).to(tl.float32)
    if TOP is not None:
        g = _passed(g, normal * w[None, :] + tl.load(bias + c, inside, 0.0)[None, :], TOP)
    even = tl.load(of_bias + c, inside, 0.0) / rows
    tilt = tl.load(of_weight + c, inside, 0.0) / rows
    tl.store(out + place, (g - even[None, :] - normal * tilt[None, :]) * (w * d)[None, :], there)


class Normed(ForClients):
    """then(norm(x) + shortcut), and what its derivative needs. Running mean, variance and counter, if there are any,
    are changed in place."""

    @staticmethod
    def of_all(
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        counter: Tensor | None,
        momentum: float,
        eps: float,
        top: float | None,
    ) -> tuple[Tensor, ...]:
        x = _laid(x)
        shortcut = None if shortcut is None else _laid(shortcut)
        clients, rows, channels = _matrices(x)
        r, c, parts, each, columns, small = _grid(clients, rows, channels)
        sums = torch.empty(clients, parts, 2, channels, device=x.device)
        mean, deviation = torch.empty(2, clients, channels, device=x.device)
        y = torch.empty_like(x)
        _moments[parts, columns, clients](x, sums, rows, each, channels // 8, r, c)
        given = (running_mean, running_var, counter)
        own = [mean if t is None else t.contiguous() for t in given]  # anything where there is none: not looked at
        _statistics[triton.cdiv(channels, small), 1, clients](
            x,
            sums,
            parts,
            mean,
            deviation,
            *own,
            rows,
            eps,
            momentum,
            channels // 8,
            counter is not None,
            MERGED,
            small,
        )
        for theirs, now in zip(given, own):
            if theirs is not None and theirs is not now:
                theirs.copy_(now)  # refuses what is the same for several clients
        beside = x if shortcut is None else shortcut
        _applied[triton.cdiv(rows, r), columns, clients](
            x, beside, y, mean, deviation, weight.contiguous(), bias.contiguous(), rows,
            channels // 8, shortcut is not None, top, r, c,
        )  # fmt: skip
        return y, mean, deviation

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, shortcut, weight, bias, *_, ctx.top = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.shortcut = shortcut is not None
        y = output[0] if ctx.shortcut and ctx.top is not None else None
        ctx.save_for_backward(x, y, *output[1:], weight, bias)

    @staticmethod
    def backward(ctx: Any, given: Tensor | None, *_: Any) -> Any:
        if given is None:
            return (None,) * 10
        x, passed, weight, bias = _Backward.apply(given, *ctx.saved_tensors, ctx.shortcut, ctx.top)
        return x, passed if ctx.shortcut else None, weight, bias, *(None,) * 6


class _Backward(DerivativeForClients):
    """Derivatives by x, the shortcut, weight and bias."""

    @staticmethod
    def of_all(
        given: Tensor,
        x: Tensor,
        y: Tensor | None,
        mean: Tensor,
        deviation: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: bool,
        top: float | None,
    ) -> tuple[Tensor, ...]:
        x = _laid(x)
        clients, rows, channels = _matrices(x)
        r, c, parts, each, columns, small = _grid(clients, rows, channels)
        if given.stride() != x.stride():
            given = torch.empty_like(x).copy_(given)
        weight, bias = weight.contiguous(), bias.contiguous()
        sums = torch.empty(clients, parts, 2, channels, device=x.device)
        of_weight, of_bias = torch.empty(2, clients, channels, device=x.device)
        dx = torch.empty_like(x)
        passed = torch.empty_like(x) if y is not None else given
        _gradient_sums[parts, columns, clients](
            given, x, x if y is None else _laid(y), passed, mean, deviation, weight, bias, sums, rows, each,
            channels // 8, shortcut, top, r, c,
        )  # fmt: skip
        _parameters[triton.cdiv(channels, small), 1, clients](
            sums, parts, of_weight, of_bias, channels // 8, MERGED, small
        )
        again = None if shortcut else top
        _gradient[triton.cdiv(rows, r), columns, clients](
            passed, x, dx, mean, deviation, weight, bias, of_weight, of_bias, rows, channels // 8, again, r, c
        )
        return dx, passed, of_weight, of_bias


def _laid(x: Tensor) -> Tensor:
    """With each client's maps after the other's, channels together."""
    return x.movedim(2, -1).contiguous().movedim(-1, 2)


def _matrices(x: Tensor) -> tuple[int, int, int]:
    """Clients, rows, channels."""
    clients, channels = x.shape[0], x.shape[2]
    return clients, x.numel() // (clients * channels), channels


def _grid(clients: int, rows: int, channels: int) -> tuple[int, int, int, int, int, int]:
    """Rows and channels of a tile; partial sums, rows of each; columns of tiles; channels where partial sums are
    merged."""
    c = min(triton.next_power_of_2(channels), 64)
    r = TILE // c
    columns = triton.cdiv(channels, c)
    tiles = triton.cdiv(rows, r)
    loops = triton.cdiv(clients * tiles * columns, PROGRAMS)
    parts = triton.cdiv(tiles, loops)
    return r, c, parts, loops * r, columns, min(c, 16)
