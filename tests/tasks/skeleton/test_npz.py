"""Skeletons in .npz files: which sequences are for testing, what is left out, and files that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.skeleton.motions import MotionSet, read_set
from support import skeleton_files as make

SIX = (1, 2, 3, 4, 5, 6)


def read(folder: Path, **arrays: Any) -> MotionSet:
    return read_set(make.npz(folder / "own.npz", {**make.arrays(SIX), **arrays}))


def splits(found: MotionSet) -> dict[str, str]:
    return {m.name: m.split for m in found.motions}


def test_sequences_come_back_as_written(tmp_path: Path) -> None:
    content = make.arrays((1, 2), lengths=[4, 8])
    found = read_set(make.npz(tmp_path / "own.npz", content))
    first, second = found.motions
    np.testing.assert_array_equal(first.frames, content["data"][:4, None])
    np.testing.assert_array_equal(second.frames, content["data"][4:, None])
    assert [(m.name, m.label, m.subject) for m in found.motions] == [("s0", 0, "1"), ("s1", 1, "2")]
    assert (found.name, found.classes, found.dropped) == ("own", ("run", "jump"), [])


def test_a_second_person_is_a_second_body_where_there_is_one(tmp_path: Path) -> None:
    content = make.arrays((1, 2))
    second = np.zeros_like(content["data"])
    second[6:] = make.bodies(6, 9, 20)
    one, two = read_set(make.npz(tmp_path / "own.npz", {**content, "data2": second})).motions
    assert one.frames.shape[1] == 1
    np.testing.assert_array_equal(two.frames[:, 1], second[6:])


def test_odd_subjects_train_and_even_ones_test_where_nothing_else_is_said(tmp_path: Path) -> None:
    found = read(tmp_path, views=np.ones(6, int))  # one view says nothing
    assert [*splits(found).values()] == ["train", "test"] * 3


def test_subjects_that_are_no_numbers_leave_the_split_open(tmp_path: Path) -> None:
    found = read(tmp_path, subjects=np.array(list("abcdef")))
    assert {*splits(found).values()} == {""}


def test_the_highest_view_is_for_testing(tmp_path: Path) -> None:
    found = read(tmp_path, views=[1, 2, 3, 1, 2, 3], split=["train"] * 6)
    assert [*splits(found).values()] == ["train", "train", "test"] * 2


def test_the_split_is_as_the_file_says(tmp_path: Path) -> None:
    found = read(tmp_path, split=["test", "test", "train", "Train", "training", "train"])
    assert [*splits(found).values()] == ["test", "test", "train", "train", "train", "train"]


def test_rows_for_validation_are_left_out_and_the_others_are_as_the_file_says(tmp_path: Path) -> None:
    found = read(tmp_path, split=["test", "train", "val", "train", "train", "test"])
    assert splits(found) == {"s0": "test", "s1": "train", "s3": "train", "s4": "train", "s5": "test"}
    assert [(u.where, u.reason) for u in found.dropped] == [("own.npz#s2", "its split is 'val'")]


def test_a_split_with_strange_words_only_says_what_to_leave_out(tmp_path: Path) -> None:
    found = read(tmp_path, split=["t", "train", "train", "train", "test", "t"])
    assert splits(found) == {"s1": "test", "s2": "train", "s3": "test", "s4": "train"}  # by subject
    assert [u.where for u in found.dropped] == ["own.npz#s0", "own.npz#s5"]


def test_copies_of_training_sequences_are_not_tested_on(tmp_path: Path) -> None:
    data = make.arrays(SIX)["data"]
    data[6:12] = data[12:18]  # s1, for testing, is s2, for training
    data[24:30] = data[0:6]  # s4 is s0, both for training
    found = read(tmp_path, data=data)
    assert [*splits(found)] == ["s0", "s2", "s3", "s4", "s5"]
    assert [(u.where, u.reason) for u in found.dropped] == [("own.npz#s1", "a copy of s2, which is for training")]


def test_sequences_without_a_body_are_listed(tmp_path: Path) -> None:
    data = make.arrays(SIX)["data"]
    data[0:6], data[6:12], data[12:15], data[15:18] = 0, np.nan, 0, np.nan
    data[18], data[19, 3] = 0, np.nan  # a frame and a joint are no loss
    found = read(tmp_path, data=data)
    assert [u.where for u in found.dropped] == ["own.npz#s0", "own.npz#s1", "own.npz#s2"]
    assert {u.reason for u in found.dropped} == {"no body in any frame"}
    assert [*splits(found)] == ["s3", "s4", "s5"]


def test_sequences_of_no_frames_or_of_impossible_ones_are_listed(tmp_path: Path) -> None:
    data = make.arrays(SIX)["data"]
    data[7, 0, 0], data[13, 0, 0] = np.inf, 1e9
    found = read(tmp_path, data=data, lengths=[6, 6, 6, 12, 0, 6])
    assert [u.where for u in found.dropped] == ["own.npz#s1", "own.npz#s2", "own.npz#s4"]


def test_labels_without_a_class_are_listed(tmp_path: Path) -> None:
    found = read(tmp_path, labels=[0, 1, 2, -1, 0, 1])
    assert [u.where for u in found.dropped] == ["own.npz#s2", "own.npz#s3"]


def test_bare_numbers_as_class_names_give_way_to_the_names_of_the_sequences(tmp_path: Path) -> None:
    names = ["a08_s1", "a10_s2", "a08_s3", "a10_s4", "a08_s5", "a10_s6"]
    assert read(tmp_path, names=names, class_names=["10", "8"]).classes == ("a08", "a10")
    assert read(tmp_path, names=names, class_names=["ten", "8"]).classes == ("ten", "8")
    mixed = ["a08_s1", "a10_s2", "a10_s3", "a10_s4", "a08_s5", "a10_s6"]
    assert read(tmp_path, names=mixed, class_names=["10", "8"]).classes == ("10", "8")
    assert read(tmp_path, class_names=["10", "8"]).classes == ("10", "8")


@pytest.mark.parametrize("key", ["data", "lengths", "labels", "class_names", "subjects", "names", "joint_names"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    content = {k: v for k, v in make.arrays().items() if k != key}
    with pytest.raises(DataError) as caught:
        read_set(make.npz(tmp_path / "own.npz", content))
    assert caught.value.where == f"{tmp_path / 'own.npz'}, key {key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", np.zeros((24, 20, 2))),
        ("data", np.zeros((23, 20, 3))),
        ("data", np.zeros((24, 19, 3))),
        ("data", np.full((24, 20, 3), "x")),
        ("data2", np.zeros((24, 19, 3))),
        ("lengths", [6, 6, 6, -6]),
        ("lengths", [6.0, 6.0, 6.0, 6.0]),
        ("lengths", []),
        ("labels", [0, 1, 0]),
        ("labels", [0.5, 1, 0, 1]),
        ("labels", [[0, 1, 0, 1]]),
        ("names", ["a", "b"]),
        ("subjects", [1, 2, 3]),
        ("subjects", [1.5, 2, 3, 4]),
        ("views", [1, 2, 3]),
        ("split", ["train", "test"]),
        ("class_names", "run"),
        ("joint_names", ["j"] * 20),
    ],
)
def test_an_array_that_is_wrong_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(DataError) as caught:
        read_set(make.npz(tmp_path / "own.npz", {**make.arrays(), key: value}))
    assert caught.value.where == f"{tmp_path / 'own.npz'}, key {key}"


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    content = {**make.arrays(), "names": np.array([Trap()] * 4, dtype=object)}
    np.savez(tmp_path / "own.npz", **content)
    with pytest.raises(DataError, match="not a readable"):
        read_set(tmp_path / "own.npz")
    assert not (tmp_path / "sprung").exists()


def test_a_file_that_is_no_npz_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(b"hello" * 100)
    with pytest.raises(DataError, match="not a readable"):
        read_set(tmp_path / "own.npz")
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(DataError, match="not a readable"):
        read_set(tmp_path / "own.npz")


def test_a_damaged_file_gives_finite_motions_or_an_error_of_ours(tmp_path: Path) -> None:
    content = make.npz(tmp_path / "own.npz", make.arrays(frames=2)).read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(60):
        damaged = bytearray(content[: rng.integers(len(content))] if trial % 2 else content)
        for at in rng.integers(len(damaged), size=8) if len(damaged) else ():
            damaged[at] = rng.integers(256)
        (tmp_path / "bad.npz").write_bytes(damaged)
        try:
            found = read_set(tmp_path / "bad.npz")
        except DataError:
            continue
        assert all(np.nanmax(np.abs(m.frames)) < 1e6 for m in found.motions)
