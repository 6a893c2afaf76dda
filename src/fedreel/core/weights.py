"""Named tensors of a model, packed into one flat buffer per dtype: loading and averaging are single operations."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedreel.core.frozen import is_frozen
from fedreel.errors import FedreelError

_ALIGN = 16  # elements; keeps every tensor on a 64-byte boundary, where CPU kernels are fastest
_PIECE = 1 << 18  # elements that a CPU compares at once: their differences stay in its cache


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a model. `role` is parameter, norm (scale and shift of a batch norm), statistics (its running
    mean, variance and counter), buffer, or, of whatever kind, frozen: built at each place, changed at none. `part` is
    what the model declares it to belong to (see `bind`)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: str = "parameter"
    part: str = ""

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def row(self) -> list[object]:
        """As written to a ledger or checkpoint."""
        return [self.name, list(self.shape), str(self.dtype).removeprefix("torch."), self.role, self.part]

    @staticmethod
    def from_row(row: list) -> TensorInfo:
        name, shape, dtype, role, part = row
        return TensorInfo(name, tuple(shape), getattr(torch, dtype), role, part)

    @property
    def trained(self) -> bool:
        """Whether gradients move it: no statistics, buffers or counters."""
        return self.role in ("parameter", "norm") and self.dtype.is_floating_point


class Layout:
    """Which tensors there are, in which order, and where each lies in its buffer."""

    def __init__(self, tensors: Iterable[TensorInfo]) -> None:
        self.tensors = tuple(tensors)
        self.sizes: dict[torch.dtype, int] = {}
        self.place: dict[str, tuple[TensorInfo, int]] = {}
        for t in self.tensors:
            start = self.sizes.get(t.dtype, 0)
            self.place[t.name] = (t, start)
            self.sizes[t.dtype] = start + -(-max(t.size, 1) // _ALIGN) * _ALIGN
        self._plans: dict[str, list[tuple[torch.dtype, int, int, int]]] = {}

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(repr([t.row() for t in self.tensors]).encode()).hexdigest()[:16]

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self.id == other.id)

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def moving(self) -> Layout:
        """All but what is frozen."""
        return self.only(lambda t: t.role != "frozen")

    @cached_property
    def frozen(self) -> Layout:
        """What nothing changes: every place builds it for itself."""
        return self.only(lambda t: t.role == "frozen")

    @cached_property
    def trained(self) -> Layout:
        """What gradients move."""
        return self.only(lambda t: t.trained)

    @cached_property
    def trained_parts(self) -> dict[str, Layout]:
        """What is trained of each part of the model: backbone, head, or what the model declares."""
        parts = dict.fromkeys(t.part for t in self.trained.tensors)
        return {part: self.trained.only(lambda t, part=part: t.part == part) for part in parts}  # type: ignore[misc]

    @cached_property
    def stretches(self) -> list[tuple[torch.dtype, int, int, bool]]:
        """Floating-point numbers that lie together, all of them trained or none: (dtype, start, end, which it is)."""
        found: list[tuple[torch.dtype, int, int, bool]] = []
        last: dict[torch.dtype, int] = {}  # of each dtype
        for t, start in self.place.values():
            if not t.dtype.is_floating_point:
                continue
            end, before = start + -(-max(t.size, 1) // _ALIGN) * _ALIGN, last.get(t.dtype)
            if before is not None and found[before][3] == t.trained:
                found[before] = (t.dtype, found[before][1], end, t.trained)
            else:
                last[t.dtype] = len(found)
                found.append((t.dtype, start, end, t.trained))
        return found

    def only(self, keep: Callable[[TensorInfo], bool]) -> Layout:
        """The layout of the tensors for which `keep` holds; this very layout if that is all of them."""
        kept = [t for t in self.tensors if keep(t)]
        return self if len(kept) == len(self.tensors) else Layout(kept)

    def runs(self, part: Layout) -> list[tuple[torch.dtype, int, int, int]]:
        """Copies that take `part` out of this layout: (dtype, start here, start there, length), neighbours merged."""
        if part.id not in self._plans:
            runs: list[tuple[torch.dtype, int, int, int]] = []
            for t, there in part.place.values():
                if t.name not in self.place or self.place[t.name][0].shape != t.shape:
                    raise KeyError(f"tensor '{t.name}' of shape {t.shape} is not in this layout")
                here, length = self.place[t.name][1], -(-max(t.size, 1) // _ALIGN) * _ALIGN
                before = next((i for i in range(len(runs) - 1, -1, -1) if runs[i][0] == t.dtype), None)
                if before is not None and runs[before][1] + runs[before][3] == here:
                    runs[before] = (*runs[before][:3], runs[before][3] + length)
                else:
                    runs.append((t.dtype, here, there, length))
            self._plans[part.id] = runs
        return self._plans[part.id]


class Weights(Mapping[str, Tensor]):
    """A model's tensors by name. `a + 0.5 * (b - a)` works on floating-point tensors; integers come from the left. Both
    sides must have the same layout."""

    __slots__ = ("flat", "layout")

    def __init__(self, layout: Layout, flat: dict[torch.dtype, Tensor]) -> None:
        self.layout, self.flat = layout, flat

    @staticmethod
    def zeros(layout: Layout, device: torch.device | str = "cpu") -> Weights:
        return Weights(layout, {d: torch.zeros(n, dtype=d, device=device) for d, n in layout.sizes.items()})

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Weights:
        """Pack loose tensors."""
        layout = Layout(TensorInfo(n, tuple(t.shape), t.dtype) for n, t in tensors.items())
        packed = Weights.zeros(layout)
        packed.fill(tensors)
        return packed

    def __getitem__(self, name: str) -> Tensor:
        t, start = self.layout.place[name]
        return self.flat[t.dtype][start : start + t.size].view(t.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.place)

    def __len__(self) -> int:
        return len(self.layout.tensors)

    def __repr__(self) -> str:
        return f"Weights({len(self)} tensors, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy loose tensors in, by name."""
        for name in self.layout.place:
            self[name].copy_(tensors[name])

    def clone(self) -> Weights:
        return Weights(self.layout, {d: f.clone() for d, f in self.flat.items()})

    def to(self, device: torch.device | str) -> Weights:
        return Weights(self.layout, {d: f.to(device) for d, f in self.flat.items()})

    @property
    def trained(self) -> Weights:
        """A copy of what gradients move."""
        return self.take(self.layout.trained)

    def take(self, layout: Layout) -> Weights:
        """A copy of the tensors that `layout` names."""
        if layout == self.layout:
            return self.clone()
        device = next(iter(self.flat.values())).device if self.flat else "cpu"
        part = Weights(layout, {d: torch.empty(n, dtype=d, device=device) for d, n in layout.sizes.items()})
        for dtype, here, there, n in self.layout.runs(layout):
            part.flat[dtype][there : there + n].copy_(self.flat[dtype][here : here + n])
        return part

    def put(self, part: Weights) -> None:
        """Copy `part`, all or some of these tensors, in place."""
        if part.layout == self.layout:
            for dtype, buffer in part.flat.items():
                self.flat[dtype].copy_(buffer)
            return
        for dtype, here, there, n in self.layout.runs(part.layout):
            self.flat[dtype][here : here + n].copy_(part.flat[dtype][there : there + n])

    def distance(self, other: Weights) -> float:
        """L2 distance over the floating-point tensors; not finite if any of them is not."""
        return self.apart(other)[0]

    def apart(self, other: Weights) -> tuple[float, float]:
        """L2 distances over the floating-point tensors, and over those of them that gradients move. The first is not
        finite if any number is not."""
        self._check(other)
        return self._lengths(lambda d, start, end: _dist(self.flat[d][start:end], other.flat[d][start:end]))

    @property
    def lengths(self) -> tuple[float, float]:
        """L2 norms, of all and of what gradients move."""
        return self._lengths(lambda d, start, end: self.flat[d][start:end].float().norm())

    def _lengths(self, norm: Callable[[torch.dtype, int, int], Tensor]) -> tuple[float, float]:
        """Of what `norm` finds for each stretch, with one wait for a device."""
        stretches = self.layout.stretches
        norms = [norm(d, start, end) for d, start, end, _ in stretches]
        found = torch.stack([n.double() for n in norms]).square().tolist() if norms else []
        trained = sum(square for square, (*_, is_trained) in zip(found, stretches) if is_trained)
        return math.sqrt(sum(found)), math.sqrt(trained)

    def distances(self, other: Weights) -> dict[str, float]:
        """L2 distance of what is trained, part by part of the model."""
        moved = self - other
        found = {}
        for name, part in self.layout.trained_parts.items():
            runs = [moved.flat[dtype][start : start + n] for dtype, start, _, n in self.layout.runs(part)]
            found[name] = float(torch.stack([norm.float() for norm in torch._foreach_norm(runs)]).norm())
        return found

    def norm(self) -> float:
        return sum(float(f.float().norm()) ** 2 for d, f in self.flat.items() if d.is_floating_point) ** 0.5

    def equal(self, other: Weights) -> bool:
        """Bit for bit."""
        return self.layout == other.layout and all(torch.equal(f, other.flat[d]) for d, f in self.flat.items())

    def __add__(self, other: Weights) -> Weights:
        return self.map(torch.add, other)

    def __sub__(self, other: Weights) -> Weights:
        return self.map(torch.sub, other)

    def __mul__(self, factor: float) -> Weights:
        return self.map(lambda mine: mine * factor)

    __rmul__ = __mul__

    def map(self, function: Callable[..., Tensor], *others: Weights) -> Weights:
        """`function` of every floating-point number here and of those at its place in the others, as in
        `m.map(lambda m, v: m / v.sqrt(), v)`. It gets all of one dtype as one vector."""
        for other in others:
            self._check(other)
        flat = {
            d: function(f, *(other.flat[d] for other in others)) if d.is_floating_point else f.clone()
            for d, f in self.flat.items()
        }
        return Weights(self.layout, flat)

    def toward(self, other: Weights, rate: float) -> Weights:
        """`self + rate * (other - self)`, to the bit, with one new model and not three."""
        return self.map(lambda mine, theirs: (theirs - mine).mul_(rate).add_(mine), other)

    def with_state_of(self, other: Weights) -> Weights:
        """These parameters, the other's statistics, buffers and counters: a server's step (momentum, a rate) moves
        parameters; extrapolating a running variance could make it negative."""
        state = self.layout.only(lambda t: t.role in ("statistics", "buffer") or not t.dtype.is_floating_point)
        if len(state.tensors):
            self.put(other.take(state))
        return self

    def _check(self, other: Weights) -> None:
        """Two layouts of equal size would add to rubbish."""
        if other.layout != self.layout:
            differ = sorted({t.name for t in self.layout.tensors} ^ {t.name for t in other.layout.tensors})
            raise ValueError(f"these weights have other tensors: {', '.join(differ[:3]) or 'the same names'}")


