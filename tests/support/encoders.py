"""A tiny BERT with random weights and a tokenizer of letters and a few words, in the files of `transformers`."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedreel.models.bert import Bert, BertConfig

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (*MARKS, "red", "door", *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase))
CONFIG = BertConfig(len(PIECES), 12, 2, 3, 24, 20)


def tiny_bert(folder: Path, seed: int = 0) -> Path:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `text`")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_act": "gelu", **vars(CONFIG)}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Bert(CONFIG)
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.3)
    save_file(net.state_dict(), folder / "model.safetensors")
    model = tokenizers.models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
