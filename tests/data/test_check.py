"""Finding, splitting and checking clips, on folders whose faults are known because the tests put them there."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedreel.data.check import check
from fedreel.data.clip_index import Clip, find, split_by
from fedreel.data.shards import build
from fedreel.errors import DataError
from fedreel.media import video
from support.moves import LEFT, make_sets, motion, write_set
from support.shared import SHARED

DATA = SHARED


def film(path: Path, shade: int, frames: int = 20) -> None:
    """A clip of its own: another shade gives other bytes. Noise, so that a cut hits the pictures."""
    noise = np.random.default_rng(shade).integers(0, 255, (frames, 16, 32, 3))
    video.write(path, noise.astype(np.uint8), 10)


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def write_index(root: Path, rows: list[tuple[str, str, str, str]]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "index.csv").write_text("\n".join(",".join(row) for row in [("path", "label", "owner", "split"), *rows]))


# ---- lists


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["ann/run/1.mp4", "bob/sit/2.avi"], [("run", "ann", ""), ("sit", "bob", "")]),
        (["run/1.mp4", "sit/2.MP4"], [("run", "", ""), ("sit", "", "")]),
        (["test/run/1.mp4", "train/sit/2.mp4"], [("run", "", "test"), ("sit", "", "train")]),
        (["test/ann/run/1.mp4", "train/bob/sit/2.mp4"], [("run", "ann", "test"), ("sit", "bob", "train")]),
        (["1.mp4", "2.mkv"], [("", "", ""), ("", "", "")]),
        (["1.mp4", "deep/er/2.mkv"], [("", "", ""), ("", "", "")]),
    ],
)
def test_folders_say_label_owner_and_split(tmp_path: Path, paths: list[str], expected: list) -> None:
    touch(tmp_path, *reversed(paths), "notes.txt", ".hidden/3.mp4", "._1.mp4")
    clips = find(tmp_path)
    assert [clip.path for clip in clips] == paths
    assert [(clip.label, clip.owner, clip.split) for clip in clips] == expected


def test_an_index_wins_over_the_folders(tmp_path: Path) -> None:
    write_index(tmp_path, [("b/x.mp4", "run", "ann", "train"), ("a.mp4", "sit", "bob", "test")])
    touch(tmp_path, "other/y.mp4")
    assert find(tmp_path) == [Clip("a.mp4", "sit", "bob", "test"), Clip("b/x.mp4", "run", "ann", "train")]
    assert find(tmp_path, "class") == [Clip("other/y.mp4", "other")]


@pytest.mark.parametrize("path", ["../x.mp4", "/etc/x.mp4", "a/../../x.mp4", "C:\\x.mp4", "..\\x.mp4", ""])
def test_an_index_may_not_point_outside(tmp_path: Path, path: str) -> None:
    write_index(tmp_path, [("fine.mp4", "", "", ""), (path, "a", "b", "train")])
    with pytest.raises(DataError, match=r"index\.csv:3"):
        find(tmp_path)


def test_unusable_lists_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did you mean 'owner/class'"):
        find(tmp_path, "owner-class")
    with pytest.raises(DataError, match="no such data folder"):
        find(tmp_path / "none")
    with pytest.raises(DataError, match="no videos here"):
        find(tmp_path)
    touch(tmp_path, "ann/run/1.mp4", "2.mp4")
    with pytest.raises(DataError, match=r"2\.mp4"):
        find(tmp_path, "owner/class")
    write_index(tmp_path, [("a.mp4", "", "", ""), ("a.mp4", "", "", "")])
    with pytest.raises(DataError, match="twice"):
        find(tmp_path)
    (tmp_path / "index.csv").write_text("file,class\na.mp4,b\n")
    with pytest.raises(DataError, match="file, class"):
        find(tmp_path)
    (tmp_path / "index.csv").write_bytes(b"path\n\xff\xfe\n")
    with pytest.raises(DataError, match="cannot be read"):
        find(tmp_path)


def grid() -> list[Clip]:
    return [Clip(f"{o}/{c}/{n}", f"c{c}", f"o{o}") for o in range(6) for c in range(4) for n in range(5)]


def test_a_split_by_owner_keeps_owners_whole() -> None:
    clips = split_by(grid(), 1 / 3, seed=0)
    sides = {clip.owner: {c.split for c in clips if c.owner == clip.owner} for clip in clips}
    assert sorted(map(sorted, sides.values())) == [["test"]] * 2 + [["train"]] * 4
    assert clips == split_by(grid(), 1 / 3, seed=0)
    assert len({tuple(split_by(grid(), 1 / 3, seed)) for seed in range(9)}) > 1
    assert {c.split for c in split_by(grid(), 0.01, 0)} == {c.split for c in split_by(grid(), 0.99, 0)}  # never empty
    assert {c.split for c in split_by(grid(), 0, 0)} == {"train"}


def test_a_split_by_clip_is_even_and_exact() -> None:
    for share, total in ((0.2, 24), (0.3, 36), (0.05, 6)):
        test = [clip for clip in split_by(grid(), share, seed=3, by="clip") if clip.split == "test"]
        assert len(test) == total
        groups = Counter((clip.owner, clip.label) for clip in test)
        for owner in range(6):
            for label in range(4):
                assert abs(groups[f"o{owner}", f"c{label}"] - 5 * share) < 1
    shuffled = split_by(grid()[::-1], 0.3, seed=3, by="clip")
    assert sorted(shuffled) == sorted(split_by(grid(), 0.3, seed=3, by="clip"))  # the order given does not matter


def test_a_split_by_last_takes_the_last_of_each_owner_and_class() -> None:
    """As many as are drawn otherwise: what rounding leaves of a class passes to another."""
    for share, total in ((0.2, 24), (0.3, 36), (0.05, 6)):
        found = split_by(grid(), share, seed=3, by="last")
        assert sum(clip.split == "test" for clip in found) == total
        for owner in range(6):
            for label in range(4):
                own = [c.split for c in sorted(found) if (c.owner, c.label) == (f"o{owner}", f"c{label}")]
                assert own == sorted(own, reverse=True)  # train comes before test
    assert sorted(found) == sorted(split_by(grid()[::-1], 0.05, seed=3, by="last"))


def test_given_splits_stay_and_impossible_ones_are_errors() -> None:
    given = [Clip("a", split="train"), Clip("b", split="val"), Clip("c"), Clip("d")]
    done = split_by(given, 0.5, seed=0, by="clip")
    assert done[:2] == given[:2]
    assert sorted(clip.split for clip in done[2:]) == ["test", "train"]
    with pytest.raises(DataError, match="did you mean 'owner'"):
        split_by(grid(), 0.5, 0, by="owners")
    with pytest.raises(DataError, match="test_share"):
        split_by(grid(), 1.0, 0)
    with pytest.raises(DataError, match="split by clip"):
        split_by([Clip("a", owner="ann"), Clip("b", owner="ann")], 0.5, 0)


# ---- check


def good(root: Path) -> None:
    rows = []
    for number, (owner, label, split) in enumerate(
        (o, c, s) for o in ("ann", "bob") for c in ("run", "sit") for s in ("train", "test")
    ):
        film(root / owner / f"{number}.mp4", number, frames=10 + 10 * (number % 2))
        rows.append((f"{owner}/{number}.mp4", label, owner, split))
    write_index(root, rows)


def test_a_good_folder_is_ok_and_described(tmp_path: Path) -> None:
    good(tmp_path)
    report = check(tmp_path)
    assert report.ok
    assert (report.problems, report.remarks) == ([], [])
    assert report.sizes == {"32x16": 8}
    assert report.fps == {"10": 8}
    assert sorted(report.seconds) == [1.0] * 4 + [2.0] * 4
    text = "\n".join(report.lines())
    for line in ("8 clips", "2: ann 4, bob 4", "2: run 4, sit 4", "2: test 4, train 4", "median 1.50, sum 12"):
        assert line in text
    assert text.endswith("ok")


def test_it_says_how_it_looked(tmp_path: Path) -> None:
    good(tmp_path)
    quick, thorough = check(tmp_path), check(tmp_path, thorough=True)
    assert quick.seconds == thorough.seconds
    quick_text, thorough_text = ("\n".join(report.lines()) for report in (quick, thorough))
    assert "mode:      quick" in quick_text
    assert "--thorough decodes them all" in quick_text
    assert "mode:      thorough: every frame decoded" in thorough_text
    assert "SHA-256" in quick_text


def test_it_tells_how_far_it_is(tmp_path: Path) -> None:
    good(tmp_path)
    told: list[tuple[int, int]] = []
    check(tmp_path, tell=lambda done, total: told.append((done, total)))
    assert told == [(n, 8) for n in range(1, 9)]


@pytest.mark.parametrize("thorough", [False, True])
def test_every_planted_fault_is_found(thorough: bool, tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 1)
    shutil.copy(tmp_path / "a.mp4", tmp_path / "leak.mp4")
    shutil.copy(tmp_path / "a.mp4", tmp_path / "contradiction.mp4")
    shutil.copy(tmp_path / "a.mp4", tmp_path / "copy.mp4")
    film(tmp_path / "b.mp4", 2)
    film(tmp_path / "nolabel.mp4", 3)
    film(tmp_path / "untrained.mp4", 4)
    film(tmp_path / "nosplit.mp4", 5)
    film(tmp_path / "cut.mp4", 6)
    data = (tmp_path / "cut.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    (tmp_path / "junk.mp4").write_bytes(b"junk")
    rows = [
        ("a.mp4", "run", "ann", "train"),
        ("b.mp4", "sit", "ann", "train"),
        ("contradiction.mp4", "sit", "ann", "train"),
        ("copy.mp4", "run", "ann", "train"),
        ("cut.mp4", "run", "bob", "train"),
        ("gone.mp4", "run", "bob", "train"),
        ("junk.mp4", "run", "bob", "train"),
        ("leak.mp4", "run", "ann", "test"),
        ("nolabel.mp4", "", "ann", "train"),
        ("nosplit.mp4", "run", "ann", ""),
        ("untrained.mp4", "fly", "ann", "test"),
    ]
    write_index(tmp_path, rows)
    report = check(tmp_path, thorough)
    reasons = {problem.where: problem.reason for problem in report.problems}
    parts = {
        "leak.mp4": "same bytes as a.mp4, of the split train",
        "contradiction.mp4": "same bytes as a.mp4, labelled 'run'",
        "cut.mp4": "only the first" if thorough else "breaks off after packet",
        "gone.mp4": "no such video file",
        "junk.mp4": "cannot be read",
        "nolabel.mp4": "label is missing",
        "nosplit.mp4": "split is missing",
        "class fly": "never trained",
    }
    assert reasons.keys() == parts.keys()
    assert all(part in reasons[where] for where, part in parts.items())
    assert {remark.where: remark.reason for remark in report.remarks} == {
        "copy.mp4": "same bytes as a.mp4",
        "owner bob": "has clips of one class only (run)",
    }
    assert not report.ok
    assert report.lines()[-1].strip() == "not ok"


def test_unlabelled_videos_are_fine_for_pretraining(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 1)
    report = check(tmp_path)
    assert report.ok
    assert "pretraining" in report.remarks[0].reason


def test_shards_are_validated(tmp_path: Path) -> None:
    good(tmp_path / "in")
    (tmp_path / "in" / "bob" / "7.mp4").write_bytes(b"junk")
    build(find(tmp_path / "in"), tmp_path / "in", tmp_path / "out", side=8, workers=1)
    report = check(tmp_path / "out")
    assert (report.kind, len(report.clips), report.sizes) == ("shards", 7, {"16x8": 7})
    assert [problem.where for problem in report.problems] == ["bob/7.mp4"]
    part = tmp_path / "out" / "part-00000.u8"
    part.write_bytes(part.read_bytes()[:100])
    report = check(tmp_path / "out")
    assert not report.ok
    assert "found 100 bytes" in report.problems[0].reason


def test_sets_side_by_side_are_checked_one_by_one(tmp_path: Path) -> None:
    good(tmp_path / "actions")
    film(tmp_path / "moments" / "one.mp4", 50)
    (tmp_path / "moments" / "two.mp4").write_bytes(b"junk")
    touch(tmp_path, "skeleton/data.npz", "world.json")
    report = check(tmp_path)
    assert len(report.clips) == 10
    assert [problem.where for problem in report.problems] == ["moments/two.mp4"]
    assert report.kind == "2 data sets (actions, moments)"


def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no videos"):
        check(tmp_path)
    with pytest.raises(DataError, match="no such data folder"):
        check(tmp_path / "none")


def test_real_sign_gestures(tmp_path: Path) -> None:
    source = DATA / "video" / "mlr511"
    if not source.is_dir():
        pytest.skip(f"no sign-gesture clips at {source}; set FEDREEL_DATA")
    for clip in [clip for clip in find(source) if clip.path.endswith("R01.mp4")][:15]:
        (tmp_path / clip.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / clip.path, tmp_path / clip.path)
    report = check(tmp_path)
    assert report.ok, report.lines()
    assert report.sizes == {"228x128": 15}
    assert report.fps == {"15": 15}


def test_skeleton_sets_are_looked_over(tmp_path: Path) -> None:
    make_sets(tmp_path)
    write_set(tmp_path / "odd.npz", [motion(0), 0 * motion(1)], LEFT[:2])
    report = check(tmp_path)
    text = "\n".join(report.lines())
    assert "skeletons, 21 clips" in text
    assert "3: left 12, odd 1, right 8" in text
    assert "odd.npz#m1: left out" in text
    assert report.ok


def test_a_broken_set_of_skeletons_is_a_problem_beside_whole_ones(tmp_path: Path) -> None:
    make_sets(tmp_path)
    (tmp_path / "junk.npz").write_bytes(b"junk")
    report = check(tmp_path)
    assert [problem.where for problem in report.problems] == ["junk.npz"]
    assert len(report.clips) == 20
