"""Shards: the frames of the videos, exactly, whoever decoded them and however often it was interrupted."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedreel.config import DataConfig
from fedreel.data import shard_parts
from fedreel.data import shards as module
from fedreel.data.clip_index import Clip, find, thinned
from fedreel.data.shards import Shards, build, spaced
from fedreel.errors import DataError
from fedreel.media import video
from fedreel.tasks.vision.clips import open_clips
from support.shared import SHARED
from support.started import started

DATA = SHARED


def world(root: Path, count: int = 10) -> list[Clip]:
    """`count` small clips of different lengths and brightness, two owners, two classes."""
    for number in range(count):
        length = 3 + number % 20
        frames = np.full((length, 16, 24, 3), 20 * number % 250, np.uint8)
        frames[np.arange(length), :, np.arange(length)] = 250
        video.write(root / f"o{number % 2}" / f"c{number // 2 % 2}" / f"{number:02d}.mp4", frames, 8)
    return find(root)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIPS_PER_PART", 3)


@pytest.mark.usefixtures("small_parts")
def test_shards_hold_the_frames_of_the_videos(tmp_path: Path) -> None:
    clips = world(tmp_path / "in")
    shards = build(clips, tmp_path / "in", tmp_path / "out", side=8, workers=1)
    assert len(shards) == 10
    assert [(c.path, c.label, c.owner) for c in shards.clips] == [(c.path, c.label, c.owner) for c in clips]
    assert shards.labels == ["c0", "c1"]
    assert shards.owners == ["o0", "o1"]
    for i, clip in enumerate(clips):
        frames, fps = video.read(tmp_path / "in" / clip.path, size=(8, 12))
        assert np.array_equal(shards.whole(i), frames)
        assert np.array_equal(shards.clip(i), frames[:, :, 2:10])  # the square in the middle
        assert shards.clips[i].fps == fps == 8
    assert sorted(files(tmp_path / "out")) == ["index.json", *(f"part-{n:05d}.u8" for n in range(4))]


@pytest.mark.usefixtures("small_parts")
def test_the_worker_count_changes_nothing(tmp_path: Path) -> None:
    clips = world(tmp_path / "in")
    (tmp_path / "in" / "o0" / "c0" / "zz.mp4").write_bytes(b"junk")
    clips = find(tmp_path / "in")
    for workers in (1, 3):
        build(clips, tmp_path / "in", tmp_path / f"out{workers}", side=8, workers=workers)
    assert files(tmp_path / "out1") == files(tmp_path / "out3")


def test_views_are_read_only_and_not_copies(tmp_path: Path) -> None:
    shards = build(world(tmp_path / "in", 2), tmp_path / "in", tmp_path / "out")
    assert not shards.clip(1).flags.writeable
    assert np.shares_memory(shards.clip(1), shards.clip(1))
    assert np.shares_memory(shards.window(1, 0, 2), shards.clip(1))


def test_windows_stand_still_at_the_ends(tmp_path: Path) -> None:
    clips = [c for c in world(tmp_path / "in", 3) if c.path.endswith("02.mp4")]
    shards = build(clips, tmp_path / "in", tmp_path / "out")
    clip = shards.clip(0)
    assert len(clip) == 5
    for start, frames, stride, places in [
        (0, 5, 1, [0, 1, 2, 3, 4]),
        (1, 2, 2, [1, 3]),
        (3, 4, 1, [3, 4, 4, 4]),
        (4, 3, 3, [4, 4, 4]),
        (-1, 3, 1, [0, 0, 1]),
        (4, 3, -2, [4, 2, 0]),
    ]:
        assert np.array_equal(shards.window(0, start, frames, stride), clip[places]), (start, frames, stride)


def test_the_shorter_side_has_the_size_and_the_other_is_in_proportion(tmp_path: Path) -> None:
    for name, height, width in (("wide", 16, 48), ("tall", 40, 20), ("ribbon", 8, 80)):
        video.write(tmp_path / "in" / f"{name}.mp4", np.full((2, height, width, 3), 90, np.uint8), 8)
    shards = build(find(tmp_path / "in"), tmp_path / "in", tmp_path / "out", side=10)
    found = {c.path: (c.height, c.width) for c in shards.clips}
    assert found == {"wide.mp4": (10, 30), "tall.mp4": (20, 10), "ribbon.mp4": (10, 40)}  # at most four times as long
    assert shards.stack([0, 1, 2], 2).shape == (3, 2, 10, 10, 3)


def test_a_square_can_be_cut_anywhere(tmp_path: Path) -> None:
    shards = build(world(tmp_path / "in", 2), tmp_path / "in", tmp_path / "out", side=16)
    whole = shards.whole(1)
    assert whole.shape == (4, 16, 24, 3)
    for left in (0, 4, 8):
        found = shards.frames(1, np.array([3, 0, 9]), (0, left))
        assert np.array_equal(found, whole[[3, 0, 3], :, left : left + 16])


def smooth(root: Path) -> list[Clip]:
    """Two clips of waves that move, as videos are smooth."""
    y, x = np.mgrid[:32, :48]
    for number in range(2):
        waves = [128 + 60 * np.sin((x + 2 * t) / 9 + number) + 40 * np.cos(y / 7) for t in range(9)]
        video.write(root / f"{number}.mp4", np.repeat(np.stack(waves)[..., None], 3, axis=3).astype(np.uint8), 8)
    return find(root)


def test_jpeg_shards_hold_nearly_the_same_frames_in_fewer_bytes(tmp_path: Path) -> None:
    clips = smooth(tmp_path / "in")
    raw = build(clips, tmp_path / "in", tmp_path / "raw", side=32)
    jpeg = build(clips, tmp_path / "in", tmp_path / "jpeg", side=32, quality=90)
    thin = build(clips, tmp_path / "in", tmp_path / "thin", side=32, quality=90, frames=4)
    assert sum(c.size for c in jpeg.clips) < sum(c.size for c in raw.clips) / 2
    for i in range(2):
        assert np.abs(jpeg.whole(i).astype(int) - raw.whole(i)).mean() < 4
        assert np.array_equal(thin.whole(i), jpeg.whole(i)[spaced(9, 4)])
        assert np.array_equal(jpeg.frames(i, np.array([5, 5, 2, 20]), (0, 3)), jpeg.whole(i)[[5, 5, 2, 8], :, 3:35])


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    build(smooth(tmp_path / "in"), tmp_path / "in", tmp_path / "out", side=32, quality=90)
    part = tmp_path / "out" / "part-00000.jpegs"
    content = bytearray(part.read_bytes())
    content[0:40] = bytes(40)
    part.write_bytes(content)
    with pytest.raises(DataError, match=r"frame 0 of 0\.mp4"):
        Shards.open(tmp_path / "out").frames(0, np.array([0]))


def test_stack_takes_evenly_spaced_frames(tmp_path: Path) -> None:
    assert spaced(8, 4).tolist() == [1, 3, 5, 7]
    assert spaced(9, 3).tolist() == [1, 4, 7]
    assert spaced(2, 4).tolist() == [0, 0, 1, 1]
    assert spaced(5, 5).tolist() == [0, 1, 2, 3, 4]
    shards = build(world(tmp_path / "in", 4), tmp_path / "in", tmp_path / "out")
    lengths = [clip.frames for clip in shards.clips]
    stacked = shards.stack([3, 0], 4)
    assert stacked.shape == (2, 4, 64, 64, 3)
    assert np.array_equal(stacked[0], shards.clip(3)[spaced(lengths[3], 4)])
    assert np.array_equal(stacked[1], shards.clip(0)[spaced(lengths[0], 4)])


@pytest.mark.usefixtures("small_parts")
def test_fewer_frames_are_the_evenly_spaced_ones(tmp_path: Path) -> None:
    clips = world(tmp_path / "in")
    whole = build(clips, tmp_path / "in", tmp_path / "all", workers=1)
    thin = build(clips, tmp_path / "in", tmp_path / "thin", frames=5, workers=1)
    for i, clip in enumerate(whole.clips):
        if clip.frames <= 5:
            assert np.array_equal(thin.clip(i), whole.clip(i))
        else:
            assert np.array_equal(thin.clip(i), whole.clip(i)[spaced(clip.frames, 5)])
            assert thin.clips[i].fps == pytest.approx(8 * 5 / clip.frames)  # the same seconds, fewer frames


@pytest.mark.usefixtures("small_parts")
def test_broken_files_are_left_out_and_cut_ones_kept_in_part(tmp_path: Path) -> None:
    root = tmp_path / "in"
    clips = world(root)
    (root / clips[4].path).write_bytes(b"garbage")
    (root / clips[7].path).unlink()
    data = (root / clips[9].path).read_bytes()
    whole, _ = video.read(root / clips[9].path, size=64)
    (root / clips[9].path).write_bytes(data[:-40])
    shards = build(clips, root, tmp_path / "out", workers=1)
    assert [b.path for b in shards.broken] == [clips[4].path, clips[7].path]
    assert all(b.reason for b in shards.broken)
    assert [c.path for c in shards.clips] == [c.path for n, c in enumerate(clips) if n not in (4, 7)]
    assert [c.path for c in shards.cut] == [clips[9].path]
    assert 0 < shards.clips[-1].frames < len(whole)
    assert np.array_equal(shards.whole(7), whole[: shards.clips[-1].frames])
    assert np.array_equal(shards.whole(6), video.read(root / clips[8].path, size=64)[0])


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips, root = world(tmp_path / "in"), tmp_path / "in"
    build(clips, root, tmp_path / "straight", workers=1)
    decoded: list[str] = []

    class Failing(video.Reader):
        def __init__(self, path: Path, size: video.Size = None) -> None:
            if len(decoded) == 8:
                raise KeyboardInterrupt
            decoded.append(path.relative_to(root).as_posix())
            super().__init__(path, size)

    monkeypatch.setattr(module, "Reader", Failing)
    with pytest.raises(KeyboardInterrupt):
        build(clips, root, tmp_path / "out", workers=1)
    with pytest.raises(DataError, match="build the shards first"):
        Shards.open(tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-00002.u8*"))  # the third part was under way
    decoded[:] = ["already"]
    done: list[tuple[int, int]] = []
    build(clips, root, tmp_path / "out", workers=1, progress=lambda *counts: done.append(counts))
    assert decoded[1:] == [clip.path for clip in clips[6:]]
    assert done == [(6, 10), (9, 10), (10, 10)]
    assert files(tmp_path / "out") == files(tmp_path / "straight")


@pytest.mark.slow
def test_a_killed_build_goes_on_and_leaves_no_processes(tmp_path: Path) -> None:
    clips, root = world(tmp_path / "in", 130), tmp_path / "in"
    script = (
        "import sys, pathlib\nfrom fedreel.data import clip_index, shards\n"
        "def said(done, total):\n    print(done, flush=True)\n"
        "root, out = map(pathlib.Path, sys.argv[1:])\n"
        "shards.build(clip_index.find(root), root, out, side=128, workers=2, progress=said)\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py"), str(root), str(tmp_path / "out")]
    with started(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert process.stdout.readline() in ("64\n", "2\n")  # one part of 64, 64 and 2 clips is done
        process.send_signal(signal.SIGKILL)
        process.stdout.read()  # ends only when no child holds the pipe: the workers ended with their parent
    build(clips, root, tmp_path / "out", side=128, workers=1)
    build(clips, root, tmp_path / "straight", side=128, workers=1)
    assert files(tmp_path / "out") == files(tmp_path / "straight")


def test_the_same_inputs_reuse_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips, root = world(tmp_path / "in", 3), tmp_path / "in"
    build(clips, root, tmp_path / "out")
    before = files(tmp_path / "out")
    monkeypatch.setattr(module, "Reader", None)  # decoding again would fail
    assert len(build(clips, root, tmp_path / "out")) == 3
    assert files(tmp_path / "out") == before


def test_other_inputs_or_parameters_are_refused(tmp_path: Path) -> None:
    clips, root, out = world(tmp_path / "in", 3), tmp_path / "in", tmp_path / "out"
    build(clips, root, out)
    with pytest.raises(DataError, match="side 32"):
        build(clips, root, out, side=32)
    with pytest.raises(DataError, match="frames 2"):
        build(clips, root, out, frames=2)
    with pytest.raises(DataError, match="other videos"):
        build(clips[:2], root, out)
    os.utime(root / clips[0].path, (1, 1))
    with pytest.raises(DataError, match="remove this one"):
        build(clips, root, out)


def test_damaged_parts_are_named_with_their_bytes(tmp_path: Path) -> None:
    shards = build(world(tmp_path / "in", 2), tmp_path / "in", tmp_path / "out")
    expected = sum(clip.frames for clip in shards.clips) * 64 * 96 * 3
    part = tmp_path / "out" / "part-00000.u8"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DataError) as error:
        Shards.open(tmp_path / "out")
    assert (error.value.where, error.value.expected) == (str(part), f"{expected} bytes")
    assert error.value.found == f"{expected - 1} bytes"
    part.unlink()
    with pytest.raises(DataError, match="no such file"):
        Shards.open(tmp_path / "out")


@pytest.mark.parametrize("damage", [{"version": 1}, {"clips": 3}, {"side": "tall"}, {"clips": [{"path": "x"}]}])
def test_damaged_indices_are_errors(tmp_path: Path, damage: dict) -> None:
    build(world(tmp_path / "in", 1), tmp_path / "in", tmp_path / "out")
    index = tmp_path / "out" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), **damage}))
    with pytest.raises(DataError, match=r"index\.json"):
        Shards.open(tmp_path / "out")


def test_nothing_to_decode_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no clips"):
        build([], tmp_path, tmp_path / "out")
    (tmp_path / "a.mp4").write_bytes(b"junk")
    with pytest.raises(DataError, match="none of the clips"):
        build([Clip("a.mp4")], tmp_path, tmp_path / "out")


def test_a_copy_maps_the_files_itself(tmp_path: Path) -> None:
    shards = build(world(tmp_path / "in", 2), tmp_path / "in", tmp_path / "out")
    again = copy.deepcopy(shards)
    assert np.array_equal(again.clip(1), shards.clip(1))
    assert not np.shares_memory(again.clip(1), shards.clip(1))


def test_some_clips_of_each_part_of_an_owners_are_spread_over_all_of_them() -> None:
    clips = [Clip(f"{owner}{i}", owner=owner, split="test" if i > 6 else "") for owner in "ab" for i in range(9)]
    kept = ["a0", "a2", "a4", "a7", "a8", "b0", "b2", "b4", "b7", "b8"]  # at thirds of seven; of two, both
    assert [clip.path for clip in thinned(clips, 3)] == kept
    assert thinned(clips, 0) == thinned(clips, 100) == clips


def test_clips_that_are_not_used_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    world(tmp_path / "in", 8)
    some = open_clips(DataConfig(source=str(tmp_path / "in")), side=8, most=2)
    assert [clip.path for clip in some.clips] == ["o0/c0/00.mp4", "o0/c1/02.mp4", "o1/c0/01.mp4", "o1/c1/03.mp4"]
    assert len(Shards.open(some.folder)) == 4
    every = open_clips(DataConfig(source=str(tmp_path / "in")), side=8)
    assert len(every) == 8
    of_shards = open_clips(DataConfig(source=str(every.folder)), side=8, most=2)
    for again in (of_shards, copy.deepcopy(of_shards)):
        assert [clip.path for clip in again.clips] == [clip.path for clip in some.clips]
        assert np.array_equal(again.clip(3), some.clip(3))


def test_more_parts_than_may_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIPS_PER_PART", 1)
    monkeypatch.setattr(shard_parts, "MAPPED_PARTS", 2)
    shards = build(world(tmp_path / "in", 5), tmp_path / "in", tmp_path / "out", workers=1)
    early = shards.clip(0)
    first = early.copy()
    lengths = [len(shards.clip(i)) for i in range(5)]
    assert lengths == [clip.frames for clip in shards.clips]
    assert np.array_equal(early, first)  # a view outlives its place in the list
    assert np.array_equal(shards.clip(0), first)


def test_real_sign_gestures(tmp_path: Path) -> None:
    source = DATA / "video" / "mlr511"
    if not source.is_dir():
        pytest.skip(f"no sign-gesture clips at {source}; set FEDREEL_DATA")
    root = tmp_path / "in"
    chosen = [clip for clip in find(source) if clip.path.endswith(("R01.mp4", "R02.mp4"))][:20]
    assert len(chosen) == 20
    for clip in chosen:
        (root / clip.path).parent.mkdir(parents=True, exist_ok=True)
        (root / clip.path).write_bytes((source / clip.path).read_bytes())
    victim = (root / chosen[0].path).read_bytes()
    (root / "user99" / "G01").mkdir(parents=True)
    (root / "user99" / "G01" / "cut.mp4").write_bytes(victim[: len(victim) * 2 // 3])
    (root / "user99" / "G01" / "garbage.mp4").write_bytes(bytes(range(256)) * 50)
    shards = build(find(root), root, tmp_path / "out", side=64)
    assert "user99/G01/garbage.mp4" in [b.path for b in shards.broken]
    assert {b.path for b in shards.broken + shards.cut} == {"user99/G01/garbage.mp4", "user99/G01/cut.mp4"}
    places = {clip.path: i for i, clip in enumerate(shards.clips)}
    for clip in chosen[::7]:
        frames, fps = video.read(source / clip.path, size=64)
        assert np.array_equal(shards.whole(places[clip.path]), frames)
        assert (fps, clip.owner[:4], clip.label[0]) == (15, "user", "G")
    assert shards.stack([places[c.path] for c in chosen], 8).std() > 10  # a picture, not a grey field


def test_importing_the_data_modules_stays_light() -> None:
    script = (
        "import sys, fedreel.data.shards, fedreel.data.shard_readers, fedreel.data.check, fedreel.data.archive\n"
        "print([name for name in ('torch', 'av') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
