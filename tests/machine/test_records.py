"""JSON lines read back: whole, torn, and full of rubbish."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedreel.machine.records import Records


def read(path: Path, text: str) -> tuple[list[dict], list[int], bool]:
    path.write_text(text)
    records = Records(path)
    return list(records), records.bad, records.torn


def test_objects_come_in_order_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    assert read(tmp_path / "f", '{"a": 1}\n\n  \n{"a": 2}\n') == ([{"a": 1}, {"a": 2}], [], False)
    assert read(tmp_path / "f", "") == ([], [], False)


@pytest.mark.parametrize("rubbish", ["[1]", "null", "7", "{", "no json", "[" * 10_000, '{"a": 1} {"b": 2}', "\ufffd"])
def test_a_line_that_is_no_object_is_passed_over_and_numbered(tmp_path: Path, rubbish: str) -> None:
    assert read(tmp_path / "f", f'{{"a": 1}}\n{rubbish}\n{{"a": 2}}\n') == ([{"a": 1}, {"a": 2}], [2], False)


def test_a_torn_last_line_is_told_apart_from_a_bad_one(tmp_path: Path) -> None:
    assert read(tmp_path / "f", '{"a": 1}\n{"a": ') == ([{"a": 1}], [], True)
    assert read(tmp_path / "f", '{"a": 1}\n{"a": \n') == ([{"a": 1}], [2], False)
    assert read(tmp_path / "f", '{"a": 1}\n{"a": 2}') == ([{"a": 1}, {"a": 2}], [], False)  # whole, only its end is not


def test_bytes_that_are_no_text_do_not_stop_the_reader(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'\xff\xfe\n{"a": 1}\n')
    records = Records(tmp_path / "f")
    assert (list(records), records.bad) == ([{"a": 1}], [1])


def test_lines_are_numbered_while_they_are_read_and_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "f").write_text('{"a": 1}\nx\n{"a": 2}\n')
    records = Records(tmp_path / "f")
    assert [(records.number, record["a"]) for record in records] == [(1, 1), (3, 2)]
    assert [(records.number, record["a"]) for record in records] == [(1, 1), (3, 2)]
    assert records.bad == [2]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(Records(tmp_path / "none"))
