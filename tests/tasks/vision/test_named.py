"""Sentences by the names of classes, against ConSE worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedreel
from fedreel.errors import RunError
from fedreel.models.sentences import mean_vector
from fedreel.models.words import word_vectors
from fedreel.runs.run import Loaded
from fedreel.tasks.vision.named import LIKELIEST, NamedClasses
from fedreel.zoo import find_model


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return fedreel.load("imagenet")


def test_what_is_seen_is_the_mean_of_the_likeliest_names(loaded: Loaded) -> None:
    classes = NamedClasses(loaded, find_model("imagenet"))
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)) * 3
    for row, found in zip(logits.double().softmax(1).numpy(), classes.seen(logits)):
        best = sorted(range(1000), key=lambda i: -row[i])[:LIKELIEST]
        names = [loaded.card["recipe"]["data"]["labels"][i] for i in best]
        by_hand = sum(row[i] * mean_vector(word_vectors()([name])[0]) for i, name in zip(best, names))
        assert found == pytest.approx(by_hand / np.linalg.norm(by_hand), abs=1e-5)


def test_a_sure_class_is_its_own_name_and_the_note_names_it(loaded: Loaded) -> None:
    classes = NamedClasses(loaded, find_model("imagenet"))
    logits = torch.full((1, 1000), -50.0)
    logits[0, classes.names.index("violin")] = 50.0
    assert classes.seen(logits)[0] @ classes.sentence("violin") == pytest.approx(1)
    assert ": violin, " in classes.note("a violin")
    assert classes.note("a motorbike").endswith("read by parts, and perhaps wrongly: motorbike")


def test_a_model_without_classes_is_refused() -> None:
    with pytest.raises(RunError, match=r"no classes(.*\n)+.*found: +summary"):
        NamedClasses(fedreel.load("novelty"), find_model("novelty"))
