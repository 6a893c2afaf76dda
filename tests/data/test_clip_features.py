"""CLIP from a video's frames and a sentence's words: what `transformers` makes of the same ones, with its own
preprocessor and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

tf = pytest.importorskip("transformers", reason="the extra hf is not installed")

import fedreel  # noqa: E402
from fedreel.data import features as features_module  # noqa: E402
from fedreel.data.clip_picture import ClipPicture, read_picture  # noqa: E402
from fedreel.data.features import make_features, video_features  # noqa: E402
from fedreel.data.steps import look  # noqa: E402
from fedreel.errors import DataError  # noqa: E402
from fedreel.media.video import read, write  # noqa: E402
from fedreel.models.sentences import encoder_width, make_encoder  # noqa: E402
from support.clip import clip_folder  # noqa: E402
from support.moment_files import npz, table  # noqa: E402

SHAPES = [(24, 32), (33, 25), (16, 16), (40, 17), (16, 90), (12, 20)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return clip_folder(tmp_path_factory.mktemp("clip"))


def processor(side: int = 16, shorter: int = 16) -> Any:
    scale = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    size = {"size": {"shortest_edge": shorter}, "crop_size": {"height": side, "width": side}}
    return tf.CLIPImageProcessorPil(**size, **scale)


def noise(height: int, width: int, length: int = 0) -> np.ndarray:
    rng = np.random.default_rng([height, width])
    return rng.integers(0, 256, (length, height, width, 3) if length else (height, width, 3), np.uint8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shorter", [16, 20])
def test_pictures_are_those_of_the_library_s_preprocessor(shape: tuple[int, int], shorter: int) -> None:
    frame = noise(*shape)
    theirs = processor(16, shorter)(images=[frame], return_tensors="np")["pixel_values"][0]
    ours = (ClipPicture(16, shorter)(frame).astype(np.float32) / 255 - 0.5) / 0.25
    assert np.abs(ours.transpose(2, 0, 1) - theirs).max() < 1e-5


def test_features_of_a_wide_video_are_the_library_s_of_the_same_frames(clip: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = clip
    write(tmp_path / "wide.mp4", noise(20, 48, 24), 8)
    frames, _ = read(tmp_path / "wide.mp4")
    seen = processor()(images=[*frames[[4, 12, 20]]], return_tensors="pt")  # the middles of seconds
    with torch.no_grad():
        found = model.get_image_features(**seen)
    theirs = torch.nn.functional.normalize(getattr(found, "pooler_output", found), dim=1).numpy()
    made = make_features(f"clip:{folder}")
    assert np.abs(video_features(tmp_path / "wide.mp4", made, 1.0).features - theirs).max() < 1e-5
    assert np.abs(look(tmp_path / "wide.mp4", made, 1.0, None).rows - theirs).max() < 1e-5


def test_frames_too_large_to_be_held_give_the_same(
    clip: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_features(f"clip:{clip[0]}")
    write(tmp_path / "wide.mp4", noise(20, 48, 24), 8)
    whole = video_features(tmp_path / "wide.mp4", made, 1.0).features
    monkeypatch.setattr(features_module, "MOST_BYTES", 3 * 20 * 48 * 3)
    assert np.array_equal(video_features(tmp_path / "wide.mp4", made, 1.0).features, whole)


def test_a_preprocessor_that_prepares_otherwise_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    for told in (
        {"size": 224, "crop_size": 224},
        {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}},
    ):
        file.write_text(json.dumps({**told, "resample": 3}))
        assert read_picture(tmp_path, 224).side == 224
    for told in (
        {"crop_size": 200},
        {"do_center_crop": False},
        {"size": {"height": 224, "width": 224}},
        {"size": 200},
        {"resample": 9},
    ):
        file.write_text(json.dumps(told))
        with pytest.raises(DataError, match="cannot be prepared") as error:
            read_picture(tmp_path, 224)
        assert next(iter(told)) in error.value.found


def test_sentences_have_the_states_of_the_library_s_text_tower(clip: tuple[Path, Any]) -> None:
    folder, model = clip
    encoder = make_encoder(f"clip:{folder}")
    said = ["a dog runs", "the cat", "never heard words"]
    assert encoder.width == encoder_width(f"clip:{folder}") == 24
    tokenizer = tf.CLIPTokenizer.from_pretrained(folder)
    for sentence, vectors in zip(said, encoder(said)):
        with torch.no_grad():
            theirs = model.text_model(**tokenizer([sentence], return_tensors="pt")).last_hidden_state[0].numpy()
        assert vectors.shape == theirs.shape
        assert np.abs(vectors - theirs).max() < 1e-5
    assert encoder.fingerprint == make_encoder(f"clip:{folder}").fingerprint


def test_other_weights_are_another_encoder(clip: tuple[Path, Any], tmp_path: Path) -> None:
    other, _ = clip_folder(tmp_path, seed=1)
    assert make_encoder(f"clip:{other}").fingerprint != make_encoder(f"clip:{clip[0]}").fingerprint


def test_a_model_of_clip_s_features_and_words_finds_in_a_user_s_video(clip: tuple[Path, Any], tmp_path: Path) -> None:
    """Trained on features that came with the data, used on a video, with a word that no training sentence has."""
    rng, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    rows = {f"{owner}{i}": rng.normal(size=(9, 12)).astype(np.float32) for owner in "ab" for i in range(3)}
    npz(data / "vitb32.npz", rows, duration=np.full(6, 9.0))
    (data / "annotations.txt").write_text("".join(f"{video} 1.0 4.0##someone opens a door.\n" for video in rows))
    table(data / "videos.csv", [{"id": video, "owner": video[0], "length": 9} for video in rows])
    name = f"clip:{clip[0]}"
    settings = {"task.features": name, "task.sentences": name, "task.width_in": 12, "task.fps": 1.0, "round.rounds": 1}
    settings |= {"method": "fedavg", "device": "cpu"}
    settings |= {"task.length": 8, "task.width": 8, "task.form": "qd-detr", "task.encoder": "attention"}
    fedreel.run("fedvmr", tmp_path / "run", data=data, set=settings, quiet=True)
    write(tmp_path / "mine.mp4", noise(20, 48, 72), 8)
    found = fedreel.find(tmp_path / "mine.mp4", "a zebra jumps", tmp_path / "run", top=2)
    assert len(found.moments) == 2
    assert found.unknown == []
    assert all(0 <= moment.start < moment.end <= 9.01 for moment in found.moments)
