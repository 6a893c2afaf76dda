"""Cutting: the frames and samples that were asked for, at their times, and nothing left behind when it fails."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedreel.errors import DataError
from fedreel.media import frames
from fedreel.media.cut import cut, placed
from fedreel.media.frames import Film, select_frames
from support.films import RATE, film, numbered, pictures_of, read_number, sound_of

FAST = {"preset": "ultrafast", "crf": "12"}


def timeline(path: Path) -> Any:
    reader = Film(path)
    for _ in reader:
        pass
    return reader.timeline


def numbers_of(path: Path) -> list[int]:
    return [read_number(picture) for picture in pictures_of(path)[0]]


def beep(seconds: float, start: float, stop: float) -> np.ndarray:
    t = np.arange(round(seconds * RATE)) / RATE
    return np.where((t >= start) & (t < stop), 0.5 * np.sin(2 * np.pi * 1000 * t), 0.0)


@pytest.mark.parametrize("gop", [4, 250])
@pytest.mark.parametrize("bframes", [0, 2])
def test_the_frames_asked_for_are_those_written(gop: int, bframes: int, tmp_path: Path) -> None:
    options = {"crf": "12", "g": str(gop), "bf": str(bframes)}
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(60)], options=options)
    spans = [(3, 3), (5, 9), (10, 12), (31, 40), (58, 59)]
    assert cut(source, spans, tmp_path / "out.mp4") == 1 + 5 + 3 + 10 + 2
    assert numbers_of(tmp_path / "out.mp4") == [n for a, b in spans for n in range(a, b + 1)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mp4", "out.mp4"]


@pytest.mark.parametrize("name", ["a.mkv", "a.h264", "a.ts", "a.avi"])
def test_frames_are_found_again_in_any_container(name: str, tmp_path: Path) -> None:
    codec = "mpeg4" if name.endswith("avi") else "libx264"
    source = film(tmp_path / name, [numbered(i) for i in range(50)], codec=codec, options={"g": "6", "bf": "0"})
    line = timeline(source)
    assert line.n_frames == 50
    got = [
        (n, read_number(f.to_ndarray(format="rgb24")))
        for n, f in select_frames(source, line, [(7, 8), (30, 31), (49, 49)])
    ]
    assert got == [(n, n) for n in (7, 8, 30, 31, 49)]
    assert cut(source, [(30, 34)], tmp_path / "out.mp4", timeline=line) == 5
    assert numbers_of(tmp_path / "out.mp4") == [30, 31, 32, 33, 34]


def test_only_what_lies_between_key_frames_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(60)], options={**FAST, "g": "5"})
    line = timeline(source)
    assert line.keys.tolist() == list(range(0, 60, 5))
    seen: list[int] = []
    find = frames._number
    monkeypatch.setattr(frames, "_number", lambda line, pts: seen.append(n := find(line, pts)) or n)
    assert [n for n, _ in select_frames(source, line, [(7, 8), (52, 53)])] == [7, 8, 52, 53]
    assert seen == [5, 6, 7, 8, 50, 51, 52, 53]


def test_a_jump_that_ends_too_late_is_done_again_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with a wrong index: every jump ends 20 frames behind its aim."""
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(40)], options={**FAST, "g": "5"})
    line = timeline(source)
    right = frames.opened

    @contextmanager
    def wrong(path: Path) -> Iterator[Any]:
        with right(path) as pictures:
            late, container = int(line.ticks[20]), pictures.container
            seek = lambda at, **how: container.seek(at + late, **how)  # noqa: E731
            pictures.container = SimpleNamespace(seek=seek, demux=container.demux)
            yield pictures

    monkeypatch.setattr(frames, "opened", wrong)
    assert [n for n, _ in select_frames(source, line, [(12, 13), (18, 18)])] == [12, 13, 18]


