"""Rows that are compared at equal time: each is timed alone, before anything else is run, and gets rounds by that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedreel.reproduce as harness
from fedreel.errors import RecipeError
from fedreel.reproduce import find_table, reproduce
from fedreel.reproduce.cells import DERIVED, Cell
from fedreel.reproduce.equal_time import model_of, round_seconds, rounds_within
from fedreel.reproduce.plan import by_row, by_table, plan
from fedreel.reproduce.spec import Choose, Row, Scale, Table

SECONDS = {"slow": 0.9, "quick": 0.25}  # of a round
SLOW = Row("slow", {"method.name": "fedavg", "round.rounds": 30})
QUICK = Row("quick", {"method.name": "fedprox", "round.rounds": 30}, as_long_as="slow", grid={"method.mu": (0.1, 0.2)})
TRIED = Choose("top1", {"round.rounds": 5}, "shorter runs")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Names, seeds and rounds of the cells that were run, which cost nothing."""
    found: list[tuple[str, int, int]] = []

    def run(cell: Cell, device: str, quiet: bool) -> None:
        if cell.finished():
            return
        rounds = cell.settings["round.rounds"]
        name = cell.name.partition(",")[0]
        found.append((cell.name, cell.seed, rounds))
        cell.folder.mkdir(parents=True)
        (cell.folder / "summary.json").write_text(json.dumps({"metrics": {"top1": rounds / 1000}, "complete": True}))
        derived = {function.__name__: {"round seconds": SECONDS[name]} for function in cell.derive}
        (cell.folder / DERIVED).write_text(json.dumps(derived))

    monkeypatch.setattr(Cell, "run", run)
    return found


def use(monkeypatch: pytest.MonkeyPatch, timed: int = 8, **more: Any) -> None:
    size = Scale("recognition", (0, 1), timed=timed, **more)
    made = Table((SLOW, QUICK), ("top1", "rounds", "round seconds", "seconds"), {"smoke": size})
    monkeypatch.setattr(harness, "find_table", lambda system, name: made)


def means(content: dict[str, Any]) -> list[list[float]]:
    return [[cell["mean"] for cell in row["metrics"].values()] for row in content["rows"]]


def test_a_row_gets_the_rounds_that_fit_into_another_s_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
) -> None:
    """30 rounds of .9 s are 108 of .25 s."""
    use(monkeypatch, choose=TRIED)
    content = {}
    for _ in range(2):  # the second time, all is there
        content = reproduce("any", "table", out=tmp_path, cells=tmp_path / "kept.jsonl")["table"]
        timed, tried = [("quick", 0, 8), ("slow", 0, 8)], [("quick, mu=0.1", 0, 5), ("quick, mu=0.2", 0, 5)]
        assert ran == [*timed, *tried, ("slow", 0, 30), ("slow", 1, 30), ("quick", 0, 108), ("quick", 1, 108)]
    expected = [[0.030, 30, 0.9, 27.0], [0.108, 108, 0.25, 27.0]]
    assert means(content) == [pytest.approx(row) for row in expected]
    reproduce("any", "table", out=tmp_path / "elsewhere", cells=tmp_path / "kept.jsonl")
    assert len(ran) == 8, "times are kept with the other cells"


def test_the_row_whose_time_is_taken_is_timed_even_if_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
) -> None:
    use(monkeypatch)
    reproduce("any", "table", out=tmp_path, rows="quick", seeds=1)
    assert ran == [("quick", 0, 8), ("slow", 0, 8), ("quick", 0, 108)]


def test_a_plan_counts_what_is_to_be_timed_and_knows_the_rounds_that_come_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
) -> None:
    """Two rows are timed and two values tried; the cells of the row that is to be as long are left until then, and
    those that it had with other rounds are none of them."""
    use(monkeypatch, choose=TRIED)
    kept = tmp_path / "kept.jsonl"

    def left(where: str) -> list[list[str]]:
        found = plan("any", "table", out=tmp_path / where, cells=kept)
        return [line[:-1] for line in (*by_table(found), *by_row(found))]

    slow, quick = ["table", "slow", "0", "0", "0", "2"], ["table", "quick", "0", "4", "0", "2"]
    assert left("out") == [["table", "2", "0", "4", "0", "4"], slow, quick]
    reproduce("any", "table", out=tmp_path / "out", cells=kept)
    assert left("out") == left("elsewhere") == [["table", "2", "4", "0", "4", "0"]]
    text = kept.read_text().replace('"round seconds": 0.9', '"round seconds": 1.8')  # 216 rounds instead of 108
    kept.write_text(text)
    assert left("elsewhere") == [["table", "2", "4", "0", "2", "2"], ["table", "quick", "4", "0", "0", "2"]]


def test_nothing_is_timed_where_the_scale_does_not_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
) -> None:
    use(monkeypatch, timed=0)
    content = reproduce("any", "table", out=tmp_path, seeds=1)["table"]
    assert ran == [("slow", 0, 30), ("quick", 0, 30)]
    assert means(content) == [[0.03, None, None, None]] * 2


def test_a_round_s_seconds_are_the_median_without_the_first_rounds(tmp_path: Path) -> None:
    lines = [{"phase": "train", "round": k, "seconds": s} for k, s in enumerate([50, 40, 30, 20, 1, 9, 2])]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert round_seconds(tmp_path) == {"round seconds": 2}


def test_there_is_always_a_round() -> None:
    assert [rounds_within(10, seconds, 1.0) for seconds in (2.0, 0.26, 1e-6)] == [20, 3, 1]


def test_a_row_that_is_not_there_has_no_time() -> None:
    with pytest.raises(RecipeError, match="did you mean 'slow'"):
        model_of(Row("quick", {}, as_long_as="slo"), (SLOW,))


@pytest.mark.parametrize("data", [None, Path("videos")])
def test_mae_takes_the_time_of_speed_with_its_own_backbone_and_with_the_other(data: Path | None) -> None:
    table = find_table("fedvssl", "mae")
    every = table.rows_for(data)
    others = [model_of(row, every).setting["backbone"] for row in every if row.as_long_as]
    assert others == ["VideoMAE", "R3D"]
    assert table.scales["small"].timed > 0 == table.scales["smoke"].timed
