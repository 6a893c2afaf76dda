"""The report of a run whose server trains: its clients, their mean and the server, step by step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedreel.report import write
from fedreel.report.markup import finite
from fedreel.report.read import read_run
from support.report_pages import NASTY, ODD, Page, append, make_run, read_page

CLIENTS, MEAN, SERVER = "clients after training (mean)", "their mean", "after the server's training"
TITLE = "top1 of the clients and the server"


def server_round(r: int, *, own: bool = True, study: bool = True) -> list[dict[str, Any]]:
    """The records of one round in the order a server that trains writes them; accuracies are hundredths of r."""

    def metrics(top: float) -> dict[str, float]:
        return {"top1": top} | ({"top1_own": top + 0.5} if own else {})

    clients = {"a": {"trained_top1": r / 50}, "b": {"trained_top1": r / 25}}
    told = {"what": "views", "loss": 4.0 / r, "samples": 1500, "seconds": 2.0 * r}
    return [
        {"round": r, "phase": "trained", "metrics": metrics(3 * r / 100), "clients": clients},
        {"round": r, "phase": "averaged", "metrics": metrics(4 * r / 100), "clients": {"a": {"n": 9}}, "seconds": 1.0},
        *([{"round": r, "phase": "server", **told}] if study else []),
        {"round": r, "phase": "test", "metrics": metrics(r / 100), "clients": {"a": {"n": 9}}, "seconds": 1.0},
        {"round": r, "phase": "train", "loss": 1.0, "clients": ["a", "b"], "seconds": 20.0},
    ]


def charts_of(page: Page) -> list[str]:
    return [title.partition(" by round: ")[0] for title in page.titles if " by round: " in title]


def bars(page: Page) -> list[dict[str, list[float]]]:
    return [{line["n"]: line["y"] for line in p["lines"]} for p in page.payloads if p["kind"] == "bars"]


def test_each_step_of_a_round_is_a_line_of_its_own(tmp_path: Path) -> None:
    for r in (1, 2, 3):
        append(tmp_path, *server_round(r))
    page = read_page(write(tmp_path))
    assert {line["n"]: line["y"] for line in page.chart(TITLE)["lines"]} == {
        CLIENTS: [0.03, 0.06, 0.09],
        MEAN: [0.04, 0.08, 0.12],
        SERVER: [0.01, 0.02, 0.03],
    }
    own = page.chart("top1_own of the clients and the server")["lines"]
    assert [line["y"][0] for line in own] == [0.53, 0.54, 0.51]
    assert page.chart("loss of the server's training")["lines"][0]["y"] == [4, 2, 1.333]
    assert {"server": [2, 4, 6]} in bars(page)
    assert "does not fit the backbone that the server has trained; it recovers when clients train again" in page.text
    assert "trained in 3 rounds, on 1,500 samples of its own, to tell views of them apart. It took 12 s" in page.text
    assert "Other records" not in page.text


def test_the_other_curves_show_the_test_alone(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), *server_round(2))
    page = read_page(write(tmp_path))
    assert [(line["n"], line["y"]) for line in page.chart("top1")["lines"]] == [("test", [0.01, 0.02])]
    assert [line["n"] for line in page.chart("loss")["lines"]] == ["training"]


def test_a_client_that_only_these_records_name_is_listed(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), {"round": 1, "phase": "trained", "clients": {"c": {"trained_top1": 1.0}}})
    assert [row[0] for row in read_page(write(tmp_path)).rows if row and len(row[0]) == 1] == ["a", "b", "c"]


def test_seconds_of_a_round_are_split_into_clients_tests_and_server(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), *server_round(2))
    # 20 s a round: two tests of 1 s, 2 s and 4 s at the server, the rest is the clients'
    spent = {"training": [16, 14], "testing": [2, 2], "the server's training": [2, 4]}
    assert spent in bars(read_page(write(tmp_path)))


def test_a_single_test_among_many_rounds_is_a_dot_one_can_see(tmp_path: Path) -> None:
    append(tmp_path, *(server_round(r)[0] for r in range(1, 61)), *server_round(30)[1:])
    page = read_page(write(tmp_path))
    dots = [a for tag, a in page.tags if tag == "path" and "stroke-width" in (a.get("style") or "")]
    assert [a["class"] for a in dots] == ["thick s1", "thick s2"] * 2 + ["thick s0"]  # sixty points get none
    assert [(a["d"] or "").count("M") for a in dots] == [1] * 5


def test_without_accuracy_on_own_classes_there_is_no_chart_of_it(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1, own=False))
    assert charts_of(read_page(write(tmp_path))) == ["top1", "loss", TITLE, "loss of the server's training"]


def test_a_run_without_these_phases_has_no_such_section(tmp_path: Path) -> None:
    page = read_page(write(make_run(tmp_path / "run")))
    assert "#steps" not in {attributes.get("href") for _, attributes in page.tags}
    assert "The steps of a round" not in page.text
    assert charts_of(page) == ["top1", "loss", "lr"]
    assert list(bars(page)[1]) == ["training", "testing"]


def test_where_the_server_does_not_train_no_line_claims_it(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1, study=False), *server_round(2, study=False))
    page = read_page(write(tmp_path))
    assert [line["n"] for line in page.chart(TITLE)["lines"]] == [CLIENTS, MEAN, "the model tested"]
    assert "The server does not train in this run: the model tested is the mean of the clients' models" in page.text
    assert "server's training" not in page.text


def test_a_server_that_trained_once_is_not_said_to_train_in_every_round(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), *server_round(2, study=False), *server_round(3, study=False))
    page = read_page(write(tmp_path))
    assert page.chart(TITLE)["lines"][2]["n"] == "the model tested"
    assert "The server trained in round 1 only" in page.text
    assert page.chart("loss of the server's training")["lines"][0]["x"] == [1]


def test_an_unfinished_round_does_not_change_the_names_of_the_lines(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), *server_round(2), server_round(3)[0])
    lines = {line["n"]: line["x"] for line in read_page(write(tmp_path)).chart(TITLE)["lines"]}
    assert lines == {CLIENTS: [1, 2, 3], MEAN: [1, 2], SERVER: [1, 2]}


def test_records_of_the_server_alone_make_its_charts_alone(tmp_path: Path) -> None:
    append(tmp_path, {"round": 4, "phase": "server", "what": "labels", "loss": 0.5})
    page = read_page(write(tmp_path))
    assert charts_of(page) == ["loss of the server's training"]
    assert "The server trained in round 4 only, on data of its own, to learn their labels." in page.text
    assert bars(page) == []


def test_after_a_resume_the_later_record_of_the_server_counts(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), *server_round(2), {"round": 2, "phase": "server", "loss": 0.25, "seconds": 7})
    page = read_page(write(tmp_path))
    assert page.chart("loss of the server's training")["lines"][0]["y"] == [4, 0.25]
    assert {"server": [2, 7]} in bars(page)


def test_a_loss_of_the_server_that_is_no_number_is_a_hole(tmp_path: Path) -> None:
    append(tmp_path, *server_round(1), {"round": 2, "phase": "server", "loss": math.nan, "seconds": "long"})
    append(tmp_path, {"round": 3, "phase": "server"})
    page = read_page(write(tmp_path))
    assert page.chart("loss of the server's training")["lines"][0]["y"] == [4, None, None]
    assert "2 value(s) were not finite" in page.text
    assert {"server": [2, 0, 0]} in bars(page)


def test_records_that_hold_nothing_make_a_page_that_says_so(tmp_path: Path) -> None:
    append(tmp_path, {"round": 1, "phase": "trained"}, {"round": 1, "phase": "averaged", "metrics": None})
    page = read_page(write(tmp_path))
    assert "The steps of a round" in page.text
    assert "No value was recorded." in page.text


@pytest.mark.parametrize("phase", ["trained", "averaged", "server"])
def test_every_field_of_these_records_may_be_odd(tmp_path: Path, phase: str) -> None:
    good = "".join(json.dumps(record) + "\n" for r in (1, 2) for record in server_round(r))
    record = next(record for record in server_round(2) if record["phase"] == phase)
    odd = [*ODD, 10**400, {"top1": 10**400}, {"a": {"trained_top1": None}}]
    for key in record:
        (tmp_path / "metrics.jsonl").write_text(good)
        append(tmp_path, *({**record, key: value} for value in odd))
        page = read_page(write(tmp_path))
        assert page.chart(TITLE)["lines"][2]["y"] == [0.01, 0.02]  # what was read well before is still there


def test_names_in_these_records_are_escaped(tmp_path: Path) -> None:
    clients = {NASTY: {NASTY: 0.5}}
    append(tmp_path, *server_round(1))
    for phase in ("trained", "averaged", "test"):
        append(tmp_path, {"round": 1, "phase": phase, "metrics": {NASTY: 1}, "clients": clients})
    append(tmp_path, {"round": 1, "phase": "server", "what": NASTY, "loss": 1})
    page = read_page(write(tmp_path))  # markup that got through would be a second script, or break the nesting
    assert NASTY in page.text
    assert NASTY in read_run(tmp_path).clients


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_too_large_for_a_float_is_no_number_to_show(sign: int) -> None:
    assert finite(sign * 10**400) is None
    assert finite(sign * 10**20) == sign * 1e20
