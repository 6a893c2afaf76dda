"""FedLID's tables as data: which rows there are, beside which the paper's numbers stand, and what is chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedreel.config import load_recipe
from fedreel.errors import DataError
from fedreel.reproduce import Sweep, _settings, for_data, wanted
from fedreel.reproduce.cells import DERIVED
from fedreel.reproduce.fedlid import TABLES
from fedreel.reproduce.fedlid_paper import (
    AHEAD,
    BEST,
    IID,
    LITE0,
    NON_IID,
    NONE,
    ONCE,
    RESNET18,
    SUPERVISED,
    printed,
)
from fedreel.reproduce.fedlid_rows import CHOICES, DRAWN, OPTIONS
from fedreel.reproduce.spec import Row


def given(folder: Path, *weights: str) -> Path:
    for name in ("clients", "server"):
        (folder / name).mkdir(parents=True)
    for name in weights:
        (folder / name).write_bytes(b"weights")
    return folder


def inits(table: str, data: Path | None) -> list[str]:
    return [*dict.fromkeys(row.setting["init"] for row in TABLES[table].rows_for(data))]


@pytest.mark.parametrize("table", ["table1", "table3", "table5", "fig3", "fig4", "ablation"])
def test_rows_begin_with_the_weights_that_are_given(table: str, tmp_path: Path) -> None:
    assert inits(table, None) == ["random"]
    assert inits(table, given(tmp_path / "without")) == ["random", LITE0]
    assert inits(table, given(tmp_path / "with", "resnet18-f37072fd.pth")) == ["random", LITE0, RESNET18]


@pytest.mark.parametrize(("weights", "stands"), [((), LITE0), (("resnet18.safetensors",), RESNET18)])
def test_printed_numbers_stand_beside_one_kind_of_initial_weights(
    weights: tuple[str, ...], stands: str, tmp_path: Path
) -> None:
    data = given(tmp_path / "data", *weights)
    for table in ("table1", "table3", "table5"):
        assert {row.setting["init"] for row in TABLES[table].rows_for(data) if row.paper} == {stands}
        assert not any(row.paper for row in TABLES[table].rows_for(None))


def test_two_files_of_weights_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than one file of weights"):
        TABLES["table1"].rows_for(given(tmp_path / "data", "resnet18-a.pth", "resnet18-b.pth"))


def test_rows_of_the_papers_compared_with_have_their_network_and_clients(tmp_path: Path) -> None:
    rows = [row for row in TABLES["table2"].rows_for(given(tmp_path / "data")) if "5 clients" in row.setting["split"]]
    assert [(row.name, row.paper) for row in rows] == [("FedSimCLR", {"probe": 34.18}), ("FedCA", {"probe": 39.47})]
    for row in rows:
        recipe = load_recipe("fedlid-paper", dict(row.settings))
        assert recipe.task["backbone"]["name"] == "resnet50"
        assert recipe.data.partition["num_partitions"] == 5
        for scale, width in (("smoke", 4), ("small", 16)):
            size = for_data(TABLES["table2"].scales[scale], TABLES["table2"], tmp_path / "data")
            network = load_recipe(size.recipe, _settings(TABLES["table2"], size, row, 0)).task["backbone"]
            assert (network["name"], network["width"]) == ("resnet50", width)


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("ablation", "private")])
def test_every_row_tries_the_same_values_of_what_it_has(table: str, tmp_path: Path) -> None:
    """A server's rate where the server trains, a temperature where views are told apart; nothing else."""
    spec, data = TABLES[table], given(tmp_path / "data")
    size = for_data(spec.scales["small"], spec, data)
    assert size.choose is not None
    assert size.choose.settings["data.validate"] is True
    for row in spec.rows_for(data):
        recipe = load_recipe(size.recipe, _settings(spec, size, row, 0))
        trains = recipe.server is not None and recipe.method.get("server") != "none"
        contrasts = recipe.task.get("objective") == "views" or (trains and recipe.method.get("server") != "labels")
        expected = {"server.lr": (1e-3, 1e-4)} if trains else {}
        expected |= {"task.temperature": (0.1, 0.5)} if contrasts else {}
        assert row.grid == expected, row.label
        assert recipe.train.lr == 1e-3, "clients' rate is the paper's everywhere"


def test_figures_are_made_of_the_tables_cells(tmp_path: Path) -> None:
    data = given(tmp_path / "data")
    for figure, table in (("fig3", "table1"), ("fig4", "table3")):
        cells = []
        for spec in (TABLES[figure], TABLES[table]):
            size = for_data(spec.scales["small"], spec, data)
            cells.append([load_recipe(size.recipe, _settings(spec, size, row, 0)) for row in spec.rows_for(data)])
        assert all(cell in cells[1] for cell in cells[0])
        assert len(cells[0]) == 6


def swept(data: Path, *tables: str) -> dict[str, Sweep]:
    sweeps = wanted("fedlid", *tables, scale="small", data=data, out=data / "out", rows="", seeds=None, over={})
    return {sweep.table: sweep for sweep in sweeps}


def test_fedca_with_few_labels_is_the_run_with_all_of_them(tmp_path: Path) -> None:
    """It looks at none: what differs is the probe."""
    sweeps = swept(given(tmp_path / "data"), "table2", "table4", "table5")
    rows = {(table, row.label): row for table, sweep in sweeps.items() for row in sweep.rows if row.name == "FedCA"}
    few = [label for table, label in rows if table == "table5"]
    assert len(few) == 4
    for label in few:
        (other,) = (table for table in ("table2", "table4") if (table, label) in rows)
        found = []
        for table in (other, "table5"):
            sweep, row = sweeps[table], rows[table, label]
            found.append(([cell.key for cell in sweep.tries(row)], sweep.cell(row, 0).key))
        assert found[0] == found[1]


