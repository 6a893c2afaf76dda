"""CLIP (Radford et al. 2021) in the format of `transformers`: an image tower and a text tower, whose vectors lie in one
space. A folder has both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.data.hugging_face import library, load_model, read_config
from fedreel.errors import DataError, FedreelError

KINDS = ("clip",)


class ClipImages(nn.Module):
    """Images (N, 3, size, size) on the model's scale to their vectors (N, width)."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = library().CLIPVisionConfig.from_dict(tower_of(read_config(folder, KINDS), "vision_config"))
        self.size, self.width = int(config.image_size), int(config.projection_dim)
        self.tower = load_model(library().CLIPVisionModelWithProjection, folder, config).eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.tower(images).image_embeds


class ClipText:
    """Sentences to their vectors, which lie in the space of the images' ones. Words are cut as the folder's tokenizer
    says; what is longer than the model can read is cut off."""

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        config = library().CLIPTextConfig.from_dict(tower_of(read_config(folder, KINDS), "text_config"))
        self.width, self.longest = int(config.projection_dim), int(config.max_position_embeddings)
        self.token_width = int(config.hidden_size)
        self.device = torch.device(device)
        tower = load_model(library().CLIPTextModelWithProjection, folder, config)
        self.tower = tower.eval().requires_grad_(False).to(self.device)
        self.tokenizer = _tokenizer(folder)

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """float32 (n, width)."""
        return self._read(sentences)[0].text_embeds.float().cpu().numpy()

    def tokens(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """float32 (tokens, token_width) of each sentence: the states after the last layer and its norm, those of the
        marks at its ends included."""
        found, real = self._read(sentences)
        states = found.last_hidden_state.float().cpu().numpy()
        return [row[:length] for row, length in zip(states, real.sum(1).tolist())]

    def pieces(self, sentence: str) -> list[str]:
        """What the words of a sentence are cut into, as text."""
        return [piece.removesuffix("</w>") for piece in self.tokenizer.tokenize(sentence)]

    def _read(self, sentences: Sequence[str]) -> tuple[Any, Tensor]:
        if isinstance(sentences, str) or not sentences:
            raise FedreelError("there is nothing to read", expected="a list of one or more sentences")
        read = self.tokenizer(
            [*sentences], padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
        ).to(self.device)
        with torch.inference_mode():
            found = self.tower(input_ids=read["input_ids"], attention_mask=read["attention_mask"])
        return found, read["attention_mask"].cpu()


def tower_of(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config of one tower in that of both; they share the width of their vectors."""
    tower = told.get(name) or {}
    return {**tower, "projection_dim": told.get("projection_dim", tower.get("projection_dim", 512))}


def token_width(folder: Path) -> int:
    """How many numbers the text tower has of a token, without a look at its weights."""
    told = tower_of(read_config(folder, KINDS), "text_config")
    return int(library().CLIPTextConfig.from_dict(told).hidden_size)


def _tokenizer(folder: Path) -> Any:
    whole, parts = "tokenizer.json", ("vocab.json", "merges.txt")
    if not (folder / whole).is_file() and not all((folder / part).is_file() for part in parts):
        raise DataError(
            "this model has no tokenizer, so it cannot read sentences",
            where=str(folder),
            expected=f"{whole}, or {' and '.join(parts)}, beside its weights",
        )
    return library().CLIPTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
