"""V-JEPA 2 (Assran et al. 2025) of the library `transformers`: its encoder as a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from fedreel.data.hugging_face import library, load_model, read_config
from fedreel.data.input_scale import IMAGENET
from fedreel.models.backbone import Backbone, Clips, Published
from fedreel.models.transformer import TubeletConfig

NO_PREDICTOR = {"pred_hidden_size": 12, "pred_num_attention_heads": 1, "pred_num_hidden_layers": 1}


@dataclass(frozen=True)
class VJEPA2Config(TubeletConfig):
    """V-JEPA 2, by default of size B; the published size L is width 1024, depth 24, 16 heads and mlp 4096. Places are
    told by rotations, so that clips may be of any size that can be cut into tokens."""

    kinds: ClassVar = ("vjepa2",)
    usual: ClassVar = {
        "width": 768,
        "depth": 12,
        "heads": 12,
        "patch": 16,
        "tubelet": 2,
        "mlp": 3072,
        "eps": 1e-6,
        "mean": IMAGENET.mean,
        "std": IMAGENET.std,
    }
    apart: ClassVar = (
        *("crop_size", "frames_per_clip", "initializer_range", "drop_path_rate", "attention_probs_dropout_prob"),
        *("attention_dropout", "num_pooler_layers", "pred_hidden_size", "pred_num_attention_heads"),
        *("pred_num_hidden_layers", "pred_num_mask_tokens", "pred_zero_init_mask_tokens", "pred_mlp_ratio"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width // self.heads < 6:
            self._refuse(
                "heads", f"{max(self.width // 6, 1)} or fewer: a head needs 2 numbers for each of 3 axes", self.heads
            )

    def read(self, told: Mapping[str, Any]) -> dict[str, Any]:
        config = self.library_config(told)
        return super().read(told) | {"mlp": int(config.hidden_size * config.mlp_ratio)}

    def config_class(self) -> Any:
        return library().VJEPA2Config

    def config(self, sample: Clips) -> Any:
        return self.config_class()(
            **self.written(),
            **NO_PREDICTOR,
            mlp_ratio=self.mlp / self.width,
            crop_size=sample.size,
            frames_per_clip=sample.frames,
        )

    def known_class(self) -> Any:
        return library().VJEPA2Model

    def made(self, config: Any) -> nn.Module:
        return cast(Any, super().made(config)).encoder

    def loaded(self, config: Any, folder: Path) -> nn.Module:
        theirs = self.library_config(read_config(folder, self.kinds))
        theirs.crop_size, theirs.frames_per_clip = config.crop_size, config.frames_per_clip
        return cast(Any, load_model(self.known_class(), folder, theirs, "encoder.")).encoder

    def around(self, model: nn.Module, sample: Clips) -> VJEPA2:
        return VJEPA2(model, self.grid(sample))


class VJEPA2(Backbone):
    """Clips (N, 3, T, H, W) to a vector for each token (N, C, T / tubelet, H / patch, W / patch). Tensors have the
    names of VJEPA2Model."""

    published = Published(
        renamed=((r"^vjepa2\.", ""),),
        elsewhere=("predictor.", "pooler.", "classifier."),
        hint="take the file of the same architecture, or set width, depth, heads, mlp, patch and tubelet to its own",
    )

    def __init__(self, encoder: Any, grid: tuple[int, int, int]) -> None:
        super().__init__()
        self.grid, self.out_channels = grid, encoder.config.hidden_size
        self.encoder = encoder

    def features(self, x: Tensor) -> Tensor:
        tokens = self.encoder(x.transpose(1, 2)).last_hidden_state
        return tokens.transpose(1, 2).unflatten(2, self.grid)
