"""Moment retrieval: a video and a sentence in, when it happens out. A light single-shot network, much like SSMN."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.errors import DataError, RecipeError, nearest
from fedreel.models.lstm import TwoWayLSTM
from fedreel.tasks.moments.attention import PADDING, hide, real_tokens
from fedreel.tasks.moments.detr import DetrBackbone, DetrHead
from fedreel.tasks.moments.grounding_heads import HEADS, Located, candidates, decode, loss, temporal_distribution
from fedreel.tasks.moments.shifted import shifted_sum

__all__ = [
    "Grounder",
    "Located",
    "candidates",
    "decode",
    "loss",
    "temporal_distribution",
]

ENCODERS, DETR = ("conv", "lstm", "none", "attention"), "qd-detr"
KERNEL, WORD_KERNEL = 7, 5  # positions and words that a convolution sees


class Grounder(nn.Module):
    """`backbone` reads video and sentence together, `head` says where the moment lies, in one of four forms: `pointer`
    (distributions of its first and last position), `anchor-free` (distances from a position inside it to its ends),
    `proposal` (a distribution over a fixed list of spans), `qd-detr` (a set of answers, and how salient each position
    is). The last reads by attention alone, and the others do not: it goes with `encoder="attention"`.

    Words are indices, PADDING at the end of short sentences. With `word_vectors` (n_words, word_width) these are fixed,
    and no part of the state: every client has the same. Without, vectors are learned. If `n_words` is 0, sentences come
    as vectors of their tokens (B, L, word_width) from a frozen encoder, with zeros at the end.
    `encoder="none"` reads sentences by convolutions too, but positions of a video by themselves: less to learn where
    there are few videos.
    `standardise` brings the features of each position to mean 0 and deviation 1. `use_video=False` is the control
    that knows only the sentence. `prior=False` takes all away by which a sentence could speak for a place without a
    look at the video: positions, borders, and the prior over spans of the form `proposal`. A video that is the same all
    along then gets the same scores all along. An LSTM counts positions by itself, so it cannot go without. Spans longer
    than `max_share` of the video are never the answer; `answer` says which of the others is, see `decode`.
    """

    def __init__(
        self,
        video_width: int,
        length: int,
        n_words: int,
        word_width: int = 300,
        word_vectors: Tensor | None = None,
        width: int = 256,
        dropout: float = 0.2,
        encoder: Literal["conv", "lstm", "none", "attention"] = "conv",
        form: Literal["pointer", "anchor-free", "proposal", "qd-detr"] = "pointer",
        use_video: bool = True,
        max_share: float = 1.0,
        answer: Literal["likeliest", "overlap"] = "likeliest",
        standardise: bool = False,
        prior: bool = True,
    ) -> None:
        super().__init__()
        for what, name, known in (("encoder", encoder, ENCODERS), ("form", form, (*HEADS, DETR))):
            if name not in known:
                raise RecipeError(f"no such {what} of a moment model", found=f"'{name}'", hint=nearest(name, known))
        if width % 2 or not 0 < max_share <= 1:
            expected = "an even width, a share above 0 and at most 1"
            raise RecipeError("this is no moment model", expected=expected, found=f"{width}, {max_share}")
        if (form == DETR) != (encoder == "attention"):
            raise RecipeError(
                "this form of a moment model does not go with this encoder",
                where="[task] encoder",
                expected=f"encoder = 'attention' with form = '{DETR}', and with no other",
                found=f"{encoder} with {form}",
            )
        if encoder in ("lstm", "attention") and not prior:
            raise RecipeError(
                f"{encoder} knows where in the video it is, so the sentence's prior cannot be switched off",
                where="[task] prior",
                expected="encoder = 'conv' or 'none'",
            )
        self.max_share, self.answer = max_share, answer
        vectors = _vectors(n_words, word_width, word_vectors)
        self.backbone: nn.Module
        self.head: nn.Module
        if form == DETR:
            sizes = (word_width, width, dropout, use_video, standardise)
            self.backbone, self.head = (
                DetrBackbone(video_width, length, vectors, *sizes),
                DetrHead(width, length, dropout),
            )
            return
        sentence = Sentence(vectors, word_width, width, dropout, encoder)
        self.backbone = Backbone(video_width, length, sentence, width, dropout, encoder, use_video, standardise, prior)
        self.head = HEADS[form](width, length, dropout, max_share, prior)

    def forward(self, video: Tensor, words: Tensor) -> Located:
        """Features (B, T, video_width) and a sentence's words or tokens to what the head found."""
        located: Located = self.head(*self.backbone(video, words))
        return located

    def decode(self, located: Located, top: int = 1) -> tuple[Tensor, Tensor]:
        """The best spans (B, top, 2) in shares of the video and their scores (B, top); see `decode`."""
        return decode(located, top, self.max_share, self.answer)