def _dist(mine: Tensor, theirs: Tensor) -> Tensor:
    if mine.dtype.itemsize < 4:
        mine, theirs = mine.float(), theirs.float()
    if mine.device.type != "cpu" or len(mine) <= _PIECE:
        return torch.dist(mine, theirs)
    return torch.stack(list(map(torch.dist, mine.split(_PIECE), theirs.split(_PIECE)))).double().norm()


def bind(model: nn.Module) -> Weights:
    """Move a model's parameters and buffers into flat buffers. From then on the result *is* the model: writing the one
    writes the other. Modules must change buffers in place.

    A tensor belongs to the part that the model declares: a module may have an attribute `model_parts`, which maps names
    of its tensors or submodules to parts; an inner module's word counts more. Where nothing is declared, the part is
    the first word of the tensor's name: `backbone` or `head`."""
    tensors = _state(model)
    roles, parts = _roles(model), _parts(model, tensors)
    layout = Layout(
        TensorInfo(n, tuple(t.shape), t.dtype, roles.get(n, "parameter"), parts[n]) for n, t in tensors.items()
    )
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    weights = Weights.zeros(layout, device)
    weights.fill({n: t.detach() for n, t in tensors.items()})
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            tensor.data = weights[name]
        else:
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner)._buffers[leaf] = weights[name]
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _left_in_place  # type: ignore[method-assign]
    return weights


