"""Escaping, number formats and chart geometry, against hand-worked values."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fedreel.report.charts import Bar, Chart, Line, bar_chart, line_chart, sparkline
from fedreel.report.grid import heat_map
from fedreel.report.markup import data, duration, el, natural, number, score, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (12, "12"), (1234567, "1,234,567"), (0.12345, "0.123"), (12.346, "12.35"), (123.45, "123.5")),
        *((4567.8, "4,568"), (1.5e7, "15,000,000"), (2.5e12, "2.5e+12"), (0.00012, "0.00012"), (-0.5, "-0.500")),
        *((None, "–"), (math.nan, "not finite"), (-math.inf, "not finite")),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_scores_line_up_with_their_spread() -> None:
    assert [score(v) for v in (0, 1, 55, 0.5, 123)] == ["0.000", "1.000", "55.00", "0.500", "123.0"]
    assert score(54.213, 0.41) == "54.21 ± 0.41"


def test_durations_are_as_a_person_says_them() -> None:
    assert [duration(v) for v in (0.1234, 59.4, 81.5, 3600, 90061)] == [
        *("0.123 s", "59.4 s", "1 min 22 s", "1 h 0 min", "25 h 1 min")
    ]


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = el("b", '<&">')
    assert inner == "<b>&lt;&amp;&quot;&gt;</b>"
    assert el("p", inner, "<", None, [1, inner], title='"', hidden=True, id=None) == (
        f'<p title="&quot;" hidden>{inner}&lt;1{inner}</p>'
    )
    assert el("p", "a\x00\ud800") == "<p>a\N{REPLACEMENT CHARACTER}?</p>"
    assert "</script>" not in data({"x": "</script>&"})[: -len("</script>")]


def test_names_sort_as_people_count_and_long_ones_keep_both_ends() -> None:
    assert sorted(["a10", "a9", "b", "a", "9", "10"], key=natural) == ["9", "10", "a", "a9", "a10", "b"]
    assert short("abcdefghij", 6) == "abcd…j"
    assert short("abc", 6) == "abc"


def paths(html: str, class_: str) -> list[str]:
    return re.findall(rf'<path class="{class_}[^"]*" d="([^"]*)"', html)


def test_a_line_is_where_its_values_are() -> None:
    chart = line_chart(Chart("m", [Line("test", [0, 5, 10], [0.0, 0.5, 1.0])]))
    assert paths(chart, "thick s0") == ["M0 1000.0h0L500 500.0L1000 0.0"]  # the axis runs from 0 to 1
    labels = re.findall(r'<span style="(?:bottom|left):([\d.]+)%">([^<]*)</span>', chart)
    assert labels[:6] == [(f"{20 * k:.2f}", f"{0.2 * k:.1f}") for k in range(6)]
    assert labels[6:] == [("0.00", "round 0"), *[(f"{10.0 * k:.2f}", str(k)) for k in (2, 4, 6, 8, 10)]]


def test_a_hole_breaks_the_line_and_a_lone_value_is_a_dot() -> None:
    chart = line_chart(Chart("m", [Line("test", [0, 1, 2, 3, 4], [0.0, None, 1.0, None, 0.0])]))
    assert paths(chart, "thick s0") == ["M0 1000.0h0M500 0.0h0M1000 1000.0h0"]
    assert "2 value(s) were not finite" in chart


@pytest.mark.parametrize("y", [0.0, 1e-320, -1e299, 1e299, 5e-324])
def test_a_constant_line_has_an_axis(y: float) -> None:
    (path,) = paths(line_chart(Chart("m", [Line("test", [1, 2], [y, y])])), "thick s0")
    heights = [float(h) for h in re.findall(r" ([\d.]+)", path)]
    assert heights[0] == heights[1]
    assert 0 < heights[0] < 1000


def test_extremes_share_an_axis() -> None:
    (path,) = paths(line_chart(Chart("m", [Line("test", [1, 2], [-9e299, 9e299])])), "thick s0")
    assert [float(h) for h in re.findall(r" ([\d.]+)", path)] == pytest.approx([950, 50])


def test_bars_stack_to_the_total_and_average_when_there_are_many() -> None:
    chart = bar_chart("b", [Bar(1, 1), Bar(2, 2)], [("up", [3.0, 1.0]), ("down", [1.0, 3.0])])
    assert paths(chart, "bar s0") == ["M50.0 1000.0V250.0h400.0V1000.0ZM550.0 1000.0V750.0h400.0V1000.0Z"]
    assert paths(chart, "bar s1") == ["M50.0 250.0V0.0h400.0V250.0ZM550.0 750.0V0.0h400.0V750.0Z"]
    many = bar_chart("b", [Bar(r, r) for r in range(1, 501)], [("up", [1.0, 3.0] * 250)])
    assert "Each bar is the mean over 2 rounds." in many
    assert '"y":[2.0,2.0' in many


def test_sparkline_of_nothing_is_nothing() -> None:
    assert sparkline([], "x") == ""
    assert sparkline([None, math.nan], "x") == ""
    assert "<title>x</title>" in sparkline([1.0], "x")


def test_heat_shades_by_the_root_and_rasters_join_equal_neighbours() -> None:
    table = heat_map("t", ["a"], ["x", "y", "z"], np.array([[0, 25, 100]]))
    shades = re.findall(r'<td class="heat(\d)">([^<]*)</td>', table)
    assert shades == [("0", "·"), ("5", "25"), ("9", "100")]  # 9 * sqrt(1/4) = 4.5, rounded up
    counts = np.zeros((40, 31), dtype=np.int64)
    counts[2, 3:6] = 7
    raster = heat_map("t", [str(i) for i in range(40)], [str(i) for i in range(31)], counts)
    assert paths(raster, "heat9") == ["M3 2.5H6"]
