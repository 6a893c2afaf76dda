"""FedVSSL's tables: what they mean on given data, and that rows are chosen by one rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedreel.config import Recipe, load_recipe
from fedreel.errors import RecipeError
from fedreel.reproduce import _settings, find_table, for_data
from fedreel.reproduce.fedvssl import SCALES
from fedreel.reproduce.fedvssl_effort import relate
from fedreel.reproduce.fedvssl_paper import BEST, MOMENTUM
from fedreel.reproduce.plan import plan
from fedreel.reproduce.spec import Row, Table

FEDERATED = ("FedAvg", "Loss", "FedU", "FedVSSL 0, 0", "FedVSSL 0.9, 1")


def rows_on_data(name: str, scale: str, data: Path) -> dict[str, Recipe]:
    """The recipes of a table's rows on given data, as they are before anything is chosen."""
    table = find_table("fedvssl", name)
    return {
        row.label: load_recipe(SCALES[scale].recipe, settings(table, scale, row, data)) for row in rows(table, data)
    }


def rows(table: Table, data: Path) -> tuple[Row, ...]:
    return table.rows_for(data)


def settings(table: Table, scale: str, row: Row, data: Path) -> dict[str, Any]:
    return _settings(table, for_data(table.scales[scale], table, data), row, 0)


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Folders as they are laid out; nothing in this file reads the videos."""
    for path in ("pretrain/anna/jump/a.mp4", "downstream/ucf101/train/jump/b.mp4", "downstream/ucf101/test/jump/c.mp4"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_federated_rows_on_given_data_have_the_paper_s_optimiser(scale: str, videos: Path) -> None:
    found = rows_on_data("table3", scale, videos) | rows_on_data("table4", scale, videos)
    for name in FEDERATED:
        train = found[name].train
        assert (train.momentum, train.schedule, train.weight_decay, train.clip_norm) == (0, "constant", 1e-4, 40)
        assert train.epochs == 1


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_training_in_one_place_is_the_paper_s_too(scale: str, videos: Path) -> None:
    found = rows_on_data("table3", scale, videos)
    for name, rounds in (("centralised", 90), ("centralised, 30 %", 27)):
        train = found[name].train
        assert (train.momentum, train.schedule, train.weight_decay, train.clip_norm) == (0.9, "step", 1e-4, 40)
        assert (train.milestones, found[name].round.rounds) == ((30, 60), rounds)


def test_how_one_place_trains_may_be_changed_but_not_into_another_row(videos: Path, tmp_path: Path) -> None:
    def changed(rows: str, **to: Any) -> None:
        over = {key.replace("__", "."): value for key, value in to.items()}
        plan("fedvssl", "table3", scale="small", data=videos, out=tmp_path / "out", rows=rows, set=over)

    changed("centralised", train__batch_size=32, train__momentum=0.0, train__schedule="constant")
    changed("=centralised", round__rounds=180)
    with pytest.raises(RecipeError, match="'centralised' would be the row 'centralised, 30 %'"):
        changed("=centralised", round__rounds=27)
    with pytest.raises(RecipeError, match=r"round\.rounds is 27 in the row 'centralised, 30 %'"):
        changed("centralised", round__rounds=180)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_colours_are_brought_to_what_catch_the_patchs_authors_have(scale: str, videos: Path) -> None:
    for name in ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "fig5"):
        assert {recipe.task["norm"] for recipe in rows_on_data(name, scale, videos).values()} == {"imagenet"}


def test_every_row_that_learns_has_its_rate_chosen_among_as_many(videos: Path) -> None:
    for name in ("table1", "table2", "table3", "table4", "momentum", "pretexts", "fig2", "fig3", "fig4", "fig5"):
        for row in rows(find_table("fedvssl", name), videos):
            assert row.chosen_by is None or row.chosen_by.name in ("centralised", "FedAvg", BEST, MOMENTUM)
            assert len(row.grid.get("train.lr", ())) == (0 if row.name == "random weights" else 4)
            assert ("method.mu" in row.grid) == (row.name == "FedU")


def test_settings_are_chosen_on_held_out_clips_by_whole_runs(videos: Path) -> None:
    rule = SCALES["small"].choose_given
    assert rule is not None
    assert (rule.metric, rule.higher) == ("loss", False)
    for name in ("table1", "table3"):
        table = find_table("fedvssl", name)
        for row in rows(table, videos):
            whole = settings(table, "small", row, videos)
            tried = load_recipe("fedvssl", {**whole, **rule.settings_of(row)})
            assert tried.data.validate
            assert replace(tried, data=replace(tried.data, validate=False)) == load_recipe("fedvssl", whole)


def test_fedavg_with_momentum_has_a_table_of_its_own(videos: Path) -> None:
    """With every pretext of Table 1 and every split of Table 2."""
    by_name: dict[str, set[str]] = {}
    for name in ("table1", "table2"):
        for row in rows(find_table("fedvssl", name), videos):
            by_name.setdefault(row.name, set()).add(str(row.setting))
    assert MOMENTUM not in by_name
    own = {str(row.setting) for row in rows(find_table("fedvssl", "momentum"), videos) if row.name == MOMENTUM}
    assert own == by_name["FedAvg"]
    assert rows_on_data("momentum", "small", videos)[f"{MOMENTUM} pretext CtP"].train.momentum == 0.9


def test_claims_of_tables_1_and_2_are_made_of_fedavg_in_them_and_with_momentum_apart() -> None:
    for name in ("table1", "table2"):
        assert not any(MOMENTUM in (claim.better, claim.worse) for claim in find_table("fedvssl", name).claims)
    assert all(MOMENTUM in (claim.better, claim.worse) for claim in find_table("fedvssl", "momentum").claims)


def test_one_rate_is_chosen_for_each_kind_of_federated_row(videos: Path, tmp_path: Path) -> None:
    """By the tries of FedAvg for itself and Loss, by those of one mixture for all of FedVSSL's; for each pretext."""
    given: dict[str, Any] = {"scale": "small", "data": videos, "out": tmp_path / "out", "seeds": 1}
    tables = ("table1", "table2", "table3", "table4", "pretexts", "momentum")
    found = {row.label: {part.name for part in row.tries} for row in plan("fedvssl", *tables, **given)}
    kinds = {}
    for kind in ("FedAvg", BEST):
        kinds[kind, ""] = found[kind]
        kinds |= {(kind, pretext): found[f"{kind} pretext {pretext}"] for pretext in ("VCOP", "CtP")}
    assert len({frozenset(names) for names in kinds.values()}) == 6
    for label, names in found.items():
        name, _, pretext = label.partition(" pretext ")
        if "random" in label or name == "FedU" or "centralised" in name or MOMENTUM in name:
            continue
        kind = BEST if "FedVSSL" in name else "FedAvg"
        assert names == kinds[kind, pretext if (kind, pretext) in kinds else ""], label
    assert found["centralised, 30 %"] == found["centralised"] == found["centralised pretext Speed"]
    assert found[f"{MOMENTUM} split IID"] == found[f"{MOMENTUM} pretext Speed"]
    assert (
        len({name for names in found.values() for name in names}) == 4 * (3 + 3 + 3 + 3) + 12
    )  # FedU: a threshold, too


