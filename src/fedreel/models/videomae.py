"""VideoMAE (Tong et al. 2022) of the library `transformers`: its encoder as a backbone, and the light decoder that
fills in what the encoder was not shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedreel.data.hugging_face import library
from fedreel.data.input_scale import IMAGENET
from fedreel.models.backbone import Backbone, Clips, Published
from fedreel.models.transformer import TubeletConfig

DECODER_DEPTH = 4  # as published for all sizes; the decoder's width and heads are half of the encoder's


@dataclass(frozen=True)
class VideoMAEConfig(TubeletConfig):
    """VideoMAE, by default of size S (22 million parameters): size B is width 768 and 12 heads."""

    kinds: ClassVar = ("videomae",)
    usual: ClassVar = {
        "width": 384,
        "depth": 12,
        "heads": 6,
        "patch": 16,
        "tubelet": 2,
        "mlp": 1536,
        "eps": 1e-12,
        "last": "norm",
        "mean": IMAGENET.mean,
        "std": IMAGENET.std,
    }
    sizes: ClassVar = {**TubeletConfig.sizes, "mlp": "intermediate_size"}
    apart: ClassVar = (
        *("image_size", "num_frames", "initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob"),
        *("decoder_hidden_size", "decoder_num_hidden_layers", "decoder_num_attention_heads"),
        *("decoder_intermediate_size", "norm_pix_loss"),
    )

    last: Literal["", "norm", "none"] = ""  # after the last layer; published models that know classes have none

    def read(self, told: Mapping[str, Any]) -> dict[str, Any]:
        bare = self.library_config(told).use_mean_pooling
        return super().read(told) | {"last": "none" if bare else "norm"}

    def config_class(self) -> Any:
        return library().VideoMAEConfig

    def config(self, sample: Clips) -> Any:
        return self.config_class()(
            **self.written(),
            image_size=sample.size,
            num_frames=sample.frames,
            use_mean_pooling=self.last == "none",
            decoder_hidden_size=max(self.width // 2, 1),
            decoder_num_attention_heads=max(self.heads // 2, 1),
            decoder_intermediate_size=2 * self.width,
            decoder_num_hidden_layers=DECODER_DEPTH,
        )

    def known_class(self) -> Any:
        return library().VideoMAEModel

    def around(self, model: nn.Module, sample: Clips) -> VideoMAE:
        return VideoMAE(model, self.grid(sample))

    def check_sample(self, sample: Clips, told: Mapping[str, Any] | None) -> None:
        super().check_sample(sample, told)
        if told is None:
            return
        config = self.library_config(told)
        if sample.size != config.image_size:
            self._misfit("size", sample.size, f"{config.image_size}: the model's tokens are numbered for it")
        if sample.frames > config.num_frames:
            self._misfit(
                "number of frames", sample.frames, f"{config.num_frames} or fewer, as in training", "[task] frames"
            )


class VideoMAE(Backbone):
    """Clips (N, 3, T, H, W) to a vector for each token (N, C, T / tubelet, H / patch, W / patch). Tensors have
    the names of VideoMAEModel. Positions are a fixed table, and no part of the weights."""

    published = Published(
        renamed=((r"^videomae\.", ""),),
        elsewhere=("decoder.", "encoder_to_decoder.", "mask_token", "classifier.", "fc_norm."),
        optional=r"^layernorm\.",
        hint="take the file of the same architecture, or set width, depth, heads, mlp, patch and tubelet to its own",
    )
    positions: Tensor

    def __init__(self, model: Any, grid: tuple[int, int, int]) -> None:
        super().__init__()
        self.config, self.grid, self.out_channels = model.config, grid, model.config.hidden_size
        self.embeddings, self.encoder, self.layernorm = model.embeddings, model.encoder, model.layernorm
        self.embeddings.position_embeddings = None  # theirs stays on the host
        self.register_buffer("positions", position_table(grid, self.out_channels), persistent=False)

    def drop_paths(self, share: float) -> None:
        """In training, leave out what a layer's attention and what its other part add, each for some of the clips: for
        this share of them in the last layer, for none in the first, evenly between (stochastic depth)."""
        layers: Any = self.encoder.layer
        for layer, own in zip(layers, torch.linspace(0, share, len(layers)).tolist()):
            layer.attention.output.dropout, layer.output.dropout = DropPath(own), DropPath(own)

    def features(self, x: Tensor) -> Tensor:
        return self._encoded(self.tokens(x)).transpose(1, 2).unflatten(2, self.grid)

    def visible(self, x: Tensor, which: Tensor) -> Tensor:
        """Vectors (N, K, C) of these tokens (N, K) of each clip; the others are not looked at."""
        return self._encoded(chosen_tokens(self.tokens(x), which))

    def tokens(self, x: Tensor) -> Tensor:
        """(N, tokens, C), before the first layer."""
        projection = self.embeddings.patch_embeddings.projection
        return projection(x).flatten(2).transpose(1, 2) + self.positions

    def _encoded(self, tokens: Tensor) -> Tensor:
        found = self.encoder(tokens).last_hidden_state
        return found if self.layernorm is None else self.layernorm(found)


class DropPath(nn.Module):
    """In training nothing, for a share of the samples, and as much more of the others that the mean stays."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.share:
            return x
        stays = torch.rand(len(x), *(1,) * (x.dim() - 1), device=x.device) >= self.share
        return x * (stays / (1 - self.share)).to(x.dtype)


class Decoder(nn.Module):
    """From the vectors of visible tokens to the pixels of the others: (N, hidden, numbers of a token's cube). Tensors
    have the names of VideoMAEForPreTraining."""

    positions: Tensor

    def __init__(self, encoder: VideoMAE) -> None:
        super().__init__()
        modeling = library("models.videomae.modeling_videomae")
        config = encoder.config
        width = config.decoder_hidden_size
        self.encoder_to_decoder = nn.Linear(config.hidden_size, width, bias=False)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.decoder = modeling.VideoMAEDecoder(config)
        self.register_buffer("positions", position_table(encoder.grid, width), persistent=False)
        nn.init.trunc_normal_(self.mask_token, std=config.initializer_range)
        self.apply(lambda module: _initialised(module, config.initializer_range))

    def forward(self, seen: Tensor, visible: Tensor, hidden: Tensor) -> Tensor:
        """`seen` (N, K, C) are the vectors of the tokens `visible` (N, K); those of `hidden` (N, M) are asked for."""
        table = self.positions.expand(len(seen), -1, -1)
        known = self.encoder_to_decoder(seen) + chosen_tokens(table, visible)
        asked = self.mask_token + chosen_tokens(table, hidden)
        return self.decoder(torch.cat([known, asked.to(known.dtype)], dim=1), hidden.shape[1]).logits


def chosen_tokens(tokens: Tensor, which: Tensor) -> Tensor:
    """Rows (N, K, C) of tokens (N, tokens, C)."""
    return tokens.gather(1, which[:, :, None].expand(-1, -1, tokens.shape[2]))


def position_table(grid: tuple[int, int, int], width: int) -> Tensor:
    """Sines and cosines (1, tokens, width) of a token's number, which counts along rows, pictures and time."""
    modeling = library("models.videomae.modeling_videomae")
    return modeling.get_sinusoid_encoding_table(grid[0] * grid[1] * grid[2], width)


def _initialised(module: nn.Module, std: float) -> None:
    """As the library begins a decoder."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
