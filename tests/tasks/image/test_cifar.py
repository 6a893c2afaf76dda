"""CIFAR-100's Python files: read as they are published and as Python 3 rewrites them, and never run."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.image.cifar import is_cifar, read_cifar
from fedreel.tasks.image.pictures import open_pictures

NAMES = ["apple", "bear", "clock"]


def pixels(count: int, seed: int = 0) -> np.ndarray:
    """Rows as CIFAR has them: 1024 reds, 1024 greens, 1024 blues."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def save(folder: Path, *, key: Any = str, **tables: dict[str, Any]) -> Path:
    """Python 3's pickles of protocol 2; texts for keys, or bytes."""
    whole = {
        "train": {"data": pixels(5), "fine_labels": [0, 2, 1, 0, 2], "coarse_labels": [0] * 5, "filenames": ["x"] * 5},
        "test": {"data": pixels(2, 1), "fine_labels": [1, 2], "batch_label": "testing batch 1 of 1"},
        "meta": {"fine_label_names": NAMES, "coarse_label_names": ["thing"]},
    } | tables
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in whole.items():
        named = {key(word): value for word, value in table.items()}
        (folder / name).write_bytes(pickle.dumps(named, 2))
    return folder


def as_bytes(word: str) -> bytes:
    return word.encode()


def test_images_labels_and_names_come_out_as_they_went_in(tmp_path: Path) -> None:
    for name, key in (("texts", str), ("bytes", as_bytes)):
        folder = save(tmp_path / name, key=key)
        assert is_cifar(folder)
        images, labels, names = read_cifar(folder, "train")
        assert (images.shape, images.dtype, labels.tolist(), names) == (
            (5, 32, 32, 3),
            np.uint8,
            [0, 2, 1, 0, 2],
            NAMES,
        )
        for image, row in zip(images, pixels(5)):
            np.testing.assert_array_equal(image.transpose(2, 0, 1).ravel(), row)


def test_the_second_row_of_greens_lies_in_the_second_row_of_pixels(tmp_path: Path) -> None:
    row = np.zeros((1, 3072), np.uint8)
    row[0, 1024 + 32] = 200  # green, one row down, leftmost
    images, _, _ = read_cifar(save(tmp_path, train={"data": row, "fine_labels": [0]}), "train")
    assert np.argwhere(images[0]).tolist() == [[1, 0, 1]]


def test_names_may_be_bytes_and_arrays_may_lie_column_by_column(tmp_path: Path) -> None:
    turned = np.asfortranarray(pixels(2))
    folder = save(tmp_path, meta={"fine_label_names": [b"a", b"b"]}, train={"data": turned, "fine_labels": [0, 1]})
    images, _, names = read_cifar(folder, "train")
    assert names == ["a", "b"]
    np.testing.assert_array_equal(images.transpose(0, 3, 1, 2).reshape(2, -1), turned)


def python2(table: dict[str, Any]) -> bytes:
    """The same table as Python 2's cPickle wrote it, opcode by opcode; its texts are what Python 3 calls bytes."""

    def text(word: bytes) -> bytes:
        return b"U" + bytes([len(word)]) + word if len(word) < 256 else b"T" + struct.pack("<i", len(word)) + word

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    def value(thing: Any) -> bytes:
        if isinstance(thing, np.ndarray):
            minus = b"J\xff\xff\xff\xff"
            dtype = b"cnumpy\ndtype\nq\x03U\x02u1K\x00K\x01\x87Rq\x04(K\x03U\x01|NNN" + minus + minus + b"K\x00tb"
            made = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
            shape = number(thing.shape[0]) + number(thing.shape[1]) + b"\x86"
            return made + b"(K\x01" + shape + dtype + b"\x89" + text(thing.tobytes()) + b"tb"
        if isinstance(thing, list):
            return b"](" + b"".join(map(value, thing)) + b"e"
        return number(thing) if isinstance(thing, int) else text(thing)

    items = b"".join(text(name.encode()) + value(thing) for name, thing in table.items())
    return b"\x80\x02}(" + items + b"u."


def test_files_in_the_published_form_are_read(tmp_path: Path) -> None:
    rows = pixels(300)
    labels = [i % 3 for i in range(300)]
    (tmp_path / "train").write_bytes(python2({"filenames": [b"a.png"], "data": rows, "fine_labels": labels}))
    (tmp_path / "test").write_bytes(python2({"data": rows[:1], "fine_labels": [2]}))
    (tmp_path / "meta").write_bytes(python2({"fine_label_names": [name.encode() for name in NAMES]}))
    pickletools.dis((tmp_path / "train").read_bytes(), io.StringIO())  # raises if this is none of Python's programs
    images, found, names = read_cifar(tmp_path, "train")
    np.testing.assert_array_equal(images.transpose(0, 3, 1, 2).reshape(300, -1), rows)
    assert (found.tolist(), names) == (labels, NAMES)


