"""CLIP's image tower (Radford et al. 2021) of the library `transformers` as a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedreel.data.clip_model import tower_of
from fedreel.data.hugging_face import library
from fedreel.models.backbone import Backbone, Images, Published
from fedreel.models.transformer import PatchConfig

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of OpenAI's preprocessor


@dataclass(frozen=True)
class ClipImageConfig(PatchConfig):
    """CLIP's image tower with its projection, by default that of ViT-B/32."""

    kinds: ClassVar = ("clip", "clip_vision_model")
    usual: ClassVar = {
        "width": 768,
        "depth": 12,
        "heads": 12,
        "patch": 32,
        "mlp": 3072,
        "eps": 1e-5,
        "projection": 512,
        "activation": "quick_gelu",
        "mean": MEAN,
        "std": STD,
    }
    sizes: ClassVar = {
        **PatchConfig.sizes,
        "mlp": "intermediate_size",
        "projection": "projection_dim",
        "activation": "hidden_act",
    }
    apart: ClassVar = ("image_size", "initializer_range", "initializer_factor", "attention_dropout")

    projection: int = 0  # width of the space that images and sentences share
    activation: Literal["", "quick_gelu", "gelu"] = ""

    def library_config(self, told: Mapping[str, Any]) -> Any:
        return super().library_config(tower_of(told, "vision_config") if told["model_type"] == "clip" else told)

    def config_class(self) -> Any:
        return library().CLIPVisionConfig

    def config(self, sample: Images) -> Any:
        return self.config_class()(**self.written(), image_size=sample.size)

    def known_class(self) -> Any:
        return library().CLIPVisionModelWithProjection

    def around(self, model: nn.Module, sample: Images) -> ClipImage:
        return ClipImage(model)


class ClipImage(Backbone):
    """Images (N, 3, H, W) to the vectors (N, C, 1 + tokens) of the class token and all others in the space that images
    and sentences share; pooled, that of the class token, which is the image's. Tensors have the names of
    CLIPVisionModelWithProjection."""

    published = Published(
        elsewhere=("text_model.", "text_projection.", "logit_scale"),
        hint="take the file of the same architecture, or set width, depth, heads, mlp, patch and projection to its own",
    )

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.out_channels = model.config.projection_dim
        self.vision_model, self.visual_projection = model.vision_model, model.visual_projection

    def features(self, x: Tensor) -> Tensor:
        tower: Any = self.vision_model
        tokens = tower.encoder(inputs_embeds=tower.pre_layrnorm(tower.embeddings(x))).last_hidden_state
        return self.visual_projection(tower.post_layernorm(tokens)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[:, :, 0]
