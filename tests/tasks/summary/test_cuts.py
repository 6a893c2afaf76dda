"""Shots: cuts between frames by hand and on videos whose cuts are known; and the verb's summary is the one that the
task's own test judges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedreel import playground
from fedreel.config import load_recipe
from fedreel.data.features import Plain
from fedreel.data.steps import VideoSteps, look
from fedreel.errors import RecipeError
from fedreel.kernels.kts import kts, kts_by_variance
from fedreel.runs.run import load, run
from fedreel.tasks.summary import metrics
from fedreel.tasks.summary.command import summarize
from fedreel.tasks.summary.cuts import LEAST, NEAR, PictureCuts, cuts, shot_finder
from fedreel.tasks.summary.data import SummaryVideo, read_summary
from fedreel.tasks.summary.demo import liking
from fedreel.tasks.summary.split import Videos
from fedreel.tasks.summary.summarize import choose
from support.films import film

Seen = tuple[SummaryVideo, Path, PictureCuts, VideoSteps]


@pytest.fixture(scope="module")
def world() -> Path:
    return playground.cached(0, "tiny", ("summary",)) / "summary"


@pytest.fixture(scope="module")
def videos(world: Path) -> list[Seen]:
    """All annotated videos of a world, what was seen of their frames, and their steps."""
    found = []
    for video in read_summary(world / "annotations.h5", Plain):
        path, finder = world / video.owner / f"{video.name}.mp4", PictureCuts()
        found.append((video, path, finder, look(path, Plain(), 1.0, None, finder)))
    return found


def frames_of(shots: list[tuple[int, int]], n_frames: int) -> np.ndarray:
    kept = np.zeros(n_frames, bool)
    for first, last in shots:
        kept[first : last + 1] = True
    return kept


# cuts


def test_a_change_that_stands_out_is_a_cut_and_motion_and_flashes_are_none() -> None:
    still, moving = np.full(20, 0.01), np.full(20, 0.2)
    cut, both, flash, faint = still.copy(), moving.copy(), still.copy(), still.copy()
    cut[8], both[8], faint[8] = 0.3, 0.5, LEAST
    flash[[8, 9]] = 0.3
    assert [cuts(changes).tolist() for changes in (still, moving, cut, both, flash, faint)] == [
        *([], [], [8], [8], [], []),
    ]
    assert cuts(np.array([*still, *[0.01] * (NEAR - 1), 0.3])).tolist() == []  # a shot of one frame
    assert cuts(np.zeros(0)).tolist() == cuts(np.zeros(1)).tolist() == []


def test_no_shot_is_shorter_than_the_neighbours_of_a_cut() -> None:
    changes = np.random.default_rng(0).random(500) ** 8
    assert np.diff([0, *cuts(changes), 500]).min() >= NEAR


def test_the_cuts_of_a_film_are_found_at_their_frames(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pictures = rng.integers(0, 256, (4, 6, 8, 3), np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    path = film(tmp_path / "a.mp4", [*pictures.repeat([7, 12, 5, 9], axis=0)], fps=10)
    finder = shot_finder("cuts", "cpu")
    assert finder is not None
    look(path, Plain(), 1.0, None, finder)
    assert finder.segments().tolist() == [[0, 6], [7, 18], [19, 23], [24, 32]]


def test_an_unknown_way_is_answered_by_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'cuts'"):
        shot_finder("cut", "cpu")


def test_the_cuts_of_the_playground_are_found_to_the_frame(videos: list[Seen]) -> None:
    true = [set(video.truth.change_points[1:, 0].tolist()) for video, *_ in videos]
    found = [set(finder.segments()[1:, 0].tolist()) for _, _, finder, _ in videos]
    right = sum(len(a & b) for a, b in zip(true, found))
    assert right >= 0.9 * sum(map(len, true))
    assert right >= 0.95 * sum(map(len, found))


# change points of features


def test_changes_are_found_whatever_else_the_features_have_in_common() -> None:
    """Three scenes that differ little beside what is the same in all of them: cosines are above .99."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(3, 64)), [6, 10, 8], axis=0) + rng.normal(0, 0.2, (24, 64))
    for offset in (0.0, 10.0):
        assert kts_by_variance(rows + offset, 11).tolist() == [6, 16]
    assert kts(rows + 10.0, 11).tolist() == []


