"""CFed-VS's tables: which set is given, targets above chance, and differences paired by video."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedreel.reproduce as harness
from fedreel.config import load_recipe
from fedreel.errors import DataError, RecipeError
from fedreel.reproduce.cfedvs import METHODS, TABLES
from fedreel.reproduce.cfedvs_measures import SHARE, by_video, curves, relate, remark
from fedreel.reproduce.cfedvs_sets import sets_of
from fedreel.reproduce.choose import check_unset
from fedreel.reproduce.claims import judged
from fedreel.reproduce.spec import Row, Scale
from fedreel.tasks.summary.data import SUMME_CATEGORIES, TVSUM_FRAMES
from support import annotated
from support.shared import SHARED

NAMES = [name for names in SUMME_CATEGORIES.values() for name in names.split()]


def write(path: Path, names: list[str], width: int = 4) -> Path:
    content = {f"video_{i}": {**annotated.keys(i, width=width), "video_name": n} for i, n in enumerate(names)}
    return annotated.write(path, content)


def test_sets_are_known_and_the_proxy_is_of_the_other_where_features_agree(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", NAMES)
    (summe,) = sets_of(tmp_path)
    assert (summe.name, summe.usual["task.fragments"], summe.groups, summe.public) == ("SumMe", 4, 2, "")
    other = write(tmp_path / "b.h5", ["mine", "yours"])
    first, second = sets_of(tmp_path)
    assert (first.name, second.name) == ("SumMe", "b")
    assert (first.public, second.public) == (str(other), str(tmp_path / "a.h5"))
    write(tmp_path / "b.h5", ["mine", "yours"], width=5)
    assert [one.public for one in sets_of(tmp_path)] == ["", ""]
    assert len({*TVSUM_FRAMES}) == 50


@pytest.mark.parametrize("name", ["table1", "fig2", "fig7"])
def test_the_playgrounds_videos_are_cut_where_they_are_dealt_out(name: str) -> None:
    """It has three videos of its rarest category: of whole ones, four clients could not have any each."""
    rows = TABLES[name].rows_for(None)
    assert rows
    assert all(row.usual["task.fragments"] == 3 for row in rows)
    assert not any("task.fragments" in row.usual for row in TABLES["table2"].rows_for(None))


def division(row: Row) -> dict[str, Any]:
    """Who holds what: with the seed it makes the clients and their test videos."""
    settings = {**row.usual, **row.settings}
    return {key: settings.get(key) for key in ("data.partition", "task.fragments", "task.splits")}


@pytest.mark.parametrize("data", ["playground", "SumMe"])
def test_rows_of_a_setting_have_the_same_clients_and_tests(tmp_path: Path, data: str) -> None:
    """So that chance, the centralised model and FedAvg beside a row are those of its own test videos."""
    given = write(tmp_path / "a.h5", NAMES) if data == "SumMe" else None
    for name, spec in TABLES.items():
        rows = spec.rows_for(given)
        for row in rows:
            beside = [other for other in rows if other.setting == row.setting]
            assert all(division(other) == division(row) for other in beside), (name, row.label)
            if any(metric.startswith("rounds_to") for metric in spec.metrics):  # to targets between these two
                assert {"random", "centralised"} <= {other.name for other in beside}, (name, row.label)


def test_the_published_file_of_splits_is_used_and_the_others_are_named(tmp_path: Path) -> None:
    """Beside the data there may be others: with more videos than the set's own, or somebody's."""
    write(tmp_path / "a.h5", NAMES)

    def used() -> str:
        rows = [(row, []) for row in TABLES["table3"].rows_for(tmp_path)]
        assert len({row.settings.get("task.splits") for row, _ in rows}) == 1
        note, *_ = TABLES["table3"].remark(rows)  # type: ignore[misc]
        return note.partition("chose a frame")[2]

    assert used() == ""
    (tmp_path / "mine_summe_split.json").write_text("[]")
    assert used() == ", splits by mine_summe_split.json"
    (tmp_path / "summe_aug_splits.json").write_text("[]")
    with pytest.raises(DataError, match=r"mine_summe_split\.json, summe_aug_splits\.json") as caught:
        used()
    assert "summe_splits.json" in caught.value.hint
    assert TABLES["table2"].rows_for(tmp_path)  # which goes by no such file
    (tmp_path / "summe_splits.json").write_text("[]")
    assert used() == ", splits by summe_splits.json and not by mine_summe_split.json, summe_aug_splits.json"


def test_there_are_as_many_clients_as_parts_of_videos_are_enough_for(tmp_path: Path) -> None:
    """SumMe's videos in four parts each: thirty clients have three and more, of fourteen videos fifteen have."""
    for videos, clients in ((25, {10, 15, 20, 30}), (14, {10, 15}), (3, {10})):
        write(tmp_path / "a.h5", NAMES[:videos])
        assert {row.setting["clients"] for row in TABLES["fig7"].rows_for(tmp_path)} == clients