def test_settings_are_chosen_once_for_each_kind_of_training_and_of_initial_weights(tmp_path: Path) -> None:
    """By the row that has most of it, with Dirichlet 1 and all labels: two rates, and two temperatures of contrasts."""
    sweeps = swept(given(tmp_path / "data"), "table1", "table2", "table3", "table4", "table5", "extra")
    kinds: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for sweep in sweeps.values():
        for row in sweep.rows:
            kind = BEST if row.name in SUPERVISED else "FedLID" if row.name == ONCE else row.name
            init = LITE0 if row.setting["init"] == LITE0 else "random"
            kinds.setdefault((kind, init), set()).add(tuple(cell.key for cell in sweep.tries(row)))
    assert {kind: [len(keys) for keys in found] for kind, found in kinds.items()} == {
        (name, init): [tries]
        for init in ("random", LITE0)
        for name, tries in ((NONE, 0), (BEST, 2), ("FedLID", 4), ("FedSimCLR", 2), ("FedCA", 4))
    }
    for sweep in sweeps.values():
        for row in sweep.rows:
            for tried in sweep.tries(row):
                recipe = load_recipe(sweep.size.recipe, dict(tried.settings))
                assert recipe.data.partition == {"name": "dirichlet", "num_partitions": 10, "alpha": 1.0}
                assert recipe.task.get("label_share", 1.0) == recipe.method.get("share", 1.0) == 1.0
                assert recipe.method.get("when") != "once"


def test_with_a_tenth_of_the_labels_clients_make_as_many_steps_as_in_the_paper(tmp_path: Path) -> None:
    """Two in an epoch, of 100 images as of its 450 to 500 in batches of 256."""
    (sweep,) = swept(given(tmp_path / "data"), "table5").values()
    for row in sweep.rows:
        recipe = load_recipe(sweep.size.recipe, _settings(sweep.spec, sweep.size, row, 0))
        few = row.name != "FedCA"
        assert recipe.task.get("label_share", 1.0) == (0.1 if few else 1.0)
        assert ((recipe.train.epochs, recipe.train.batch_size) == (10, 64)) == few


@pytest.mark.parametrize("choice", CHOICES)
def test_an_option_that_is_chosen_for_fedlid_is_its_run(choice: str, tmp_path: Path) -> None:
    sweeps = swept(given(tmp_path / "data"), "table1", "ablation")
    for init in ("random", LITE0):
        (option,) = (r for r in sweeps["ablation"].rows if r.name == choice and r.setting["init"] == init)
        setting = {"split": IID, "init": init}
        (fedlid,) = (r for r in sweeps["table1"].rows if r.name == "FedLID" and r.setting == setting)
        chosen = replace(fedlid, settings={**fedlid.settings, **OPTIONS[choice]})
        assert any(OPTIONS[choice].items() <= tried.items() for tried in fedlid.tries)
        keys = [replace(sweeps["table1"], rows=(chosen,)).cell(chosen, 3).key, sweeps["ablation"].cell(option, 3).key]
        assert keys[0] == keys[1]


def test_only_what_figures_draw_is_tested_on_the_way(tmp_path: Path) -> None:
    tables = ("table1", "table2", "table5", "ablation")
    for table, sweep in swept(given(tmp_path / "data"), *tables).items():
        for row in sweep.rows:
            drawn = row.name in (*DRAWN, *CHOICES) and "5 clients" not in row.label and table != "table5"
            every = _settings(sweep.spec, sweep.size, row, 0)["round.evaluate_every"]
            assert every == 2 if drawn else every > 10, row.label
            for tried in sweep.tries(row):
                recipe = load_recipe(sweep.size.recipe, dict(tried.settings))
                assert recipe.round.rounds == 3 < recipe.round.evaluate_every


def test_by_how_much_fedlid_is_ahead_is_that_of_its_own_setting(tmp_path: Path) -> None:
    trained = {("FedLID", IID): 0.5, (BEST, IID): 0.375, ("FedLID", "equal"): 0.75, (NONE, "equal"): 0.25}
    cells = []
    for number, ((name, split), value) in enumerate(trained.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / DERIVED).write_text(json.dumps({"accuracies": {"trained": value}}))
        cells.append((Row(name, {}, {"split": split}), folder))
    relate = TABLES["table1"].relate
    assert relate is not None
    assert relate(cells) == [{AHEAD: 0.125}, {AHEAD: 0.0}, {}, {}]
    assert printed(IID, "FedLID") == {"trained": 47.52, AHEAD: 3.54}
    assert printed(NON_IID, "FedLID") == {"trained": 48.88, AHEAD: 13.72}
    assert printed(IID, NONE) == {}


def test_each_option_changes_the_recipe_of_fedlid(tmp_path: Path) -> None:
    spec, data = TABLES["ablation"], given(tmp_path / "data")
    size = for_data(spec.scales["small"], spec, data)
    for init in ("random", LITE0):
        rows = [row for row in spec.rows_for(data) if row.setting["init"] == init]
        recipes = [load_recipe(size.recipe, _settings(spec, size, row, 0)) for row in rows]
        assert all(recipes.count(recipe) == 1 for recipe in recipes)
        assert {"FedLID", NONE} <= {row.name for row in rows}
