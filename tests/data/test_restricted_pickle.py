"""Pickles that are read and never run: plain values come out, everything else is refused, by both formats' readers."""

from __future__ import annotations

import os
import pickle
import random
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.data import restricted_pickle
from fedreel.data.restricted_pickle import Named, Refused, Stateful, evaluate
from fedreel.data.torch_file import _OLDER, read_tensors
from fedreel.errors import DataError
from fedreel.tasks.image.cifar import read_cifar


def read(content: bytes, **how: Any) -> Any:
    return evaluate(BytesIO(content), how.pop("calls", {}), **how)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, 255, 256, 70000, -5, 2**31, 2**100, 1.5, "", "text", "Ünïcode", (), [], {}),
        *((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [1], [1, 2], {"a": 1}, {"a": 1, "b": [2, (3,)]}, {1: {b"x": None}}),
    ],
)
def test_plain_values_come_out_as_python_reads_them(value: Any) -> None:
    for protocol in (2, 3, 4):
        assert read(pickle.dumps(value, protocol), calls={"_codecs.encode": lambda t, e: t.encode(e)}) == value


def test_a_value_in_two_places_is_one_value() -> None:
    one = [1]
    first, second = read(pickle.dumps([one, one], 2))
    assert first is second


def test_calls_are_ours_and_names_are_never_looked_up() -> None:
    module = "fedreel_no_such_module"
    program = b"\x80\x02c" + module.encode() + b"\nthing\nK\x02K\x03\x86R."
    assert read(program, calls={f"{module}.thing": lambda a, b: a * b}) == 6
    alone = b"\x80\x02c" + module.encode() + b"\nthing\n."
    assert read(alone, names=frozenset({f"{module}.thing"})) == Named(f"{module}.thing")
    with pytest.raises(Refused, match=rf"{module}\.thing"):
        read(program)
    assert module not in sys.modules


def test_what_may_only_be_named_cannot_be_called() -> None:
    with pytest.raises(Refused, match="no function"):
        read(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", names=frozenset({"os.system"}))


def test_state_goes_to_those_who_take_some() -> None:
    class Box(Stateful):
        content: Any = None

        def fill(self, state: Any) -> None:
            self.content = state

    assert read(b"\x80\x02ca\nb\n)RK\x07b.", calls={"a.b": Box}).content == 7
    assert read(b"\x80\x02}K\x07b.") == {}
    with pytest.raises(Refused, match="attributes for a list"):
        read(b"\x80\x02]K\x07b.")


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (b"", "exhausted"),
        (b"\x80\x02", "exhausted|end"),
        (b"\x80\x02.", "pop"),
        (b"\x80\x02K\x01", "exhausted|end"),
        (b"\x80\x02h\x05.", "5"),
        (b"\x80\x02t.", "pop"),
        (b"\x80\x02)K\x01a.", "items for a tuple"),
        (b"\x80\x02}K\x01a.", "items for a dict"),
        (b"\x80\x02}]Ns.", "keys are no names"),
        (b"\x80\x02(cos\nsystem\no.", "instruction OBJ|call of 'os.system'"),
        (b"\x80\x02(X\x02\x00\x00\x00lsios\nsystem\n.", "instruction INST"),
        (b"\x80\x02)\x81.", "instruction NEWOBJ"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02P1\n.", "instruction PERSID"),
        (b"\x80\x02K\x01Q.", "instruction BINPERSID"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "call of 'os.system'"),
        (b"\x80\x04K\x01K\x02\x93.", "name that is no text"),
        (b"\x80\x05\x97.", "instruction NEXT_BUFFER"),
        (b"X\xff\xff\xff\xff.", "expected|unicode"),
        (b"\x8b\xff\xff\xff\x7f.", "LONG4|expected|not enough"),
    ],
)
def test_every_other_program_is_refused(program: bytes, found: str) -> None:
    with pytest.raises(Refused, match=found):
        read(program)


def test_long_programs_are_refused_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restricted_pickle, "MOST", 1000)
    assert len(read(b"(" + b"]" * 900 + b"t.")) == 900
    with pytest.raises(Refused, match=r"more than 1\d\d\d instructions"):
        read(b"(" + b"]" * 1100 + b"t.")


# both readers


def cifar(program: bytes, folder: Path) -> Any:
    for name in ("train", "test", "meta"):
        (folder / name).write_bytes(program)
    return read_cifar(folder, "train")


def older_weights(program: bytes, folder: Path) -> Any:
    head = pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    (folder / "a.pt").write_bytes(_OLDER + head + program + pickle.dumps([], 2))
    return read_tensors(folder / "a.pt")


READERS = pytest.mark.parametrize("reader", [cifar, older_weights])
Reader = Callable[[bytes, Path], Any]


class Runs:
    """Unpickled, it would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@READERS
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_of_a_hostile_file_runs(reader: Reader, protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    with pytest.raises(DataError):
        reader(pickle.dumps({"data": Runs(target), "a": torch.zeros(1)}, protocol), tmp_path)
    assert not target.exists()


@READERS
def test_a_deep_nest_crashes_nobody(reader: Reader, tmp_path: Path) -> None:
    """Its hash, its comparison or its text would need more stack than there is."""
    nest = b")" + b"\x85" * 100_000
    for program in (
        b"}" + nest + b"Ns.",
        b"]" + nest + b"a.",
        nest + b".",
        b"ccollections\nOrderedDict\n(](" + nest + b"N\x86etR.",
        b"ccollections\nOrderedDict\n" + nest + b"R.",
        b"c_codecs\nencode\n" + nest + b"R.",
        b"cnumpy\ndtype\n" + nest + b"R.",
        b"}" + nest + b"b.",
    ):
        with suppress(DataError):
            assert reader(b"\x80\x02" + program, tmp_path) == {}  # the attributes of a dict are not looked at


@READERS
def test_random_programs_raise_data_errors_only(reader: Reader, tmp_path: Path) -> None:
    pieces = [
        *(b"(", b"}", b"]", b")", b"N", b"\x88", b"\x85", b"\x86", b"\x87", b"t", b"u", b"s", b"a", b"e", b"R", b"b"),
        *(b"q\x00", b"h\x00", b"K\x00", b"K\x01", b"J\xff\xff\xff\xff", b"U\x01b", b"U\x02u1", b"Q"),
        b"cnumpy\nndarray\n",
        *(b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n", b"X\x01\x00\x00\x00a"),
        *(b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"X\x07\x00\x00\x00storage"),
        *(b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_parameter\n"),
    ]
    draw, refused = random.Random(2), 0
    for _ in range(800):
        program = b"".join(draw.choice(pieces) for _ in range(draw.randint(1, 30)))
        try:
            reader(b"\x80\x02" + program + b".", tmp_path)
        except DataError:
            refused += 1
    assert refused > 700


def test_a_tensor_of_a_thousand_axes_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    huge = b"\x8a\xfe" + b"\xff" * 253 + b"\x7f"
    axes = b"(" + huge * 1000 + b"t"
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000NK\x01tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + axes + axes + b"tR"
    with pytest.raises(DataError, match="1000 axes"):
        older_weights(b"\x80\x02}X\x01\x00\x00\x00a" + tensor + b"s.", tmp_path)


def test_a_storage_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    length = b"\x8a\x08" + struct.pack("<q", 2**60)
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000N" + length + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x01\x85K\x01\x85tR"
    with pytest.raises(DataError, match="larger than the file"):
        older_weights(b"\x80\x02}X\x01\x00\x00\x00a" + tensor + b"s.", tmp_path)
