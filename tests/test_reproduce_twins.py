"""What a user may set in the rows of tables, and what would make a row another one under its old name."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import fedreel.reproduce as harness
from fedreel.config import read_setting
from fedreel.errors import RecipeError
from fedreel.reproduce.choose import leaves
from fedreel.reproduce.fsar import METHODS, NETWORKS
from fedreel.reproduce.spec import Row, Scale, Table
from fedreel.reproduce.twins import check_apart
from fedreel.tasks.summary.data import TVSUM_FRAMES

STORED = sorted((Path(__file__).parent.parent / "docs" / "tables").glob("*.json"))
COMMANDS = {path.stem: command for path in STORED if "--set" in (command := json.loads(path.read_text())["command"])}
TABLES = [
    (system, name)
    for system, declared in sorted(harness.reproducible().items())
    for name in import_module(declared.tables).TABLES
]


def asked(table: str, rows: str, over: Mapping[str, Any], data: Path | None = None, scale: str = "smoke") -> None:
    """Raise where these settings are refused; nothing is run."""
    system, *tables = table.split()
    out = Path("not-written")
    harness.wanted(system, *tables, scale=scale, data=data, out=out, rows=rows, seeds=None, over=over)


@pytest.mark.parametrize(
    ("table", "rows", "key", "value", "refused"),
    [
        ("fedvmr table1", "=FedVMR", "method.name", "fedavg", "method.name is fedvmr in the row 'FedVMR'"),
        ("fsar table1", "=FSAR", "method", "fedavg", "method.name is fsar in the row 'FSAR network ST-GCN'"),
        ("fsar table1", "=FSAR & =network ST-GCN", "task.backbone", "ctrgcn", "task.backbone.name is stgcn in the row"),
        (
            "fedlid table1",
            "=FedLID",
            "task.backbone.init",
            "w.pth",
            "is one that leaves task.backbone.init alone",
        ),
        ("cfedvs table2", "CFed-VS", "data.seed", 3, "every run of the table has its own data.seed"),
        ("fsar table1", "=FSAR", "seed", 3, "every run of the table has its own seed"),
        ("fsar fig9", "=2 blocks & all", "method.blocks", 0, "is one that leaves method.blocks alone"),
        ("cfedvs fig6", "=2 groups", "method.groups", 3, "method.groups is 2 in the row '2 groups clients owners'"),
    ],
)
def test_what_is_said_of_a_row_cannot_be_set(
    table: str, rows: str, key: str, value: Any, refused: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=re.escape(refused)) as caught:
        harness.reproduce(*table.split(), rows=rows, set={key: value}, out=tmp_path / "out")
    assert caught.value.where == f"--set {key}"
    assert not (tmp_path / "out").exists()


PLAIN_AGM = {"method.lambda_": 0, "method.tau": 1, "method.mu": 0}


@pytest.mark.parametrize(
    ("table", "rows", "over", "other", "there"),
    [
        ("fsar table1", "=FSAR", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar fig2", "", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar fig5", "", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar table2", "", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar table4", "", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar fig7", "=FSAR", {"method.blocks": 0}, "FSAR without MKD", "fig7"),
        ("fsar fig10", "", {"task.backbone.topology": "graph"}, "FSAR without ATS network ST-GCN", "table1"),
        ("fsar table2", "", {"task.backbone.topology": "graph"}, "FSAR without ATS network ST-GCN", "table1"),
        ("fsar table1", "=FSAR, mean over grains", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar table1", "=FSAR, equal weights", {"method.blocks": 0}, "FSAR without MKD network ST-GCN", "table1"),
        ("fsar table1", "=FedProx", {"method.mu": 0}, "vanilla network ST-GCN", "table1"),
        ("fsar table1", "=FedAGM", PLAIN_AGM, "vanilla network ST-GCN", "table1"),
        ("fsar table1", "=MOON", {"method.mu": 0}, "vanilla network ST-GCN", "table1"),
        ("fsar table1", "=MOON with a projection", {"method.mu": 0}, "vanilla with a projection network", "table1"),
        ("cfedvs table2", "=FedProx", {"method.mu": 0}, "FedAvg clients owners", "table2"),
        ("cfedvs table2", "=FedAvg", {"method.weight_by": "frames"}, "FedAvg, frames clients owners", "table2"),
        ("cfedvs table2", "=CFed-VS", {"method.groups": 1}, "FedAvg, frames clients owners", "table2"),
        ("cfedvs fig5", "", {"method.grouping": "random"}, "grouped at random (control) clients owners", "table2"),
        ("cfedvs fig6", "", {"method.grouping": "random"}, "grouped at random (control) clients owners", "table2"),
        ("cfedvs fig6", "=4 groups", {"method.grouping": "random"}, "grouped at random (control) clients", "table2"),
        ("cfedvs fig7", "", {"method.grouping": "random"}, "grouped at random (control) clients owners", "table2"),
        ("cfedvs fig7", "clients 20", {"method.grouping": "random"}, "grouped at random (control) clients", "table2"),
        ("cfedvs fig7", "", {"method.share": "none"}, "CFed-VS, nothing shared clients owners", "table2"),
        ("fedvmr table1", "=FedVMR", {"method.lambda_": 0}, "FedVMR without the gap loss", "table1"),
        ("fedvmr fig2", "", {"method.lambda_": 0}, "FedVMR without the gap loss", "table1"),
        ("fedvmr table1", "=FedVMR", {"method.groups": 12}, "FedVMR without groups", "table1"),
        ("fedvmr table1", "=FedVMR", {"method.groups": 40}, "FedVMR without groups", "table1"),
        ("fedvmr fig2", "", {"task.use_video": False}, "query only, centralised", "table1"),
        ("fedvmr heads", "", {"task.use_video": False}, "query only, centralised", "table1"),
        ("fedvmr table2", "", {"method.weight_by": "samples"}, "FedVMR without c-validation", "table1"),
        ("fedvmr table2", "=2 groups", {"method.weight_by": "samples"}, "FedVMR without c-validation", "table1"),
        ("fedlid table1", "=FedLID", {"method.server": "labels"}, "supervised server, 100 % split", "table1"),
        ("fedlid table1", "once", {"method.server": "none"}, "no server training split", "table1"),
        ("fedlid table1", "=FedLID", {"task.anchor": "raw"}, "anchor is the image itself split", "ablation"),
        ("recognition methods", "=fedagm", PLAIN_AGM, "fedavg", "methods"),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"round.rounds": 3, "description": "a try"}], ids=["alone", "beside others"])
def test_a_row_cannot_be_made_another(
    table: str, rows: str, over: dict[str, Any], other: str, there: str, beside: dict[str, Any]
) -> None:
    """Whatever else is set, and if the other row is in another table."""
    with pytest.raises(RecipeError, match=re.escape(f"would be the row '{other}")) as caught:
        asked(table, rows, {**beside, **over})
    assert caught.value.where == f"--set {', '.join(over)}"
    assert f"take the other row: {there} --rows '={other.split(' network ')[0].split(' clients')[0][:8]}" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("table", "rows", "over"),
    [
        ("fsar table1", "=FSAR", {"method.blocks": 1}),
        ("fsar table1", "=FSAR", {"method.lambda_": 0.5}),
        ("fsar table1", "=FSAR", {"method.kd": 2.0}),
        ("fsar table1", "=FedAGM", {"method.lambda_": 0, "method.tau": 1}),  # it still holds clients
        ("fsar table1", "", {"round.rounds": 1, "train.lr": 0.03, "train.epochs": 2}),
        ("fsar table3", "", {"round.rounds": 1, "train.epochs": 2}),
        ("fsar fig9", "", {"method.lambda_": 0.5}),
        ("fedvmr table1", "=FedVMR", {"method.lambda_": 10.0}),
        ("fedvmr table1", "=FedVMR", {"method.groups": 4}),
        ("fedvmr table2", "", {"method.lambda_": 10.0}),
        ("cfedvs table2", "=CFed-VS", {"method.groups": 2}),
        ("cfedvs table2", "FedAvg", {"task.summarizer": "vslstm"}),
        ("fedlid table1", "=FedLID", {"task.temperature": 0.5}),  # one of the row's own values
        ("fedlid table1", "", {"server.epochs": 3, "train.epochs": 2}),
        ("fedlid ablation", "=FedLID", {"task.temperature": 0.3}),
        ("fedvssl fig5", "", {"task.pretext": "ctp"}),
        ("recognition few", "=clips", {"task.backbone.tune": "lora"}),
        ("recognition methods", "", {"round.rounds": 3}),
    ],
)
def test_a_row_can_be_tried_with_what_does_not_make_another(table: str, rows: str, over: dict[str, Any]) -> None:
    asked(table, rows, over)


@pytest.mark.parametrize(("system", "table"), TABLES)
def test_no_row_refuses_itself(system: str, table: str) -> None:
    """Neither as it is, nor with what only says something of it, nor with its own settings once more."""
    spec = harness.find_table(system, table)
    asked(f"{system} {table}", "", {})
    asked(f"{system} {table}", "", {"description": "a try"})
    size = harness.for_data(spec.scales["smoke"], spec, None)
    tables = import_module(harness.reproducible()[system].tables).TABLES
    for row in spec.rows_for(None):
        if row.compute is None:
            own = {key: value for key, value in leaves(row.settings).items() if value is not None}
            check_apart(table, [row], spec, replace(size, over=own), None, tables)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data of the names in commands, with as much in them as rows depend on."""
    root = tmp_path_factory.mktemp("given")
    (root / "moments").mkdir()
    (root / "moments" / "charades_sta_test.txt").write_text("A 1 2##x.\n")
    (root / "images").mkdir()
    (root / "videos" / "pretrain" / "anna" / "jump").mkdir(parents=True)
    (root / "videos" / "pretrain" / "anna" / "jump" / "a.mp4").write_bytes(b"")
    with h5py.File(root / "tvsum50_effnetlite0.h5", "w") as file:
        for i, frames in enumerate(TVSUM_FRAMES):
            what = {"n_frames": frames, "features": np.eye(2), "picks": np.arange(2) * 15}
            for name, value in what.items():
                file[f"video_{i}/{name}"] = value
    return {path.name: path for path in root.iterdir()}


