"""Skeletons as pyskl and AimCLR prepare them, from files of the same layout; pickles that would do harm are refused."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.motions import find_sets, read_set, set_files
from fedreel.tasks.skeleton.prepare import load_set

V = 25
NAMES = [f"S001C001P{p:03d}R001A{a:03d}" for p in (1, 2, 3) for a in (1, 2)]  # subject 3 is for testing


def bodies(seed: int, count: int = 2, frames: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, frames, V, 3)).astype(np.float16)


def pyskl(path: Path, protocol: int = 2, **changes: Any) -> Path:
    """As pyskl's ntu60_3danno.pkl: half precision, two protocols."""
    annotations = [
        {"frame_dir": n, "label": i % 2, "keypoint": bodies(i), "total_frames": 7} for i, n in enumerate(NAMES)
    ]
    split = {
        "xsub_train": NAMES[:4],
        "xsub_val": NAMES[4:],
        "xview_train": NAMES[1:],
        "xview_val": NAMES[:1],
    }
    with path.open("wb") as file:
        pickle.dump({"split": split, "annotations": annotations, **changes}, file, protocol)
    return path


def arrays(folder: Path, middle: str = "position", frames: int = 10) -> Path:
    """As AimCLR's and ST-GCN's: (N, 3, T, 25, M) padded with zeros, labels apart."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, names in (("train", NAMES[:4]), ("val", NAMES[4:])):
        data = np.zeros((len(names), 3, frames, V, 2), np.float32)
        for row, name in enumerate(names):
            data[row, :, :7] = bodies(NAMES.index(name)).transpose(3, 1, 2, 0)
        np.save(folder / f"{side}_{middle}.npy", data)
        with (folder / f"{side}_label.pkl").open("wb") as file:
            pickle.dump((names, [NAMES.index(name) % 2 for name in names]), file)
    return folder


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pyskl_annotations_come_back_with_the_cross_subject_split(tmp_path: Path, protocol: int) -> None:
    path = pyskl(tmp_path / "ntu60_3danno.pkl", protocol)
    found = read_set(path)
    assert (found.name, found.joints, found.classes) == ("ntu60_3danno", KINECT_V2.names, ("A001", "A002"))
    assert [(m.name, m.label, m.subject) for m in found.motions] == [
        (name, i % 2, name[8:12]) for i, name in enumerate(NAMES)
    ]
    assert [m.split for m in found.motions] == ["train"] * 4 + ["test"] * 2
    for i, motion in enumerate(found.motions):
        assert np.array_equal(motion.frames, bodies(i).transpose(1, 0, 2, 3).astype(np.float32))


@pytest.mark.parametrize("middle", ["position", "data", "data_joint"])
def test_arrays_with_labels_are_the_same_recordings(tmp_path: Path, middle: str) -> None:
    folder = arrays(tmp_path / "ntu60", middle)
    found, other = read_set(folder), read_set(pyskl(tmp_path / "pyskl.pkl"))
    assert (found.name, found.classes) == ("ntu60", other.classes)
    for one, same in zip(found.motions, other.motions, strict=True):
        assert (one.name, one.label, one.subject, one.split) == (same.name, same.label, same.subject, same.split)
        assert np.array_equal(one.frames, same.frames)  # padding is gone
    assert {p.name for p in set_files(folder)} == {
        f"{side}_{what}" for side in ("train", "val") for what in (f"{middle}.npy", "label.pkl")
    }


def test_sets_of_all_forms_lie_side_by_side(tmp_path: Path) -> None:
    arrays(tmp_path / "one")
    arrays(tmp_path / "two" / "xsub")
    pyskl(tmp_path / "three.pkl")
    assert [p.name for p in find_sets(tmp_path)] == ["one", "three.pkl", "two"]
    assert find_sets(tmp_path / "one") == [tmp_path / "one"]
    for path in find_sets(tmp_path):
        prepared = load_set(path, KINECT_V2, 6, 2, True)
        assert prepared.x.shape == (6, 3, 6, V, 2)


def test_labels_that_are_numpys_numbers_are_read(tmp_path: Path) -> None:
    annotations = [{"frame_dir": "a", "label": np.int64(3), "keypoint": bodies(0)}]
    found = read_set(pyskl(tmp_path / "x.pkl", annotations=annotations, split=None))
    assert [(m.label, m.split, m.subject) for m in found.motions] == [(3, "", "a")]
    assert len(found.classes) == 4


def test_what_cannot_be_used_is_left_out_and_named(tmp_path: Path) -> None:
    annotations = [
        {"frame_dir": NAMES[0], "label": 0, "keypoint": bodies(0)},
        {"frame_dir": NAMES[1], "label": 0, "keypoint": bodies(0)[..., :2]},  # in the picture's plane
        {"frame_dir": NAMES[2], "label": -1, "keypoint": bodies(0)},
        {"frame_dir": NAMES[3], "label": 0, "keypoint": 0 * bodies(0)},
        {"frame_dir": "S001C001P009R001A001", "label": 0, "keypoint": bodies(0)},
    ]
    found = read_set(pyskl(tmp_path / "x.pkl", annotations=annotations))
    assert [m.name for m in found.motions] == NAMES[:1]
    reasons = [one.reason for one in found.dropped]
    for reason, said in zip(reasons, ("(bodies, frames, 25, 3)", "label -1", "no body", "neither side"), strict=True):
        assert said in reason


@dataclass(frozen=True)
class Harm:
    place: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def test_a_pickle_that_would_run_something_is_refused_and_not_run(tmp_path: Path) -> None:
    place = tmp_path / "was here"
    with pytest.raises(DataError, match="mkdir"):
        read_set(pyskl(tmp_path / "x.pkl", split=Harm(place)))
    folder = arrays(tmp_path / "set")
    (folder / "val_label.pkl").write_bytes(pickle.dumps(([NAMES[4], Harm(place)], [0, 1])))
    with pytest.raises(DataError, match="mkdir"):
        read_set(folder)
    assert not place.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"annotations": 3}, "list of `annotations`"),
        ({"split": {"a_train": [], "a_val": [], "b_train": [], "b_val": []}}, "xsub_train"),
        ({"split": {"train": []}}, "xsub_train"),
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_set(pyskl(tmp_path / "x.pkl", **changes))


def test_arrays_that_do_not_fit_their_labels_are_refused(tmp_path: Path) -> None:
    folder = arrays(tmp_path / "set")
    np.save(folder / "val_position.npy", np.zeros((3, 3, 10, V, 2), np.float32))
    with pytest.raises(DataError, match=r"\(2, 3, frames, 25, bodies\)"):
        read_set(folder)
    (folder / "val_position.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"not a readable .npy"):
        read_set(folder)
