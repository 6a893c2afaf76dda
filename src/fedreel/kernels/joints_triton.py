"""Graph convolutions of maps that lie joint by joint with channels together, of one client or of several with weights
and graphs of their own, and their derivatives, by Triton. A tile is of all joints at some rows, so neither what is
moved along the edges nor what channels become of it is ever written down."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fedreel.kernels.time_triton import power, precision
from fedreel.machine.mapped import DerivativeForClients, ForClients

VALUES = 64  # of each joint in a tile, rows times channels
CHANNELS, MADE = 64, 64  # at a time, at most: taken, and made
PROGRAMS = 528  # wanted at once for the derivatives by parameters, four for each processor of a large GPU
ANY = {"do_not_specialize": ["size", "rows", "each"]}


@triton.jit
def _edges(matrices, k, to, from_, joints):  # type: ignore[no-untyped-def]
    """The k-th matrix, with joints that are moved to as rows."""
    at = (k * joints + from_[None, :]) * joints + to[:, None]
    return tl.load(matrices + at, (from_ < joints)[None, :] & (to < joints)[:, None], 0.0)


@triton.jit
def _tile(x, v, r, end, joints, rows, c0, C: tl.constexpr, R: tl.constexpr, P: tl.constexpr):  # type: ignore[no-untyped-def]
    """Joints by values: so many rows from r on, of so many channels from c0 on."""
    value = tl.arange(0, R * P)
    row, c = r + value // P, c0 + value % P
    inside = (v < joints)[:, None] & ((row < end) & (c < C))[None, :]
    return tl.load(x + (v[:, None] * rows + row[None, :]) * C + c[None, :], inside, 0.0)


@triton.jit
def _places(r, end, joints, rows, R: tl.constexpr, V: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of all joints at so many rows from r on, as a column; and which there are."""
    m = tl.arange(0, V * R)
    joint, row = m // R, r + m % R
    return (joint * rows + row)[:, None], ((joint < joints) & (row < end))[:, None]


