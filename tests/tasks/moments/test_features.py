"""Features from every kind of source, pooled over time; what is missing or damaged is told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedreel.data.features import make_features
from fedreel.errors import DataError
from fedreel.media import video
from fedreel.tasks.moments import features as module
from fedreel.tasks.moments.features import is_features, make_moment_features, open_features, pool_windows
from support import moment_files as make

ROWS = {"A": np.arange(12, dtype=np.float16).reshape(4, 3), "B": np.ones((2, 3), np.float16)}


# pooling


def test_rows_are_means_over_equal_windows() -> None:
    x = np.array([[0, 10], [2, 20], [4, 30], [6, 40], [8, 50], [10, 60]], np.float32)
    np.testing.assert_array_equal(pool_windows(x, 3), [[1, 15], [5, 35], [9, 55]])
    np.testing.assert_array_equal(pool_windows(x, 1), [[5, 35]])
    np.testing.assert_array_equal(pool_windows(x, 6), x)
    np.testing.assert_array_equal(pool_windows(x, 4)[:, 0], [0, 3, 6, 9])  # rows 0 | 1, 2 | 3 | 4, 5
    np.testing.assert_array_equal(pool_windows(x[:2], 4)[:, 0], [0, 0, 2, 2])  # too few are repeated
    np.testing.assert_array_equal(pool_windows(x[:1], 3)[:, 1], [10, 10, 10])
    assert pool_windows(x, 4).dtype == np.float32


def test_pooling_is_that_of_the_windows_definition() -> None:
    rng = np.random.default_rng(0)
    for n, length in [(1, 5), (5, 5), (7, 5), (33, 16), (100, 64), (3, 64), (640, 64)]:
        x = rng.normal(size=(n, 4)).astype(np.float32)
        windows = [(i * n // length, max((i + 1) * n // length, i * n // length + 1)) for i in range(length)]
        expected = [x[a:b].astype(np.float64).mean(axis=0) for a, b in windows]
        np.testing.assert_allclose(pool_windows(x, length), expected, rtol=1e-6, atol=1e-7)


# sources


def as_npz(folder: Path) -> Path:
    return make.npz(folder / "clip.npz", ROWS, duration=np.array([4.5, np.nan], np.float32))


def as_folder(folder: Path) -> Path:
    (folder / "clip").mkdir()
    np.save(folder / "clip" / "A.npy", ROWS["A"][:, None, None])  # some tools leave such axes
    np.savez(folder / "clip" / "B.npz", features=ROWS["B"], times=np.arange(2))
    (folder / "clip" / "notes.txt").write_text("hello")
    return folder / "clip"


def as_h5(folder: Path) -> Path:
    with h5py.File(folder / "clip.hdf5", "w") as file:
        file["A"] = ROWS["A"]
        file["B/c3d_features"] = ROWS["B"]
    return folder / "clip.hdf5"


@pytest.mark.parametrize("write", [as_npz, as_folder, as_h5])
def test_features_come_back_by_the_names_of_videos(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path)
    assert is_features(path)
    found = open_features(path)
    assert (sorted(found.ids), found.width) == (["A", "B"], 3)
    assert found.card == {"name": "clip", "width": 3}
    assert open_features(path, "i3d").card["name"] == "i3d"
    for name, rows in ROWS.items():
        assert found.get(name).dtype == np.float32
        np.testing.assert_array_equal(found.get(name), rows)
    with pytest.raises(DataError, match="no features of this video"):
        found.get("C")


def test_lengths_are_known_where_the_file_tells(tmp_path: Path) -> None:
    found = open_features(as_npz(tmp_path))
    assert found.durations == {"A": 4.5}
    assert (found.duration("A"), found.duration("B"), found.duration("C")) == (4.5, 0.0, 0.0)


def test_other_names_of_the_same_video_are_known(tmp_path: Path) -> None:
    found = open_features(make.npz(tmp_path / "x.npz", {"v_a": ROWS["A"], "s13-d21": ROWS["B"], "b.c": ROWS["B"]}))
    assert [found.key(v) for v in ("v_a", "a", "s13-d21.avi", "b.c", "b", "v_b")] == [
        *("v_a", "v_a", "s13-d21", "b.c", "", "")
    ]
    plain = open_features(make.npz(tmp_path / "y.npz", {"a": ROWS["A"]}))
    assert plain.key("v_a") == "a"


def test_videos_without_usable_features_are_told_with_the_reason(tmp_path: Path) -> None:
    folder = as_folder(tmp_path)
    np.save(folder / "bad.npy", np.full((2, 3), np.nan))
    np.save(folder / "wide.npy", np.ones((2, 4)))
    np.save(folder / "flat.npy", np.ones(3))
    np.save(folder / "empty.npy", np.ones((0, 3)))
    np.save(folder / "text.npy", np.array(["x"]))
    np.save(folder / "object.npy", np.array([{}]), allow_pickle=True)
    (folder / "rubbish.npy").write_bytes(b"rubbish")
    found = open_features(folder)
    rows, faults = found.pool_all(["A", "bad", "C", "B", *["wide", "flat", "empty", "text", "object", "rubbish"]], 8)
    assert [*rows] == ["A", "B"]
    np.testing.assert_array_equal(rows["B"], np.ones((8, 3)))
    assert {*faults} == {"bad", "C", "wide", "flat", "empty", "text", "object", "rubbish"}
    assert "6 not finite" in faults["bad"]


def test_no_features_for_any_video_is_refused_with_names_of_both_sides(tmp_path: Path) -> None:
    found = open_features(as_npz(tmp_path))
    with pytest.raises(DataError, match=r"(?s)none of the annotated videos.*X1, X2, X3 .*A, B"):
        found.pool_all(["X1", "X2", "X3", "X4"], 8)


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": np.array([0, 4])},
        {"offsets": np.array([0, 4, 7])},
        {"offsets": np.array([0, 5, 4])},
        {"offsets": np.array([-1, 4, 6])},
        {"offsets": np.array([0.0, 4.0, 6.0])},
        {"features": np.ones(6, np.float32)},
        {"ids": np.array([1, 2])},
        {"ids": np.array(["A", "B"], object)},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    good = {"ids": np.array(["A", "B"]), "offsets": np.array([0, 4, 6]), "features": np.ones((6, 3), np.float32)}
    np.savez(tmp_path / "x.npz", **{**good, **change})
    with pytest.raises(DataError, match=r"x\.npz"):
        open_features(tmp_path / "x.npz")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    for name in ("x.npz", "x.h5"):
        (tmp_path / name).write_bytes(b"rubbish" * 50)
        with pytest.raises(DataError, match="not a readable"):
            open_features(tmp_path / name)
    assert not is_features(tmp_path / "x.npz")
    (tmp_path / "none").mkdir()
    assert not is_features(tmp_path / "none")
    with pytest.raises(DataError, match="no features here"):
        open_features(tmp_path / "none")


# made from videos


def test_features_are_made_from_videos_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    frames = np.random.default_rng(0).integers(0, 255, (20, 32, 32, 3), dtype=np.uint8)
    folder = tmp_path / "videos"
    video.write(folder / "one" / "A.mp4", frames, 8)
    video.write(folder / "two" / "B.mp4", frames[:8], 8)
    (folder / "C.mp4").write_bytes(b"rubbish")
    plain = make_features("plain")
    found = make_moment_features(folder, plain, 2.0)
    assert (sorted(found.ids), found.width) == (["A", "B"], 64)
    assert (found.get("A").shape, found.get("B").shape) == ((5, 64), (2, 64))  # two rows a second
    assert found.durations == {"A": 2.5, "B": 1.0}
    assert found.card == {**plain.card(), "fps": 2.0}

    calls: list[Path] = []

    def watched(paths: list[Path], *rest: Any) -> Any:
        calls.extend(paths)
        return original(paths, *rest)

    original = module.videos_features
    monkeypatch.setattr(module, "videos_features", watched)
    again = make_moment_features(folder, plain, 2.0)
    assert calls == [folder / "C.mp4"]  # the others are in the cache
    np.testing.assert_array_equal(again.get("A"), found.get("A"))
    assert again.durations == found.durations
    assert make_moment_features(folder, plain, 4.0).get("B").shape == (4, 64)
    kept = sorted((tmp_path / "cache" / "features").iterdir())
    assert len(kept) == 4
    for path in kept:
        path.write_bytes(b"rubbish")
    np.testing.assert_array_equal(make_moment_features(folder, plain, 2.0).get("A"), found.get("A"))


def test_features_have_the_same_bits_whatever_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (150, 32, 32, 3), dtype=np.uint8)
    for number in range(5):
        video.write(tmp_path / "videos" / f"{number}.mp4", frames[10 * number : 150 - 20 * number], 8)
    (tmp_path / "videos" / "2a.mp4").write_bytes(b"rubbish")
    found = {}
    for threads in (1, 2, 5):
        monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / f"cache-{threads}"))
        monkeypatch.setattr("fedreel.machine.ahead.own_cores", lambda threads=threads: threads)
        made = make_moment_features(tmp_path / "videos", make_features("plain"), 4.0)
        found[threads] = {name: (made.get(name).tobytes(), made.durations[name]) for name in made.ids}
    assert [*found[1]] == [*"01234"]
    assert found[1] == found[2] == found[5]


def test_two_videos_of_one_name_are_refused(tmp_path: Path) -> None:
    frames = np.zeros((4, 32, 32, 3), np.uint8)
    for owner in ("one", "two"):
        video.write(tmp_path / owner / "A.mp4", frames, 8)
    with pytest.raises(DataError, match="same name"):
        make_moment_features(tmp_path, make_features("plain"), 1.0)
