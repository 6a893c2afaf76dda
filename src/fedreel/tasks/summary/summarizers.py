"""Video summarizers: steps of a video in, the importance of each out (vsLSTM, VASNet-like, Mixture Transformer)."""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedreel.errors import RecipeError, nearest
from fedreel.models.lstm import TwoWayLSTM

__all__ = [
    "SUMMARIZERS",
    "Summarizer",
    "attention_summarizer",
    "literal_mixture",
    "make_summarizer",
    "mixture",
    "mixture_transformer",
    "novelty",
    "plain",
    "vslstm",
]


class Summarizer(nn.Module):
    """Steps (B, N, D) to scores (B, N) between 0 and 1. `backbone` is what all clients share; `head`, the MLP that
    scores one step, is a community's own. A video shorter than others in its batch is padded at the end; `mask`
    (B, N) is true for its real steps. Padding changes no real step's score, and scores 0 itself."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.features_and_scores(x, mask)[1]

    def features_and_scores(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the head sees of each step (B, N, width), and the scores made of it."""
        features = self.backbone(x, mask)
        scores = self.head(features).squeeze(-1).sigmoid()
        return features, scores if mask is None else scores.masked_fill(~mask, 0.0)


def make_summarizer(name: str, width_in: int, **options: Any) -> Summarizer:
    """A fresh model by its name in SUMMARIZERS, for steps of `width_in` features."""
    if name not in SUMMARIZERS:
        raise RecipeError("no such summarizer", found=f"'{name}'", hint=nearest(name, SUMMARIZERS))
    make = SUMMARIZERS[name]
    known = [option for option in inspect.signature(make).parameters if option != "width_in"]
    for option in options:
        if option not in known:
            raise RecipeError(
                f"summarizer '{name}' has no such option", found=f"'{option}'", hint=nearest(option, known)
            )
    return make(width_in, **options)


def vslstm(width_in: int, hidden: int = 256, dropout: float = 0.5) -> Summarizer:
    """vsLSTM (Zhang et al. 2016): an LSTM in each direction, and a scorer that sees both and the step itself."""
    head = _head(2 * hidden + width_in, hidden, dropout)
    return Summarizer(TwoWayLSTM(width_in, hidden), head)


def attention_summarizer(width_in: int, dropout: float = 0.5) -> Summarizer:
    """Like VASNet (Fajtl et al. 2018): one layer of self-attention as wide as the input."""
    return Summarizer(AttentionLayer(width_in, dropout), _head(width_in, width_in, dropout, last_norm=True))


def mixture_transformer(
    width_in: int,
    width: int = 512,
    blocks: int = 2,
    heads: int = 1,
    hidden: int = 256,
    dropout: float = 0.3,
    positions: bool = False,
    attention: str = "mixture",
    block: str = "pre-norm",
) -> Summarizer:
    """CFed-VS's Mixture Transformer. `attention` is one of ATTENTIONS: `mixture` renormalises the product of two
    attention maps, `literal` reads the paper's Eq. 5 to the letter, `plain` is the ablation. `block` is one of BLOCKS:
    `pre-norm` is a Transformer's usual block, `literal` reads the paper's Eq. 4 to the letter."""
    for what, given, known in (("attention", attention, ATTENTIONS), ("block", block, BLOCKS)):
        if given not in known:
            raise RecipeError(f"no such {what}", found=f"'{given}'", hint=nearest(given, known))
    if width % heads or (positions and width % 2):
        raise RecipeError(
            "the width does not fit the heads",
            expected="a width that the number of heads divides, even if there are positions",
            found=f"width {width}, heads {heads}",
        )
    embed = nn.Linear(width_in, width)
    backbone = Transformer(embed, [BLOCKS[block](width, heads, dropout, attention) for _ in range(blocks)], positions)
    return Summarizer(backbone, _head(width, hidden, dropout, first_norm=True))


def novelty(width_in: int, neighbours: int = 5) -> Summarizer:
    """What a video shows rarely matters: steps score by how little they are like those that they are most like. There
    is nothing to learn but how such numbers compare with people's scores, which changes no order of steps."""
    head = nn.Linear(1, 1)
    nn.init.ones_(head.weight)
    nn.init.zeros_(head.bias)
    return Summarizer(Novelty(neighbours), head)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """P v, where P = softmax(q k^T / sqrt d) attends to real steps only. Tensors are (..., N, d), mask (..., N)."""
    return _hide(_logits(q, k), mask).softmax(-1) @ v


