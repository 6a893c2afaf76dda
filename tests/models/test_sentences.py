"""Sentences as vectors: equal to `transformers` on the same files, run once, the same for everyone, any word."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.models import sentences
from fedreel.models.bert import read_bert
from fedreel.models.sentences import (
    BertSentences,
    encoder_card,
    encoder_width,
    make_encoder,
    mean_vector,
    token_vectors,
)
from support.encoders import CONFIG, tiny_bert

SAID = ("red", "a door opens", "the redder door of a house", "qux!")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_bert(tmp_path / "bert")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sentences"


def by_transformers(folder: Path, said: tuple[str, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """The states of each sentence's tokens, and the vectors by the recipe of the card of all-MiniLM-L6-v2: the mean
    over tokens that are no padding, scaled to length 1."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    net = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    tokens = tokenizer(list(said), padding=True, return_tensors="pt")
    with torch.no_grad():
        states = net(**tokens).last_hidden_state
    real = tokens["attention_mask"].unsqueeze(-1).float()
    means = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=1)
    return [s[: int(n)].numpy() for s, n in zip(states, real.sum((1, 2)))], means.numpy()


def compare(folder: Path, encoder: Any, said: tuple[str, ...]) -> None:
    states, means = by_transformers(folder, said)
    own = encoder(said)
    for mine, other in zip(own, states):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    np.testing.assert_allclose(np.stack([mean_vector(v) for v in own]), means, atol=1e-5)


def test_a_tiny_bert_equals_transformers(folder: Path) -> None:
    compare(folder, BertSentences("tiny", folder), SAID)


@pytest.mark.skipif(find_spec(sentences.PACKAGE) is None, reason="needs the extra `text`")
def test_minilm_equals_transformers_and_knows_what_is_alike() -> None:
    pytest.importorskip("tokenizers", reason="needs the extra `text`")
    encoder = make_encoder("minilm")
    assert encoder.width == encoder_width("minilm") == 384
    red, crimson, tax = (mean_vector(v) for v in encoder(["a red ball", "a crimson ball", "he pays his taxes"]))
    assert red @ crimson > 0.5 > 0.2 > red @ tax
    compare(sentences._package(), encoder, SAID)


def test_padding_changes_nothing_and_every_sentence_comes_back_in_its_place(folder: Path) -> None:
    encoder = make_encoder(f"bert:{folder}")
    together = encoder(SAID)
    assert [len(v) for v in together] == [len(encoder.pieces(s)) + 2 for s in SAID]  # the marks at both ends
    for sentence, vectors in zip(SAID, together):
        np.testing.assert_allclose(vectors, encoder([sentence])[0], atol=1e-5)


def test_a_sentence_beyond_the_positions_is_cut(folder: Path) -> None:
    (vectors,) = make_encoder(f"bert:{folder}")(["a " * 100])
    assert vectors.shape == (CONFIG.max_position_embeddings, CONFIG.hidden_size)


def test_every_sentence_is_encoded_once_and_kept(folder: Path, cache: Path) -> None:
    class Counting(BertSentences):
        asked: list[str] = []

        def __call__(self, said: Any) -> list[np.ndarray]:
            self.asked += said
            return super().__call__(said)

    encoder = Counting("tiny", folder)
    first = token_vectors(encoder, ["red", "door", "red"], 4)
    assert sorted(encoder.asked) == ["door", "red"]
    np.testing.assert_array_equal(token_vectors(encoder, ["red", "door", "red"], 4), first)
    assert len(encoder.asked) == 2
    assert first.shape == (3, 4, 12)
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_allclose(first[1, :3], encoder(["door"])[0], atol=1e-5)
    assert not first[1, 3:].any()
    (kept,) = cache.iterdir()
    kept.write_bytes(b"damaged")
    np.testing.assert_array_equal(token_vectors(encoder, ["red", "door", "red"], 4), first)


def test_other_weights_or_another_tokenizer_are_another_encoder(folder: Path, tmp_path: Path) -> None:
    same, other = tiny_bert(tmp_path / "same"), tiny_bert(tmp_path / "other", seed=1)
    one = BertSentences("a", folder).fingerprint
    assert BertSentences("b", same).fingerprint == one != BertSentences("c", other).fingerprint
    text = (same / "tokenizer.json").read_text()
    (same / "tokenizer.json").write_text(text.replace('"lowercase":true', '"lowercase":false').replace("true", "false"))
    assert BertSentences("d", same).fingerprint != one
    assert encoder_card(f"bert:{folder}") == {"name": f"bert:{folder}", "width": 12, "fingerprint": one}
    assert encoder_card(f"bert:{tmp_path / 'gone'}") == {"name": f"bert:{tmp_path / 'gone'}"}


def test_a_pooler_is_left_out_and_other_weights_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {f"bert.{k}": v for k, v in tensors.items()} | {"pooler.dense.bias": torch.zeros(2)},
        folder / "model.safetensors",
    )
    assert len(read_bert(folder).state_dict()) == len(tensors)
    save_file({k: v for k, v in tensors.items() if "LayerNorm.bias" not in k}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"LayerNorm\.bias"):
        read_bert(folder)


@pytest.mark.parametrize("changes", [{"model_type": "clip"}, {"hidden_act": "relu"}, {"num_attention_heads": 5}])
def test_another_network_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match="another than BERT"):
        make_encoder(f"bert:{folder}")


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="minilm"):
        make_encoder("minlm")
    with pytest.raises(DataError, match=r"config\.json"):
        make_encoder(f"bert:{tmp_path}")
    monkeypatch.setattr(sentences, "PACKAGE", "no_such_package")
    with pytest.raises(FedreelError, match=r"fedreel\[text\]"):
        make_encoder("minilm")
