"""PKU-MMD: labelled stretches of long recordings, where its folders lie, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.skeleton.motions import read_set
from support import skeleton_files as make


def pair(frames: int, seed: int = 0) -> np.ndarray:
    return np.stack([make.bodies(frames, seed), make.bodies(frames, seed + 100)], axis=1)


def alone(frames: int, seed: int = 0) -> np.ndarray:
    both = pair(frames, seed)
    both[:, 1] = 0
    return both


def test_stretches_come_back_as_written(tmp_path: Path) -> None:
    frames = alone(20)
    frames[8:14, 1] = pair(20)[8:14, 1]
    found = read_set(make.pku_set(tmp_path / "part1", {"0002-L": (frames, "3,1,5,1\n51,9,20,2\n")}))
    first, second = found.motions
    np.testing.assert_array_equal(first.frames, frames[0:5, :1])  # frames count from 1, both ends included
    np.testing.assert_array_equal(second.frames, frames[8:20])
    assert [m.name for m in found.motions] == ["0002-L#1", "0002-L#2"]
    assert [m.label for m in found.motions] == [2, 50]
    assert {m.subject for m in found.motions} == {"0002"}
    assert {m.split for m in found.motions} == {""}  # nobody says what is for testing
    assert len(found.classes) == 51
    assert found.name == "part1"


def test_the_middle_of_a_long_stretch_is_kept(tmp_path: Path) -> None:
    frames = alone(320)
    (motion,) = read_set(make.pku_set(tmp_path / "a", {"0002-L": (frames, "1,6,316,1\n")})).motions
    np.testing.assert_array_equal(motion.frames, frames[5 + 5 : 5 + 5 + 300, :1])  # 311 frames: 5 before, 6 after


def test_a_person_who_is_alone_in_the_second_place_is_the_first_body(tmp_path: Path) -> None:
    frames = alone(4)[:, ::-1]
    (motion,) = read_set(make.pku_set(tmp_path / "a", {"0002-L": (frames, "1,1,4,1\n")})).motions
    np.testing.assert_array_equal(motion.frames[:, 0], frames[:, 1])


SPLIT = "Training videos:\n0002-L, 0002-R, \nValidation videos:\n0003-L, 0009-M\n"


def videos(*names: str) -> dict[str, tuple[np.ndarray, str]]:
    return {name: (alone(3, seed), "1,1,3,1\n") for seed, name in enumerate(names)}


@pytest.mark.parametrize("name", ["cross-subject.txt", "cross-subject_v2.txt", "Split/cross-subject.txt"])
def test_the_split_file_says_what_is_for_training(tmp_path: Path, name: str) -> None:
    root = make.pku_set(tmp_path / "a", videos("0002-L", "0002-R", "0003-L", "0004-L"))
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(SPLIT)
    found = read_set(root)
    assert {m.name[:6]: m.split for m in found.motions} == {"0002-L": "train", "0002-R": "train", "0003-L": "test"}
    assert [(u.where, u.line) for u in found.dropped] == [("0004-L.txt", None)]
    assert "cross-subject" in found.dropped[0].reason


def test_of_two_split_files_the_one_that_knows_the_videos_counts(tmp_path: Path) -> None:
    root = make.pku_set(tmp_path / "a", videos("A01N01-L", "A01N02-L"), SPLIT)
    (root / "cross-subject_v2.txt").write_text("Training videos:\nA01N02-L\nValidation videos:\nA01N01-L\n")
    assert {m.name[:8]: m.split for m in read_set(root).motions} == {"A01N01-L": "test", "A01N02-L": "train"}


@pytest.mark.parametrize("text", ["", "Training videos:\n0002-L\n", "Training:\n0002-L\nValidation:\n\n", "\xff" * 9])
def test_a_split_file_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    root = make.pku_set(tmp_path / "a", videos("0002-L"))
    (root / "cross-subject.txt").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match="cross-subject"):
        read_set(root)


@pytest.mark.parametrize(
    ("skeletons", "labels"),
    [
        ("PKU_Skeleton_Renew", "Label_PKU_final"),
        ("skeletons", "labels"),
        ("data", "label"),
        ("Data/PKU_Skeleton_Renew", "Label/Train_Label_PKU_final"),
        ("data", "data/labels"),
    ],
)
def test_folders_are_found_by_their_usual_names(tmp_path: Path, skeletons: str, labels: str) -> None:
    root = tmp_path / "part1"
    for folder, content in ((skeletons, make.pku(alone(3))), (labels, "1,1,3,1\n")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "0002-L.txt").write_text(content)
    assert len(read_set(root).motions) == 1
    if "/" not in skeletons:
        assert len(read_set(root / skeletons).motions) == 1  # the folder of the skeletons will do as well


def test_skeletons_without_labels_are_no_set(tmp_path: Path) -> None:
    (tmp_path / "skeleton").mkdir()
    (tmp_path / "skeleton" / "0002-L.txt").write_text(make.pku(alone(3)))
    with pytest.raises(DataError, match="one of labels"):
        read_set(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1,4,3,1", "frames 4 to 3"),
        ("1,0,3,1", "frames 0 to 3"),
        ("1,2,11,1", "of a video of 10"),
        ("0,1,3,1", "no action 0"),
        ("52,1,3,1", "no action 52"),
        ("1,1,3", "3 values"),
        ("1,1,3,1,1", "5 values"),
        ("one,1,3,1", "'one'"),
        ("1,1.5,3,1", "'1.5'"),
        ("1,-1,3,1", "'-1'"),
        ("1,nan,3,1", "'nan'"),
        ("", "1 values"),
        ("1,9,10,1", "no body"),
    ],
)
def test_a_label_that_is_wrong_is_listed_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    frames = alone(10)
    frames[8:] = 0
    found = read_set(make.pku_set(tmp_path / "a", {"0002-L": (frames, f"1,1,3,1\n{line}\n2,4,6,1\n")}))
    assert [m.name for m in found.motions] == ["0002-L#1", "0002-L#3"]
    (unusable,) = found.dropped
    assert (unusable.where, unusable.line) == ("label/0002-L.txt", 2)
    assert words in unusable.reason


def without(text: str, line: int, words: slice) -> str:
    rows = [row.split() for row in text.splitlines()]
    rows[line - 1] = rows[line - 1][words]
    return "\n".join(" ".join(row) for row in rows)


WRONG = {
    "empty": (lambda t: "", None, "empty"),
    "blank": (lambda t: "\n\n", None, "empty"),
    "rubbish": (lambda t: "\xff\x00\x80", None, "text file"),
    "a short row": (lambda t: without(t, 3, slice(149)), 3, "149 numbers instead of 150"),
    "a blank row": (lambda t: without(t, 2, slice(0)), 2, "0 numbers"),
    "a word": (lambda t: t.replace(t.split()[151], "left", 1), 2, "'left'"),
    "NaN": (lambda t: t.replace(t.split()[151], "nan", 1), 2, "nan"),
    "overflow": (lambda t: t.replace(t.split()[151], "1e300", 1), 2, "1e+300"),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_skeleton_file_that_is_wrong_is_listed_and_the_others_are_read(tmp_path: Path, way: str) -> None:
    root = make.pku_set(tmp_path / "a", videos("0002-L", "0003-L"))
    change, line, words = WRONG[way]
    path = root / "skeleton" / "0002-L.txt"
    path.write_text(change(path.read_text()), encoding="latin-1")
    found = read_set(root)
    assert [m.name for m in found.motions] == ["0003-L#1"]
    (unusable,) = found.dropped
    assert (unusable.where, unusable.line) == ("0002-L.txt", line)
    assert words in unusable.reason


def test_a_video_without_labels_is_listed(tmp_path: Path) -> None:
    root = make.pku_set(tmp_path / "a", videos("0002-L", "0003-L", "0004-L"))
    (root / "label" / "0003-L.txt").unlink()
    (root / "label" / "0004-L.txt").write_text("")
    found = read_set(root)
    assert [m.name for m in found.motions] == ["0002-L#1"]
    assert [u.where for u in found.dropped] == ["0003-L.txt", "label/0004-L.txt"]