def _left_in_place() -> None:
    """In place of what recurrent layers do on GPUs when they find their tensors changed: they move them together into
    memory of their own, where nobody else would look for them."""


def still_bound(model: nn.Module, weights: Weights) -> bool:
    """Whether the model's tensors still lie in `weights` (a module that reassigns a buffer breaks the bond)."""
    return all(t.numel() == 0 or t.data_ptr() == weights[n].data_ptr() for n, t in _state(model).items())


def check_bound(model: nn.Module, weights: Weights) -> bool:
    """Raise unless they do."""
    if not still_bound(model, weights):
        raise FedreelError(
            "a module of the model replaced one of its tensors instead of changing it in place",
            hint="use buffer.copy_(...) instead of self.buffer = ...",
        )
    return True


def same_tensors(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models of one kind have the same values in all their tensors."""
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers; tied ones once, under their first name."""
    seen: set[int] = set()
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor
    return state


def _roles(model: nn.Module) -> dict[str, str]:
    roles = {name: "buffer" for name, _ in model.named_buffers()}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            dot = f"{prefix}." if prefix else ""
            roles |= {dot + name: "norm" for name, _ in module.named_parameters(recurse=False)}
            roles |= {dot + name: "statistics" for name, _ in module.named_buffers(recurse=False)}
    for prefix, module in model.named_modules():
        if is_frozen(module):
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            roles |= {f"{prefix}.{name}" if prefix else name: "frozen" for name, _ in own}
    return roles


def _parts(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    parts = {name: name.partition(".")[0] for name in names}
    for prefix, module in model.named_modules():  # outer ones first
        declared: Mapping[str, str] = getattr(module, "model_parts", {})
        for own, part in declared.items():
            path = f"{prefix}.{own}" if prefix else own
            inside = [name for name in parts if name == path or name.startswith(f"{path}.")]
            if not inside:
                raise FedreelError(
                    f"a model declares '{path}' as its {part}, but has no such tensor",
                    hint="rename it in the module's `model_parts` as well",
                )
            parts |= dict.fromkeys(inside, part)
    return parts
