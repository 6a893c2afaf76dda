"""Networks of Hugging Face's `transformers`: random weights that it saved give the same outputs when loaded here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

tf = pytest.importorskip("transformers", reason="the extra hf is not installed")

from fedreel.data.clip_model import ClipImages, ClipText  # noqa: E402
from fedreel.data.features import make_features  # noqa: E402
from fedreel.data.hugging_face import find_folder  # noqa: E402
from fedreel.errors import DataError, FedreelError, RecipeError  # noqa: E402
from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Images  # noqa: E402
from fedreel.models.clip import ClipImageConfig  # noqa: E402
from fedreel.models.videomae import VideoMAEConfig  # noqa: E402
from fedreel.models.vit import DINOv2Config, ViTConfig  # noqa: E402
from fedreel.models.vjepa2 import VJEPA2Config  # noqa: E402
from support.clip import clip_folder  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIPS = {"patch_size": 8, "tubelet_size": 2, **SIZES}
VIDEOMAE = {**CLIPS, "image_size": 16, "num_frames": 4, "intermediate_size": 40}
VJEPA2 = {**CLIPS, "crop_size": 32, "frames_per_clip": 8, "pred_hidden_size": 12, "pred_num_attention_heads": 1}
IMAGES = {"image_size": 16, "patch_size": 4, **SIZES}


def saved(model: Any, folder: Path, **preprocessor: Any) -> Path:
    """As `transformers` writes it; biases and norms are random too, so that one that is left out shows."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(folder)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def loaded(config: BackboneConfig, sample: Any) -> Backbone:
    return config.network(sample).eval()


def tokens(features: torch.Tensor) -> torch.Tensor:
    return features.flatten(2).transpose(1, 2)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["VideoMAEModel", "VideoMAEForPreTraining", "VideoMAEForVideoClassification"])
@pytest.mark.parametrize("bare", [False, True])
def test_videomae_gives_what_transformers_gives(tmp_path: Path, name: str, bare: bool) -> None:
    model = getattr(tf, name)(tf.VideoMAEConfig(**VIDEOMAE, use_mean_pooling=bare))
    config = VideoMAEConfig(init=str(saved(model, tmp_path)))
    assert (config.width, config.mlp, config.last) == (24, 40, "none" if bare else "norm")
    x = torch.randn(2, 3, 4, 16, 16)
    with torch.no_grad():
        theirs = getattr(model, "videomae", model)(x.transpose(1, 2)).last_hidden_state
        maps = loaded(config, Clips(4, 16)).features(x)
    assert maps.shape == (2, 24, 2, 2, 2)
    assert same(tokens(maps), theirs)


def test_of_videomae_fewer_frames_are_the_beginning_of_more(tmp_path: Path) -> None:
    """Positions count along time last, so a shorter clip has those of the first frames: seen tokens alone agree."""
    config = VideoMAEConfig(init=str(saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)))
    whole, half = (loaded(config, Clips(frames, 16)) for frames in (4, 2))
    x = torch.randn(1, 3, 4, 16, 16)
    with torch.no_grad():
        assert same(whole.visible(x, torch.arange(4)[None]), tokens(half.features(x[:, :, :2])))  # type: ignore[operator]


@pytest.mark.parametrize("size", [32, 16])
def test_vjepa2_gives_what_transformers_gives(tmp_path: Path, size: int) -> None:
    """Of another size than in training too, where transformers is told the size."""
    model = tf.VJEPA2Model(tf.VJEPA2Config(**VJEPA2, pred_num_hidden_layers=1))
    config = VJEPA2Config(init=str(saved(model, tmp_path)))
    x = torch.randn(2, 3, 4, size, size)
    for layer in model.encoder.layer:
        layer.attention.grid_size = size // 8
    with torch.no_grad():
        theirs = model(x.transpose(1, 2), skip_predictor=True).last_hidden_state
        assert same(tokens(loaded(config, Clips(4, size)).features(x)), theirs)