def test_the_paper_s_recipe_and_its_tables_divide_the_videos_alike(videos: Path) -> None:
    alone = load_recipe("fedvssl-paper").data.partition
    assert alone == {"name": "paired-classes", "classes_per_client": 8}
    assert {str(r.data.partition) for r in rows_on_data("table3", "paper", videos).values()} == {str(alone)}


def test_scales_with_claims_have_four_seeds() -> None:
    assert len(SCALES["small"].seeds) == 4


def test_rows_beside_mae_settled_and_tuned_longer_are_runs_of_the_other_tables(videos: Path, tmp_path: Path) -> None:
    """Nothing is chosen or run for them that is not for Table 4, or for Table 3; but mae's table chooses by shorter
    tries, and Speed is the same run if it comes to the same rate."""
    given: dict[str, Any] = {"scale": "small", "data": videos, "out": tmp_path / "out", "seeds": 1}
    others = {row.label: (row.tries, row.cells) for row in plan("fedvssl", "table3", "table4", **given)}
    beside = {row.label: (row.tries, row.cells) for row in plan("fedvssl", "mae", **given)}
    spec = {name: find_table("fedvssl", name) for name in ("mae", "table4")}
    speed, best = (
        settings(spec[name], "small", next(row for row in rows(spec[name], videos) if row.label == label), videos)
        for name, label in (("mae", "Speed backbone R3D"), ("table4", "FedVSSL 0.9, 0"))
    )
    assert load_recipe("fedvssl", speed) == load_recipe("fedvssl", best)
    assert beside["random weights backbone R3D"] == others["random weights"]
    settled = {row.label: (row.tries, row.cells) for row in plan("fedvssl", "settled", **given)}
    tuned = {row.label: (row.tries, row.cells) for row in plan("fedvssl", "tuned", **given)}
    assert (len(settled), len(tuned)) == (8, 4)
    assert (settled | tuned).items() <= others.items()


