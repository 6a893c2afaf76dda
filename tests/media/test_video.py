"""Video files: what is written comes back, and damage is named rather than passed on."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.media import video


def moving_bar(frames: int = 24, height: int = 48, width: int = 80) -> np.ndarray:
    """Red above, blue below, and a white bar of 4 columns that moves 2 columns a frame."""
    out = np.zeros((frames, height, width, 3), np.uint8)
    out[:, : height // 2, :, 0] = 200
    out[:, height // 2 :, :, 2] = 200
    for t in range(frames):
        out[t, :, 2 * t : 2 * t + 4] = 255
    return out


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    video.write(tmp_path / "clip.mp4", moving_bar(), 12)
    return tmp_path / "clip.mp4"


def test_what_is_written_comes_back(clip: Path) -> None:
    frames, fps = video.read(clip)
    assert frames.shape == (24, 48, 80, 3)
    assert frames.dtype == np.uint8
    assert fps == 12
    assert np.abs(frames.astype(int) - moving_bar()).mean() < 4


def test_thin_motion_survives(clip: Path) -> None:
    frames, _ = video.read(clip)
    brightest = frames.mean(axis=(1, 3)).argmax(axis=1)  # the bar is the only white thing
    assert np.abs(brightest - (2 * np.arange(24) + 1.5)).max() <= 1.5


def test_same_frames_give_same_bytes_and_no_leftovers(clip: Path) -> None:
    twin = clip.with_name("twin.mp4")
    video.write(twin, moving_bar(), 12)
    assert twin.read_bytes() == clip.read_bytes()
    assert sorted(p.name for p in clip.parent.iterdir()) == ["clip.mp4", "twin.mp4"]


def test_size_is_height_then_width_and_keeps_the_picture(clip: Path) -> None:
    frames, _ = video.read(clip, size=(12, 20))
    assert frames.shape == (24, 12, 20, 3)
    blocks = moving_bar().reshape(24, 12, 4, 20, 4, 3).mean(axis=(2, 4))  # area scaling by 4 is a block mean
    assert np.abs(frames - blocks).mean() < 6


def test_max_frames_takes_the_first(clip: Path) -> None:
    few, _ = video.read(clip, max_frames=5)
    all_, _ = video.read(clip)
    assert np.array_equal(few, all_[:5])


@pytest.mark.parametrize("fraction", [0.85, 0.9, 0.97])
def test_an_unreadable_tail_keeps_the_frames_before_it(clip: Path, fraction: float) -> None:
    whole, _ = video.read(clip)
    data = clip.read_bytes()
    clip.write_bytes(data[: int(len(data) * fraction)])
    cut = video.read_lenient(clip)
    assert cut.truncated
    assert 0 < len(cut.frames) < 24
    assert np.array_equal(cut.frames, whole[: len(cut.frames)])


def test_read_reports_a_missing_tail_in_the_log(clip: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = clip.read_bytes()
    clip.write_bytes(data[: int(len(data) * 0.9)])
    with caplog.at_level(logging.WARNING):
        video.read(clip)
    assert str(clip) in caplog.text
    assert "breaks off" in caplog.text


def test_a_whole_file_has_no_fault(clip: Path) -> None:
    assert video.read_lenient(clip).fault == ""


@pytest.mark.parametrize("content", [b"", b"not a video at all", bytes(range(256)) * 40])
def test_garbage_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "junk.mp4").write_bytes(content)
    with pytest.raises(DataError, match=r"junk\.mp4"):
        video.read(tmp_path / "junk.mp4")


def test_a_missing_file_and_a_file_without_picture_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such video"):
        video.read(tmp_path / "none.mp4")
    sound = b"RIFF" + struct.pack("<I4s4sIHHIIHH4sI", 44, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 8)
    (tmp_path / "sound.mp4").write_bytes(sound + bytes(8))
    with pytest.raises(DataError, match="no video stream"):
        video.read(tmp_path / "sound.mp4")


def test_every_cut_gives_a_prefix_or_an_error(clip: Path) -> None:
    whole, _ = video.read(clip)
    data = clip.read_bytes()
    for end in range(0, len(data), 97):
        clip.write_bytes(data[:end])
        try:
            cut = video.read_lenient(clip)
        except DataError:
            continue
        assert cut.truncated
        assert np.array_equal(cut.frames, whole[: len(cut.frames)])


@pytest.mark.parametrize(
    "frames",
    [np.zeros((2, 8, 8, 3), np.float32), np.zeros((0, 8, 8, 3), np.uint8), np.zeros((2, 7, 8, 3), np.uint8)],
)
def test_frames_that_cannot_be_encoded_leave_no_file(tmp_path: Path, frames: np.ndarray) -> None:
    with pytest.raises(DataError):
        video.write(tmp_path / "x.mp4", frames, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_clip_stored_turned_is_read_upright(clip: Path) -> None:
    """The matrix in the track header says: turn by 90 degrees clockwise to watch."""
    upright, _ = video.read(clip)
    data = bytearray(clip.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    data[matrix : matrix + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    clip.write_bytes(data)
    turned, _ = video.read(clip)
    assert turned.shape == (24, 80, 48, 3)
    assert np.array_equal(turned, np.rot90(upright, -1, axes=(1, 2)))
    assert video.read(clip, size=(40, 24))[0].shape == (24, 40, 24, 3)