def test_the_times_between_frames_stay_as_they_are(tmp_path: Path) -> None:
    """Variable frame rate: gaps of 10 to 900 ms. The second span starts where the last frame of the first ends."""
    gaps = [40, 10, 300, 20, 900, 50, 60, 70, 500, 30]
    ticks = np.concatenate([[0], np.cumsum(gaps)]).tolist()
    source = film(tmp_path / "a.mkv", [numbered(i) for i in range(11)], ticks=ticks, options=FAST)
    cut(source, [(1, 3), (6, 8)], tmp_path / "out.mp4")
    _, times = pictures_of(tmp_path / "out.mp4")
    expected = np.cumsum([0, 10, 300, 20, 60, 70]) / 1000
    assert np.array(times) - times[0] == pytest.approx(expected, abs=1e-3)
    assert numbers_of(tmp_path / "out.mp4") == [1, 2, 3, 6, 7, 8]


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "aac"), ("a.mkv", "flac"), ("a.mkv", "aac")])
def test_a_beep_still_starts_with_its_bright_frame(name: str, codec: str, tmp_path: Path) -> None:
    """Frames 30 to 34 of 60 are white and beep. 2.0 ... 3.9 s come after 0.5 ... 0.9 s: both begin 1.4 s in."""
    bright = [np.full((32, 64, 3), 255 if 30 <= i < 35 else 0, np.uint8) for i in range(60)]
    source = film(tmp_path / name, bright, sound=beep(6.0, 3.0, 3.5), sound_codec=codec, options=FAST)
    cut(source, [(5, 8), (20, 38)], tmp_path / "out.mp4")
    pictures, times = pictures_of(tmp_path / "out.mp4")
    sound = sound_of(tmp_path / "out.mp4")
    white = [t for p, t in zip(pictures, times) if p.mean() > 127]
    loud = np.flatnonzero(np.abs(sound) > 0.15) / RATE
    assert white[0] == pytest.approx(1.4, abs=1e-3)
    assert loud[0] == pytest.approx(1.4, abs=0.01)
    assert loud[-1] == pytest.approx(1.9, abs=0.01)
    assert len(sound) / RATE == pytest.approx(2.3, abs=0.07)  # whole blocks of 1024 samples
    t = np.arange(round(1.45 * RATE), round(1.85 * RATE)) / RATE
    tones = np.stack([np.sin(2 * np.pi * 1000 * t), np.cos(2 * np.pi * 1000 * t)], axis=1)
    inside = sound[round(1.45 * RATE) : round(1.85 * RATE)]
    rest = inside - tones @ np.linalg.lstsq(tones, inside, rcond=None)[0]
    assert np.abs(rest).max() < 0.05  # one tone without a hole or a jump


def test_sound_that_ends_early_becomes_silence(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(40)], sound=beep(1.0, 0.0, 1.0), options=FAST)
    cut(source, [(5, 7), (20, 29)], tmp_path / "out.mp4")
    sound = sound_of(tmp_path / "out.mp4")
    assert len(sound) / RATE == pytest.approx(1.3, abs=0.07)
    assert np.abs(sound[: round(0.25 * RATE)]).max() > 0.3
    assert np.abs(sound[round(0.4 * RATE) :]).max() < 0.01


def test_a_video_without_sound_stays_without(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(10)], options=FAST)
    cut(source, [(0, 4)], tmp_path / "out.mp4")
    with av.open(str(tmp_path / "out.mp4")) as file:
        assert [s.type for s in file.streams] == ["video"]
        assert (file.streams.video[0].codec_context.name, file.streams.video[0].pix_fmt) == ("h264", "yuv420p")


def test_odd_sides_lose_a_row_or_a_column(tmp_path: Path) -> None:
    pictures = [numbered(i, 33, 65) for i in range(6)]
    source = film(tmp_path / "a.mkv", pictures, codec="ffv1", pixels="bgr0")
    cut(source, [(2, 4)], tmp_path / "out.mp4")
    assert [p.shape for p in pictures_of(tmp_path / "out.mp4")[0]] == [(32, 64, 3)] * 3
    assert numbers_of(tmp_path / "out.mp4") == [2, 3, 4]


