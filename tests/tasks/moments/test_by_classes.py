"""Moments by the names of a recogniser's classes: spans against an exhaustive search, and what is refused."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import fedreel
from fedreel.data.features import make_features
from fedreel.errors import DataError, RecipeError
from fedreel.tasks.moments.by_classes import spans
from fedreel.tasks.moments.page import draw_page
from fedreel.tasks.moments.result import Finding, Moment, Scale
from fedreel.tasks.vision.named import NamedClasses
from fedreel.zoo import HERE
from support.films import film, numbered


@pytest.mark.parametrize("seed", range(20))
def test_spans_have_the_greatest_sums_above_the_middle_of_mean_and_maximum(seed: int) -> None:
    likeness = np.random.default_rng(seed).uniform(-0.2, 0.8, 9)
    above = likeness - (likeness.mean() + likeness.max()) / 2
    expected = {}
    while above.max() > 0:
        first, stop = max(combinations(range(10), 2), key=lambda span: above[span[0] : span[1]].sum())
        expected[first / 2, stop / 2] = likeness[first:stop].mean()
        above[first:stop] = -9
    found = spans(likeness, np.arange(10) * 0.5, 9)
    assert dict(zip(map(tuple, found.spans.tolist()), np.exp(found.scores))) == pytest.approx(expected)
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    assert spans(likeness, np.arange(10) * 0.5, 1).spans.tolist() == found.spans[:1].tolist()


def test_several_spans_by_hand() -> None:
    likeness = np.array([0.0, 0.7, 0.0, 0.0, 0.5, 0.9, 0.0, 0.8, 0.8, 0.0])
    assert spans(likeness, np.arange(11.0), 5).spans.tolist() == [[5, 6], [7, 9], [1, 2]]


@pytest.mark.parametrize("value", [0.4, -0.3])
def test_where_all_steps_are_alike_the_whole_video_is_the_answer(value: float) -> None:
    found = spans(np.full(4, value), np.arange(5.0), 3)
    assert found.spans.tolist() == [[0.0, 4.0]]
    assert np.exp(found.scores) == pytest.approx([max(value, 1e-6)])


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    video = film(tmp_path / "film.mp4", [numbered(i) for i in range(5)])
    with pytest.raises(DataError, match="none of these words can be read"):
        fedreel.find(video, "犬", "fights")
    with pytest.raises(RecipeError, match="looks at them itself"):
        fedreel.find(video, "a fight", "fights", features=make_features("plain"))


@pytest.mark.parametrize("scale", ["probability", "likeness"])
def test_page_and_lines_call_scores_what_they_are(tmp_path: Path, scale: Scale) -> None:
    moments = [Moment(0.0, 1.5, 0.1625, 1, 0, 14), Moment(2.0, 2.5, 0.0004, 2, 20, 24)]
    finding = Finding(
        source=tmp_path / "film.mp4",
        run=tmp_path / "run",
        client="",
        notes=[],
        sentence="a car",
        features="names of classes",
        seconds=3.0,
        moments=moments,
        inside=[0.1, 0.2, 0.0],
        unknown=[],
        scale=scale,
    )
    page = draw_page(finding, {}, [], tmp_path)
    likely = scale == "probability"
    assert ("most likely" in page) == ("100 %" in page) == ("score under 0.1 %" in page) == likely
    assert ("most alike" in page) == ("likeness 0.16" in page) == ("no probability" in page) != likely
    assert [line.endswith("%") for line in finding.lines()] == [likely, likely]


def test_what_is_no_more_like_the_sentence_than_one_class_in_twenty_is_doubted() -> None:
    classes = NamedClasses(fedreel.load("imagenet"), HERE / "imagenet")
    alike = np.sort(classes.vectors @ classes.sentence("a person waves a hand"))
    assert len(alike) == 1000
    (note,) = classes.doubt("a person waves a hand", float(alike[948]))  # 51 of 1,000 are at least as like it
    assert note.startswith("probably nothing of it is to be seen")
    assert classes.doubt("a person waves a hand", float(alike[951])) == []
    few = NamedClasses(fedreel.load("fights"), HERE / "fights")
    assert few.doubt("a person waves a hand", -1.0) == []  # two classes say nothing about luck