@triton.jit(**ANY)
def _spread(  # type: ignore[no-untyped-def]
    x, matrices, weight, beside, y, rows, joints: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BESIDE: tl.constexpr,
    V: tl.constexpr, R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    x += client * joints * rows * C
    y += client * joints * rows * D
    matrices += client * K * joints * joints
    weight += client * K * C * D
    r, v = tl.program_id(0) * R, tl.arange(0, V)
    d = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros([V * R, B], tl.float32)
    for c0 in range(0, C, P):
        taken = _tile(x, v, r, rows, joints, rows, c0, C, R, P)
        c = c0 + tl.arange(0, P)
        for k in range(K):
            moved = tl.dot(_edges(matrices, k, v, v, joints), taken, input_precision=PRECISION)
            w = tl.load(weight + (k * C + c[:, None]) * D + d[None, :], (c < C)[:, None] & (d < D)[None, :], 0.0)
            total = tl.dot(tl.reshape(moved, [V * R, P]), w, total, input_precision=PRECISION)
    place, there = _places(r, rows, joints, rows, R, V)
    there = there & (d < D)[None, :]
    if BESIDE:
        joint = (tl.arange(0, V * R) // R)[:, None]
        total += tl.load(beside + (client * joints + joint) * D + d[None, :], there, 0.0)
    tl.store(y + place * D + d[None, :], total, there)


@triton.jit(**ANY)
def _weight_sums(  # type: ignore[no-untyped-def]
    x, given, matrices, sums, size, rows, each, joints: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of `each` rows, of a matrix and some channels: sums of products of what was moved with the gradient, and of the
    gradient at each joint."""
    client = tl.program_id(2).to(tl.int64)
    part = client * tl.num_programs(0) + tl.program_id(0)
    x += client * joints * rows * C
    given += client * joints * rows * D
    columns = (C + P - 1) // P
    k, tile = tl.program_id(1) % K, tl.program_id(1) // K
    c0, d0 = tile % columns * P, tile // columns * B
    v, c, d = tl.arange(0, V), c0 + tl.arange(0, P), d0 + tl.arange(0, B)
    edges = _edges(matrices + client * K * joints * joints, k, v, v, joints)
    total, even = tl.zeros([P, B], tl.float32), tl.zeros([V, B], tl.float32)
    begin = tl.program_id(0) * each
    end = tl.minimum(begin + each, rows)
    for r in range(begin, end, R):
        taken = _tile(x, v, r, end, joints, rows, c0, C, R, P)
        place, there = _places(r, end, joints, rows, R, V)
        g = tl.load(given + place * D + d[None, :], there & (d < D)[None, :], 0.0)
        moved = tl.reshape(tl.dot(edges, taken, input_precision=PRECISION), [V * R, P])
        total = tl.dot(tl.trans(moved), g, total, input_precision=PRECISION)
        even += tl.sum(tl.reshape(g, [V, R, B]), 1)
    sums += part * size
    tl.store(sums + (k * C + c[:, None]) * D + d[None, :], total, (c < C)[:, None] & (d < D)[None, :])
    if k == 0 and c0 == 0:
        at = sums + (K * C + v[:, None]) * D + d[None, :]
        tl.store(at, even, (v < joints)[:, None] & (d < D)[None, :])


@triton.jit(**ANY)
def _matrix_sums(  # type: ignore[no-untyped-def]
    x, given, weight, sums, size, rows, each, joints: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, R: tl.constexpr, P: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of `each` rows, of a matrix and some channels: sums of products of maps with the gradient by what was moved."""
    client = tl.program_id(2).to(tl.int64)
    part = client * tl.num_programs(0) + tl.program_id(0)
    x += client * joints * rows * C
    given += client * joints * rows * D
    columns = (C + P - 1) // P
    k, tile = tl.program_id(1) % K, tl.program_id(1) // K
    c0, d0 = tile % columns * P, tile // columns * B
    v, c, d = tl.arange(0, V), c0 + tl.arange(0, P), d0 + tl.arange(0, B)
    at = weight + client * K * C * D + (k * C + c[:, None]) * D + d[None, :]
    w = tl.load(at, (c < C)[:, None] & (d < D)[None, :], 0.0)
    total = tl.zeros([V, V], tl.float32)
    begin = tl.program_id(0) * each
    end = tl.minimum(begin + each, rows)
    for r in range(begin, end, R):
        taken = _tile(x, v, r, end, joints, rows, c0, C, R, P)
        place, there = _places(r, end, joints, rows, R, V)
        g = tl.load(given + place * D + d[None, :], there & (d < D)[None, :], 0.0)
        back = tl.reshape(tl.dot(g, tl.trans(w), input_precision=PRECISION), [V, R * P])
        total = tl.dot(back, tl.trans(taken), total, input_precision=PRECISION)
    both = (v < joints)[:, None] & (v < joints)[None, :]
    sums += part * size + (K * C + joints) * D + tl.program_id(1) * joints * joints
    tl.store(sums + v[None, :] * joints + v[:, None], total, both)


class Spread(ForClients):
    """Maps (joints, rows, channels), matrices (K, joints, joints moved to), weights (K, channels, channels made), what
    is added at each joint (joints, channels made) -> maps."""

    @staticmethod
    def of_all(maps: Tensor, matrices: Tensor, weight: Tensor, beside: Tensor) -> tuple[Tensor, ...]:
        return (_moved(maps, matrices, weight, beside),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:
        maps, matrices, weight = ctx.saved_tensors
        by_maps, *others = ctx.needs_input_grad
        of_maps = _ByMaps.apply(given, matrices, weight)[0] if by_maps else None
        of_others = _ByParameters.apply(given, maps, matrices, weight) if any(others) else (None, None, None)
        return of_maps, *of_others


class _ByMaps(DerivativeForClients):
    @staticmethod
    def of_all(given: Tensor, matrices: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (_moved(given, matrices.transpose(2, 3), weight.transpose(2, 3), None),)


class _ByParameters(DerivativeForClients):
    @staticmethod
    def of_all(given: Tensor, maps: Tensor, matrices: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        given, maps, matrices, weight = (t.contiguous() for t in (given, maps, matrices, weight))
        clients, joints, rows, channels = maps.shape
        many, made = matrices.shape[1], weight.shape[3]
        wide, high, deep = _sizes(channels, made)
        tiles = triton.cdiv(channels, wide) * triton.cdiv(made, high)
        rounds = triton.cdiv(triton.cdiv(rows, deep) * tiles * many * clients, PROGRAMS)
        parts = triton.cdiv(rows, rounds * deep)
        sizes = many * channels * made, joints * made, tiles * many * joints * joints
        sums = maps.new_empty(clients, parts, sum(sizes))
        grid, where = (parts, tiles * many, clients), (sums, sum(sizes), rows, rounds * deep)
        given_to = joints, channels, made, many, power(joints), deep, wide, high, precision()
        _weight_sums[grid](maps, given, matrices, *where, *given_to, num_warps=2, num_stages=2)
        _matrix_sums[grid](maps, given, weight, *where, *given_to, num_warps=1, num_stages=2)
        of_weight, of_beside, of_matrices = sums.sum(1).split(sizes, 1)
        return (
            of_matrices.view(clients, tiles, many, joints, joints).sum(1),
            of_weight.view(clients, many, channels, made),
            of_beside.view(clients, joints, made),
        )


def _moved(maps: Tensor, matrices: Tensor, weight: Tensor, beside: Tensor | None) -> Tensor:
    maps, matrices, weight = (t.contiguous() for t in (maps, matrices, weight))
    clients, joints, rows, channels = maps.shape
    many, made = matrices.shape[1], weight.shape[3]
    wide, high, deep = _sizes(channels, made)
    found = maps.new_empty(clients, joints, rows, made)
    _spread[triton.cdiv(rows, deep), triton.cdiv(made, high), clients](
        maps, matrices, weight, maps if beside is None else beside.contiguous(), found, rows, joints, channels, made,
        many, beside is not None, power(joints), deep, wide, high, precision(), num_warps=1, num_stages=2,
    )  # fmt: skip
    return found


def _sizes(channels: int, made: int) -> tuple[int, int, int]:
    """Of a tile: channels, channels made, rows."""
    wide, high = min(power(channels), CHANNELS), min(power(made), MADE)
    return wide, high, VALUES // max(wide, high)
