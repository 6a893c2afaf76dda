"""A user's sentence as a trained model reads it, and what it does not understand of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreel.errors import DataError, RunError
from fedreel.models.sentences import SentenceEncoder, make_encoder
from fedreel.tasks.moments.task import BY_WORDS, MomentRetrieval
from fedreel.tasks.moments.text import Words, tokens
from fedreel.tasks.use.models import partition_record


class Question(NamedTuple):
    tokens: np.ndarray  # indices (L,) of words, or vectors (L, d) of tokens
    unknown: list[str]
    notes: list[str]


def read_question(sentence: str, task: MomentRetrieval, run: Path, card: Mapping[str, Any]) -> Question:
    """By the words, or by the encoder of sentences, that the model was trained with."""
    if task.sentences == BY_WORDS:
        return _by_words(sentence, _known_words(run, task.words), task.most_words)
    return _by_encoder(sentence, _trained_encoder(task.sentences, run, card), task.most_words)


def _by_words(sentence: str, words: Words, most: int) -> Question:
    said, listed = tokens(sentence), frozenset(words.words)
    unknown = list(dict.fromkeys(word for word in said[:most] if word not in listed))
    if len(unknown) == len({*said[:most]}):
        raise DataError(
            "the model knows none of these words",
            found=", ".join(unknown),
            expected=f"some of its {len(words.words)} words, such as {', '.join(words.words[:12])}",
            hint="a model knows the words of its training sentences, or those of its file task.words; one that was "
            "trained with task.sentences = minilm knows any",
        )
    notes = [f"the model does not know: {', '.join(unknown)}"] if unknown else []
    if len(said) > most:
        notes.append(f"the model reads {most} words; left out: {' '.join(said[most:])}")
    return Question(words.encode(sentence, most), unknown, notes)


def _by_encoder(sentence: str, encoder: SentenceEncoder, most: int) -> Question:
    """Unlike words of a list, those of an encoder are made of pieces: only signs that it has no piece for are unknown
    to it."""
    said = list(dict.fromkeys(tokens(sentence)))
    unknown = [word for word in said if encoder.unknown in encoder.pieces(word)]
    if len(unknown) == len(said):
        raise DataError(
            "the sentence encoder can read none of these words",
            found=", ".join(unknown),
            expected=f"a script that '{encoder.name}' knows",
        )
    (vectors,) = encoder([sentence])
    notes = [f"the sentence encoder cannot read: {', '.join(unknown)}"] if unknown else []
    if len(vectors) > most:
        notes.append(f"the model looks at {most} of the sentence's {len(vectors)} tokens")
    padded = np.zeros((most, encoder.width), np.float32)
    padded[: len(vectors)] = vectors[:most]
    return Question(padded, unknown, notes)


def _known_words(run: Path, file: str) -> Words:
    """Those of the file that the task names, or else those that the run noted when it began."""
    if file:
        return Words.read(Path(file).expanduser())
    record: dict[str, Any] = partition_record(run)
    known = record.get("words")
    if not isinstance(known, list) or not known:
        raise RunError(
            "the words that the model knows are not recorded",
            where=str(run / "metrics.jsonl"),
            expected="the list `words` in the record of the phase partition",
            found="no such list" if record else "no such record",
            hint="keep the model in its run directory; runs at real sites need a list of their own: task.words",
        )
    return Words([str(word) for word in known])


def _trained_encoder(name: str, run: Path, card: Mapping[str, Any]) -> SentenceEncoder:
    """The one that the model was trained with."""
    encoder = make_encoder(name)
    wanted = card["input"].get("sentences", {}).get("fingerprint")
    if wanted not in (None, encoder.fingerprint):
        raise RunError(
            "the sentence encoder is not the one that the model was trained with",
            where=str(run),
            expected=f"{name} with the fingerprint {wanted}",
            found=encoder.fingerprint,
            hint="the same weights and tokenizer must read sentences as in training",
        )
    return encoder
