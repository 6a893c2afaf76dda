"""Words of sentences, and lists of words from training sentences and from other people's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.moments.text import PADDING, UNKNOWN, Words, tokens

VECTORS = np.array([[1, 2], [3, 6], [5, 1]], np.float16)


def test_words_are_letters_digits_and_apostrophes_inside() -> None:
    assert tokens("A person's  dog, they’re 2 walk-in 'friends'. <b>_x_</b>") == [
        *("a", "person's", "dog", "they're", "2", "walk", "in", "friends", "b", "x", "b")
    ]
    assert tokens("Ein Mädchen läuft.") == ["ein", "mädchen", "läuft"]
    assert tokens("... !?") == []


def test_a_list_from_sentences_goes_by_count_then_alphabet() -> None:
    said = ["the dog runs.", "The cat runs", "the bird, the end"]
    assert Words.of(said).words == ("the", "runs", "bird", "cat", "dog", "end")
    assert Words.of(said, least=2).words == ("the", "runs")
    assert Words.of(reversed(said)).fingerprint == Words.of(said).fingerprint
    assert Words.of(said).vectors is None


def test_sentences_become_indices() -> None:
    words = Words(["dog", "the"])
    assert len(words) == 4
    found = words.encode("The dog sees the dog.", 7)
    assert found.dtype == np.int64
    assert found.tolist() == [3, 2, UNKNOWN, 3, 2, PADDING, PADDING]
    assert words.encode("The dog sees the dog.", 2).tolist() == [3, 2]
    assert words.encode("...", 3).tolist() == [UNKNOWN, PADDING, PADDING]


def test_lists_in_another_order_or_with_other_vectors_are_not_the_same() -> None:
    assert Words(["a", "b"]).fingerprint != Words(["b", "a"]).fingerprint
    assert Words(["a", "b"]).fingerprint != Words(["ab"]).fingerprint
    one, same, other = (Words(["a", "b"], x * np.ones((2, 3))) for x in (1, 1, 2))
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, Words(["a", "b"]).fingerprint}) == 3


def check(found: Words) -> None:
    assert found.words == ("the", "dog", "cat")
    assert found.vectors is not None
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, [[0, 0], [3, 3], [1, 2], [3, 6], [5, 1]])
    np.testing.assert_array_equal(found.vectors[found.encode("cat fox", 3)], [[5, 1], [3, 3], [0, 0]])


def test_vectors_come_back_from_an_npz_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", words=np.array(["the", "dog", "cat"]), vectors=VECTORS)
    check(Words.read(tmp_path / "plain.npz"))
    marked = np.concatenate([np.full((1, 2), 9, np.float16), VECTORS, np.full((2, 2), 7, np.float16)])
    names = np.array(["<PAD>", "the", "dog", "cat", "<unk>", "the"])  # our own stand for these, and the first `the`
    np.savez(tmp_path / "marked.npz", words=names, vectors=marked)
    check(Words.read(tmp_path / "marked.npz"))


@pytest.mark.parametrize("head", ["", "3 2\n", "\ufeff"])
def test_vectors_come_back_from_a_text_file(tmp_path: Path, head: str) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(head + "the 1 2\ndog 3.0 6e0\n\ncat 5 1 \n", encoding="utf-8")
    check(Words.read(path))


def test_a_word_of_glove_may_hold_spaces(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 1 2\n. . . 3 6\n")
    assert Words.read(tmp_path / "glove.txt").words == ("the", ". . .")


def test_a_plain_list_has_words_and_no_vectors(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("The\r\ndog\n\ncat\nthe\n")
    found = Words.read(tmp_path / "words.txt")
    assert found.words == ("the", "dog", "cat")
    assert found.vectors is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the 1 2\ndog 3\n", 2),
        ("the 1 2\ndog 3 x\n", 2),
        ("the 1 2\n\ndog 3 nan\n", 3),
        ("the 1 2\n3 6\n", 2),
        ("the\ndog\nliving room\n", 3),
        ("living room\n", 1),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "words.txt").write_text(text)
    with pytest.raises(DataError, match=f"line {line}\n"):
        Words.read(tmp_path / "words.txt")


def test_files_that_are_no_words_are_refused(tmp_path: Path) -> None:
    for name, content in (("a.npz", b"rubbish"), ("b.txt", b""), ("c.txt", b"\xff\xfe\x80")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError):
            Words.read(tmp_path / name)
    with pytest.raises(DataError, match="cannot be read"):
        Words.read(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    "wrong",
    [
        {"words": np.array(["a", "b"]), "vectors": VECTORS},
        {"words": np.array(["a", "b", "c"]), "vectors": np.array([[1.0, 2], [np.nan, 1], [1, 1]])},
        {"words": np.array([1, 2, 3]), "vectors": VECTORS},
        {"words": np.array(["a", "b", "c"]), "vectors": VECTORS[:, 0]},
        {"words": np.array(["a", "b", "c"], object), "vectors": VECTORS},
        {"words": np.array(["a", "b", "c"])},
    ],
)
def test_an_npz_file_that_does_not_fit_is_refused(tmp_path: Path, wrong: dict) -> None:
    np.savez(tmp_path / "w.npz", **wrong)
    with pytest.raises(DataError, match=r"w\.npz"):
        Words.read(tmp_path / "w.npz")
