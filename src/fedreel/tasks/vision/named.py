"""Sentences to a model that knows none, by the names of its classes: ConSE (Norouzi et al. 2014).

What a classifier sees becomes the mean of the word vectors of its likeliest classes, each as likely as it is; that is
compared with the sentence's. So a sentence need not name a class, but what it means must be near some of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedreel.errors import DataError, RunError
from fedreel.models.sentences import mean_vector
from fedreel.models.words import word_vectors
from fedreel.runs.run import Loaded
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.recognize import check_classes, class_names

LIKELIEST = 10  # classes that count
TOLD = 3  # classes that a note names
RARE, ENOUGH = 0.05, 100  # the share of classes that may be as like a sentence by luck, and how many tell that


class NamedClasses:
    """The classes of a model as vectors of what they are called."""

    def __init__(self, loaded: Loaded, run: Path) -> None:
        task = loaded.task
        if not isinstance(task, Contrasting):
            raise RunError(
                "this run's model knows no sentences, and has no classes whose names could be compared with one",
                where=str(run),
                expected="a run of the task recognition, or a CLIP",
                found=str(loaded.card.get("task")),
            )
        check_classes(task, run)
        self.names = class_names(loaded, run)
        self.words = word_vectors()
        self.fingerprint = f"{self.words.fingerprint} {LIKELIEST}"
        self.vectors = self._vectors(self.names)

    def seen(self, logits: Tensor) -> np.ndarray:
        """(n, classes) to unit vectors (n, d)."""
        chances = logits.double().softmax(1).cpu().numpy()
        few = np.sort(chances, axis=1)[:, -min(LIKELIEST, chances.shape[1])]
        chances = np.where(chances >= few[:, None], chances, 0.0)
        found = chances @ self.vectors
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12), np.float32)

    def sentence(self, text: str) -> np.ndarray:
        """A unit vector (d,)."""
        if all(piece == self.words.unknown for piece in self.words.pieces(text)):
            raise DataError("none of these words can be read", found=f"'{text}'", expected="a sentence in English")
        return self._vectors([text])[0]

    def note(self, text: str) -> str:
        """What a user must know about such an answer."""
        order = np.argsort(-(self.vectors @ self.sentence(text)), kind="stable")[:TOLD]
        near = ", ".join(self.names[i] for i in order)
        parts = [word for word in text.split() if len(self.words.pieces(word)) > 1]
        spelled = f"; read by parts, and perhaps wrongly: {', '.join(parts)}" if parts else ""
        return f"the model knows no sentences; of its {len(self.names)} classes most like this one: {near}{spelled}"

    def doubt(self, text: str, best: float) -> list[str]:
        """What a user must know where the best that was found is not much like the sentence: what classes that were
        drawn at random are called would be as like it."""
        if len(self.names) < ENOUGH:
            return []
        usual = float(np.quantile(self.vectors @ self.sentence(text), 1 - RARE))
        if best > usual:
            return []
        seen = f"what is seen has a likeness of at most {max(best, 0):.2f} to the sentence"
        said = f"{seen}; of all classes' names, one in twenty has {usual:.2f} or more"
        return [f"probably nothing of it is to be seen: {said}"]

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([mean_vector(vectors) for vectors in self.words(texts)])