@pytest.mark.parametrize(("matrix", "turn"), [((0, 1, -1, 0), -1), ((0, -1, 1, 0), 1), ((-1, 0, 0, -1), 2)])
def test_a_turned_video_is_written_upright(matrix: tuple[int, ...], turn: int, tmp_path: Path) -> None:
    picture = np.zeros((32, 64, 3), np.uint8)
    picture[:16, :32] = 255
    source = film(tmp_path / "a.mp4", [picture] * 5, options=FAST)
    content = bytearray(source.read_bytes())
    at = content.index(b"tkhd") + 4 + 40
    a, b, c, d = (v << 16 for v in matrix)
    content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    source.write_bytes(content)
    cut(source, [(1, 3)], tmp_path / "out.mp4")
    for shown in pictures_of(tmp_path / "out.mp4")[0]:
        expected = np.rot90(picture, turn)
        assert shown.shape == expected.shape
        assert np.abs(shown.astype(int) - expected).mean() < 8


def test_a_video_that_breaks_off_is_cut_before_the_break(tmp_path: Path) -> None:
    options = {"crf": "12", "g": "10", "bf": "2"}
    source = film(tmp_path / "a.mkv", [numbered(i) for i in range(60)], options=options, sound=beep(6, 0, 6))
    source.write_bytes(source.read_bytes()[: source.stat().st_size * 2 // 3])
    line = timeline(source)
    assert 10 < line.n_frames < 60
    last = line.n_frames - 1
    assert cut(source, [(2, 4), (last - 3, last)], tmp_path / "out.mp4", timeline=line) == 7
    assert numbers_of(tmp_path / "out.mp4") == [2, 3, 4, *range(last - 3, last + 1)]


@pytest.mark.parametrize("spans", [[], [(0, 10)], [(4, 3)], [(2, 4), (4, 5)], [(5, 6), (1, 2)], [(-1, 2)]])
def test_spans_that_do_not_fit_are_refused(spans: list[tuple[int, int]], tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(10)], options=FAST)
    with pytest.raises(DataError, match="0 to 9"):
        cut(source, spans, tmp_path / "out.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_stops_in_the_middle_leaves_the_old_file(error: type[BaseException], tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(20)], sound=beep(2, 0, 2), options=FAST)
    (tmp_path / "out.mp4").write_bytes(b"old")

    def stop(number: int, frame: Any) -> None:
        if number == 12:
            raise error

    with pytest.raises(error):
        cut(source, [(2, 18)], tmp_path / "out.mp4", watch=stop)
    assert (tmp_path / "out.mp4").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mp4", "out.mp4"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mp4", [numbered(i) for i in range(10)], options=FAST)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match=r"cannot be written(.|\n)*out\.mp4"):
        cut(source, [(0, 4)], tmp_path / "file" / "out.mp4")


@given(
    st.lists(st.tuples(st.integers(-3, 6), st.integers(1, 9)), max_size=8),
    st.lists(st.integers(1, 12), min_size=2, max_size=8),
)
def test_samples_are_placed_as_if_by_hand(blocks: list[tuple[int, int]], steps: list[int]) -> None:
    """Each sample of the source is its own position; blocks have gaps (or overlap); spans alternate with pauses."""
    edges = np.cumsum([0, *steps]).tolist()
    spans = list(zip(edges[::2], edges[1::2]))
    pieces, at = [], 0
    for gap, size in blocks:
        start = max(at + gap, 0)
        pieces.append((start, np.arange(start, start + size, dtype=np.float32)[None] + 1))
        at = start + size
    known = {round(v) - 1 for _, block in pieces for v in block[0]}
    expected = [n + 1 if n in known else 0 for a, b in spans for n in range(a, b)]
    ordered = all(a[0] + a[1].shape[1] <= b[0] for a, b in pairwise(pieces))
    got = np.concatenate([np.zeros((1, 0)), *placed(iter(pieces), spans, 1)], axis=1)[0].tolist()
    assert len(got) == len(expected)
    if ordered:
        assert got == expected
    assert all(g in (0, e) for g, e in zip(got, expected))