class Runs:
    """Unpickled, it would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


class Shell:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("what", [Runs, Shell])
def test_a_file_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path, what: Any, protocol: int) -> None:
    target = tmp_path / "ran"
    hostile = what(target if what is Runs else f"mkdir {target}")
    folder = save(tmp_path / "c")
    for name in ("train", "meta"):
        (folder / name).write_bytes(pickle.dumps({"data": hostile, "fine_label_names": hostile}, protocol))
        with pytest.raises(DataError, match=r"not one of CIFAR-100's"):
            read_cifar(folder, "train")
    assert not target.exists()


def test_the_refusal_names_the_call_or_the_instruction(tmp_path: Path) -> None:
    folder = save(tmp_path, train={"data": Shell("true")})
    with pytest.raises(DataError, match=r"(posix|nt)\.system"):
        read_cifar(folder, "train")
    (folder / "train").write_bytes(pickle.dumps({"data": pixels(1), "fine_labels": [0], "more": os.getcwd}, 2))
    with pytest.raises(DataError, match=r"(posix|nt)\.getcwd"):  # even where nothing would call it
        read_cifar(folder, "train")
    (folder / "train").write_bytes(pickle.dumps({"data": 2**4000}, 2))
    with pytest.raises(DataError, match="the instruction LONG4"):
        read_cifar(folder, "train")
    (folder / "train").write_bytes(pickle.dumps({"data": np.dtype("datetime64[s]")}, 2))
    with pytest.raises(DataError, match=r"numpy\.dtype"):
        read_cifar(folder, "train")


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"data": pixels(2)},
        {"data": [1, 2], "fine_labels": [0, 1]},
        {"data": pixels(2), "fine_labels": [0]},
        {"data": pixels(2)[:, :3000], "fine_labels": [0, 1]},
        {"data": pixels(2), "fine_labels": [0, 3]},
        {"data": pixels(2), "fine_labels": [0, -1]},
        {"data": pixels(2), "fine_labels": [0, None]},
        {"data": pixels(2).astype(np.int64), "fine_labels": [0, 1]},
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, train: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"not one of CIFAR-100's"):
        read_cifar(save(tmp_path, train=train), "train")


@pytest.mark.parametrize("meta", [{}, {"fine_label_names": []}, {"fine_label_names": ["a", "a"]}])
def test_classes_without_names_of_their_own_are_refused(tmp_path: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"not one of CIFAR-100's"):
        read_cifar(save(tmp_path, meta=meta), "train")


def test_a_text_cannot_be_made_into_more_bytes_than_the_file_has(tmp_path: Path) -> None:
    word = b"X" + struct.pack("<I", 1000) + b"x" * 1000
    made = b"c_codecs\nencode\nq\x00" + word + b"X\x06\x00\x00\x00latin1\x86q\x01R"
    again = b"h\x00h\x01R"
    folder = save(tmp_path)
    (folder / "train").write_bytes(b"\x80\x02](" + made + again * 50 + b"e.")
    with pytest.raises(DataError, match="more bytes than the file has"):
        read_cifar(folder, "train")


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, train={"data": pixels(1), "fine_labels": [1]})
    whole = (folder / "train").read_bytes()
    for length in [*range(200), *range(200, len(whole), 97), len(whole) - 1]:
        (folder / "train").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"not one of CIFAR-100's"):
            read_cifar(folder, "train")


@pytest.mark.parametrize("form", ["python 2", "python 3"])
def test_whatever_bytes_are_flipped_only_data_errors_are_raised(tmp_path: Path, form: str) -> None:
    table = {"data": pixels(1), "fine_labels": [0], "filenames": [b"x.png"]}
    folder = save(tmp_path, train=table)
    whole = python2(table) if form == "python 2" else (folder / "train").read_bytes()
    rng = random.Random(0)
    outcomes = set()
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            content[rng.choice([rng.randrange(400), rng.randrange(-200, 0)])] = rng.randrange(256)  # not the pixels
        (folder / "train").write_bytes(content)
        try:
            read_cifar(folder, "train")
            outcomes.add("read")
        except DataError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_random_programs_of_allowed_instructions_only_raise_data_errors(tmp_path: Path) -> None:
    folder = save(tmp_path)
    pieces = [
        *(b"(", b"}", b"]", b")", b"N", b"\x88", b"\x85", b"\x86", b"\x87", b"t", b"u", b"s", b"a", b"e", b"R", b"b"),
        *(b"q\x00", b"h\x00", b"K\x00", b"J\xff\xff\xff\xff", b"U\x01b", b"U\x02u1", b"cnumpy\nndarray\n"),
        *(b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"),
    ]
    rng = random.Random(1)
    for _ in range(600):
        program = b"".join(rng.choice(pieces) for _ in range(rng.randint(1, 30)))
        (folder / "train").write_bytes(b"\x80\x02" + program + b".")
        with pytest.raises(DataError):
            read_cifar(folder, "train")


def test_a_deep_nest_as_a_key_does_not_crash(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "train").write_bytes(b"\x80\x02})" + b"\x85" * 300_000 + b"Ns.")
    with pytest.raises(DataError, match="keys are no names"):
        read_cifar(folder, "train")


def test_a_folder_of_them_opens_as_pictures_of_any_side(tmp_path: Path) -> None:
    folder = save(tmp_path / "data" / "cifar-100-python", meta={"fine_label_names": ["zebra", "bear", "clock"]})
    for source in (folder, folder.parent):
        found = open_pictures(str(source), 32)
        assert found.classes == ("bear", "clock", "zebra")
        assert found.splits.tolist() == ["test"] * 2 + ["train"] * 5
        named = [found.classes[label] for label in found.labels]
        assert named == ["bear", "clock", "zebra", "clock", "bear", "zebra", "clock"]
        expected = np.concatenate([read_cifar(folder, part)[0] for part in ("test", "train")])
        np.testing.assert_array_equal(found.images, expected)
    assert open_pictures(str(folder), 48).images.shape == (7, 48, 48, 3)