@pytest.mark.parametrize("stem", COMMANDS)
def test_the_commands_of_stored_tables_are_accepted(
    stem: str, given: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for_data = harness.for_data  # what data ask for beyond that plays no part here
    monkeypatch.setattr(harness, "for_data", lambda size, spec, data: for_data(size, replace(spec, adapt=None), data))
    words = shlex.split(COMMANDS[stem])
    asked_for = {word: words[i + 1] for i, word in enumerate(words) if word in ("--scale", "--data", "--rows")}
    over = dict(read_setting(words[i + 1]) for i, word in enumerate(words) if word == "--set")
    data = given[asked_for["--data"]] if "--data" in asked_for else None
    assert over
    asked(" ".join(words[2:4]), asked_for.get("--rows", ""), over, data, asked_for["--scale"])


def test_what_is_said_by_itself_goes_over_what_a_table_says() -> None:
    """In the row 'vanilla' of every network, whichever comes first."""
    for network in NETWORKS.values():
        assert leaves({**METHODS["vanilla"], **network})["task.backbone.topology"] == "graph"


def test_rows_of_other_recipes_and_rows_that_are_computed_are_no_twins() -> None:
    size = Scale("recognition", (0,), over={"method.mu": 0.0})
    prox = Row("prox", {"method.name": "fedprox"})
    computed = Row("avg", {"method.name": "fedavg"}, compute=lambda recipe: {})
    ours = Table((prox, computed), ("top1",), {"smoke": size})
    theirs = Table((replace(computed, compute=None),), ("top1",), {"smoke": replace(size, recipe="clips")})
    check_apart("ours", [prox], ours, size, None, {"theirs": theirs})
    with pytest.raises(RecipeError, match="'prox' would be the row 'avg'"):
        check_apart("ours", [prox], ours, size, None, {"theirs": replace(theirs, scales={"smoke": size})})
