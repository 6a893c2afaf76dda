"""Sentences by a table of word vectors that comes with fedreel: any word, no other package, no network to run."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from safetensors.numpy import load

from fedreel.zoo import entry

PIECE = "##"  # how a piece begins that goes on with a word
LONGEST = 100  # letters of a word that is read


class WordVectors:
    """The pieces of a sentence's words (WordPiece: the longest that fit, from the left), a vector each, whatever stands
    around them. Rare pieces have long vectors: in a mean, they say more than frequent ones."""

    name, unknown = "words", "[UNK]"

    def __init__(self) -> None:
        told = entry("words")
        content = (told.folder / told.weights).read_bytes()
        tensors = load(content)
        self.rows = tensors["vectors"].astype(np.float32) * tensors["scales"][:, None]
        self.width = self.rows.shape[1]
        self.place = {piece: row for row, piece in enumerate(tensors["words"].tobytes().decode().split("\n"))}
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]

    def __call__(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Of pieces that are unknown nothing but zeros; a sentence without a word is one of these."""
        return [self._rows(self.pieces(sentence) or [self.unknown]) for sentence in sentences]

    def pieces(self, sentence: str) -> list[str]:
        return [piece for word in _words(sentence) for piece in self._split(word)]

    def _rows(self, pieces: Sequence[str]) -> np.ndarray:
        nothing = np.zeros(self.width, np.float32)
        return np.stack([self.rows[self.place[p]] if p in self.place else nothing for p in pieces])

    def _split(self, word: str) -> list[str]:
        """Greedy, as WordPiece does it; of a word that no pieces make up, the mark of the unknown."""
        found: list[str] = []
        start = 0
        while start < len(word) <= LONGEST:
            mark = PIECE if start else ""
            end = next((e for e in range(len(word), start, -1) if mark + word[start:e] in self.place), 0)
            if not end:
                return [self.unknown]
            found.append(mark + word[start:end])
            start = end
        return found or [self.unknown]


@cache
def word_vectors() -> WordVectors:
    """Read once."""
    return WordVectors()


def _words(sentence: str) -> list[str]:
    """In small letters without accents, signs left out."""
    plain = "".join(c for c in unicodedata.normalize("NFD", sentence.lower()) if unicodedata.category(c) != "Mn")
    return re.findall(r"[^\W_]+", plain)