def test_noise_and_equal_rows_have_no_change_points() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert kts_by_variance(rng.normal(size=(40, 64)) + 3, 19).tolist() == []
        assert kts_by_variance(np.tile(rng.random(64), (40, 1)), 19).tolist() == []


# the same as the task's own test


def test_the_verb_gives_the_summary_that_the_task_tests(copy: Path, videos: list[Seen]) -> None:
    """The same scores, shots, frames and F1, where every cut was found and no shot had to be divided."""
    card = json.loads((copy / "card.json").read_text())
    card["input"]["features"]["fps"] = 1.0
    (copy / "card.json").write_text(json.dumps(card))
    loaded = load(copy)
    same = 0
    for video, path, finder, _ in videos:
        examples = Videos.of([video])
        (batch,) = examples.batches(1)
        made = summarize(path, copy, community="global")
        assert made.scores == loaded.task.forward(loaded.model, batch).logits[0].double().tolist()
        if np.array_equal(finder.segments(), video.truth.change_points) and len(made.shots) == len(finder.segments()):
            same += 1
            kept = frames_of(made.spans, made.n_frames)
            assert [(s.first, s.last) for s in made.shots] == [*map(tuple, video.truth.change_points.tolist())]
            np.testing.assert_array_equal(kept, metrics.summarize(np.array(made.scores), video.truth))
            with torch.no_grad():
                tested = loaded.task.evaluate(loaded.model, examples, 1)["f1"]
            assert tested == metrics.f1(kept, video.truth.user_summary, video.truth.how)[0]
    assert same >= 4


def test_steps_between_centred_picks_are_those_of_the_video() -> None:
    """Of steps of 8 or 15 frames, the frames that a pick's score is carried to are the step's own."""
    for length in (8, 15):
        starts = np.arange(0, 10 * length, length)
        users = np.ones((1, 10 * length), np.uint8)
        truth = metrics.Truth(
            10 * length, starts + length // 2, np.array([[0, 10 * length - 1]]), users, spread="nearest"
        )
        np.testing.assert_array_equal(metrics.frame_scores(np.arange(10), truth), np.repeat(np.arange(10), length))


def test_what_people_like_is_kept_more_than_by_chance(videos: list[Seen]) -> None:
    """With people's own scores in place of a model's, the shots that are found and chosen are those they like: their
    mean score of the frames kept, from 0 to 1, and the F1 of their own summaries."""
    liked, luck = [], []
    for video, _, finder, steps in videos:
        people = np.repeat(video.target, steps.lengths)

        def judged(scores: np.ndarray, by: tuple = (video, finder, steps, people)) -> tuple[float, float]:
            video, finder, steps, people = by
            shots, _ = choose(scores, steps, 0.15, finder.segments())
            kept = frames_of([(s.first, s.last) for s in shots if s.chosen], len(people))
            return people[kept].mean(), metrics.f1(kept, video.truth.user_summary, "mean")[0]

        liked.append(judged(video.target.astype(np.float64)))
        luck.append(np.mean([judged(metrics.random_scores(len(steps.rows), seed)) for seed in range(10)], axis=0))
    (score, f1), (by_chance, f1_by_chance) = np.mean(liked, axis=0), np.mean(luck, axis=0)
    assert score > by_chance + 0.1
    assert f1 > f1_by_chance + 0.05


def test_a_model_that_learned_the_videos_keeps_what_people_like(videos: list[Seen], tmp_path: Path) -> None:
    """From the file to the summary: the mean score, 1 to 5, that people gave to what is kept of the videos that the
    model was trained on is above that of as many of the same shots taken at random. (Of six videos nobody learns to
    judge others.)"""
    settings = {"data.size": "tiny", "method.name": "fedavg", "round.rounds": 1, "round.trust": False}
    recipe = load_recipe("cfedvs", {**settings, "train.epochs": 30, "train.lr": 5e-3, "device": "cpu"})
    trained = run(recipe, tmp_path / "run", quiet=True).path
    seen = [(video, path) for video, path, _, _ in videos if video.split == "train"]
    liked = [liking(summarize(path, trained), video.truth) for video, path in seen]
    own, chance = np.mean(liked, axis=0)
    assert len(liked) == 6
    assert own > chance + 0.2
