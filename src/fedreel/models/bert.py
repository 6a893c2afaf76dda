"""BERT's encoder, as far as frozen sentence encoders need it: names, numbers and file as `transformers` has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.data.weights_file import read_file
from fedreel.errors import DataError
from fedreel.machine.records import parse_json

MOST, DEEPEST = 1_000_000, 200  # words or numbers, layers: of a network that makes sense
OPTIONAL = ("pooler.", "embeddings.position_ids")  # in the file, and not needed for the states of tokens


@dataclass(frozen=True)
class BertConfig:
    """The fields of a config.json that change what is computed; others there are for training."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


class Bert(nn.Module):
    """States (B, L, width) of the last layer for tokens (B, L); `real` says which are no padding."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        x: Tensor = self.embeddings(tokens)
        for layer in cast(nn.ModuleList, self.encoder["layer"]):
            x = layer(x, real)
        return x


def read_bert(folder: Path) -> Bert:
    """The network of a folder that `transformers` wrote: config.json and model.safetensors. Frozen, on the CPU."""
    config = read_config(folder)
    with torch.device("meta"):  # nothing is drawn: every tensor comes from the file
        net = Bert(config)
    read = cast(dict[str, Tensor], read_file(folder / "model.safetensors"))  # such files have names
    tensors = {name.removeprefix("bert."): tensor for name, tensor in read.items()}
    given = {name: t.float() for name, t in tensors.items() if not name.startswith(OPTIONAL)}
    own = {name: tuple(t.shape) for name, t in net.state_dict().items()}
    wrong = sorted(n for n in {*own, *given} if own.get(n) != (tuple(given[n].shape) if n in given else None))
    if wrong:
        found = tuple(given[wrong[0]].shape) if wrong[0] in given else "nothing"
        raise DataError(
            "the weights are not those of the config.json beside them",
            where=f"{folder / 'model.safetensors'}, {wrong[0]}",
            expected=str(own.get(wrong[0], "nothing")),
            found=str(found),
        )
    net.load_state_dict(given, assign=True)
    return net.eval().requires_grad_(False)


def read_config(folder: Path) -> BertConfig:
    path = folder / "config.json"
    try:
        told = parse_json(path.read_text(encoding="utf-8"))
        config = BertConfig(**{f.name: told[f.name] for f in fields(BertConfig) if f.name in told})
        kind = (told["model_type"], told.get("hidden_act", "gelu"), told.get("position_embedding_type", "absolute"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "this is no folder of a BERT network",
            where=str(path),
            expected="config.json and model.safetensors, as `save_pretrained` of transformers writes them",
            found=f"{type(error).__name__}: {error}",
        ) from error
    sizes = [n for f in fields(BertConfig) if f.type == "int" for n in [getattr(config, f.name)]]
    sound = all(type(n) is int and 0 < n <= MOST for n in sizes) and isinstance(config.layer_norm_eps, float)
    sound = sound and config.num_hidden_layers <= DEEPEST
    if kind != ("bert", "gelu", "absolute") or not sound or config.hidden_size % config.num_attention_heads:
        raise DataError(
            "this network is another than BERT",
            where=str(path),
            expected="model_type bert, hidden_act gelu, absolute positions, heads that divide hidden_size",
            found=f"{', '.join(map(str, kind))}, {config.num_attention_heads} heads of {config.hidden_size} numbers",
        )
    return config


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        x: Tensor = self.LayerNorm(self.word_embeddings(tokens) + self.token_type_embeddings.weight[0] + places)
        return x


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        parts = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        self.heads = config.num_attention_heads
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(parts), "output": _output(width, width, eps)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, config.intermediate_size)})
        self.output = _output(config.intermediate_size, width, eps)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        own, out = self.attention["self"], self.attention["output"]
        q, k, v = (own[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value"))  # type: ignore[index]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None], scale=1 / math.sqrt(q.shape[-1]))
        x = out["LayerNorm"](x + out["dense"](seen.transpose(1, 2).flatten(2)))  # type: ignore[index]
        inner = F.gelu(self.intermediate["dense"](x))
        y: Tensor = self.output["LayerNorm"](x + self.output["dense"](inner))
        return y


def _output(width_in: int, width: int, eps: float) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(width_in, width), "LayerNorm": nn.LayerNorm(width, eps=eps)})