def test_figures_show_runs_of_the_tables_and_choose_by_their_tries(videos: Path, tmp_path: Path) -> None:
    """Fig. 4 reads models that are kept on the way, Fig. 5 how far clients move: neither is a reason to run anew."""
    some = "=centralised | =FedAvg | =FedVSSL 0.9, 0"
    given: dict[str, Any] = {"scale": "small", "data": videos, "out": tmp_path / "out", "seeds": 1, "rows": some}
    tables, figures = (
        [{part.name for part in (*row.tries, *row.cells)} for row in plan("fedvssl", *names, **given)]
        for names in (("table3", "table4"), ("table1", "fig2", "fig4", "fig5"))
    )
    assert len(figures) == 6 + 3 + 3 + 1  # Table 1 has two of them with three pretexts
    assert sum(names in tables for names in figures) == 2 + 3 + 3 + 1


def test_what_is_learned_in_one_place_is_learned_once_for_all_splits(videos: Path, tmp_path: Path) -> None:
    """The paper prints the same numbers for it in Tables 1, 2 and 3."""
    given: dict[str, Any] = {"scale": "small", "data": videos, "out": tmp_path / "out", "seeds": 1}
    (alone,) = plan("fedvssl", "table2", **given, rows="=centralised")
    (beside,) = plan("fedvssl", "table3", **given, rows="=centralised")
    assert (alone.tries, alone.cells) == (beside.tries, beside.cells)


def test_effort_is_measured_beside_the_run_in_one_place(tmp_path: Path) -> None:
    def cell(name: str, passes: float, curve: dict[int, float]) -> tuple[Row, Path]:
        (tmp_path / name).mkdir()
        found = {"passes": passes, **{f"pretext in round {at}": value for at, value in curve.items()}}
        (tmp_path / name / "derived.json").write_text(json.dumps({"effort": found}))
        return Row(name, {}), tmp_path / name

    centre = cell("centralised", 90.0, {45: 0.7, 90: 0.6})  # the target is where it ends, not its best
    sooner, never = cell("FedAvg", 27.0, {45: 0.5, 90: 0.61, 270: 0.8}), cell("FedU", 30.0, {45: 0.5})
    (tmp_path / "new").mkdir()
    found = relate([centre, sooner, never, (Row("new", {}), tmp_path / "new")])
    assert found[1] == {"saved": pytest.approx(0.7), "rounds": 90.0}
    assert found[2] == {"saved": pytest.approx(2 / 3)}
    assert found[3] == {}
    assert relate([sooner]) == [{}]
