"""A tiny CLIP of random weights, as `transformers` saves one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}


def clip_folder(folder: Path, seed: int = 0) -> tuple[Path, Any]:
    """Images of 16 pixels, letters as words, vectors of 12 numbers; the model beside it."""
    import transformers as tf

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    text = {**SIZES, "vocab_size": len(words), "max_position_embeddings": 20}
    ends = {"bos_token_id": vocabulary[words[-2]], "eos_token_id": vocabulary[words[-1]], "pad_token_id": 0}
    vision = {**SIZES, "image_size": 16, "patch_size": 8}
    config = tf.CLIPConfig(text_config={**text, **ends}, vision_config=vision, projection_dim=12)
    torch.manual_seed(seed)
    model = tf.CLIPModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tf.CLIPTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    scale = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(scale))
    return folder, model
