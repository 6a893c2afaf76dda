"""Splits and annotations in the layouts in which they were published, joined to the videos of an h5 file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedreel.config import DataConfig
from fedreel.errors import DataError
from fedreel.tasks.summary.annotations import MAT, TSV, with_split, with_user_scores
from fedreel.tasks.summary.data import SummaryVideo, read_summary
from fedreel.tasks.summary.metrics import kendall_tau, rank_correlations, summarize
from fedreel.tasks.summary.split import cut
from fedreel.tasks.summary.task import Summary
from support import annotated

NAMES = ("AwmHb44_ouw", "98MoyGZKHXc", "J0nA4VgnoCo")
USERS = 3


def write(folder: Path, names: tuple[str, ...] = ()) -> Path:
    """Three videos of different lengths as an eccv16 file, with or without names."""
    content: dict[str, dict[str, Any]] = {}
    for n in range(3):
        content[f"video_{n + 1}"] = {**annotated.keys(n, shots=5 + n, users=USERS), "category": "any"}
        if names:
            content[f"video_{n + 1}"]["video_name"] = names[n]
    return annotated.write(folder / "eccv16.h5", content)


def by_frame(videos: list[SummaryVideo]) -> list[np.ndarray]:
    """(users, frames) whole numbers from 1 to 5 for each video."""
    return [np.random.default_rng(i).integers(1, 6, (USERS, v.truth.n_frames)) for i, v in enumerate(videos)]


def write_tsv(path: Path, scores: list[np.ndarray]) -> None:
    lines = [f"{name}\tVT\t{','.join(map(str, user))}" for name, users in zip(NAMES, scores) for user in users]
    path.write_text("\n".join(reversed(lines)) + "\n")  # the videos in another order; users too


def write_mat(path: Path, scores: list[np.ndarray]) -> None:
    """As MATLAB 7.3 stores a struct array: columns of references; matrices turned, texts as numbers."""
    with h5py.File(path, "w") as file:
        group = file.create_group("tvsum50")
        for key in ("video", "user_anno"):
            group.create_dataset(key, (len(scores), 1), h5py.ref_dtype)
        for i, (name, users) in enumerate(zip(NAMES, scores)):
            file[f"#refs#/name{i}"] = np.array([[ord(c)] for c in name], np.uint16)
            file[f"#refs#/anno{i}"] = users.astype(np.float64)
            for key, of in (("video", "name"), ("user_anno", "anno")):
                group[key][i, 0] = file[f"#refs#/{of}{i}"].ref


@pytest.mark.parametrize("names", [(), NAMES])
@pytest.mark.parametrize("form", [TSV, MAT])
def test_users_scores_of_tvsum_are_joined_by_name_or_length(tmp_path: Path, names: Any, form: str) -> None:
    videos = read_summary(write(tmp_path, names))
    scores = by_frame(videos)
    (write_tsv if form == TSV else write_mat)(tmp_path / form, scores)
    for place in (tmp_path, tmp_path / form):
        for video, expected in zip(with_user_scores(videos, place), scores):
            found = video.truth.user_scores
            assert found is not None
            wanted = expected[:, video.truth.picks]
            np.testing.assert_array_equal(found, wanted[::-1] if form == TSV else wanted)


def test_with_users_scores_tau_is_the_mean_over_users_and_without_against_their_summaries(tmp_path: Path) -> None:
    videos = read_summary(write(tmp_path))
    scores = by_frame(videos)
    write_mat(tmp_path / MAT, scores)
    made = np.random.default_rng(9).random(len(videos[0].truth.picks))
    joined, plain = with_user_scores(videos, tmp_path)[0].truth, videos[0].truth
    taus = [kendall_tau(made, user[plain.picks]) for user in scores[0]]
    assert rank_correlations(made, joined)[0] == pytest.approx(np.mean(taus))
    share = plain.user_summary[:, plain.picks].mean(axis=0)
    assert rank_correlations(made, plain)[0] == pytest.approx(kendall_tau(made, share))


def test_scores_of_summe_are_joined_by_name_and_summaries_stay_the_users_own(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io")
    names = ("Air_Force_One", "Eiffel Tower", "playing_ball")
    videos = read_summary(write(tmp_path, names))
    assert {v.truth.how for v in videos} == {"max"}
    (tmp_path / "GT").mkdir()
    scores = [s * (s > 3) for s in by_frame(videos)]
    for name, given in zip(names, scores):
        io.savemat(tmp_path / "GT" / f"{name}.mat", {"user_score": given.T, "nFrames": given.shape[1], "FPS": 30.0})
    for video, given in zip(with_user_scores(videos, tmp_path), scores):
        np.testing.assert_array_equal(video.truth.user_scores, given[:, video.truth.picks])
        assert video.truth.how == "max"
        parts = cut(video, 2, seed=0)
        together = np.concatenate([p.truth.user_summary for p in parts], axis=1)
        np.testing.assert_array_equal(together, video.truth.user_summary)
    tvsum = replace(video, truth=replace(video.truth, how="mean"))  # whose users gave scores only
    for part in cut(tvsum, 2, seed=0):
        made = [summarize(s, part.truth) for s in part.truth.user_scores]  # type: ignore[union-attr]
        np.testing.assert_array_equal(part.truth.user_summary, made)


def test_annotations_that_do_not_fit_are_refused_by_video(tmp_path: Path) -> None:
    videos = read_summary(write(tmp_path, NAMES))
    scores = by_frame(videos)
    for wrong, said in (
        ([scores[0][:, 1:], *scores[1:]], f"{USERS} users, {scores[0].shape[1] - 1} frames"),
        ([scores[0][1:], *scores[1:]], f"{USERS - 1} users"),
        (scores[:2], "0 of 2 with as many frames"),
    ):
        write_tsv(tmp_path / TSV, wrong)
        with pytest.raises(DataError, match="does not fit the annotations") as caught:
            with_user_scores(videos, tmp_path)
        assert said in caught.value.found
    (tmp_path / TSV).write_text("a name\tVT\t1,2,many\n")
    with pytest.raises(DataError, match="damaged") as caught:
        with_user_scores(videos, tmp_path / TSV)
    assert caught.value.where.endswith("line 1")
    (tmp_path / MAT).write_text("no h5 file")
    with pytest.raises(DataError, match="tvsum50"):
        with_user_scores(videos, tmp_path / MAT)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no annotations here"):
        with_user_scores(videos, tmp_path / "empty")


def write_splits(path: Path, tests: list[list[int]]) -> Path:
    def key(n: int) -> str:
        return f"../data/eccv16_dataset_tvsum_google_pool5.h5/video_{n}"

    splits = [
        {"train_keys": [key(n) for n in (1, 2, 3) if n not in test], "test_keys": [key(n) for n in test]}
        for test in tests
    ]
    path.write_text(json.dumps(splits))
    return path


def test_splits_mark_what_is_for_testing_and_the_seed_says_which(tmp_path: Path) -> None:
    path = write(tmp_path)
    write_splits(tmp_path / "splits.json", [[1], [2, 3]])
    iid = {"name": "iid", "num_partitions": 1}
    task = Summary(features="own", width_in=4, fps=2.0, splits="splits.json")
    for seed, expected in ((0, {"video_1"}), (1, {"video_2", "video_3"}), (2, {"video_1"})):
        clients = task.population(DataConfig(source=str(path), partition=iid, seed=seed), seed)
        assert {*clients.data("client-0").test.sources} == clients.held_out == expected
        assert {*task.public(DataConfig(source=str(path), partition=iid, seed=seed), seed).sources} == expected


def test_splits_of_another_set_are_refused(tmp_path: Path) -> None:
    videos = read_summary(write(tmp_path))
    path = write_splits(tmp_path / "b.json", [[1]])
    with pytest.raises(DataError, match="leaves out a video"):
        with_split([*videos, replace(videos[0], name="video_4")], path, 0)
    with pytest.raises(DataError, match="names a video that the data do not have"):
        with_split(videos[:2], path, 0)
    (tmp_path / "c.json").write_text('{"train_keys": []}')
    with pytest.raises(DataError, match="these are no splits"):
        with_split(videos, tmp_path / "c.json", 0)
    with pytest.raises(DataError, match="cannot be read"):
        with_split(videos, tmp_path / "none.json", 0)
