"""LoRA of networks of `transformers`: files written here give peft, on the library's own models, our outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

tf = pytest.importorskip("transformers", reason="the extra hf is not installed")

from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Images  # noqa: E402
from fedreel.models.clip import ClipImageConfig  # noqa: E402
from fedreel.models.lora import Lora, peft_files  # noqa: E402
from fedreel.models.videomae import VideoMAEConfig  # noqa: E402
from fedreel.models.vit import DINOv2Config, ViTConfig  # noqa: E402
from fedreel.models.vjepa2 import VJEPA2Config  # noqa: E402
from fedreel.runs.run import load  # noqa: E402
from fedreel.tasks.vision.export import export, export_lora  # noqa: E402
from support.embedded import train  # noqa: E402

TWO = Lora(rank=2, alpha=3.0)
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
VIDEOMAE = {**SIZES, "patch_size": 8, "tubelet_size": 2, "image_size": 16, "num_frames": 4, "intermediate_size": 20}
VJEPA2 = {**SIZES, "patch_size": 8, "tubelet_size": 2, "crop_size": 16, "frames_per_clip": 4, "pred_hidden_size": 12}
VJEPA2 |= {"pred_num_attention_heads": 1, "pred_num_hidden_layers": 1}
IMAGES = {**SIZES, "image_size": 16, "patch_size": 8}
CLIP = {**IMAGES, "intermediate_size": 20, "projection_dim": 6}
CLIPS = torch.randn(2, 3, 4, 16, 16, generator=torch.Generator().manual_seed(0))
PICTURES = CLIPS[:, :, 0]


def last(model: Any) -> Tensor:
    return model(PICTURES).last_hidden_state


MODELS: dict[str, tuple[type[BackboneConfig], Any, Any, Callable[[Any], Tensor]]] = {
    "videomae": (
        VideoMAEConfig,
        Clips(4, 16),
        lambda: tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)),
        lambda model: model(CLIPS.transpose(1, 2)).last_hidden_state,
    ),
    "vjepa2": (
        VJEPA2Config,
        Clips(4, 16),
        lambda: tf.VJEPA2Model(tf.VJEPA2Config(**VJEPA2)),
        lambda model: model(CLIPS.transpose(1, 2), skip_predictor=True).last_hidden_state,
    ),
    "vit": (ViTConfig, Images(16), lambda: tf.ViTModel(tf.ViTConfig(**IMAGES, intermediate_size=20)), last),
    "dinov2": (DINOv2Config, Images(16), lambda: tf.Dinov2Model(tf.Dinov2Config(**IMAGES)), last),
    "clip-image": (
        ClipImageConfig,
        Images(16),
        lambda: tf.CLIPVisionModelWithProjection(tf.CLIPVisionConfig(**CLIP)),
        lambda model: model(PICTURES).image_embeds,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_peft_gives_the_same_on_the_library_s_own_model(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the package peft")
    cls, sample, make, answer = MODELS[name]
    make().save_pretrained(tmp_path)
    config = cls(init=str(tmp_path), tune="lora", lora=TWO)  # type: ignore[call-arg]
    network = shaken(config.built(sample))
    folder = written(network, config, str(tmp_path), tmp_path / "adapter")
    base = config.known_class().from_pretrained(tmp_path).eval()  # type: ignore[misc, union-attr]
    before = answer(base)
    ours = network(PICTURES) if name == "clip-image" else tokens(network, sample)
    assert (answer(peft.PeftModel.from_pretrained(base, str(folder)).eval()) - ours).abs().max() < 1e-5
    assert (before - ours).abs().max() > 1e-3
    alone = peft.AutoPeftModel.from_pretrained(str(folder)).eval()  # which reads of what class the base is, and where
    assert (answer(alone) - ours).abs().max() < 1e-5


def test_it_is_for_the_part_of_a_larger_model_that_is_the_backbone(tmp_path: Path) -> None:
    """peft changes layers where they are, so that the larger model has them too."""
    peft = pytest.importorskip("peft", reason="needs the package peft")
    whole = tf.VideoMAEForVideoClassification(tf.VideoMAEConfig(**VIDEOMAE, use_mean_pooling=False)).eval()
    whole.save_pretrained(tmp_path)
    config = VideoMAEConfig(init=str(tmp_path), tune="lora", lora=TWO)
    network = shaken(config.built(Clips(4, 16)))
    peft.PeftModel.from_pretrained(whole.videomae, str(written(network, config, "", tmp_path / "adapter")))
    expected = whole.classifier(tokens(network, Clips(4, 16))[:, 0])
    assert (whole(CLIPS.transpose(1, 2)).logits - expected).abs().max() < 1e-5


def test_a_run_s_lora_is_written_and_merged_under_the_library_s_names(data: Path, tmp_path: Path) -> None:
    model = tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE))
    model.save_pretrained(tmp_path / "base")
    chosen = {"task.backbone": "videomae", "task.backbone.init": tmp_path / "base", "task.backbone.tune": "lora"}
    run = train(tmp_path / "run", data, **chosen, **{"task.backbone.width": 12, "task.backbone.lora.rank": 2})
    export_lora(run, tmp_path / "adapter")
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(tmp_path / "base")
    assert told["auto_mapping"]["base_model_class"] == "VideoMAEModel"
    names = {name.removesuffix(".weight") for name in model.state_dict()}
    parts = {n.removeprefix("base_model.model.") for n in load_file(tmp_path / "adapter" / "adapter_model.safetensors")}
    assert {part.rpartition(".lora_")[0] for part in parts} <= names
    export(run, tmp_path / "merged.safetensors")
    model.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    trained: Any = load(run).model.backbone
    with torch.no_grad():
        theirs = model.eval()(CLIPS.transpose(1, 2)).last_hidden_state
        assert (theirs - tokens(trained.eval(), Clips(4, 16))).abs().max() < 1e-5


def shaken(network: Backbone) -> Backbone:
    """With other numbers than zero in B, and as in a test."""
    torch.manual_seed(1)
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return network.eval().requires_grad_(False)


def tokens(network: Backbone, sample: Any) -> Tensor:
    found = network.features(CLIPS if isinstance(sample, Clips) else PICTURES)
    return found.flatten(2).transpose(1, 2)


def written(network: Backbone, config: BackboneConfig, base: str, folder: Path) -> Path:
    about, tensors = peft_files(network.known(), TWO, base, config.known_class())
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(about))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
