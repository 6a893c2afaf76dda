"""Files from elsewhere: what they claim is bounded before memory is taken, and nothing outside of them is read."""

from __future__ import annotations

import io
import json
import logging
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pytest

from fedreel.config import read_toml
from fedreel.data import restricted_pickle
from fedreel.data.bounded import npz_names, opened_h5, read_npy, read_npz
from fedreel.data.check import check
from fedreel.errors import DataError, RecipeError
from fedreel.machine.records import parse_json
from fedreel.media import packets, video
from fedreel.tasks.image.cifar import read_cifar
from fedreel.tasks.moments.features import open_features
from fedreel.tasks.skeleton import npz
from fedreel.tasks.summary.data import read_summary


def summary_file(path: Path, change: Callable[[h5py.Group], Any] | None = None) -> Path:
    """One annotated video of 20 frames, of which every second is looked at."""
    with h5py.File(path, "w") as file:
        video = file.create_group("video_1")
        video["picks"], video["n_frames"] = np.arange(0, 20, 2), 20
        video["change_points"] = np.array([[0, 9], [10, 19]])
        video["user_summary"] = np.eye(2, 20)
        video["gtscore"] = np.linspace(0, 1, 10)
        video["features"] = np.ones((10, 4), np.float32)
        if change is not None:
            change(video)
    return path


def replaced(key: str, make: Callable[[h5py.Group], Any]) -> Callable[[h5py.Group], None]:
    def change(group: h5py.Group) -> None:
        del group[key]
        make(group)

    return change


def made(key: str, shape: tuple[int, ...], **options: Any) -> Callable[[h5py.Group], None]:
    return replaced(key, lambda group: group.create_dataset(key, shape, "f4", **options))


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """The beginning of an .npy file that claims this shape."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"shape": shape, "fortran_order": False, "descr": dtype})
    return out.getvalue()


def test_arrays_come_out_as_numpy_wrote_them(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(12.0).reshape(3, 4),
        "f": np.asfortranarray(np.arange(12).reshape(3, 4)),
        "words": np.array(["Zürich", ""]),
        "none": np.zeros((0, 3), np.float32),
        "one": np.array(7),
        "big": np.arange(4, dtype=">i4"),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        assert npz_names(tmp_path / "a.npz") == list(arrays)
        found = read_npz(tmp_path / "a.npz")
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)
            assert found[name].shape == array.shape
        found["a"][0, 0] = 5  # they can be written
        assert [*read_npz(tmp_path / "a.npz", ("f", "absent"))] == ["f"]
    np.save(tmp_path / "a.npy", arrays["f"])
    assert np.array_equal(read_npy(tmp_path / "a.npy"), arrays["f"])


@pytest.mark.parametrize("compressed", [True, False])
def test_an_npz_that_claims_more_than_its_size_allows_is_refused(tmp_path: Path, compressed: bool) -> None:
    """A megabyte of zeros, deflated to a kilobyte, in a file whose header claims 1.2 GB; and a real bomb."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("data.npy", header((300_000_000,)) + bytes(1 << 20))
    with pytest.raises(ValueError, match="claims 1200000000 bytes"):
        read_npz(path)
    with pytest.raises(DataError, match=r"not a readable .npz file"):
        npz.read(path)
    for objects in (np.array([{}], object), np.array([np.timedelta64(1)])):
        np.savez(path, data=objects)
        with pytest.raises(ValueError, match="no numbers or texts"):
            read_npz(path)


