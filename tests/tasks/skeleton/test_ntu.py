"""NTU's files: who is in them, who is for training, and every way one can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.skeleton import ntu
from fedreel.tasks.skeleton.motions import read_set
from support import skeleton_files as make

GOOD = "S001C001P001R001A001"


def write(folder: Path, name: str, frames: list, suffix: str = ".skeleton") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}{suffix}").write_text(make.ntu(frames))
    return folder / f"{name}{suffix}"


def test_one_body_comes_back_as_written(tmp_path: Path) -> None:
    body = make.bodies(7)
    write(tmp_path, "S001C002P003R002A013", [{"72": pose} for pose in body])
    found = read_set(tmp_path)
    (motion,) = found.motions
    np.testing.assert_array_equal(motion.frames, body[:, None])
    assert motion.frames.dtype == np.float32
    assert (motion.name, motion.label, motion.subject) == ("S001C002P003R002A013", 12, "P003")
    assert found.joints[20] == "spine_shoulder"
    assert found.dropped == []


def test_the_two_liveliest_bodies_are_kept_the_livelier_first(tmp_path: Path) -> None:
    calm, wild, still = (make.bodies(9, seed, lively=s) for seed, s in enumerate((0.1, 0.5, 0.0)))
    write(tmp_path, GOOD, [{"a": still[t], "b": calm[t], "c": wild[t]} for t in range(9)])
    (motion,) = read_set(tmp_path).motions
    np.testing.assert_array_equal(motion.frames, np.stack([wild, calm], axis=1))


def test_bodies_that_come_and_go_keep_their_frames(tmp_path: Path) -> None:
    one, two = make.bodies(6, 0, lively=0.5), make.bodies(6, 1)
    shown = [{"1": one[0]}, {}, {"2": two[2], "1": one[2]}, {"2": two[3]}, {}, {"1": one[5]}]
    write(tmp_path, GOOD, shown)
    (motion,) = read_set(tmp_path).motions
    there = motion.frames.any(axis=(2, 3))
    np.testing.assert_array_equal(there, [[1, 0], [0, 0], [1, 1], [0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(motion.frames[2], [one[2], two[2]])
    np.testing.assert_array_equal(motion.frames[3, 1], two[3])


def test_no_more_than_300_frames_are_kept(tmp_path: Path) -> None:
    body = make.bodies(310)
    late = make.bodies(310, 1, lively=9)
    write(tmp_path, GOOD, [{"1": body[t], **({"2": late[t]} if t >= 300 else {})} for t in range(310)])
    (motion,) = read_set(tmp_path).motions
    np.testing.assert_array_equal(motion.frames, body[:300, None])  # a body that comes after them is none


def test_numbers_beyond_x_y_z_may_be_anything(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, [{"1": make.bodies(1)[0]}])
    path.write_text(path.read_text().replace("1036", "nan"))
    assert len(read_set(tmp_path).motions) == 1


def test_ntu_60_has_60_classes_and_20_subjects_for_training(tmp_path: Path) -> None:
    for subject in range(1, 41):
        write(tmp_path / "deep" / "er", f"S017C003P{subject:03d}R002A060", [{"1": make.bodies(1)[0]}])
    found = read_set(tmp_path)
    train = [m.subject for m in found.motions if m.split == "train"]
    told = (1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38)
    assert train == [f"P{n:03d}" for n in told]
    assert {m.split for m in found.motions} == {"train", "test"}
    assert len(found.classes) == 60
    assert {m.label for m in found.motions} == {59}


@pytest.mark.parametrize("other", ["S001C001P041R001A061", "S018C001P041R001A001"])
def test_an_action_over_60_or_a_setup_over_17_makes_it_ntu_120(tmp_path: Path, other: str) -> None:
    frames = [{"1": make.bodies(1)[0]}]
    for name in (GOOD, other, "S020C001P103R001A120"):
        write(tmp_path, name, frames)
    found = read_set(tmp_path)
    assert len(found.classes) == 120
    assert {m.subject: m.split for m in found.motions} == {"P001": "train", "P041": "test", "P103": "train"}


def test_the_lists_of_subjects_are_the_published_ones() -> None:
    assert len(ntu.TRAIN_60) == 20
    assert len(ntu.TRAIN_120) == 53
    assert ntu.TRAIN_120 & {*range(1, 41)} == ntu.TRAIN_60


def cut(text: str, line: int, new: str | None) -> str:
    """The text with a line (counted from 1) replaced, or all from it on removed."""
    lines = text.splitlines()
    return "\n".join([*lines[: line - 1], *([new, *lines[line:]] if new is not None else [])]) + "\n"


WRONG = {
    "no text": (lambda t: b"", None, "empty"),
    "rubbish": (lambda t: bytes(range(256)), None, "text file"),
    "no frames": (lambda t: "0\n", None, "no body"),
    "no bodies": (lambda t: "2\n0\n0\n", None, "no body"),
    "bodies of zeros": (lambda t: make.ntu([{"1": np.zeros((25, 3))}]), None, "no body"),
    "frames are a word": (lambda t: cut(t, 1, "two"), 1, "number of frames"),
    "frames are negative": (lambda t: cut(t, 1, "-1"), 1, "number of frames"),
    "more frames promised": (lambda t: cut(t, 1, "3"), 57, "frame 3 of 3"),
    "fewer frames promised": (lambda t: cut(t, 1, "1"), 30, "goes on"),
    "more bodies promised": (lambda t: cut(t, 2, "2"), 30, "about a body"),
    "endless bodies promised": (lambda t: cut(t, 2, "9" * 5000), 2, "number of bodies"),
    "body line too short": (lambda t: cut(t, 3, "1 0 1"), 3, "3 numbers about a body"),
    "another number of joints": (lambda t: cut(t, 4, "20"), 4, "20 joints"),
    "a joint too short": (lambda t: cut(t, 7, "1 2 3"), 7, "3 numbers instead of 12"),
    "a joint is a word": (lambda t: cut(t, 7, "1 2 x 4 5 6 7 8 9 10 11 12"), 7, "'x' is not a number"),
    "a joint is NaN": (lambda t: cut(t, 8, "1 nan 3 4 5 6 7 8 9 10 11 12"), 8, "nan is no coordinate"),
    "a joint is infinite": (lambda t: cut(t, 8, "inf 2 3 4 5 6 7 8 9 10 11 12"), 8, "inf is no coordinate"),
    "a joint is on the moon": (lambda t: cut(t, 8, "1 2 4e8 4 5 6 7 8 9 10 11 12"), 8, "no coordinate"),
    "cut inside a body": (lambda t: cut(t, 20, None), 19, "inside a body"),
    "cut before a body": (lambda t: cut(t, 3, None), 2, "a body should be"),
    "cut after a frame": (lambda t: cut(t, 30, None), 29, "frame 2 of 2"),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_file_that_is_wrong_is_listed_with_its_line_and_the_others_are_read(tmp_path: Path, way: str) -> None:
    body = make.bodies(2)
    good = write(tmp_path, GOOD, [{"1": pose} for pose in body])
    change, line, words = WRONG[way]
    content = change(good.read_text())
    bad = tmp_path / "S001C001P001R001A002.skeleton"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read_set(tmp_path)
    assert [m.name for m in found.motions] == [GOOD]
    (unusable,) = found.dropped
    assert (unusable.where, unusable.line) == (bad.name, line)
    assert words in unusable.reason


@pytest.mark.parametrize("name", ["S001C001P001R001A121", "S001C001P001R001A000", "S1C1P1R1A1", "walk"])
def test_a_name_that_is_wrong_is_listed(tmp_path: Path, name: str) -> None:
    frames = [{"1": make.bodies(1)[0]}]
    write(tmp_path, name, frames)
    write(tmp_path, GOOD, frames)
    found = read_set(tmp_path)
    assert len(found.classes) == 60
    assert [u.where for u in found.dropped] == [f"{name}.skeleton"]


def test_a_second_file_of_a_name_is_listed(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder, GOOD, [{"1": make.bodies(1)[0]}])
    found = read_set(tmp_path)
    assert len(found.motions) == 1
    assert [u.where for u in found.dropped] == [f"b/{GOOD}.skeleton"]


def test_a_folder_without_any_usable_file_is_refused_with_reasons(tmp_path: Path) -> None:
    (tmp_path / f"{GOOD}.skeleton").write_text("two\n")
    with pytest.raises(DataError, match=rf"{GOOD}\.skeleton, line 1: 'two' is not the number of frames"):
        read_set(tmp_path)
