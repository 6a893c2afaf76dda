"""Retrieval on videos whose vectors are known, against a search by hand."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedreel.core.abilities import Embeds, Pooling
from fedreel.errors import DataError, RecipeError
from fedreel.tasks.vision.evaluate import retrieval as module
from fedreel.tasks.vision.evaluate.retrieval import (
    in_ten_parts,
    labelled_set,
    retrieval,
    settle,
    ten_clips,
    video_features,
)
from fedreel.tasks.vision.footage import Stored
from support.shelf import Known, flat, shelved

MODEL = nn.Linear(1, 1)


def numbered(folder: Path, *lengths: int) -> module.Shards:
    """Videos whose frames show their number."""
    clips = [np.arange(n, dtype=np.uint8)[:, None, None, None].repeat(3, 3) for n in lengths]
    return shelved(folder, clips, ["a"] * len(clips), ["train"] * len(clips))


def stored(folder: Path, *lengths: int) -> Stored:
    return Stored(numbered(folder, *lengths), tuple(range(len(lengths))), torch.device("cpu"))


def shown(clips: Tensor) -> list:
    return clips[..., 0, 0, 0].tolist()


def test_ten_clips_have_their_centres_evenly_from_end_to_end(tmp_path: Path) -> None:
    (clips,) = ten_clips(stored(tmp_path / "s", 100), [0], 16)
    assert clips.shape == (1, 10, 16, 1, 1, 3)
    centres = [seen[0] + 8 for seen in shown(clips)[0]]
    assert centres == pytest.approx(np.linspace(8, 92, 10), abs=0.5)
    assert all(seen == [*range(seen[0], seen[0] + 16)] for seen in shown(clips)[0])
    assert (shown(clips)[0][0][0], shown(clips)[0][9][15]) == (0, 99)


def test_clips_for_classifiers_begin_in_the_middle_of_ten_equal_parts(tmp_path: Path) -> None:
    """Of 27 frames, 4 with a stride of 2 can begin at 20 places: parts of two, of which the later is the middle."""
    (clips,) = ten_clips(stored(tmp_path / "s", 27), [0], 4, in_ten_parts)
    assert shown(clips)[0] == [[at, at + 2, at + 4, at + 6] for at in range(1, 20, 2)]


def test_clips_for_classifiers_stand_still_at_the_end_of_a_short_video(tmp_path: Path) -> None:
    (clips,) = ten_clips(stored(tmp_path / "s", 4), [0], 4, in_ten_parts)
    assert shown(clips)[0] == [[0, 2, 3, 3]] * 10


def test_a_short_video_stands_still_at_its_end(tmp_path: Path) -> None:
    (clips,) = ten_clips(stored(tmp_path / "s", 3), [0], 5)
    assert shown(clips)[0] == [[0, 1, 2, 2, 2]] * 10


def test_a_video_s_vector_is_the_mean_over_its_ten_clips_however_many_are_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (21, 12, 30, 5)
    clips = [np.arange(n, dtype=np.uint8)[:, None, None, None].repeat(3, 3) for n in lengths]
    among = labelled_set("four", shelved(tmp_path / "s", clips, ["a"] * 4, ["train"] * 3 + ["test"]))
    task = Known(lambda grey: torch.stack([grey, grey**2], dim=1), frames=3)
    starts = [np.linspace(0, n - 3, 10).round() for n in lengths[:3]]
    expected = [[s.mean(), (s**2).mean()] for s in starts]
    assert video_features(MODEL, task, among, [0, 1, 2])[0].tolist() == pytest.approx(np.array(expected))
    monkeypatch.setattr(module, "AT_ONCE", 2)
    assert video_features(MODEL, task, among, [2, 0])[0].tolist() == pytest.approx(np.array(expected)[[2, 0]])


def greys(folder: Path, labels: list[int], queries: int, values: list[int] | None = None) -> module.LabelledSet:
    """A video for each label, of the grey of its label if not said otherwise; the last ones ask."""
    clips = [flat(value) for value in values or labels]
    splits = ["train"] * (len(labels) - queries) + ["test"] * queries
    return labelled_set("greys", shelved(folder, clips, [f"class {k}" for k in labels], splits))


def test_vectors_that_are_the_labels_find_their_class_at_once(tmp_path: Path) -> None:
    found = greys(tmp_path / "s", [0, 1, 2, 3, 3, 2, 1, 0, 2, 0, 1, 3], 4)
    task = Known(lambda grey: torch.nn.functional.one_hot(grey.long(), 4).float())
    assert retrieval(MODEL, task, found) == {1: 1.0, 5: 1.0, 10: 1.0, 20: 1.0, 50: 1.0}


def test_vectors_that_are_all_the_same_find_the_first_of_the_gallery(tmp_path: Path) -> None:
    found = greys(tmp_path / "s", [2, 0, 1, 0, 0, 0, 1, 2], 3)  # queries: one of each class
    got = retrieval(MODEL, Known(lambda grey: torch.ones(len(grey), 3)), found, ks=(1, 2, 3))
    assert got == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3), 3: 1.0}


def by_hand(gallery: list, theirs: list[int], queries: list, own: list[int], k: int) -> float:
    """R@k with exact cosines (their squares: no entry is negative) and the first of equals."""
    hits = 0
    for q, label in zip(queries, own):
        near = [Fraction(sum(a * b for a, b in zip(q, g)) ** 2, sum(a * a for a in g)) for g in gallery]
        order = sorted(range(len(gallery)), key=lambda i: (-near[i], i))
        hits += any(theirs[i] == label for i in order[:k])
    return hits / len(queries)


def test_recalls_are_those_of_a_search_by_hand_among_many_ties(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    book = rng.integers(0, 3, (256, 3)) + np.eye(3, dtype=np.int64)[rng.integers(0, 3, 256)]  # many are parallel
    labels, values = rng.integers(0, 6, 90).tolist(), rng.permutation(256)[:90].tolist()
    found = greys(tmp_path / "s", labels, 40, values)
    got = retrieval(MODEL, Known(lambda grey: torch.from_numpy(book)[grey.long()].float()), found)
    vectors = [book[v].tolist() for v in values]
    expected = {k: by_hand(vectors[:50], labels[:50], vectors[50:], labels[50:], k) for k in (1, 5, 10, 20, 50)}
    assert got == pytest.approx(expected)
    assert expected[1] < expected[5] < 1


def test_the_length_of_vectors_plays_no_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    book, lengths = torch.from_numpy(rng.normal(size=(60, 4))), torch.from_numpy(rng.uniform(0.01, 100, (60, 1)))
    found = greys(tmp_path / "s", rng.integers(0, 5, 60).tolist(), 20, [*range(60)])
    plain = retrieval(MODEL, Known(lambda grey: book[grey.long()]), found)
    assert retrieval(MODEL, Known(lambda grey: (book * lengths)[grey.long()]), found) == plain
    assert 0 < plain[1] < 1


def test_validation_videos_ask_only_where_there_are_no_test_videos(tmp_path: Path) -> None:
    clips, labels = [flat(0)] * 4, ["a", "b", "a", "b"]
    both = labelled_set("both", shelved(tmp_path / "b", clips, labels, ["train", "val", "test", "test"]))
    assert (both.train.tolist(), both.test.tolist()) == ([0], [2, 3])
    held = labelled_set("held", shelved(tmp_path / "h", clips, labels, ["train", "val", "train", "val"]))
    assert (held.train.tolist(), held.test.tolist()) == ([0, 2], [1, 3])
    assert held.classes == ("a", "b")
    assert held.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "splits"),
    [(["a", ""], ["train", "test"]), (["a", "b"], ["train", "train"]), (["a", "b"], ["test", "test"])],
)
def test_a_set_without_labels_or_without_one_of_its_parts_is_refused(
    tmp_path: Path, labels: list[str], splits: list[str]
) -> None:
    with pytest.raises(DataError, match="'odd' cannot be used downstream"):
        labelled_set("odd", shelved(tmp_path / "s", [flat(0)] * 2, labels, splits))


class Normed(nn.Module):
    """Its backbone norms greys by statistics of another world."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.backbone = nn.Sequential(norm)


