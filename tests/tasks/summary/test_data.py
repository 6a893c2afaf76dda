"""Annotated videos: files as people have them, and every way such a file can be wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedreel.config import DataConfig
from fedreel.errors import DataError
from fedreel.tasks.summary.data import (
    SUMME_CATEGORIES,
    TVSUM_FRAMES,
    find_public,
    find_summary,
    read_summary,
    summe_category,
)
from support import annotated
from support.shared import SHARED

DATA = SHARED / "summary"
TVSUM, SUMME = DATA / "tvsum50_effnetlite0.h5", DATA / "summe14_dino_vitb16.h5"
needs_tvsum = pytest.mark.skipif(not TVSUM.exists(), reason="the TVSum file is not here (set FEDREEL_DATA)")
needs_summe = pytest.mark.skipif(not SUMME.exists(), reason="the SumMe file is not here (set FEDREEL_DATA)")


# reading


def test_a_file_of_the_usual_form_is_read(tmp_path: Path) -> None:
    k = annotated.keys(3)
    path = annotated.write(tmp_path / "a.h5", {"video_1": {**k, "gtsummary": np.zeros(k["n_steps"])}})
    (video,) = read_summary(path)
    assert video.name == video.source == "video_1"
    np.testing.assert_array_equal(video.features, k["features"])
    np.testing.assert_array_equal(video.truth.picks, k["picks"])
    np.testing.assert_array_equal(video.truth.change_points, k["change_points"])
    np.testing.assert_array_equal(video.truth.user_summary, k["user_summary"])
    assert (video.category, video.owner, video.split, video.community, video.rate) == ("", "", "", "", 0.0)


def test_targets_reach_from_0_to_1(tmp_path: Path) -> None:
    k = annotated.keys(3)
    k["gtscore"] = np.linspace(2, 4, k["n_steps"])
    flat = {**annotated.keys(4), "gtscore": np.full(annotated.keys(4)["n_steps"], 3.0)}
    one, other = read_summary(annotated.write(tmp_path / "a.h5", {"x": k, "y": flat}))
    np.testing.assert_allclose(one.target, np.linspace(0, 1, len(one.target)), atol=1e-6)
    assert not other.target.any()


def test_videos_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = annotated.write(tmp_path / "a.h5", {f"video_{i}": annotated.keys(i) for i in (10, 2, 1)})
    assert [v.name for v in read_summary(path)] == ["video_1", "video_2", "video_10"]


def test_what_is_known_of_a_video_may_be_a_key_or_an_attribute(tmp_path: Path) -> None:
    attrs = {"owner": "ann", "category": "sea", "split": "Test", "community": "speed"}
    content = {"x": {**annotated.keys(1), "category": "city", "fps": 10.0}, "y": annotated.keys(2)}
    one, other = read_summary(annotated.write(tmp_path / "a.h5", content, {"x": attrs}))
    assert (one.owner, one.category, one.split, one.community) == ("ann", "city", "test", "speed")
    assert other.owner == ""
    assert one.rate == pytest.approx(len(one.target) * 10 / one.truth.n_frames)


def test_picks_in_the_middle_of_their_steps_are_noticed(tmp_path: Path) -> None:
    content = {"x": annotated.keys(1), "y": annotated.keys(1, centred=True)}
    path = annotated.write(tmp_path / "a.h5", content)
    assert [v.truth.spread for v in read_summary(path)] == ["hold", "nearest"]
    assert [v.truth.spread for v in read_summary(path, spread="hold")] == ["hold", "hold"]


def test_videos_of_summe_are_judged_by_their_best_user(tmp_path: Path) -> None:
    k = annotated.keys(1)
    scored = {**k, "user_scores": np.ones((3, k["n_steps"]))}
    content = {
        "a": {**k, "video_name": "Base jumping"},
        "b": {**k, "video_name": "something else"},
        "c": {**scored, "video_name": "Base jumping"},
        "d": scored,
    }
    path = annotated.write(tmp_path / "a.h5", content)
    assert [v.truth.how for v in read_summary(path)] == ["max", "mean", "mean", "mean"]
    assert {v.truth.how for v in read_summary(path, how="max")} == {"max"}


def test_summe_has_25_videos_in_our_three_categories() -> None:
    counts = {category: len({*names.split()}) for category, names in SUMME_CATEGORIES.items()}
    assert counts == {"sports": 9, "holidays": 8, "events": 8}
    assert summe_category("St Maarten Landing") == "holidays"
    assert summe_category("St_Maarten_Landing") == "holidays"
    assert summe_category("video_1") == ""


def of_length(n: int, category: str | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {
        "features": np.ones((2, 3)),
        "gtscore": [0.0, 1.0],
        "user_summary": np.zeros((1, n)),
        "change_points": [[0, n - 1]],
        "n_frames": n,
        "picks": [0, n // 2],
    }
    return content if category is None else {**content, "category": category}


def test_videos_of_tvsum_are_known_by_their_lengths(tmp_path: Path) -> None:
    assert len({*TVSUM_FRAMES}) == 50
    content = {f"video_{i + 1}": of_length(TVSUM_FRAMES[i]) for i in (49, 0, 5)}
    assert [v.category for v in read_summary(annotated.write(tmp_path / "a.h5", content))] == ["VT", "VU", "DS"]
    content["video_7"] = of_length(TVSUM_FRAMES[6] + 1)
    assert {v.category for v in read_summary(annotated.write(tmp_path / "b.h5", content))} == {""}


def test_standardised_features_have_mean_0_and_deviation_1_over_the_file(tmp_path: Path) -> None:
    one, other = annotated.keys(1), annotated.keys(2)
    one["features"][:, 0] = other["features"][:, 0] = 7  # a constant feature says nothing
    videos = read_summary(annotated.write(tmp_path / "a.h5", {"x": one, "y": other}), standardise=True)
    everything = np.concatenate([v.features for v in videos])
    np.testing.assert_allclose(everything.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(everything.std(axis=0), [0, 1, 1, 1], atol=1e-5)


# files that are wrong

REQUIRED = ("gtscore", "user_summary", "change_points", "n_frames", "picks")


def refused(path: Path, key: str) -> DataError:
    with pytest.raises(DataError) as caught:
        read_summary(path)
    assert str(path) in caught.value.where
    assert "video second" in caught.value.where
    assert f"key {key}" in caught.value.where
    return caught.value


@pytest.mark.parametrize("key", [*REQUIRED, "features"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    broken = {k: v for k, v in annotated.keys(2).items() if k != key}
    refused(annotated.write(tmp_path / "a.h5", {"first": annotated.keys(1), "second": broken}), key)


def _nan(value: Any) -> np.ndarray:
    value = np.array(value, float)
    value.flat[-1] = np.nan
    return value


WAYS = {
    "not a number": _nan,
    "too short": lambda v: np.asarray(v)[:-1],
    "too long": lambda v: np.concatenate([v, np.asarray(v)[-1:]]),
    "of another shape": lambda v: np.asarray(v)[None],
    "empty": lambda v: np.zeros(0),
    "text": lambda v: "hello",
}


@pytest.mark.parametrize("key", ["features", "gtscore", "user_summary", "change_points", "n_frame_per_seg", "picks"])
@pytest.mark.parametrize("way", WAYS)
def test_an_array_that_is_wrong_is_named(tmp_path: Path, key: str, way: str) -> None:
    broken = annotated.keys(2)
    broken[key] = WAYS[way](broken[key])
    if key == "user_summary" and way.startswith("too"):  # fewer or more users are fine; frames are what counts
        broken[key] = WAYS[way](broken[key].repeat(1, axis=0).T).T
    if key == "picks" and way == "too short":
        key = "n_steps"
    if key == "picks" and way == "too long":
        broken["n_steps"] += 1
    refused(annotated.write(tmp_path / "a.h5", {"first": annotated.keys(1), "second": broken}), key)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("n_frames", lambda v: 0),
        ("n_frames", lambda v: [v, v]),
        ("n_frames", lambda v: 1.5),
        ("n_frames", lambda v: "many"),
        ("n_steps", lambda v: v + 1),
        ("picks", lambda v: v[::-1]),
        ("picks", lambda v: v + 0.5),
        ("picks", lambda v: v - 1),
        ("picks", lambda v: v + 100),
        ("user_summary", lambda v: v * 2),
        ("change_points", lambda v: v + 1),
        ("change_points", lambda v: v + np.array([0, 1])),
        ("change_points", lambda v: v - np.array([0, 1])),
        ("change_points", lambda v: np.delete(v, 2, axis=0)),
        ("change_points", lambda v: v[::-1]),
        ("change_points", lambda v: v[:, ::-1]),
        ("n_frame_per_seg", lambda v: v + 1),
        ("user_scores", lambda v: np.ones((3, 2))),
        ("user_scores", lambda v: np.ones((2, 9))),
        ("gtsummary", lambda v: np.ones(2)),
        ("features", lambda v: np.zeros((len(v), 0))),
        ("features", lambda v: v[:, :3]),
        ("split", lambda v: "exam"),
        ("category", lambda v: 3),
    ],
)
def test_a_value_that_is_wrong_is_named(tmp_path: Path, key: str, change: Any) -> None:
    broken = annotated.keys(2)
    broken[key] = change(broken.get(key))
    refused(annotated.write(tmp_path / "a.h5", {"first": annotated.keys(1), "second": broken}), key)


def test_a_change_of_n_frames_is_noticed_by_what_must_fit_it(tmp_path: Path) -> None:
    broken = annotated.keys(2)
    broken["n_frames"] += 1
    refused(annotated.write(tmp_path / "a.h5", {"first": annotated.keys(1), "second": broken}), "change_points")


@pytest.mark.parametrize("key", [*REQUIRED, "features", "video_name"])
def test_a_group_in_the_place_of_values_is_named(tmp_path: Path, key: str) -> None:
    path = annotated.write(tmp_path / "a.h5", {"first": annotated.keys(1), "second": annotated.keys(2)})
    with h5py.File(path, "a") as file:
        if key in file["second"]:
            del file["second"][key]
        file["second"].create_group(key)
    refused(path, key)


def test_a_file_that_is_no_h5_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"hello" * 100)
    with pytest.raises(DataError, match="not a readable h5 file"):
        read_summary(tmp_path / "a.h5")
    with pytest.raises(DataError):
        read_summary(tmp_path / "absent.h5")
    h5py.File(tmp_path / "empty.h5", "w").close()
    with pytest.raises(DataError, match="no videos"):
        read_summary(tmp_path / "empty.h5")
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["features"] = np.ones(3)
    with pytest.raises(DataError, match="a group for each video"):
        read_summary(tmp_path / "flat.h5")


def test_a_file_cut_short_is_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    content = annotated.write(tmp_path / "a.h5", {f"v{i}": annotated.keys(i) for i in range(4)}).read_bytes()
    for length in range(0, len(content) - 1, max(1, len(content) // 40)):
        (tmp_path / "b.h5").write_bytes(content[:length])
        with pytest.raises(DataError):
            read_summary(tmp_path / "b.h5")


# where files are


def test_a_source_is_a_file_or_a_folder_with_one(tmp_path: Path) -> None:
    path = annotated.write(tmp_path / "a.h5", {"x": annotated.keys(1)})
    assert find_summary(DataConfig(source=str(path))) == path
    assert find_summary(DataConfig(source=str(tmp_path))) == path
    assert find_public(DataConfig(public=str(tmp_path))) == path
    annotated.write(tmp_path / "b.h5", {"x": annotated.keys(1)})
    with pytest.raises(DataError, match=r"a\.h5, b\.h5"):
        find_summary(DataConfig(source=str(tmp_path)))
    with pytest.raises(DataError, match=r"data\.public"):
        find_public(DataConfig(public=str(tmp_path / "absent")))


# the real files


@needs_tvsum
def test_the_real_tvsum_file_is_read_and_its_lengths_tell_its_categories(tmp_path: Path) -> None:
    videos = read_summary(TVSUM)
    assert len(videos) == 50
    assert Counter(Counter(v.category for v in videos).values()) == {5: 10}
    assert {(v.truth.spread, v.truth.how) for v in videos} == {("nearest", "mean")}
    assert {v.features.shape[1] for v in videos} == {1280}
    assert all(0.45 < v.rate < 0.55 for v in videos)
    with h5py.File(TVSUM) as file, h5py.File(tmp_path / "a.h5", "w") as copy:
        for name in file:
            for key in ("features", "gtscore", "user_summary", "change_points", "n_frames", "picks"):
                file.copy(f"{name}/{key}", copy.require_group(name))
    assert [v.category for v in read_summary(tmp_path / "a.h5")] == [v.category for v in videos]


@needs_summe
def test_the_real_summe_file_is_read() -> None:
    videos = read_summary(SUMME, standardise=True)
    assert len(videos) == 14
    assert {(v.truth.spread, v.truth.how) for v in videos} == {("hold", "max")}
    assert all(v.category for v in videos)
    assert np.concatenate([v.features for v in videos]).std() == pytest.approx(1, abs=0.01)
