"""Convolutions over time of maps whose channels lie together in memory, of one client or of several with weights of
their own, and their derivatives, by Triton. Nothing is laid out for them: each tile of places and channels made is a
sum of products of what lies where the kernel's taps look."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedreel.machine.mapped import DerivativeForClients, ForClients

PLACES = 64  # of a tile, in whole sequences where several fit
CHANNELS, MADE = 64, 64  # at a time, at most: taken, and made
GRADIENT = 64  # of what a place is made of, taps times channels, in a tile of the derivative by the weight
PROGRAMS = 528  # wanted at once for that derivative, four for each processor of a large GPU
ANY = {"do_not_specialize": ["outer", "frames", "own", "before", "apart", "tiles", "each"]}


@triton.jit
def _of_tile(tile, frames, T: tl.constexpr, R: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first sequence and the first moment of a tile of R places: T moments of R / T sequences."""
    blocks = (frames + T - 1) // T
    return tile // blocks * (R // T), tile % blocks * T


@triton.jit(**ANY)
def _convolved(  # type: ignore[no-untyped-def]
    x, weight, bias, y, outer, frames, own, before, apart,
    STRIDE: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, D: tl.constexpr, TURNED: tl.constexpr,
    BIAS: tl.constexpr, T: tl.constexpr, R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of `frames` moments, of which each sees so many of `own` ones; or, if turned, by how many it is seen."""
    client = tl.program_id(2).to(tl.int64)
    x += client * outer * own * C
    y += client * outer * frames * D
    weight += client * TAPS * D * C
    o, t = _of_tile(tl.program_id(0), frames, T, R)
    m = tl.arange(0, R)
    o, t = o + m // T, t + m % T
    there = (o < outer) & (t < frames)
    d = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros([R, B], tl.float32)
    COLUMNS: tl.constexpr = (C + P - 1) // P
    for part in range(TAPS * COLUMNS):
        k, c = part // COLUMNS, part % COLUMNS * P + tl.arange(0, P)
        if TURNED:
            at = t + before - k * apart
            from_, fits = at // STRIDE, (at >= 0) & (at % STRIDE == 0)
        else:
            from_ = t * STRIDE + k * apart - before
            fits = from_ >= 0
        inside = there & fits & (from_ < own)
        row = (o * own + from_).to(tl.int64) * C
        taken = tl.load(x + row[:, None] + c[None, :], inside[:, None] & (c < C)[None, :], 0.0)
        w = tl.load(weight + (k * D + d[:, None]) * C + c[None, :], (d < D)[:, None] & (c < C)[None, :], 0.0)
        total = tl.dot(taken, tl.trans(w), total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * D + d, d < D, 0.0)[None, :]
    row = (o * frames + t).to(tl.int64) * D
    tl.store(y + row[:, None] + d[None, :], total, there[:, None] & (d < D)[None, :])


@triton.jit(**ANY)
def _weight_sums(  # type: ignore[no-untyped-def]
    x, given, sums, outer, frames, own, before, apart, tiles, each,
    STRIDE: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr, R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of `each` tiles: sums of products of what places are made of with the gradient, and of the gradient. What does
    not depend on the tile is found once: else more is done to find places than to multiply."""
    client = tl.program_id(2).to(tl.int64)
    part = client * tl.num_programs(0) + tl.program_id(0)
    x += client * outer * own * C
    given += client * outer * frames * D
    columns = (D + B - 1) // B
    p = tl.program_id(1) // columns * P + tl.arange(0, P)
    d = tl.program_id(1) % columns * B + tl.arange(0, B)
    k, c = p // C, p % C
    m = tl.arange(0, R)
    o, t = m // T, m % T
    from_ = (t * STRIDE)[None, :] + (k * apart - before)[:, None]
    taken_at = ((o * own)[None, :] + from_) * C + c[:, None]
    given_at = (o * frames + t)[:, None] * D + d[None, :]
    total, even = tl.zeros([P, B], tl.float32), tl.zeros([B], tl.float32)
    begin = tl.program_id(0) * each
    for tile in range(begin, tl.minimum(begin + each, tiles)):
        o0, t0 = _of_tile(tile, frames, T, R)
        there = (o < outer - o0) & (t < frames - t0)
        seen = from_ + t0 * STRIDE
        inside = there[None, :] & (p < TAPS * C)[:, None] & (seen >= 0) & (seen < own)
        taken = tl.load(x + (o0 * own + t0 * STRIDE).to(tl.int64) * C + taken_at, inside, 0.0)
        first = given + (o0 * frames + t0).to(tl.int64) * D
        g = tl.load(first + given_at, there[:, None] & (d < D)[None, :], 0.0)
        total = tl.dot(taken, g, total, input_precision=PRECISION)
        even += tl.sum(g, 0)
    sums += part * (TAPS * C + 1) * D
    tl.store(sums + p[:, None] * D + d[None, :], total, (p < TAPS * C)[:, None] & (d < D)[None, :])
    if tl.program_id(1) < columns:
        tl.store(sums + TAPS * C * D + d, even, d < D)


How = tuple[int, int, int]  # stride, frames of margin before the first, how far taps are apart


class Convolved(ForClients):
    """Maps (sequences, frames, channels), weight (channels made, channels, taps), bias -> maps."""

    @staticmethod
    def of_all(maps: Tensor, weight: Tensor, bias: Tensor, how: How) -> tuple[Tensor, ...]:
        frames = (maps.shape[2] + 2 * how[1] - how[2] * (weight.shape[3] - 1) - 1) // how[0] + 1
        return (_sums(maps, weight.permute(0, 3, 1, 2), bias, frames, how, turned=False),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        maps, weight, _, ctx.how = inputs
        ctx.save_for_backward(maps, weight)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:
        maps, weight = ctx.saved_tensors
        by_maps, *others, _ = ctx.needs_input_grad
        of_maps = _ByMaps.apply(given, weight, maps.shape[1], ctx.how)[0] if by_maps else None
        of_weight, of_bias = _ByWeight.apply(given, maps, weight.shape[2], ctx.how) if any(others) else (None, None)
        return of_maps, of_weight, of_bias, None


class _ByMaps(DerivativeForClients):
    @staticmethod
    def of_all(given: Tensor, weight: Tensor, frames: int, how: How) -> tuple[Tensor, ...]:
        return (_sums(given, weight.permute(0, 3, 2, 1), None, frames, how, turned=True),)


class _ByWeight(DerivativeForClients):
    @staticmethod
    def of_all(given: Tensor, maps: Tensor, taps: int, how: How) -> tuple[Tensor, ...]:
        given, maps = given.contiguous(), maps.contiguous()
        clients, outer, own, channels = maps.shape
        frames, made = given.shape[2:]
        moments, tiles = _tiles(outer, frames)
        wide, (stride, before, apart) = min(power(made), MADE), how
        blocks = triton.cdiv(taps * channels, GRADIENT) * triton.cdiv(made, wide)
        each = triton.cdiv(tiles * blocks * clients, PROGRAMS)
        parts = triton.cdiv(tiles, each)
        sums = maps.new_empty(clients, parts, taps * channels + 1, made)
        _weight_sums[parts, blocks, clients](
            maps, given, sums, outer, frames, own, before, apart, tiles, each, stride, channels, taps, made, moments,
            PLACES, GRADIENT, wide, precision(), num_warps=2,
        )  # fmt: skip
        total = sums.sum(1)
        return total[:, :-1].view(clients, taps, channels, made).permute(0, 3, 2, 1), total[:, -1]


def _sums(maps: Tensor, weight: Tensor, bias: Tensor | None, frames: int, how: How, turned: bool) -> Tensor:
    """Of maps (clients, sequences, own frames, channels) with weights (clients, taps, channels made, channels)."""
    maps, weight = maps.contiguous(), weight.contiguous()
    clients, outer, own, channels = maps.shape
    taps, made = weight.shape[1:3]
    found = maps.new_empty(clients, outer, frames, made)
    moments, tiles = _tiles(outer, frames)
    wide, deep, (stride, before, apart) = min(power(made), MADE), min(power(channels), CHANNELS), how
    _convolved[tiles, triton.cdiv(made, wide), clients](
        maps, weight, maps if bias is None else bias.contiguous(), found, outer, frames, own, before, apart, stride,
        channels, taps, made, turned, bias is not None, moments, PLACES, deep, wide, precision(),
    )  # fmt: skip
    return found


def _tiles(outer: int, frames: int) -> tuple[int, int]:
    """Moments of a sequence in a tile, and how many tiles there are."""
    moments = min(power(frames), PLACES)
    return moments, triton.cdiv(outer, PLACES // moments) * triton.cdiv(frames, moments)


def power(n: int) -> int:
    return max(triton.next_power_of_2(n), 16)  # the least that products on tensor cores take


def precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
