"""The quick look at a video: what it sees without decoding all, what it cannot see, and whom it does not accuse."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from fedreel.data import video_look
from fedreel.data.check import look_at_all
from fedreel.data.video_look import FIRST, PARTS, Job, Look, look
from support.crashing import crashing
from support.films import film
from support.shared import SHARED

CONTAINERS = {
    "index-first.mp4": {"movflags": "+faststart"},
    "index-last.mp4": {},
    "fragments.mp4": {"movflags": "frag_keyframe+empty_moov"},
    "a.mov": {},
    "a.mkv": {},
    "a.webm": {"codec": "libvpx"},
    "a.avi": {"codec": "mpeg4"},
    "a.mpg": {"codec": "mpeg2video", "fps": 25},
    "a.flv": {"codec": "flv1"},
}


def noise(path: Path, **how: object) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 32, 48, 3)).astype(np.uint8)
    return film(path, list(pixels), **{"options": {"g": "10"}, **how})  # type: ignore[arg-type]


def quick(path: Path) -> Look:
    return look(Job(path, thorough=False, twin=False))


def thorough(path: Path) -> Look:
    return look(Job(path, thorough=True, twin=False))


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def packets(path: Path) -> list[tuple[int, int, bool]]:
    """Place, length and whether it is a key frame."""
    with av.open(str(path)) as file:
        return [(p.pos or 0, p.size, p.is_keyframe) for p in file.demux(file.streams.video[0]) if p.size]


@pytest.mark.parametrize("name", CONTAINERS)
def test_it_sees_what_decoding_all_sees_in_a_whole_file(name: str, tmp_path: Path) -> None:
    path = noise(tmp_path / name, **CONTAINERS[name])
    assert quick(path) == thorough(path)
    assert quick(path).frames == 60


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name != "a.mpg"])  # its header tells no length
@pytest.mark.parametrize("share", [0.97, 0.8, 0.4])
def test_a_file_cut_short_is_found(name: str, share: float, tmp_path: Path) -> None:
    path = noise(tmp_path / name, **CONTAINERS[name])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    seen = quick(path)
    assert seen.fault
    assert seen.frames < 60


def test_few_frames_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    decoded = video_look._decoded

    def counted(*given: object) -> list[object]:
        frames = decoded(*given)  # type: ignore[arg-type]
        counts.append(len(frames))
        return frames

    monkeypatch.setattr(video_look, "_decoded", counted)
    assert quick(noise(tmp_path / "a.mp4", options={"g": "5"})).frames == 60
    assert counts == [FIRST] + [1] * PARTS  # parts 2, 3 and 4, and the last key frame


def test_a_hole_of_zeros_is_found_wherever_it_is(tmp_path: Path) -> None:
    """As in a download that was given its length first and never finished."""
    path = noise(tmp_path / "a.mp4", options={"g": "250", "bf": "0"})
    for number in (1, 29, 59):
        noise(path, options={"g": "250", "bf": "0"})
        start, length, _ = packets(path)[number]
        overwrite(path, start, bytes(length))
        assert quick(path).fault == thorough(path).fault != ""


def test_a_damaged_key_frame_is_found_though_the_decoder_makes_up_for_it(tmp_path: Path) -> None:
    path = noise(tmp_path / "a.mp4", options={"g": "10", "bf": "0", "sc_threshold": "0"})
    start, length, _ = [p for p in packets(path) if p[2]][-1]
    overwrite(path, start + 8, b"\xff" * (length - 8))
    assert quick(path) == thorough(path)
    assert quick(path).fault == ""
    assert quick(path).damage == "1 of 60 frames are damaged, the first is frame 51"


def test_damage_between_key_frames_is_for_the_thorough_look(tmp_path: Path) -> None:
    path = noise(tmp_path / "a.mp4", options={"g": "30", "bf": "0", "sc_threshold": "0"})
    start, length, key = packets(path)[15]
    assert not key
    overwrite(path, start, b"\xff" * length)
    assert quick(path).fault == ""
    assert "only the first 15 frames" in thorough(path).fault


def test_who_is_suspected_wrongly_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may call a frame a key frame that is none: decoded alone it fails, in its place it does not."""
    path = noise(tmp_path / "a.mp4")
    monkeypatch.setattr(video_look, "_decoded", lambda pictures, packets: [])
    assert quick(path) == thorough(path)
    assert quick(path).fault == ""


def test_black_raw_video_is_no_hole(tmp_path: Path) -> None:
    black = [np.zeros((32, 48, 3), np.uint8)] * 5
    path = film(tmp_path / "a.avi", black, codec="rawvideo", pixels="bgr24")
    assert quick(path) == thorough(path)
    assert quick(path).frames == 5


def test_one_that_crashes_its_process_is_named_and_the_others_are_looked_at(tmp_path: Path) -> None:
    names = ["a.mp4", "crash-1.mp4", "b.mp4", "crash-2.mp4", "c.mp4"]
    for name in names:
        noise(tmp_path / name)
    told: list[tuple[int, int]] = []
    jobs = [Job(tmp_path / name, False, False) for name in names]
    looks = look_at_all(jobs, lambda done, total: told.append((done, total)), crashing)
    assert [seen.frames for seen in looks] == [60, 0, 60, 0, 60]
    assert looks[1].fault == looks[3].fault == "the decoder crashes on it"
    assert told == [(n, 5) for n in range(1, 6)]


def test_a_file_that_may_not_be_read_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise MemoryError

    path = noise(tmp_path / "a.mp4")
    monkeypatch.setattr(video_look, "opened", refuse)
    assert quick(path).fault == "it cannot be read: MemoryError"


def test_real_clips_from_many_sources_are_whole() -> None:
    paths = sorted((SHARED / "video" / "wild").glob("*"))
    if not paths:
        pytest.skip("no video/wild here; set FEDREEL_DATA")
    for path in paths:
        one, other = quick(path), thorough(path)
        assert (one.size, one.fps, one.fault) == (other.size, other.fps, other.fault)
        assert one.fault == ""
        assert abs(one.frames - other.frames) <= 1  # the last packet of some avi files holds no frame of its own
