"""Video read with OpenCV: what PyAV would have given, or an error that says why not."""

from __future__ import annotations

import builtins
import json
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedreel.data import shards
from fedreel.data.clip_index import Clip, find
from fedreel.errors import DataError, RunError
from fedreel.media import video

LUMA = np.array([0.299, 0.587, 0.114])
NEEDS = "OpenCV is not installed (pip install opencv-python-headless)"


def drifting(frames: int = 24, height: int = 48, width: int = 80) -> np.ndarray:
    """Coloured waves that move to the right: smooth, so that scaling is well defined, and different in each frame."""
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin((x - 2 * t) / 9 + phase + y / 13) for t in range(frames) for phase in (0, 2, 4)]
    return np.stack(waves).reshape(frames, 3, height, width).transpose(0, 2, 3, 1).astype(np.uint8)


def encode(path: Path, frames: np.ndarray, codec: str, pixels: str, times: list[int] | None = None) -> Path:
    """The frames by any encoder of PyAV, shown at `times` (milliseconds) or 20 a second."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=20)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pixels
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            if times:
                picture.pts, picture.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def turn(clip: Path, a: int, b: int, c: int, d: int) -> None:
    """Give the track of an mp4 another display matrix."""
    data = bytearray(clip.read_bytes())
    matrix, one = data.index(b"tkhd") + 4 + 40, 1 << 16
    data[matrix : matrix + 36] = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    clip.write_bytes(data)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    video.write(tmp_path / "clip.mp4", drifting(), 12)
    return tmp_path / "clip.mp4"


def with_cv2(path: Path, size: tuple[int, int] | None = None) -> video.Video:
    """What `read_lenient` gives where PyAV is not installed."""
    pytest.importorskip("cv2", reason=NEEDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "av", None)
        return video.read_lenient(path, size)


def test_pyav_comes_first_then_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: name in ("av", "cv2"))
    assert video.backend() == "av"
    monkeypatch.setattr(video, "find_spec", lambda name: name == "cv2")
    assert video.backend() == "cv2"


def test_a_pyav_that_cannot_be_loaded_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def failing(name: str, *rest: Any) -> Any:
        if name == "av":
            raise ImportError("libavcodec.so: cannot open shared object file")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", failing)
    monkeypatch.setattr(video, "find_spec", lambda name: name in ("av", "cv2"))
    assert video.backend() == "cv2"
    monkeypatch.setattr(video, "find_spec", lambda name: name == "av")
    with pytest.raises(DataError, match="no video decoder"):
        video.backend()


def test_without_a_decoder_shards_name_both_and_write_nothing(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install av \(or pip install opencv-python-headless\)"):
        shards.build([Clip("clip.mp4")], tmp_path, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_an_opencv_that_cannot_be_loaded_is_no_fault_of_the_videos(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: name == "cv2")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(RunError, match="opencv-python-headless"):
        shards.build([Clip("clip.mp4")], tmp_path, tmp_path / "out", workers=1)
    assert not list((tmp_path / "out").glob("part-*"))


def test_finished_shards_need_no_decoder(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = [Clip("clip.mp4")]
    built = shards.build(clips, tmp_path, tmp_path / "out", size=(8, 8), workers=1)
    assert json.loads((tmp_path / "out" / "index.json").read_text())["decoder"] == "av"
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    again = shards.build(clips, tmp_path, tmp_path / "out", size=(8, 8), workers=1)
    assert np.array_equal(again.clip(0), built.clip(0))


@pytest.mark.parametrize("recorded", ["av", None])
def test_half_a_build_is_not_finished_by_another_decoder(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str | None
) -> None:
    """A build without a recorded decoder is one of PyAV's."""
    clips, out = [Clip("clip.mp4")], tmp_path / "out"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shards.build(clips, tmp_path, out, size=(8, 8), workers=1, progress=stop)
    plan = json.loads((out / "building.json").read_text())
    assert plan.pop("decoder") == "av"
    (out / "building.json").write_text(json.dumps({**plan, "decoder": recorded} if recorded else plan))
    monkeypatch.setattr(shards, "backend", lambda: "cv2")
    with pytest.raises(DataError, match="expected: decoder cv2") as error:
        shards.build(clips, tmp_path, out, size=(8, 8), workers=1)
    assert error.value.found == "decoder av"
    monkeypatch.undo()
    assert len(shards.build(clips, tmp_path, out, size=(8, 8), workers=1)) == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_frame_rate_counts_as_unstated(clip: Path, monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    left = iter([drifting(1)[0]])
    capture = SimpleNamespace(
        isOpened=lambda: True,
        get=lambda what: rate if what == "fps" else 1.0,
        read=lambda: next(((True, frame) for frame in left), (False, None)),
        release=lambda: None,
    )
    fake = SimpleNamespace(VideoCapture=lambda path: capture, CAP_PROP_FPS="fps", CAP_PROP_FRAME_COUNT="count")
    monkeypatch.setitem(sys.modules, "cv2", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(video, "find_spec", lambda name: name == "cv2")
    assert video.read_lenient(clip).fps == video.UNSTATED_FPS


def test_at_its_own_size_a_video_has_the_pixels_of_pyav(clip: Path) -> None:
    mine, theirs = with_cv2(clip), video.read_lenient(clip)
    assert (mine.frames.shape, mine.frames.dtype, mine.fps, mine.fault) == ((24, 48, 80, 3), np.uint8, 12, "")
    assert np.abs(mine.frames.astype(int) - theirs.frames).mean() < 1


def test_shrinking_by_a_whole_factor_is_a_block_mean(clip: Path) -> None:
    whole = with_cv2(clip).frames
    blocks = whole.reshape(24, 12, 4, 20, 4, 3).mean(axis=(2, 4))
    assert np.abs(with_cv2(clip, (12, 20)).frames - blocks).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("size", [(24, 40), (32, 32), (96, 160), (24, 160), (96, 40), (47, 79)])
def test_scaled_frames_are_as_bright_as_those_of_pyav_in_each_pixel(clip: Path, size: tuple[int, int]) -> None:
    mine, theirs = with_cv2(clip, size).frames, video.read_lenient(clip, size).frames
    assert mine.shape == theirs.shape == (24, *size, 3)
    apart = mine.astype(float) - theirs
    assert np.abs(apart @ LUMA).mean() < 2.5
    for channel in range(3):
        assert np.corrcoef(mine[..., channel].ravel(), theirs[..., channel].ravel())[0, 1] > 0.95
    shifted = mine[:-1].astype(float) - theirs[1:]
    assert np.abs(apart @ LUMA).mean() < np.abs(shifted @ LUMA).mean() / 2  # nearer than the next frame is


@pytest.mark.parametrize("matrix", [(0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)])
def test_a_clip_stored_turned_is_upright_as_with_pyav(clip: Path, matrix: tuple[int, int, int, int]) -> None:
    turn(clip, *matrix)
    mine, theirs = with_cv2(clip).frames, video.read_lenient(clip).frames
    assert mine.shape == theirs.shape
    assert np.abs(mine.astype(int) - theirs).mean() < 1
    assert with_cv2(clip, (40, 24)).frames.shape == (24, 40, 24, 3)


@pytest.mark.parametrize(("name", "codec", "pixels"), [("a.avi", "mjpeg", "yuvj420p"), ("a.mkv", "ffv1", "bgr0")])
def test_odd_sides_are_read(tmp_path: Path, name: str, codec: str, pixels: str) -> None:
    path = encode(tmp_path / name, drifting(6, 47, 61), codec, pixels)
    mine, theirs = with_cv2(path), video.read_lenient(path)
    assert mine.frames.shape == (6, 47, 61, 3)
    assert mine.fault == ""
    assert np.abs(mine.frames.astype(int) - theirs.frames).mean() < 1


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_a_variable_frame_rate_loses_no_frames_and_is_no_fault(tmp_path: Path, name: str) -> None:
    """OpenCV guesses an mkv's frame count from its length in seconds, which is wrong for such a video."""
    times = [40 * t + (900 if t > 5 else 0) for t in range(12)]
    path = encode(tmp_path / name, drifting(12), "libx264", "yuv420p", times)
    mine, theirs = with_cv2(path), video.read_lenient(path)
    assert len(mine.frames) == len(theirs.frames) == 12
    assert mine.fault == theirs.fault == ""
    assert mine.fps == pytest.approx(theirs.fps)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.avi"])
def test_a_cut_file_gives_whole_frames_up_to_the_cut_or_an_error(clip: Path, name: str) -> None:
    path = clip.with_name(name)
    if name.endswith("avi"):
        encode(path, drifting(), "mpeg4", "yuv420p")
    whole, data = with_cv2(path).frames, path.read_bytes()
    lengths = set()
    for end in range(0, len(data), max(1, len(data) // 25)):
        path.write_bytes(data[:end])
        try:
            part = with_cv2(path)
        except DataError:
            continue
        assert np.array_equal(part.frames, whole[: len(part.frames)])
        assert part.truncated == (len(part.frames) < len(whole))
        lengths.add(len(part.frames))
    assert len(lengths) > 3


@pytest.mark.parametrize("content", [b"", b"not a video at all", bytes(range(256)) * 40])
def test_garbage_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "junk.mp4").write_bytes(content)
    with pytest.raises(DataError, match=r"junk\.mp4"):
        with_cv2(tmp_path / "junk.mp4")


def test_shards_are_built_with_opencv_and_say_so(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2", reason=NEEDS)
    (tmp_path / "junk.mp4").write_bytes(b"junk")
    monkeypatch.setitem(sys.modules, "av", None)
    built = shards.build(find(tmp_path), tmp_path, tmp_path / "out", size=(16, 20), workers=1)
    assert json.loads((tmp_path / "out" / "index.json").read_text())["decoder"] == "cv2"
    assert [entry.path for entry in built.broken] == ["junk.mp4"]
    assert np.array_equal(built.clip(0), video.read(clip, (16, 20))[0])


@pytest.fixture
def three_clips(tmp_path: Path) -> Path:
    for number in range(3):
        video.write(tmp_path / "in" / f"{number}.mp4", drifting(4), 12)
    return tmp_path


@pytest.mark.slow
def test_opencv_is_loaded_by_the_decoding_processes_only_and_runs_one_thread_there(three_clips: Path) -> None:
    pytest.importorskip("cv2", reason=NEEDS)
    (three_clips / "av.py").write_text("raise ImportError")
    (three_clips / "helper.py").write_text(
        "import sys\nfrom fedreel.data import video\n"
        "def threads(path):\n    video.read(path)\n    return sys.modules['cv2'].getNumThreads()\n"
    )
    script = three_clips / "script.py"
    script.write_text(
        "import sys, pathlib\nfrom fedreel.machine.processes import in_processes\n"
        "from fedreel.data import clip_index, shards\n"
        "from helper import threads\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "shards.CLIPS_PER_PART = 1\n"
        "built = shards.build(clip_index.find(root / 'in'), root / 'in', root / 'out', size=(8, 8), workers=2)\n"
        "counts = dict(in_processes(threads, sorted((root / 'in').iterdir()), workers=2))\n"
        "print(len(built), sorted(counts.values()), 'cv2' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, str(script), str(three_clips)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "3 [1, 1, 1] False"
