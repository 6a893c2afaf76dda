"""Word vectors: the pieces are those of the library that made the vocabulary, and vectors mean what they should."""

from __future__ import annotations

import numpy as np
import pytest

from fedreel.models.sentences import mean_vector
from fedreel.models.words import word_vectors

SENTENCES = (
    "A golden retriever juggles 42 footballs!",
    "Das schöne Mädchen, naïve façade",
    "unhappily antidisestablishmentarianism lorry",
    "snake_case and hen-of-the-woods",
    "x" * 101,
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_pieces_are_those_of_the_library(sentence: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `text`")
    words = word_vectors()
    vocabulary = {**words.place, words.unknown: len(words.place)}
    theirs = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=words.unknown))
    theirs.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    signs = set("!,_-")
    expected = [token for token, where in zip(*_read(theirs, sentence)) if sentence[slice(*where)] not in signs]
    assert words.pieces(sentence) == expected


def _read(tokenizer: object, sentence: str) -> tuple[list[str], list[tuple[int, int]]]:
    encoded = tokenizer.encode(sentence)  # type: ignore[attr-defined]
    return encoded.tokens, encoded.offsets


def test_like_words_have_like_vectors_and_unknown_ones_none() -> None:
    words = word_vectors()
    dog, puppy, violin, nothing = (mean_vector(rows) for rows in words(["a dog", "the puppy", "a violin", "犬"]))
    assert dog @ puppy > 0.5 > dog @ violin
    assert not nothing.any()
    assert words.pieces("犬") == [words.unknown]
    assert words([""])[0].shape == (1, words.width)


def test_rare_words_weigh_more_than_frequent_ones() -> None:
    words = word_vectors()
    the, violin = (float(np.linalg.norm(rows)) for rows in words(["the", "violin"]))
    assert violin > 20 * the