def mixture(q: Tensor, second: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """M v, where M is P R^T with rows scaled to sum 1; P and R are the attention maps of the two queries.

    With column sums c of R, M = softmax(log P + log c) (R / c)^T, and R / c is a softmax of log R over queries: nothing
    is divided by a small number, and the maps only ever meet v, never each other.
    """
    log_r = _hide(_logits(second, k), mask).log_softmax(-1)
    if mask is not None:  # padding is no query either
        log_r = _hide(log_r.transpose(-2, -1), mask).transpose(-2, -1)
    p = _hide(_logits(q, k) + log_r.logsumexp(-2, keepdim=True), mask).softmax(-1)
    return p @ (log_r.softmax(-2).transpose(-2, -1) @ v)


def literal_mixture(q: Tensor, second: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 5 with outputs, not maps, multiplied: softmax((P v) (R v)^T / sqrt d) v."""
    return plain(plain(q, k, v, mask), plain(second, k, v, mask), v, mask)


ATTENTIONS: dict[str, Callable[..., Tensor]] = {"mixture": mixture, "literal": literal_mixture, "plain": plain}
SUMMARIZERS: dict[str, Callable[..., Summarizer]] = {
    "vslstm": vslstm,
    "attention": attention_summarizer,
    "mixture_transformer": mixture_transformer,
    "novelty": novelty,
}


class Novelty(nn.Module):
    """Steps (B, N, D) to (B, N, 1): 1 less the mean cosine with the `neighbours` other steps of the video that are most
    alike, brought to mean 0 and deviation 1 over the video."""

    def __init__(self, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        unit = nn.functional.normalize(x, dim=-1)
        alike = unit @ unit.transpose(1, 2)
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        alike = alike.masked_fill(itself | ~real[:, None, :], -2.0)  # less than any cosine
        nearest = alike.topk(min(self.neighbours, x.shape[1]), dim=2).values
        there = nearest >= -1.5
        found = 1 - (nearest * there).sum(2) / there.sum(2).clamp(min=1)
        count = real.sum(1, keepdim=True)
        mean = (found * real).sum(1, keepdim=True) / count
        deviation = (((found - mean) * real).square().sum(1, keepdim=True) / count).sqrt()
        return ((found - mean) / deviation.clamp(min=1e-4))[..., None]


class AttentionLayer(nn.Module):
    """Self-attention, dropout on its weights, a residual and a layer norm. 0.06 is VASNet's scale in place of
    1 / sqrt d."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = 0.06 * self.query(x) @ self.key(x).transpose(-2, -1)
        weights = self.dropout(_hide(logits, mask).softmax(-1))
        return self.norm(self.dropout(self.out(weights @ self.value(x)) + x))


class Transformer(nn.Module):
    """An embedding, sinusoidal positions if wanted, and blocks. A block gets what the one before made of the steps, and
    what that one attended to; before the first both are the embedded steps."""

    def __init__(self, embed: nn.Linear, blocks: Sequence[nn.Module], positions: bool) -> None:
        super().__init__()
        self.positions = positions
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        if self.positions:
            x = x + _sinusoids(x)
        attended = x
        for block in self.blocks:
            x, attended = block(x, attended, mask)
        return x


class Block(nn.Module):
    """Pre-norm: attention, then an MLP, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float, attention: str) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention)
        self.mlp = _mlp(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, before: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        attended = self.dropout(self.attention(self.attention_norm(x), mask))
        x = x + attended
        return x + self.dropout(self.mlp(self.mlp_norm(x))), attended


class LiteralBlock(nn.Module):
    """Eq. 4: H^l = MLP(LN(A^l) + A^(l-1)) + H^(l-1), where A^l is the attention over H^(l-1)."""

    def __init__(self, width: int, heads: int, dropout: float, attention: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention)
        self.mlp = _mlp(width, dropout)

    def forward(self, x: Tensor, before: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        attended = self.attention(x, mask)
        return self.mlp(self.norm(attended) + before) + x, attended


BLOCKS: dict[str, type[nn.Module]] = {"pre-norm": Block, "literal": LiteralBlock}


class Attention(nn.Module):
    """One of ATTENTIONS in each head. The second query is tanh(W q), as in DMASum; plain attention has none."""

    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attend = heads, ATTENTIONS[attention]
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.second = None if attention == "plain" else nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query = self.query(x)
        queries = [query] if self.second is None else [query, self.second(query).tanh()]
        split = [t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in (*queries, self.key(x), self.value(x))]
        mixed = self.attend(*split, None if mask is None else mask.unsqueeze(-2))
        return self.out(mixed.transpose(-3, -2).flatten(-2))


def _mlp(width: int, dropout: float) -> nn.Sequential:
    layers = {
        "hidden": nn.Linear(width, 2 * width),
        "relu": nn.ReLU(),
        "dropout": nn.Dropout(dropout),
        "out": nn.Linear(2 * width, width),
    }
    return nn.Sequential(OrderedDict(layers))


def _head(width: int, hidden: int, dropout: float, first_norm: bool = False, last_norm: bool = False) -> nn.Sequential:
    layers: dict[str, nn.Module] = {"norm": nn.LayerNorm(width)} if first_norm else {}
    layers |= {"hidden": nn.Linear(width, hidden), "relu": nn.ReLU(), "dropout": nn.Dropout(dropout)}
    if last_norm:
        layers["norm"] = nn.LayerNorm(hidden)
    return nn.Sequential(OrderedDict({**layers, "out": nn.Linear(hidden, 1)}))


def _logits(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def _hide(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Without padded columns. The least number, not -inf: a column of -inf has no gradient but nan."""
    return logits if mask is None else logits.masked_fill(~mask.unsqueeze(-2), torch.finfo(logits.dtype).min)


def _sinusoids(x: Tensor) -> Tensor:
    """Positions (N, width) as in Vaswani et al. 2017, sines first and cosines after them."""
    half = x.shape[-1] // 2
    rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000) / half))
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)
