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

PLACES = 128  # of a tile
TAKEN = 32  # of what a place is made of, taps times channels, that is multiplied at a time
MADE = 64  # channels made, at most, of a tile
GRADIENT = 64  # of what a place is made of, in a tile of the derivative by the weight
PROGRAMS = 528  # wanted at once for that derivative, four for each processor of a large GPU
ANY = {"do_not_specialize": ["places", "sources", "inner", "frames", "own", "each"]}


@triton.jit
def _looked(  # type: ignore[no-untyped-def]
    m, there, p, inner, frames, own, stride, before, apart,
    C: tl.constexpr, TAPS: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """Where places m look for what they are made of, p (taps times channels), and whether there is something. A place
    is one of `frames` moments; `own` moments are looked at. `m` and `p` are a column and a row, or the reverse."""
    i = m % inner
    t = (m // inner) % frames
    o = m // (inner * frames)
    k = p // C
    if TURNED:  # the derivative by maps: which moments looked at this one
        at = t + before - k * apart
        from_ = at // stride
        fits = (at >= 0) & (at % stride == 0)
    else:
        from_ = t * stride + k * apart - before
        fits = from_ >= 0
    inside = there & (p < TAPS * C) & fits & (from_ < own)
    return ((o * own + from_) * inner + i) * C + p % C, inside


@triton.jit(**ANY)
def _convolved(  # type: ignore[no-untyped-def]
    x, weight, bias, y, places, sources, inner, frames, own, stride, before, apart,
    C: tl.constexpr, TAPS: tl.constexpr, D: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    x += client * sources * C
    y += client * places * D
    weight += client * TAPS * C * D
    m = tl.program_id(0) * R + tl.arange(0, R)
    d = tl.program_id(1) * B + tl.arange(0, B)
    there = m < places
    total = tl.zeros([R, B], tl.float32)
    for p0 in range(0, TAPS * C, P):
        p = p0 + tl.arange(0, P)
        at, inside = _looked(
            m[:, None], there[:, None], p[None, :], inner, frames, own, stride, before, apart, C, TAPS, TURNED
        )
        taken = tl.load(x + at, inside, 0.0)
        w = tl.load(weight + p[:, None] * D + d[None, :], (p < TAPS * C)[:, None] & (d < D)[None, :], 0.0)
        total = tl.dot(taken, w, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * D + d, d < D, 0.0)[None, :]
    tl.store(y + m[:, None].to(tl.int64) * D + d[None, :], total, there[:, None] & (d < D)[None, :])


@triton.jit(**ANY)
def _weight_sums(  # type: ignore[no-untyped-def]
    x, given, of_weight, of_bias, places, sources, inner, frames, own, each, stride, before, apart,
    C: tl.constexpr, TAPS: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of `each` places: sums of products of what they are made of with the gradient, and of the gradient."""
    client = tl.program_id(2).to(tl.int64)
    part = client * tl.num_programs(0) + tl.program_id(0)
    x += client * sources * C
    given += client * places * D
    columns = (D + B - 1) // B
    p = tl.program_id(1) // columns * P + tl.arange(0, P)
    d = tl.program_id(1) % columns * B + tl.arange(0, B)
    total, even = tl.zeros([P, B], tl.float32), tl.zeros([B], tl.float32)
    begin = tl.program_id(0) * each
    end = tl.minimum(begin + each, places)
    for m0 in range(begin, end, R):
        m = m0 + tl.arange(0, R)
        there = m < end
        at, inside = _looked(
            m[None, :], there[None, :], p[:, None], inner, frames, own, stride, before, apart, C, TAPS, False
        )
        taken = tl.load(x + at, inside, 0.0)
        g = tl.load(given + m[:, None] * D + d[None, :], there[:, None] & (d < D)[None, :], 0.0)
        total = tl.dot(taken, g, total, input_precision=PRECISION)
        even += tl.sum(g, 0)
    at = of_weight + part * TAPS * C * D + p[:, None] * D + d[None, :]
    tl.store(at, total, (p < TAPS * C)[:, None] & (d < D)[None, :])
    if tl.program_id(1) < columns:
        tl.store(of_bias + part * D + d, even, d < D)


How = tuple[int, int, int]  # stride, frames of margin before the first, how far taps are apart


class Convolved(ForClients):
    """Maps (outer, frames, inner, channels), weight (channels made, channels, taps), bias -> maps."""

    @staticmethod
    def of_all(maps: Tensor, weight: Tensor, bias: Tensor, how: How) -> tuple[Tensor, ...]:
        frames = (maps.shape[2] + 2 * how[1] - how[2] * (weight.shape[3] - 1) - 1) // how[0] + 1
        return (_sums(maps, weight.permute(0, 3, 2, 1), bias, frames, how, turned=False),)

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
        return (_sums(given, weight.permute(0, 3, 1, 2), None, frames, how, turned=True),)


class _ByWeight(DerivativeForClients):
    @staticmethod
    def of_all(given: Tensor, maps: Tensor, taps: int, how: How) -> tuple[Tensor, ...]:
        given, maps = given.contiguous(), maps.contiguous()
        clients, outer, own, inner, channels = maps.shape
        made, frames = given.shape[4], given.shape[2]
        wide = min(power(made), MADE)
        tiles = triton.cdiv(taps * channels, GRADIENT) * triton.cdiv(made, wide)
        places = outer * frames * inner
        rounds = triton.cdiv(triton.cdiv(places, TAKEN) * tiles * clients, PROGRAMS)
        parts = triton.cdiv(places, rounds * TAKEN)
        of_weight = maps.new_empty(clients, parts, taps, channels, made)
        of_bias = maps.new_empty(clients, parts, made)
        _weight_sums[parts, tiles, clients](
            maps, given, of_weight, of_bias, places, outer * own * inner, inner, frames, own, rounds * TAKEN, *how,
            channels, taps, made, TAKEN, GRADIENT, wide, precision(),
        )  # fmt: skip
        return of_weight.sum(1).permute(0, 3, 2, 1), of_bias.sum(1)


def _sums(maps: Tensor, weight: Tensor, bias: Tensor | None, frames: int, how: How, turned: bool) -> Tensor:
    """Of maps (clients, outer, own frames, inner, channels) with weights (clients, taps, channels, channels made)."""
    maps, weight = maps.contiguous(), weight.contiguous()
    clients, outer, own, inner, channels = maps.shape
    taps, made = weight.shape[1], weight.shape[3]
    found = maps.new_empty(clients, outer, frames, inner, made)
    places, wide = outer * frames * inner, min(power(made), MADE)
    _convolved[triton.cdiv(places, PLACES), triton.cdiv(made, wide), clients](
        maps, weight, maps if bias is None else bias.contiguous(), found, places, outer * own * inner, inner, frames,
        own, *how, channels, taps, made, turned, bias is not None, PLACES, TAKEN, wide, precision(),
    )  # fmt: skip
    return found


def power(n: int) -> int:
    return max(triton.next_power_of_2(n), 16)  # the least that products on tensor cores take


def precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
