"""Excerpts of videos: which frames they are, in containers of all kinds, and what of a frame is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedreel.data.clip_index import find
from fedreel.data.shards import build
from fedreel.errors import DataError
from fedreel.media import frames as frames_module
from fedreel.media.excerpts import EXCERPTS, excerpt_frames, excerpts
from fedreel.media.frames import Timeline
from fedreel.media.video import middle_square, read, write
from support.films import film, numbered


def test_a_hand_worked_example() -> None:
    """20 frames, 4 a clip: middles from 2 to 18, 16 / 9 apart."""
    places = excerpt_frames(20, 4)
    assert places[:, 0].tolist() == [0, 2, 4, 5, 7, 9, 11, 12, 14, 16]
    assert places[9].tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize(("n_frames", "frames"), [(100, 16), (16, 16), (17, 16), (1000, 1), (10, 3)])
def test_excerpts_are_frames_in_a_row_around_even_middles(n_frames: int, frames: int) -> None:
    places = excerpt_frames(n_frames, frames)
    assert places.shape == (EXCERPTS, frames)
    assert places.min() == 0
    assert places.max() == n_frames - 1
    assert (np.diff(places, axis=1) == 1).all()
    middles = np.linspace(frames / 2, n_frames - frames / 2, EXCERPTS)
    assert np.abs(places[:, 0] + frames / 2 - middles).max() <= 0.5


@pytest.mark.parametrize(("n_frames", "frames"), [(1, 4), (3, 8), (7, 8)])
def test_a_short_video_stands_still_at_its_end(n_frames: int, frames: int) -> None:
    places = excerpt_frames(n_frames, frames)
    assert places.tolist() == [[*range(n_frames)] + [n_frames - 1] * (frames - n_frames)] * EXCERPTS


CONTAINERS = {
    "one-key.mp4": {"options": {"g": "250"}},
    "keys.mp4": {"options": {"g": "8", "bf": "2", "sc_threshold": "0"}},
    "keys.mkv": {"options": {"g": "8", "bf": "3"}},
    "variable.mkv": {"options": {"g": "8"}, "ticks": [40 * n + 7 * (n % 3) for n in range(70)]},
    "old.avi": {"codec": "mpeg4", "options": {"g": "9"}},
    "web.webm": {"codec": "libvpx", "options": {"g": "12"}},
    "stream.mpg": {"codec": "mpeg2video", "fps": 25},
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_excerpts_are_those_of_all_frames_decoded(name: str, tmp_path: Path) -> None:
    path = film(tmp_path / name, [numbered(n, 32, 32) for n in range(70)], **CONTAINERS[name])  # type: ignore[arg-type]
    frames, _ = read(path)
    assert len(frames) == 70
    found = excerpts(path, 6, 32)
    np.testing.assert_array_equal(found.clips, frames[excerpt_frames(70, 6)])
    assert found.fault == ""


def test_what_lies_between_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key frame every 10 of 250 frames: each of ten clips of 2 frames is reached in at most 11."""
    path = film(tmp_path / "a.mp4", [numbered(n, 16, 16) for n in range(250)], options={"g": "10", "bf": "0"})
    decoded, number = [], frames_module._number

    def counted(line: Timeline, pts: int | None) -> int | None:
        decoded.append(pts)
        return number(line, pts)

    monkeypatch.setattr(frames_module, "_number", counted)
    found = excerpts(path, 2, 16)
    np.testing.assert_array_equal(found.clips, read(path)[0][excerpt_frames(250, 2)])
    assert 20 <= len(decoded) <= 110


def test_frames_are_what_shards_of_that_size_hold(tmp_path: Path) -> None:
    frames = np.full((6, 32, 96, 3), 250, np.uint8)
    frames[:, :, 32:64] = 20  # the middle third
    write(tmp_path / "wide.mp4", frames, 8)
    clips = excerpts(tmp_path / "wide.mp4", 2, 16).clips
    stored = build(find(tmp_path), tmp_path, tmp_path / "shards", side=16, workers=1).clip(0)
    np.testing.assert_array_equal(clips[0], stored[:2])


def test_a_small_video_is_enlarged(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", np.full((5, 8, 12, 3), 100, np.uint8), 8)
    assert excerpts(tmp_path / "a.mp4", 4, 30).clips.shape == (EXCERPTS, 4, 30, 30, 3)


def test_of_a_video_that_breaks_off_the_beginning_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", np.stack([numbered(n) for n in range(60)]), 10)
    content = (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "a.mp4").write_bytes(content[: len(content) * 3 // 4])
    found = excerpts(tmp_path / "a.mp4", 4, 32)
    assert found.fault
    assert 0 < found.seconds < 6
    np.testing.assert_array_equal(found.clips[0], middle_square(read(tmp_path / "a.mp4", 32)[0][:4]))


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("dear diary")
    for name in ("a.mp4", "none.mp4"):
        with pytest.raises(DataError, match=name):
            excerpts(tmp_path / name, 4, 16)