def test_claims_of_table1_are_made_of_its_divisions(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", NAMES)
    numbers = {"f1_clients": {"mean": 0.5, "sd": 0.1, "n": 2, "values": [0.4, 0.6]}}
    shown = [
        {"method": row.name, "setting": row.setting, "metrics": numbers, "paper": {}}
        for row in TABLES["table1"].rows_for(tmp_path)
    ]
    made = [(c["better"], c["worse"], c["settings"]) for c in judged(TABLES["table1"].claims, shown)]
    iid = {"clients": "IID"}
    assert made == [
        ("IID clients", "2 classes a client", [iid, {"clients": "2 of 3 classes"}]),
        ("IID clients", "1 class a client", [iid, {"clients": "1 of 3 classes"}]),
        ("centralised", "IID clients", [{}, {}]),
    ]


def test_printed_numbers_stand_beside_their_own_set_only(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", NAMES)
    rows = TABLES["table2"].rows_for(tmp_path)
    printed = {(r.name, r.setting["clients"]): r.paper for r in rows if r.paper}
    assert printed["CFed-VS", "1 of 3 classes"] == {"f1_clients": 48.20}
    assert len(printed) == 5 * 2
    for table in TABLES.values():
        assert {r.setting["set"] for r in table.rows_for(tmp_path)} == {"SumMe"}
    write(tmp_path / "a.h5", ["mine", "yours"])
    assert not any(r.paper for table in TABLES.values() for r in table.rows_for(tmp_path))


def test_the_paper_scale_keeps_the_recipes_width_and_the_sets_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", NAMES)
    spec = TABLES["table2"]
    size = harness.for_data(spec.scales["paper"], spec, tmp_path)
    for row in spec.rows_for(tmp_path):
        if row.compute is None:
            recipe = load_recipe(size.recipe, harness._settings(spec, size, row, 3))
            assert (recipe.task["width"], recipe.task["fragments"], recipe.data.seed) == (512, 4, 3)
            if "(oracle)" not in row.name:
                assert recipe.method.get("groups", 2) == 2, row.name


def test_a_setting_of_a_method_goes_to_the_rows_that_have_it(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", NAMES)
    spec = TABLES["fig5"]
    rows = spec.rows_for(tmp_path)
    size = Scale("cfedvs", (0,), over={"method.groups": 5})
    check_unset(rows, size)
    found = [load_recipe("cfedvs", harness._settings(spec, size, row, 0)).method for row in rows if not row.compute]
    assert [(m["name"], m.get("groups")) for m in found] == [
        ("ifca", 5),
        ("fedgroup", 5),
        ("cfedvs", 5),
        ("centralised", None),
    ]
    with pytest.raises(RecipeError, match=r"no row's method has the setting method\.grups"):
        check_unset(rows, Scale("cfedvs", (0,), over={"method.grups": 5}))
    with pytest.raises(RecipeError, match="must not undo what makes the row"):
        check_unset(TABLES["fig6"].rows_for(tmp_path), size)


def cell(folder: Path, last: float, curve: list[float], videos: dict[str, float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"metrics": {"f1_clients": last, "tau_clients": last}}))
    lines = [{"phase": "test", "round": i + 1, "metrics": {"f1_clients": f}} for i, f in enumerate(curve)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    derived = {by_video.__name__: videos, curves.__name__: curves(folder)}
    (folder / "derived.json").write_text(json.dumps(derived))
    return folder


def rows() -> dict[str, Row]:
    made: dict[str, Any] = {name: Row(name, METHODS[name]) for name in ("FedAvg", "CFed-VS", "IFCA", "centralised")}
    return {**made, "random": Row("random", {}, compute=lambda recipe: {})}


def test_targets_lie_above_chance_and_one_never_reached_counts(tmp_path: Path) -> None:
    """Random 50, centralised 60: half of the way is 55."""
    assert SHARE == 0.5
    of, tested = rows(), {"FedAvg": [0.51, 0.54, 0.56], "CFed-VS": [0.55, 0.5, 0.5], "IFCA": [0.54] * 3}
    cells = [(of[n], cell(tmp_path / n, c[-1], c, {})) for n, c in tested.items()]
    cells.append((of["centralised"], cell(tmp_path / "c", 0.6, [0.6], {})))
    cells.append((of["random"], cell(tmp_path / "r", 0.5, [], {})))
    assert [m.get("rounds_to_target") for m in relate(cells)] == [3.0, 1.0, 4.0, 1.0, None]
    worse = [*cells[:3], (of["centralised"], cell(tmp_path / "w", 0.49, [0.49], {})), cells[4]]
    assert not any("rounds_to_target" in m for m in relate(worse))


def test_differences_are_of_the_same_videos_and_a_video_counts_once(tmp_path: Path) -> None:
    """Seed 0 tests a and b, seed 1 tests b and c; b's differences are .3 and .1."""
    of = rows()
    scores = [
        ({"tau/a": 0.1, "tau/b": 0.0, "f1/a": 0.5}, {"tau/a": 0.2, "tau/b": 0.3, "f1/a": 0.25, "tau/x": 9.0}),
        ({"tau/b": 0.2, "tau/c": 0.4}, {"tau/b": 0.3, "tau/c": 0.7}),
    ]
    runs: dict[str, list[Path]] = {"FedAvg": [], "CFed-VS": []}
    for seed, both in enumerate(scores):
        for name, videos in zip(runs, both):
            runs[name].append(cell(tmp_path / f"{name}-seed{seed}", 0.0, [], videos))
    first = relate([(of[name], found[0]) for name, found in runs.items()])
    assert first[0] == {}
    assert first[1] == pytest.approx({"tau_gain": 0.2, "f1_gain": -0.25})
    (note,) = remark([(of[name], found) for name, found in runs.items()])
    assert "CFed-VS +0.200 ± 0.058 (3 videos)" in note  # .1, .2, .3


@pytest.mark.skipif(
    not (SHARED / "summary").exists(), reason="the TVSum and SumMe files are not here (set FEDREEL_DATA)"
)
def test_the_shared_files_are_known() -> None:
    summe, tvsum = sets_of(SHARED / "summary")
    assert (summe.name, summe.scored, summe.usual["task.standardise"]) == ("SumMe", False, True)
    assert (tvsum.name, tvsum.scored, "task.standardise" in tvsum.usual) == ("TVSum", True, False)
    assert summe.public == tvsum.public == ""