@dataclass(frozen=True)
class Greys(Embeds):
    frames: int = 2
    side: ClassVar = 2  # type: ignore[assignment]

    def embed(self, model: nn.Module, clips: Tensor, pooling: Pooling = "mean") -> Tensor:
        return model.backbone(clips[:, 0, 0, 0, :1].float())  # type: ignore[operator, no-any-return]


@pytest.fixture
def around(tmp_path: Path) -> module.LabelledSet:
    """Two classes, around 100; the videos that ask are farther from it."""
    return greys(tmp_path / "around", [0, 0, 1, 1, 0, 1], 2, [90, 94, 110, 118, 10, 250])


def test_settled_statistics_are_plain_means_over_batches_of_the_training_videos(
    around: module.LabelledSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten clips of each video. All four: mean 103, squares 169 + 81 + 49 + 225. Two by two: means 92 and 114 of
    variances 4 and 16. A batch's variance is that of a sample. What was there before does not count, nor do tests."""
    norm = nn.BatchNorm1d(1)
    norm.running_mean, norm.running_var, norm.momentum = torch.tensor([-5.0]), torch.tensor([7.0]), 0.3
    model = Normed(norm)
    for at_once, mean, variance in ((16, 103.0, 10 * 524 / 39), (2, 103.0, 10 * 20 / 19)):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
        settle(model, Greys(), around)
        assert (float(norm.running_mean), float(norm.running_var)) == pytest.approx((mean, variance))
        assert (norm.momentum, model.backbone.training) == (0.3, False)


def test_videos_are_found_by_features_with_settled_statistics(around: module.LabelledSet) -> None:
    """By those of another world all features point the same way, so that everybody finds the first video."""
    model = Normed(nn.BatchNorm1d(1))
    assert retrieval(model, Greys(), around, ks=(1,)) == {1: 0.5}
    settle(model, Greys(), around)
    assert retrieval(model, Greys(), around, ks=(1,)) == {1: 1.0}


def test_a_backbone_without_batch_norms_has_nothing_to_settle(around: module.LabelledSet) -> None:
    with pytest.raises(RecipeError, match="no statistics to be taken anew"):
        settle(Normed(nn.LayerNorm(1)), Greys(), around)
