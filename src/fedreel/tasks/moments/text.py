"""Sentences as numbers: their words, and a fixed list of words with an index, and if known a vector, for each."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from fedreel.data.bounded import read_npz
from fedreel.data.damaged import NPZ_ERRORS
from fedreel.errors import DataError

PADDING, UNKNOWN = 0, 1

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SPECIAL = re.compile(r"<.*>")  # other people's words for padding and for unknown words; we have our own


def tokens(sentence: str) -> list[str]:
    """The words of a sentence in lower case: letters, digits, and apostrophes inside words."""
    return _WORD.findall(sentence.lower().replace("’", "'"))


class Words:
    """A list of words: index 0 is padding, 1 any unknown word, then the list in its order."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray | None = None) -> None:
        rows = {word: row for row, word in reversed([*enumerate(words)]) if word and not _SPECIAL.fullmatch(word)}
        self.words = tuple(sorted(rows, key=rows.__getitem__))  # of words that occur twice, the first
        self._index = {word: index for index, word in enumerate(self.words, 2)}
        self.vectors: np.ndarray | None = None  # (n, d) float32; padding is 0, unknown the mean of all words
        if vectors is not None and self.words:
            known = np.asarray(vectors)[[rows[word] for word in self.words]].astype(np.float32)
            mean = known.mean(axis=0, dtype=np.float64, keepdims=True)
            self.vectors = np.concatenate([np.zeros_like(known[:1]), mean.astype(np.float32), known])

    @classmethod
    def of(cls, sentences: Iterable[str], least: int = 1) -> Words:
        """The words that occur at least so often, by how often and then by the alphabet."""
        counts = Counter(word for sentence in sentences for word in tokens(sentence))
        return cls(sorted((w for w, n in counts.items() if n >= least), key=lambda word: (-counts[word], word)))

    @classmethod
    def read(cls, path: Path | str) -> Words:
        """From an .npz file with `words` and `vectors`, or a text file: GloVe's, or one word in each line."""
        path = Path(path)
        found = _from_npz(path) if path.suffix.lower() == ".npz" else _from_text(path)
        if not found.words:
            raise DataError("there are no words here", where=str(path))
        return found

    def __len__(self) -> int:
        return len(self.words) + 2

    def encode(self, sentence: str, most: int) -> np.ndarray:
        """Indices (most,) of the first words, then zeros. A sentence without any word is one unknown word: a model
        needs something to look at."""
        found = [self._index.get(word, UNKNOWN) for word in tokens(sentence)[:most]] or [UNKNOWN]
        return np.array(found + [PADDING] * (most - len(found)), np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same words in the same order with the same vectors: models may take these as given."""
        state = hashlib.sha256("\n".join(self.words).encode())
        if self.vectors is not None:
            state.update(self.vectors.astype("<f4").tobytes())
        return state.hexdigest()[:16]


def _from_npz(path: Path) -> Words:
    try:
        file = read_npz(path, ("words", "vectors"))
        words, vectors = file["words"], file["vectors"]
    except NPZ_ERRORS as error:
        raise DataError("this is no .npz file of words and vectors", where=str(path), found=str(error)) from error
    good = words.ndim == 1 and words.dtype.kind == "U" and vectors.dtype.kind == "f" and vectors.ndim == 2
    if not good or len(vectors) != len(words) or not vectors.size:
        raise DataError(
            "the words and vectors of a file do not fit",
            where=str(path),
            expected="n texts as `words`, n x d numbers as `vectors`",
            found=f"{words.dtype} {words.shape} and {vectors.dtype} {vectors.shape}",
        )
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        raise DataError("a word's vector is not finite", where=str(path), found=str(words[wrong[0]]))
    return Words([str(word) for word in words], vectors)


def _from_text(path: Path) -> Words:
    words: list[str] = []
    rows: list[np.ndarray] = []
    width = -1
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                parts = line.rstrip("\r\n ").split(" ")
                if parts == [""] or (number == 1 and len(parts) == 2 and all(p.isdecimal() for p in parts)):
                    continue  # blank, or word2vec's head: how many words and numbers follow
                width = len(parts) - 1 if width < 0 else width
                # GloVe has a few words with spaces in them, so that vectors are counted from the end
                word, vector = " ".join(parts[: len(parts) - width]), _vector(parts[len(parts) - width :])
                if vector is None or len(vector) != width or not word or (not width and len(word.split()) != 1):
                    raise _wrong(path, number, width, line)
                words.append(word if width else word.lower())
                rows.append(vector)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("this list of words cannot be read", where=str(path), found=str(error)) from error
    return Words(words, np.stack(rows) if width > 0 else None)


def _vector(parts: list[str]) -> np.ndarray | None:
    try:
        found = np.array([float(part) for part in parts], np.float32)
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None


def _wrong(path: Path, number: int, width: int, line: str) -> DataError:
    return DataError(
        "this list of words is malformed",
        where=f"{path}, line {number}",
        expected=f"a word and {width} numbers" if width else "one word, as in the lines before",
        found=line.strip()[:60],
    )