def test_a_member_that_is_no_array_is_passed_over(tmp_path: Path) -> None:
    """numpy gives it back as bytes, on which a reader of skeletons fell."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("labels", b"1 2 3")
    assert read_npz(tmp_path / "a.npz") == {}
    with pytest.raises(DataError, match="incomplete or damaged"):
        npz.read(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (made("features", (10, 115_000_000)), "are claimed"),
        (made("features", (10, 4), chunks=(1 << 13, 1 << 14), maxshape=(None, None)), "are claimed"),
        (replaced("features", lambda g: g.update(features=h5py.ExternalLink("other.h5", "secret"))), "is a link"),
        (replaced("features", lambda g: g.update(features=h5py.SoftLink("/video_1/gtscore"))), "is a link"),
        (made("features", (10, 4), external=[("other.bin", 0, 160)]), "another file"),
        (replaced("features", lambda g: g.create_virtual_dataset("features", _virtual())), "another file"),
        (replaced("features", lambda g: g.create_dataset("features", data=["x"] * 10)), "holds no numbers"),
        (lambda g: g.create_dataset("owner", (1 << 20,), h5py.string_dtype()), "no single text"),
        (lambda g: g.attrs.__setitem__("owner", np.zeros(100, "S100")), "no single text"),
    ],
    ids=["claim", "chunk", "external-link", "soft-link", "external-storage", "virtual", "texts", "owners", "attribute"],
)
def test_h5_files_hold_their_own_numbers_and_no_more_than_their_size(
    tmp_path: Path, change: Callable[[h5py.Group], Any], says: str
) -> None:
    (tmp_path / "other.bin").write_bytes(bytes(range(160)))
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.ones((10, 4), np.float32)
    assert len(read_summary(summary_file(tmp_path / "sound.h5"))) == 1
    path = summary_file(tmp_path / "a.h5", change)
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=says):
        read_summary(path)


def _virtual() -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((10, 4), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "secret", (10, 4))
    return layout


def test_texts_in_h5_that_would_keep_the_library_busy_for_ever_are_refused(tmp_path: Path) -> None:
    """One byte: a text of 13 letters becomes one of 1037, which ends among zeros; HDF5 2.0 does not come back."""
    path = summary_file(tmp_path / "a.h5", lambda group: group.update(video_name="Air_Force_One", owner="anna"))
    assert read_summary(path)[0].known_as == "Air_Force_One"
    content = path.read_bytes()
    at = content.index(b"Air_Force_One") - 8
    assert content[at] == 13
    path.write_bytes(content[: at + 1] + b"\x04" + content[at + 2 :])
    with pytest.raises(DataError, match="do not lie one after another"):
        read_summary(path)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells how much memory a process has")
def test_a_text_in_h5_that_claims_gigabytes_takes_none(tmp_path: Path) -> None:
    """The length of a text stands before the place of its heap; HDF5 takes memory for it first."""
    path = summary_file(tmp_path / "a.h5", lambda group: group.attrs.update(owner="anna"))
    content = path.read_bytes()
    heap = content.index(b"GCOL").to_bytes(8, "little")
    at = content.index(b"\x04\0\0\0" + heap)
    path.write_bytes(content[:at] + (3 << 30).to_bytes(4, "little") + content[at + 4 :])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(DataError, match="key owner"):
        read_summary(path)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_AS)
    assert after[0] - before[0] < 500_000  # kB
    assert after[1] == before[1]


def test_features_in_h5_hold_their_own_numbers_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.ones((3, 4), np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.ones((3, 4), np.float32)
        file["linked"] = h5py.ExternalLink("other.h5", "secret")
        file.create_dataset("huge", (10, 115_000_000), "f4")
        file.create_group("v")["c3d_features"] = np.zeros((2, 4))
    features = open_features(tmp_path / "a.h5")
    assert features.get("good").shape == (3, 4)
    assert features.get("v").shape == (2, 4)
    for name, says in (("linked", "is a link"), ("huge", "are claimed")):
        with pytest.raises(DataError, match=says):
            features.get(name)
    with opened_h5(tmp_path / "a.h5") as file:
        assert [*file] == ["good", "huge", "linked", "v"]


@pytest.mark.parametrize("make", ["h5", "npz", "mov"])
def test_a_small_file_does_not_take_a_gigabyte(tmp_path: Path, make: str) -> None:
    """As a process of its own sees it, with the memory that it may take limited to what is there already and 1 GB."""
    if make == "h5":
        summary_file(tmp_path / "a.h5", made("features", (10, 115_000_000)))
        code = "from fedreel.tasks.summary.data import read_summary as read"
    elif make == "npz":
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for n in range(4):
                archive.writestr(f"x{n}.npy", header((400_000_000,), "|u1") + bytes(1 << 20))
        code = "from fedreel.tasks.skeleton.npz import read"
    else:
        film(tmp_path / "a.mov", 8000)
        code = "from fedreel.media.video import read"
    (file,) = tmp_path.iterdir()
    program = f"""
import resource, sys
from pathlib import Path
{code}
from fedreel.errors import DataError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read(Path(sys.argv[1]))
except DataError as error:
    print("refused")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True)
    assert done.stdout.startswith("refused"), done.stderr
    assert int(done.stdout.split()[1]) < 1_000_000  # kB


