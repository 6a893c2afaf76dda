"""Long videos in windows: all is covered, nothing short is torn, and the best answer of all windows comes first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedreel.tasks.moments.features import pool_windows
from fedreel.tasks.moments.grounding import Grounder
from fedreel.tasks.moments.windows import _best, answer, cut, joined


@pytest.mark.parametrize("usual", [1.0, 7.3, 30.0])
def test_windows_cover_everything_and_tear_nothing_that_is_short(usual: float) -> None:
    for seconds in np.random.default_rng(0).uniform(1.6 * usual, 40 * usual, 50):
        windows = cut(seconds, usual)
        assert windows[0][0] == 0
        assert windows[-1][1] == pytest.approx(seconds)
        assert all(end - start == pytest.approx(usual) for start, end in windows)
        assert all(later[0] - early[0] <= usual / 2 + 1e-6 for early, later in pairwise(windows))
        for start in np.random.default_rng(1).uniform(0, seconds - usual / 2, 50):
            assert any(a <= start + 1e-6 and start + usual / 2 <= b + 1e-6 for a, b in windows)


def test_a_video_of_about_the_usual_length_is_one_window() -> None:
    assert cut(40.0, 30.0) == [(0.0, 40.0)]
    assert cut(40.0, 0.0) == [(0.0, 40.0)]  # nobody knows what is usual
    assert len(cut(60.0, 30.0)) == 3


def network(form: str = "pointer") -> Grounder:
    torch.manual_seed(0)
    encoder = "attention" if form == "qd-detr" else "conv"
    return Grounder(4, 8, 20, 5, None, 16, 0.0, encoder, form).eval()  # type: ignore[arg-type]


WORDS = np.array([2, 3, 0])


@pytest.mark.parametrize("form", ["pointer", "anchor-free", "proposal", "qd-detr"])
def test_one_window_is_what_the_network_says(form: str) -> None:
    net, rows = network(form), np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    found = answer(net, rows, WORDS, [(0.0, 10.0)], 8, 2)
    with torch.no_grad():
        located = net(torch.from_numpy(pool_windows(rows, 8))[None], torch.from_numpy(WORDS)[None])
        shares, scores = net.decode(located, 2)
    np.testing.assert_allclose(found.spans, 10 * shares[0], atol=1e-5)
    np.testing.assert_allclose(found.scores, scores[0], atol=1e-5)
    np.testing.assert_allclose(found.inside, located.scores[0].sigmoid(), atol=1e-6)


@pytest.mark.parametrize("form", ["pointer", "qd-detr"])
def test_several_windows_are_looked_at_each_for_itself(form: str) -> None:
    net, rows = network(form), np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    windows = cut(60.0, 20.0)
    found = answer(net, rows, WORDS, windows, 8, 4)
    assert len(windows) == 5
    assert (np.diff(found.scores) <= 0).all()
    assert ((found.spans >= 0) & (found.spans <= 60 + 1e-9)).all()
    assert len(found.inside) == 24  # positions of 2.5 s, as in a window
    alone = answer(net, rows[10:30], WORDS, [(0.0, 20.0)], 8, 4)
    assert found.inside[4:12] == pytest.approx(np.maximum(found.inside[4:12], alone.inside), abs=1e-6)
    if form == "qd-detr":  # its scores stand for themselves, so the best of all windows is the best of one of them
        each = [answer(net, rows[10 * i : 10 * i + 20], WORDS, [(0.0, 20.0)], 8, 1) for i in range(5)]
        best = max(range(5), key=lambda i: each[i].scores[0])
        np.testing.assert_allclose(found.spans[0], each[best].spans[0] + 10 * best, atol=1e-4)


def test_of_answers_that_two_windows_share_the_better_is_kept() -> None:
    spans, scores = np.array([[0.0, 4.0], [0.5, 4.0], [9.0, 12.0], [1.0, 2.0]]), np.array([-2.0, -1.0, -3.0, -np.inf])
    kept, order = _best(spans, scores, 5)
    assert kept.tolist() == [[0.5, 4.0], [9.0, 12.0]]
    assert order.tolist() == [-1.0, -3.0]
    assert len(_best(spans, scores, 1)[0]) == 1


def test_where_windows_overlap_the_higher_probability_counts() -> None:
    inside = np.array([[0.1, 0.9], [0.2, 0.3]])
    whole = joined(inside, [(0.0, 2.0), (1.0, 3.0)], 3.0)
    assert whole.tolist() == [0.1, 0.9, 0.3]
