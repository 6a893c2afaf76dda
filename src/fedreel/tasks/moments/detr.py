"""QD-DETR (Moon et al. 2023): the sentence is written into the video, then moments are detected as a set."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.errors import DataError
from fedreel.tasks.moments.attention import Attention, Layer, real_tokens, waves
from fedreel.tasks.moments.detection import Detected
from fedreel.tasks.moments.grounding_heads import Located

LAYERS, QUERIES = 2, 10  # of either encoder and of the decoder; answers to a question
WIDTH = 0.25  # of the video that an answer is long before anything is learned


class Seen(NamedTuple):
    """The video with the sentence in it (B, T, width), the token that sums it up (B, width), and in training the same
    with the sentence of another question of the batch, and whether (B,) that is another sentence."""

    video: Tensor
    token: Tensor
    unfit_video: Tensor | None = None
    unfit_token: Tensor | None = None
    other: Tensor | None = None


class DetrBackbone(nn.Module):
    """Positions of the video look at the words of the sentence, then at each other and a token of their own."""

    def __init__(
        self,
        video_width: int,
        length: int,
        vectors: nn.Module,
        word_width: int,
        width: int,
        dropout: float,
        use_video: bool,
        standardise: bool,
    ) -> None:
        super().__init__()
        self.shape, self.use_video, self.standardise = (length, video_width), use_video, standardise
        self.project = _project(video_width, width, dropout)
        self.sentence = nn.ModuleDict({"vectors": vectors, "project": _project(word_width, width, dropout)})
        self.across = nn.ModuleList(Layer(width, dropout) for _ in range(LAYERS))
        self.along = nn.ModuleList(Layer(width, dropout) for _ in range(LAYERS))
        self.token = nn.Parameter(0.02 * torch.randn(2, width))  # what it begins with, and its place
        self.places: Tensor
        self.register_buffer("places", waves((torch.arange(length) + 0.5) / length, width), persistent=False)
        self.model_parts = {"project": "encoder", "sentence": "encoder"}

    def forward(self, video: Tensor, words: Tensor) -> Seen:
        if video.shape[1:] != self.shape:
            expected = f"{self.shape[0]} positions of {self.shape[1]} features"
            raise DataError("a video does not fit the model", expected=expected, found=str(tuple(video.shape[1:])))
        video = video if self.use_video else torch.zeros_like(video)
        v = self.project(F.layer_norm(video, video.shape[-1:]) if self.standardise else video)
        said, real = self.sentence["project"](self.sentence["vectors"](words)), real_tokens(words)
        seen = self._read(v, said, real)
        if not self.training:
            return Seen(*seen)
        other = (words != words.roll(1, 0)).flatten(1).any(1)
        return Seen(*seen, *self._read(v, said.roll(1, 0), real.roll(1, 0)), other)

    def _read(self, v: Tensor, said: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.across:
            v = layer(v, self.places, said, None, real)
        first, place = self.token.unbind(0)
        x = torch.cat([first.expand(*v.shape[:-2], 1, -1), v], dim=-2)
        places = torch.cat([place.unsqueeze(0), self.places])
        for layer in self.along:
            x = layer(x, places)
        return x[..., 1:, :], x[..., 0, :]


class DetrHead(nn.Module):
    """Answers begin evenly spread over the video; each layer of the decoder moves them by what they see there."""

    def __init__(self, width: int, length: int, dropout: float) -> None:
        super().__init__()
        centres = (torch.arange(QUERIES) + 0.5) / QUERIES
        self.anchors = nn.Parameter(torch.stack([centres.logit(), torch.full_like(centres, WIDTH).logit()], dim=1))
        self.place = nn.Linear(2 * width, width)
        self.layers = nn.ModuleList(DecoderLayer(width, dropout) for _ in range(LAYERS))
        self.move = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.right = nn.Linear(width, 1)
        self.salient, self.by_token = nn.Linear(width, width), nn.Linear(width, width)
        self.places: Tensor
        self.register_buffer("places", waves((torch.arange(length) + 0.5) / length, width), persistent=False)
        nn.init.zeros_(self.move[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.move[2].bias)  # type: ignore[arg-type]

    def forward(
        self,
        video: Tensor,
        token: Tensor,
        unfit_video: Tensor | None = None,
        unfit_token: Tensor | None = None,
        other: Tensor | None = None,
    ) -> Located:
        spans, logits = self._decode(video)
        unfit = None
        if unfit_video is not None and unfit_token is not None:
            unfit = self._saliency(unfit_video, unfit_token)
        detected = Detected(spans, logits, unfit, other)
        return Located(self._saliency(video, token), None, None, video.mean(-2), detected=detected)

    def _decode(self, video: Tensor) -> tuple[Tensor, Tensor]:
        anchors = self.anchors.expand(*video.shape[:-2], -1, -1)
        x = torch.zeros_like(video[..., :1, :]).expand(*video.shape[:-2], QUERIES, -1)
        spans, logits = [], []
        for layer in self.layers:
            place = self.place(waves(anchors.sigmoid(), video.shape[-1]).flatten(-2))
            x = layer(x, place, video, self.places)
            moved = anchors + self.move(x)
            spans.append(moved.sigmoid())
            logits.append(self.right(x).squeeze(-1))
            anchors = moved.detach()
        return torch.stack(spans), torch.stack(logits)

    def _saliency(self, video: Tensor, token: Tensor) -> Tensor:
        found: Tensor = (self.salient(video) @ self.by_token(token).unsqueeze(-1)).squeeze(-1)
        return found / math.sqrt(video.shape[-1])


class DecoderLayer(nn.Module):
    """Answers look at each other, then at the video."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.among, self.norm = Attention(width), nn.LayerNorm(width)
        self.at_video, self.dropout = Layer(width, dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor, place: Tensor, video: Tensor, places: Tensor) -> Tensor:
        told = x + place
        x = self.norm(x + self.dropout(self.among(told, told, x)))
        y: Tensor = self.at_video(x, place, video, places)
        return y


def _project(width_in: int, width: int, dropout: float) -> nn.Module:
    first = (nn.LayerNorm(width_in), nn.Dropout(dropout), nn.Linear(width_in, width), nn.ReLU())
    return nn.Sequential(*first, nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, width))