class Backbone(nn.Module):
    """What the sentence makes of every position of the video (B, T, width), and the sentence itself (B, width)."""

    def __init__(
        self,
        video_width: int,
        length: int,
        sentence: nn.Module,
        width: int,
        dropout: float,
        encoder: str,
        use_video: bool,
        standardise: bool,
        prior: bool,
    ) -> None:
        super().__init__()
        self.shape, self.use_video, self.standardise = (length, video_width), use_video, standardise
        self.project = nn.Linear(video_width, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width)) if prior else None
        self.video = _over_video(encoder, width, dropout, prior)
        self.sentence = sentence
        self.similar = nn.Linear(width, width, bias=False)
        self.fuse = nn.Linear(4 * width, width)
        self.fused = _over_video(encoder, width, dropout, prior)
        self.dropout = nn.Dropout(dropout)
        encoders = ("project", "positions", "video", "sentence")
        self.model_parts = {name: "encoder" for name in encoders if any(n.startswith(name) for n in self.state_dict())}

    def forward(self, video: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        if video.shape[1:] != self.shape:
            expected = f"{self.shape[0]} positions of {self.shape[1]} features"
            raise DataError("a video does not fit the model", expected=expected, found=str(tuple(video.shape[1:])))
        if not self.use_video:
            video = torch.zeros_like(video)
        if self.standardise:
            video = F.layer_norm(video, video.shape[-1:])
        v = self.dropout(self.project(video).relu())
        v = self.video(v if self.positions is None else v + self.positions)
        h, q, real = self.sentence(words)
        logits = v @ self.similar(h).transpose(-2, -1) / math.sqrt(v.shape[-1])
        context = hide(logits, real.unsqueeze(-2)).softmax(-1) @ h
        mixed = torch.cat([v, context, v * context, v * q.unsqueeze(-2)], dim=-1)
        return self.fused(self.dropout(self.fuse(mixed).relu())), q


class Sentence(nn.Module):
    """States of words (B, L, width), 0 for padding; their mean with learned weights (B, width); which words are real.
    The mean of a sentence without a word is 0."""

    def __init__(self, vectors: nn.Module, word_width: int, width: int, dropout: float, encoder: str) -> None:
        super().__init__()
        self.vectors = vectors
        self.encode = _over_words(encoder, word_width, width, dropout)
        self.hidden, self.weight = nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        real = real_tokens(words)
        h = self.encode(self.dropout(self.vectors(words)), real) * real.unsqueeze(-1)
        logits = self.weight(self.hidden(h).tanh()).squeeze(-1)
        q = (hide(logits, real).softmax(-1).unsqueeze(-1) * h).sum(-2)
        return h, q, real


class FixedWords(nn.Module):
    """Vectors of words that are given, not learned."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors: Tensor
        self.register_buffer("vectors", vectors.detach().to(torch.get_default_dtype(), copy=True), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words, self.vectors)


class Convolutions(nn.Module):
    """Two residual convolutions; padding is 0 for each."""

    def __init__(self, enter: nn.Module, first: nn.Module, second: nn.Module, width: int, dropout: float) -> None:
        super().__init__()
        self.enter, self.convolutions = enter, nn.ModuleList([first, second])
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        x = self.enter(x)
        for norm, convolve in zip(self.norms, self.convolutions):
            y = norm(x)
            x = x + self.dropout(convolve(y if real is None else y * real.unsqueeze(-1)).relu())
        return x


class Separable(nn.Module):
    """A kernel for each channel, then a matrix over channels. For a video's many positions this is four times as fast
    as a kernel for every pair of channels; and sums of shifted products beat conv1d, whose layout differs. Beyond the
    ends is 0 or, without a `border`, what lies there."""

    def __init__(self, width: int, kernel: int, border: bool) -> None:
        super().__init__()
        self.border = border
        self.along = nn.Parameter(torch.empty(kernel, width).uniform_(-(kernel**-0.5), kernel**-0.5))
        self.across = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.across(shifted_sum(_padded(x, len(self.along), self.border), self.along))
        return y


class Dense(nn.Module):
    """A kernel for every pair of channels, as one matrix product: on short sentences conv1d takes ten times as long."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel, self.across = kernel, nn.Linear(kernel * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.across(torch.cat(_neighbours(x, self.kernel), dim=-1))
        return y


class TwoWay(nn.Module):
    """An LSTM of half the width in each direction."""

    def __init__(self, width_in: int, width: int, dropout: float) -> None:
        super().__init__()
        self.width = width
        self.lstm = TwoWayLSTM(width_in, width // 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        return self.dropout(self.lstm(x, real)[..., : self.width])


def _over_video(encoder: str, width: int, dropout: float, border: bool) -> nn.Module:
    if encoder == "lstm":
        return TwoWay(width, width, dropout)
    if encoder == "none":
        return nn.Identity()
    first, second = Separable(width, KERNEL, border), Separable(width, KERNEL, border)
    return Convolutions(nn.Identity(), first, second, width, dropout)


def _over_words(encoder: str, word_width: int, width: int, dropout: float) -> nn.Module:
    if encoder == "lstm":
        return TwoWay(word_width, width, dropout)
    enter = nn.Linear(word_width, width)
    return Convolutions(enter, Dense(width, WORD_KERNEL), Dense(width, WORD_KERNEL), width, dropout)


def _neighbours(x: Tensor, kernel: int) -> list[Tensor]:
    """For (..., N, width), the tensors that hold at each position what lies -kernel // 2 to kernel // 2 from it, and 0
    beyond the ends."""
    padded = _padded(x, kernel, border=True)
    return [padded[..., i : i + x.shape[-2], :] for i in range(kernel)]


def _padded(x: Tensor, kernel: int, border: bool) -> Tensor:
    """(..., N, width) with kernel // 2 positions more at either end: 0 or, without a `border`, what lies at the end."""
    if border:
        return F.pad(x, (0, 0, kernel // 2, kernel // 2))
    first, last = (end.expand(*x.shape[:-2], kernel // 2, -1) for end in (x[..., :1, :], x[..., -1:, :]))
    return torch.cat([first, x, last], dim=-2)


def _vectors(n_words: int, word_width: int, given: Tensor | None) -> nn.Module:
    if not n_words:
        return nn.Identity()
    if given is None:
        return nn.Embedding(n_words, word_width, padding_idx=PADDING)
    if given.shape != (n_words, word_width):
        raise DataError(
            "the word vectors do not fit the model",
            expected=f"{n_words} words of {word_width} numbers",
            found=str(tuple(given.shape)),
        )
    return FixedWords(given)
