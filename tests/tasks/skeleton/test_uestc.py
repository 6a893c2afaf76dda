"""UESTC's files: text and matrices, who is for training, and every way one can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.skeleton import uestc
from fedreel.tasks.skeleton.motions import read_set
from support import skeleton_files as make

GOOD = "a0_d1_p001_c1_skeleton.txt"


def write(folder: Path, name: str, body: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(make.uestc(body))
    return folder / name


def test_a_body_comes_back_as_written(tmp_path: Path) -> None:
    body = make.bodies(310)
    write(tmp_path / "some" / "where", "a39_d8_p118_c2_skeleton.txt", body)
    found = read_set(tmp_path)
    (motion,) = found.motions
    np.testing.assert_array_equal(motion.frames, body[:, None])
    assert (motion.name, motion.label, motion.subject) == ("a39_d8_p118_c2_skeleton", 39, "p118")
    assert motion.split == "test"
    assert len(found.classes) == 40


def test_51_of_118_subjects_are_for_training(tmp_path: Path) -> None:
    for subject in range(1, 119):
        write(tmp_path, f"a1_d1_p{subject:03d}_c1_skeleton.txt", make.bodies(1))
    found = read_set(tmp_path)
    train = [m.subject for m in found.motions if m.split == "train"]
    assert len(train) == 51
    assert (train[0], train[3], train[-1]) == ("p001", "p012", "p113")
    assert sum(m.split == "test" for m in found.motions) == 67
    assert {28, 29, 30, 31, 69, 70, 71, 86, 87, 88, 102, 103, 104} <= uestc.TRAIN


def lines(path: Path, change: str, at: int) -> str:
    rows = path.read_text().splitlines()
    rows[at - 1 : at] = change.splitlines()
    return "\n".join(rows)


WRONG = {
    "empty": (lambda p: "", None, "empty"),
    "rubbish": (lambda p: "\xff\x00\x80", None, "text file"),
    "no head": (lambda p: lines(p, "", 1), 1, "begin"),
    "a line too few": (lambda p: lines(p, "", 90), 77, "74 lines"),
    "a line too many": (lambda p: lines(p, "1 2 3\n4 5 6", 5), 1, "76 lines"),
    "cut": (lambda p: "\n".join(p.read_text().splitlines()[:100]), 77, "23 lines"),
    "a word": (lambda p: lines(p, "1 left 3 0", 5), 5, "'left'"),
    "two numbers": (lambda p: lines(p, "1 2", 5), 5, "2 numbers instead of 3 or more"),
    "NaN": (lambda p: lines(p, "1 nan 3 0", 5), 5, "nan"),
    "nobody": (lambda p: make.uestc(np.zeros((2, 25, 3))), None, "no body"),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_file_that_is_wrong_is_listed_and_the_others_are_read(tmp_path: Path, way: str) -> None:
    write(tmp_path, GOOD, make.bodies(2))
    bad = write(tmp_path, "a0_d1_p002_c1_skeleton.txt", make.bodies(2))
    change, line, words = WRONG[way]
    bad.write_text(change(bad), encoding="latin-1")
    found = read_set(tmp_path)
    assert [m.name + ".txt" for m in found.motions] == [GOOD]
    (unusable,) = found.dropped
    assert (unusable.where, unusable.line) == (bad.name, line)
    assert words in unusable.reason


def test_places_in_the_pictures_may_be_anything(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, make.bodies(2))
    path.write_text(path.read_text().replace("960.5", "-inf"))
    assert len(read_set(tmp_path).motions) == 1


def test_an_action_beyond_the_40_is_listed(tmp_path: Path) -> None:
    for name in (GOOD, "a40_d1_p001_c1_skeleton.txt"):
        write(tmp_path, name, make.bodies(1))
    assert [u.reason for u in read_set(tmp_path).dropped] == ["there is no action 40"]


def test_a_matrix_does_not_count_beside_the_text_file_of_its_name(tmp_path: Path) -> None:
    (tmp_path / GOOD).with_suffix(".mat").write_bytes(b"whatever")
    with pytest.raises(DataError, match=r"not a readable \.mat file"):
        read_set(tmp_path)
    write(tmp_path, GOOD, make.bodies(2))
    assert len(read_set(tmp_path).motions) == 1


def test_matrices_come_back_as_written(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io", reason="the files are written by scipy")
    body = make.bodies(6)
    io.savemat(tmp_path / "a3_d1_p001_c1_skeleton.mat", {"joints": body.reshape(6, 75), "other": np.ones(3)})
    io.savemat(tmp_path / "a4_d1_p001_c1_skeleton.mat", {"joints": body.reshape(6, 75)[:, :74]})
    (tmp_path / "a5_d1_p001_c1_skeleton.mat").write_bytes(b"rubbish" * 100)
    found = read_set(tmp_path)
    (motion,) = found.motions
    np.testing.assert_array_equal(motion.frames, body[:, None])
    assert [u.where[:2] for u in found.dropped] == ["a4", "a5"]
