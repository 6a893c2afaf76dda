"""Which sets lie at a place, one recording from one file, and damaged files among good ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2
from fedreel.tasks.skeleton.motions import find_sets, read_motion, read_set, set_files
from support import skeleton_files as make

NTU, UESTC = "S001C001P{:03d}R001A001.skeleton", "a1_d1_p{:03d}_c1_skeleton.txt"


def ntu(folder: Path, count: int = 1, first: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(first, first + count):
        (folder / NTU.format(k)).write_text(make.ntu([{"1": p} for p in make.bodies(2, k)]))
    return folder


def uestc(folder: Path, count: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(1, count + 1):
        (folder / UESTC.format(k)).write_text(make.uestc(make.bodies(2, k)))
    return folder


def pku(folder: Path, count: int = 1) -> Path:
    both = np.zeros((4, 2, 25, 3), np.float32)
    both[:, 0] = make.bodies(4)
    return make.pku_set(folder, {f"{k:04d}-L": (both, "1,1,4,1\n") for k in range(1, count + 1)})


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_every_set_in_a_folder_is_found_by_name(tmp_path: Path) -> None:
    ntu(tmp_path / "d" / "deep")
    uestc(tmp_path / "b")
    pku(tmp_path / "a")
    make.npz(tmp_path / "c.npz", make.arrays())
    (tmp_path / "notes").mkdir()
    (tmp_path / "readme.txt").write_text("hello")
    found = find_sets(tmp_path)
    assert names(found) == ["a", "b", "c.npz", "d"]
    assert [read_set(path).name for path in found] == ["a", "b", "c", "d"]
    assert [len(set_files(path)) for path in found] == [2, 1, 1, 1]


@pytest.mark.parametrize("write", [ntu, uestc, pku])
def test_a_set_is_found_at_its_own_place(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    assert find_sets(write(tmp_path / "one")) == [tmp_path / "one"]
    assert find_sets(make.npz(tmp_path / "x.npz", make.arrays())) == [tmp_path / "x.npz"]


def test_the_two_folders_of_ntu_120_are_one_set_and_others_are_not(tmp_path: Path) -> None:
    for name in ("nturgb+d_skeletons", "nturgb+d_skeletons_s018_to_s032"):
        ntu(tmp_path / "large" / name, first=len(name))
    assert find_sets(tmp_path / "large") == [tmp_path / "large"]
    assert len(read_set(tmp_path / "large").motions) == 2
    ntu(tmp_path / "sites" / "a")
    ntu(tmp_path / "sites" / "b")
    assert names(find_sets(tmp_path / "sites")) == ["a", "b"]


def test_a_place_without_sets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for place in (tmp_path, tmp_path / "absent", tmp_path / "a.txt"):
        with pytest.raises(DataError, match="no skeletons here"):
            find_sets(place)
        with pytest.raises(DataError, match=r"(?s)no set of skeletons.*\.npz file"):
            read_set(place)


def test_a_folder_of_two_formats_is_not_one_set(tmp_path: Path) -> None:
    uestc(ntu(tmp_path))
    with pytest.raises(DataError, match="ntu, uestc"):
        read_set(tmp_path)


def test_one_recording_is_read_from_a_file_of_any_format(tmp_path: Path) -> None:
    body = make.bodies(2, 1)[:, None]
    for path in (ntu(tmp_path / "n") / NTU.format(1), uestc(tmp_path / "u") / UESTC.format(1)):
        frames, joints = read_motion(path)
        np.testing.assert_array_equal(frames, body)
        assert joints == KINECT_V2.names
    frames, _ = read_motion(pku(tmp_path / "p") / "skeleton" / "0001-L.txt")
    np.testing.assert_array_equal(frames, make.bodies(4)[:, None])
    only = make.npz(tmp_path / "only.npz", make.arrays((1,), joints=KINECT_V1.names))
    frames, joints = read_motion(only)
    assert frames.shape == (6, 1, 20, 3)
    assert joints == KINECT_V1.names


def test_one_of_several_recordings_is_read_by_its_name(tmp_path: Path) -> None:
    content = make.arrays(split=["t", "t", "train", "test"])
    path = make.npz(tmp_path / "own.npz", content)
    frames, _ = read_motion(f"{path}#s1")
    np.testing.assert_array_equal(frames[:, 0], content["data"][6:12])
    with pytest.raises(DataError, match="s0, s1, s2, s3"):
        read_motion(path)
    with pytest.raises(DataError, match="no sequence 's9'"):
        read_motion(Path(f"{path}#s9"))


def test_one_recording_that_is_wrong_is_refused_with_its_line(tmp_path: Path) -> None:
    path = ntu(tmp_path) / NTU.format(1)
    path.write_text(path.read_text().replace("2\n1\n", "2\nx\n", 1))
    with pytest.raises(DataError, match="line 2"):
        read_motion(path)
    content = make.arrays((1,))
    content["data"][:] = 0
    with pytest.raises(DataError, match="no body"):
        read_motion(make.npz(tmp_path / "own.npz", content))
    (tmp_path / "a.mp4").write_bytes(b"")
    for place, words in ((tmp_path / "a.mp4", r"\.mp4"), (tmp_path / "absent.txt", "no such file")):
        with pytest.raises(DataError, match=words):
            read_motion(place)
    (tmp_path / "a.txt").write_text("hello\n")
    with pytest.raises(DataError, match="1 numbers instead of 150"):
        read_motion(tmp_path / "a.txt")


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut, changed at a few places, a line lost, or a line said twice."""
    way = rng.integers(4)
    if way == 0:
        return content[: rng.integers(len(content))]
    if way == 1:
        some = bytearray(content)
        for at in rng.integers(len(some), size=rng.integers(1, 6)):
            some[at] = rng.choice(list(b"0123456789 .-\nexn\xff\x00"))
        return bytes(some)
    lines = content.split(b"\n")
    at = int(rng.integers(len(lines)))
    return b"\n".join([*lines[:at], *([lines[at]] * 2 if way == 2 else []), *lines[at + 1 :]])


@pytest.mark.parametrize("write", [ntu, uestc, pku])
def test_a_damaged_file_is_listed_or_gives_finite_motions_and_the_good_one_stays(
    tmp_path: Path, write: Callable[[Path, int], Path]
) -> None:
    root = write(tmp_path / "set", 2)
    bad = [path for path in set_files(root) if "002" in path.stem]
    assert bad
    good = read_set(root).motions[0]
    rng = np.random.default_rng(1)
    contents = {path: path.read_bytes() for path in bad}
    unusable = 0
    for _ in range(80):
        for path, content in contents.items():
            path.write_bytes(content)
        chosen = bad[rng.integers(len(bad))]
        chosen.write_bytes(damaged(contents[chosen], rng))
        found = read_set(root)
        assert len(found.motions) + len(found.dropped) >= 2
        np.testing.assert_array_equal(found.motions[0].frames, good.frames)
        for motion in found.motions:
            assert np.isfinite(motion.frames).all()
            assert motion.frames.any()
        unusable += bool(found.dropped)
    assert 20 < unusable < 80