def test_vit_gives_what_transformers_gives(tmp_path: Path) -> None:
    model = tf.ViTModel(tf.ViTConfig(**IMAGES, intermediate_size=40))
    scale = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    config = ViTConfig(init=str(saved(model, tmp_path, **scale)))
    assert (config.input_scale.mean, config.input_scale.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    x = torch.randn(2, 3, 16, 16)
    network = loaded(config, Images(16))
    with torch.no_grad():
        theirs = model(x).last_hidden_state
        assert same(tokens(network.features(x)), theirs)
        assert same(network(x), theirs[:, 0])


@pytest.mark.parametrize("size", [16, 24])
def test_dinov2_gives_what_transformers_gives(tmp_path: Path, size: int) -> None:
    model = tf.Dinov2Model(tf.Dinov2Config(**IMAGES))
    config = DINOv2Config(init=str(saved(model, tmp_path)))
    x = torch.randn(2, 3, size, size)
    network = loaded(config, Images(size))
    with torch.no_grad():
        assert same(tokens(network.features(x)), model(x).last_hidden_state)
        assert same(network(x), model(x).pooler_output)


def test_clip_gives_what_transformers_gives(tmp_path: Path) -> None:
    folder, model = clip_folder(tmp_path)
    x = torch.randn(2, 3, 16, 16)
    sentences = ["a dog runs", "the cat"]
    text = ClipText(folder)
    read = text.tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        images = model.get_image_features(pixel_values=x)
        words = model.get_text_features(**read)
        images, words = (getattr(found, "pooler_output", found) for found in (images, words))
        assert same(loaded(ClipImageConfig(init=str(folder)), Images(16))(x), images)
        assert same(ClipImages(folder)(x), images)
    assert np.abs(text(sentences) - words.numpy()).max() < 1e-5
    assert np.abs(text(sentences[:1]) - words.numpy()[:1]).max() < 1e-5, "what stands beside a sentence plays no part"


def test_features_by_clip_are_the_image_tower_on_its_own_scale(tmp_path: Path) -> None:
    folder, model = clip_folder(tmp_path)
    features = make_features(f"clip:{folder}")
    frames = np.random.default_rng(0).integers(0, 256, (2, 1, 16, 16, 3), np.uint8)
    x = (torch.from_numpy(frames[:, 0]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        theirs = model.get_image_features(pixel_values=x)
        unit = torch.nn.functional.normalize(getattr(theirs, "pooler_output", theirs), dim=1)
    assert (features.width, features.size, features.card()["name"]) == (12, (16, 16), "clip")
    assert np.abs(features(frames) - unit.numpy()).max() < 1e-5


# what a run is told


def test_a_loaded_model_s_sizes_make_the_same_network_without_the_folder(tmp_path: Path) -> None:
    from dataclasses import replace

    config = VideoMAEConfig(init=str(saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)))
    with_weights, fresh = loaded(config, Clips(4, 16)), loaded(replace(config, init=""), Clips(4, 16))
    fresh.load_state_dict(with_weights.state_dict())
    x = torch.randn(1, 3, 4, 16, 16)
    with torch.no_grad():
        assert torch.equal(fresh(x), with_weights(x))


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    config = VideoMAEConfig(init=str(saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    config.network(Clips(4, 16))
    assert torch.equal(before, torch.get_rng_state())


def test_a_file_of_weights_loads_where_the_sizes_are_its_own(tmp_path: Path) -> None:
    tiny = {"width": 24, "depth": 1, "heads": 2, "mlp": 40, "patch": 8}
    network = VideoMAEConfig(**tiny).network(Clips(4, 16))
    file = tmp_path / "weights.safetensors"
    save_file({f"backbone.{name}": tensor for name, tensor in network.state_dict().items()}, file)
    again = VideoMAEConfig(**tiny, init=str(file)).network(Clips(4, 16))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in network.state_dict().items())


# what does not fit


def test_clips_that_have_no_places_are_refused_with_those_that_fit(tmp_path: Path) -> None:
    config = VideoMAEConfig(init=str(saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)))
    for sample, expected in {Clips(4, 24): "16", Clips(8, 16): "4 or fewer", Clips(3, 16): "multiple of 2"}.items():
        with pytest.raises(RecipeError) as caught:
            config.network(sample)
        assert expected in caught.value.expected
    with pytest.raises(RecipeError) as caught:
        ViTConfig(patch=16).network(Images(24))
    assert "multiple of 16" in caught.value.expected


def test_sizes_that_contradict_the_folder_are_refused(tmp_path: Path) -> None:
    folder = saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)
    with pytest.raises(RecipeError, match="another width") as caught:
        VideoMAEConfig(init=str(folder), width=32)
    assert caught.value.expected.startswith("24")


def test_a_variant_that_the_settings_cannot_say_is_refused(tmp_path: Path) -> None:
    folder = saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE, hidden_act="relu")), tmp_path)
    with pytest.raises(RecipeError, match="variant") as caught:
        VideoMAEConfig(init=str(folder)).network(Clips(4, 16))
    assert caught.value.found == "hidden_act = relu, not gelu"


def test_weights_are_all_there_or_refused(tmp_path: Path) -> None:
    folder = saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, "num_hidden_layers": 3}))
    with pytest.raises(DataError, match="not those of the model"):
        VideoMAEConfig(init=str(folder)).network(Clips(4, 16))


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    folder = saved(tf.VideoMAEModel(tf.VideoMAEConfig(**VIDEOMAE)), tmp_path)
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        VideoMAEConfig(init=str(folder)).network(Clips(4, 16))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    folder = saved(tf.ViTModel(tf.ViTConfig(**IMAGES)), tmp_path)
    with pytest.raises(DataError, match="another architecture") as caught:
        VideoMAEConfig(init=str(folder))
    assert caught.value.found == "vit"


def test_a_model_that_is_nowhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no model in the format") as caught:
        VideoMAEConfig(init=str(tmp_path))
    assert caught.value.found == "no config.json in it"
    with pytest.raises(DataError, match="this model is not here") as caught:
        find_folder("nobody/nothing", fetch=False)
    assert "folder on this machine" in caught.value.expected


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedreel.data.hugging_face.find_spec", lambda name: None)
    with pytest.raises(FedreelError) as caught:
        VideoMAEConfig().network(Clips(4, 32))
    assert caught.value.hint == "pip install 'fedreel[hf]'"
