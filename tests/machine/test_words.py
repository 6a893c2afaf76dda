"""Sizes and times as people read them."""

from __future__ import annotations

from fedreel.machine.words import clock, size


def test_sizes_have_three_digits() -> None:
    assert [size(v) for v in (0, 999, 1000, 999_600, 12_345_678, 4e15)] == [
        *("0 B", "999 B", "1 kB", "1 MB", "12.3 MB", "4e+03 TB")
    ]
    assert size(None) == "–"


def test_times_read_like_those_of_a_player() -> None:
    assert [clock(t) for t in (0, 9.96, 59.97, 61.04, 3599.99, 3661.5)] == [
        *("0:00.0", "0:10.0", "1:00.0", "1:01.0", "1:00:00.0", "1:01:01.5")
    ]
    assert [clock(t, 0) for t in (0, 59.6, 125, 3599.4, 3599.6)] == ["0:00", "1:00", "2:05", "59:59", "1:00:00"]
