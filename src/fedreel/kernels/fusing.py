"""A function of tensors as a few kernels: its operations are written down while it runs, and PyTorch's compiler
(Inductor) joins those that only pass memory from one to the next.

What is written down is what Python does, so nothing of a model's code is beyond the compiler; code that looks at values
raises. Random numbers are those that PyTorch draws without a compiler."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedreel.machine.cache import cache_folder
from fedreel.machine.files import locked

Function = Callable[..., list[Tensor]]  # tensors in, tensors out; those that come in stay as they are


def compiled(function: Function, tensors: Sequence[Tensor]) -> Function:
    """The function for tensors of the forms of these. What it compiles is kept on disk, for every process that wants
    the same; while one is compiling, the others wait for it."""
    graph, constants = written_down(function, tensors)
    from torch._inductor import compile as inductor

    inputs = [*tensors, *constants]
    folder = cache_folder() / "compiled"
    own = folder / "locks" / _digest(graph, inputs)
    own.mkdir(parents=True, exist_ok=True)
    with _kept_in(folder), locked(own), torch.no_grad():
        made = inductor(graph, inputs, options=OPTIONS)
        made(*inputs)  # kernels are compiled by the first call

    def call(*given: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(made(*given, *constants))

    return call


OPTIONS: dict[str, Any] = {
    "fallback_random": True,  # draw what would be drawn without it
    "triton.cudagraphs": False,  # whoever calls may record
}


def _digest(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    forms = [(tuple(t.shape), str(t.dtype), str(t.device)) for t in inputs]
    return hashlib.blake2b(f"{graph.code}{forms}".encode(), digest_size=8).hexdigest()


def is_fusing() -> bool:
    """Whether operations are being written down for the compiler, which knows no kernels of our own."""
    return _Plain.depth > 0


def written_down(function: Function, tensors: Sequence[Tensor]) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """The function's operations on tensors of these forms, and the tensors that it has from elsewhere: further inputs
    of the graph, so that what they hold later counts."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def plain(*given: Tensor) -> tuple[Tensor, ...]:
        with torch.autograd.set_multithreading_enabled(False), _Plain():
            return tuple(function(*given))

    traced = make_fx(plain, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    constants: dict[str, tuple[Tensor, torch.fx.Node]] = {}
    last = [node for node in traced.graph.nodes if node.op == "placeholder"][-1]
    for node in [n for n in traced.graph.nodes if n.op == "get_attr"]:
        name = str(node.target)
        held = getattr(traced, name)
        if not isinstance(held, Tensor):
            continue
        if name not in constants:
            with traced.graph.inserting_after(last):
                last = traced.graph.placeholder(f"held_{len(constants)}")
            constants[name] = held.detach(), last
        node.replace_all_uses_with(constants[name][1])
        traced.graph.erase_node(node)
    traced.graph.lint()
    traced.recompile()
    return traced, [tensor for tensor, _ in constants.values()]


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Within this, what is compiled is kept in a folder."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    os.environ[name] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name)
        else:
            os.environ[name] = before


class _Plain(TorchFunctionMode):
    """Within it, batch norm is arithmetic that the compiler can join to what is around it. PyTorch's own changes its
    running statistics in ways that are not written down."""

    depth = 0

    def __enter__(self) -> Any:
        type(self).depth += 1
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        type(self).depth -= 1
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def batch_norm(
    maps: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm by plain operations, sums in float32."""
    if training:
        F._verify_batch_size(list(maps.size()))  # type: ignore[attr-defined]
    found: Tensor
    if training:
        found, mean, var = _Norm.apply(maps, weight, bias, eps)
        if running_mean is not None and running_var is not None:
            n = maps.numel() // maps.shape[1]
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (n / max(n - 1, 1))).to(running_var.dtype), momentum)
        return found
    assert running_mean is not None
    assert running_var is not None
    scale = torch.rsqrt(running_var + eps)
    found = (_exact(maps) - _beside(running_mean, maps)) * _beside(scale if weight is None else scale * weight, maps)
    return (found if bias is None else found + _beside(bias, maps)).to(maps.dtype)


class _Norm(torch.autograd.Function):
    """Maps normalised by themselves, their means and variances. The derivative takes two sums over the maps."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        var, mean = torch.var_mean(_exact(maps), dim=_others(maps), correction=0)
        scale = torch.rsqrt(var + eps)
        found = (_exact(maps) - _beside(mean, maps)) * _beside(scale, maps)
        if weight is not None:
            found = found * _beside(weight, maps)
        if bias is not None:
            found = found + _beside(bias, maps)
        ctx.save_for_backward(maps, weight, mean, scale)
        ctx.biased = bias is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return found.to(maps.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, given: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if given is None:
            return None, None, None, None
        maps, weight, mean, scale = ctx.saved_tensors
        n = maps.numel() // maps.shape[1]
        g, normal = _exact(given), (_exact(maps) - _beside(mean, maps)) * _beside(scale, maps)
        total, tilted = g.sum(_others(maps)), (g * normal).sum(_others(maps))
        slope = scale if weight is None else scale * weight
        centred = g - _beside(total / n, maps) - normal * _beside(tilted / n, maps)
        found = (centred * _beside(slope, maps)).to(maps.dtype)
        return found, None if weight is None else tilted, total if ctx.biased else None, None


def _exact(maps: Tensor) -> Tensor:
    """In the precision in which sums are taken."""
    return maps.float() if maps.dtype in (torch.bfloat16, torch.float16) else maps


def _others(maps: Tensor) -> list[int]:
    """All dimensions but that of channels."""
    return [d for d in range(maps.dim()) if d != 1]


def _beside(channels: Tensor, maps: Tensor) -> Tensor:
    """Of every channel, for use with maps."""
    return channels.view([1, -1, *[1] * (maps.dim() - 2)])