def film(path: Path, side: int, frames: int = 2, **metadata: str) -> None:
    with av.open(str(path), "w") as container:
        container.metadata.update(metadata)
        stream = container.add_stream("mpeg4", rate=Fraction(10))
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        picture = av.VideoFrame(side, side, "yuv420p")
        for plane in picture.planes:
            plane.update(bytes(plane.buffer_size))
        for number in range(frames):
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


def test_pictures_of_a_video_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film(tmp_path / "a.mov", 64)
    assert video.read(tmp_path / "a.mov")[0].shape == (2, 64, 64, 3)
    monkeypatch.setattr(packets, "MAX_PIXELS", 64 * 64)
    assert video.read(tmp_path / "a.mov")[0].shape == (2, 64, 64, 3)
    monkeypatch.setattr(packets, "MAX_PIXELS", 64 * 64 - 1)
    with pytest.raises(DataError, match="safe to decode"):
        video.read(tmp_path / "a.mov")


def test_one_bad_clip_does_not_end_the_check_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "anna" / "run"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        film(folder / f"{name}.mp4", 32)
    film(folder / "latin.mp4", 32, title="Frueh")
    latin = (folder / "latin.mp4").read_bytes().replace(b"Frueh", b"Fr\xfc\xffh")
    (folder / "latin.mp4").write_bytes(latin)
    (folder / "esc\x1b[2J\x9b.mp4").write_bytes(b"no video")
    film(folder / "huge.mp4", 6000)
    report = check(tmp_path)
    assert len(report.clips) == 5
    assert sorted(finding.where.rsplit("/")[-1] for finding in report.problems) == ["esc\x1b[2J\x9b.mp4", "huge.mp4"]


def test_no_escape_sequence_of_a_file_name_reaches_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "an\x1b]0;na" / "run\x9b31m"
    folder.mkdir(parents=True)
    (folder / "a\x1b[2J.mp4").write_bytes(b"no video")
    done = subprocess.run(
        [sys.executable, "-m", "fedreel", "data", "check", str(tmp_path)], capture_output=True, check=False
    )
    said = done.stdout + done.stderr
    assert b"a\\x1b[2J.mp4" in said
    assert not any(byte in said for byte in (b"\x1b", b"\x9b", b"\x07"))


def test_an_error_and_a_warning_hold_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    from fedreel.cli.say import say, say_warnings

    assert "\x1b" not in str(DataError("a\x1b[2J", where="\x1b]0;x\x07", found="\x9b", expected="\x00", hint="\u202e"))
    before = logging.lastResort
    try:
        say_warnings()
        assert logging.lastResort is not None
        told = logging.lastResort.format(logging.LogRecord("x", 30, "", 0, "%s is bad", ("\x1b[2J",), None))
    finally:
        logging.lastResort = before
    assert told == "\\x1b[2J is bad"
    say("x\x1b[2J\ty", err=True)
    assert capsys.readouterr().err == "x\\x1b[2J\\ty\n"


def test_a_pickle_of_nothing_but_instructions_is_given_up_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restricted_pickle, "MOST", 1000)
    pickle_of_lists = b"\x80\x02" + b"]" * 100_000 + b"."
    for name in ("meta", "train", "test"):
        (tmp_path / name).write_bytes(pickle_of_lists)
    with pytest.raises(DataError, match=r"more than 7250 instructions"):  # and one for every 16 bytes
        read_cifar(tmp_path, "train")
    whole = pickle.dumps({f"n{i}": str(i).zfill(200) for i in range(900)}, protocol=2)
    assert len(restricted_pickle.evaluate(io.BytesIO(whole), {}, most=0)) == 900


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" + "[]," * 9_000_000 + "[]]"])
def test_json_that_would_take_too_much_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|values"):
        parse_json(text)


def test_a_recipe_is_no_bomb(tmp_path: Path) -> None:
    for text in ("a = " + "[" * 50_000, "a = 1 # " + "x" * (1 << 20)):
        (tmp_path / "r.toml").write_text(text)
        with pytest.raises(RecipeError, match="not valid TOML"):
            read_toml(tmp_path / "r.toml")


def test_safetensors_that_claim_more_than_they_hold_are_refused(tmp_path: Path) -> None:
    from fedreel.data.weights_file import read_file

    head = json.dumps({"w": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(16))
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    for name in ("a", "b"):
        with pytest.raises(DataError, match="cannot be read"):
            read_file(tmp_path / f"{name}.safetensors")
