"""ViT (Dosovitskiy et al. 2021) and DINOv2 (Oquab et al. 2024) of the library `transformers`, for images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from fedreel.data.hugging_face import library, load_model
from fedreel.data.input_scale import IMAGENET
from fedreel.models.backbone import Backbone, Images, Published
from fedreel.models.transformer import PatchConfig, TransformerConfig

SMALL = {"width": 384, "depth": 12, "heads": 6, "mlp": 1536}
APART = ("image_size", "initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclass(frozen=True)
class ViTConfig(PatchConfig):
    """ViT, by default of size S (22 million parameters): size B is width 768 and 12 heads."""

    kinds: ClassVar = ("vit",)
    usual: ClassVar = {**SMALL, "patch": 16, "eps": 1e-12, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    sizes: ClassVar = {**PatchConfig.sizes, "mlp": "intermediate_size"}
    apart: ClassVar = (*APART, "encoder_stride", "pooler_output_size", "pooler_act")

    def config_class(self) -> Any:
        return library().ViTConfig

    def config(self, sample: Images) -> Any:
        return self.config_class()(**self.written(), image_size=sample.size)

    def known_class(self) -> Any:
        return library().ViTModel

    def made(self, config: Any) -> nn.Module:
        return self.known_class()(config, add_pooling_layer=False)

    def loaded(self, config: Any, folder: Path) -> nn.Module:
        return load_model(self.known_class(), folder, config, add_pooling_layer=False)

    def around(self, model: nn.Module, sample: Images) -> ImageTransformer:
        return ImageTransformer(model)


@dataclass(frozen=True)
class DINOv2Config(PatchConfig):
    """DINOv2, by default of size S (22 million parameters). Images may be of any size that can be cut into tokens: what
    it learned of places is interpolated."""

    kinds: ClassVar = ("dinov2",)
    usual: ClassVar = {**SMALL, "patch": 14, "eps": 1e-6, "mean": IMAGENET.mean, "std": IMAGENET.std, "side": 0}
    apart: ClassVar = (
        *(*APART, "layerscale_value", "drop_path_rate", "use_mask_token", "apply_layernorm"),
        *("reshape_hidden_states", "_out_features", "_out_indices", "out_features", "out_indices"),
    )

    side: int = 0  # pixels of the images that places were learned for; 0: the task's

    def read(self, told: Mapping[str, Any]) -> dict[str, Any]:
        config = self.library_config(told)
        return super().read(told) | {"mlp": config.hidden_size * config.mlp_ratio, "side": config.image_size}

    def check_sample(self, sample: Images, told: Mapping[str, Any] | None) -> None:
        TransformerConfig.check_sample(self, sample, told)
        if self.mlp % self.width:
            self._refuse("mlp", f"a multiple of the width {self.width}", self.mlp)

    def config_class(self) -> Any:
        return library().Dinov2Config

    def config(self, sample: Images) -> Any:
        ratio, side = self.mlp // self.width, self.side or sample.size
        return self.config_class()(**self.written(), mlp_ratio=ratio, image_size=side, use_mask_token=False)

    def known_class(self) -> Any:
        return library().Dinov2Model

    def around(self, model: nn.Module, sample: Images) -> ImageTransformer:
        return ImageTransformer(model)


class ImageTransformer(Backbone):
    """Images (N, 3, H, W) to the vectors (N, C, 1 + tokens) of the class token and all others; pooled, that of the
    class token. Tensors have the names of ViTModel or Dinov2Model."""

    published = Published(
        renamed=((r"^(vit|dinov2)\.", ""),),
        elsewhere=("classifier.", "pooler.", "decoder."),
        hint="take the file of the same architecture, or set width, depth, heads, mlp and patch to its own",
    )

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.out_channels = model.config.hidden_size
        self.embeddings, self.layernorm = model.embeddings, model.layernorm
        if hasattr(model, "layers"):
            self.layers = model.layers
        else:
            self.encoder = nn.Module()
            self.encoder.layer = model.encoder.layer

    def features(self, x: Tensor) -> Tensor:
        tokens = self.embeddings(x)
        layers: Any = self.layers if hasattr(self, "layers") else self.encoder.layer
        for layer in layers:
            tokens = layer(tokens)
        return self.layernorm(tokens).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[:, :, 0]
