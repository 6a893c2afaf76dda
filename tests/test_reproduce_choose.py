"""Settings chosen for a table's rows: all tried once where the table does not look, the best taken, nothing hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fedreel.reproduce as harness
from fedreel.config import Recipe, as_table, load_recipe
from fedreel.core.job import make_method, make_task
from fedreel.errors import Diverged, RecipeError
from fedreel.reproduce import reproduce
from fedreel.reproduce.choose import check_unset, further
from fedreel.reproduce.recognition import TABLES
from fedreel.reproduce.spec import Choose, Row, Scale, Table
from support.tiny import SETTINGS, cli

RULE = Choose("top1", {"data.seed": 1}, "another world")
CHOOSING = [
    (system, name, scale)
    for system, declared in sorted(harness.reproducible().items())
    for name, table in import_module(declared.tables).TABLES.items()
    for scale, size in table.scales.items()
    if size.choose is not None
]


class Tried:
    """A row's computation that knows how well each mu does on the world to choose on (1) and on that of the table (0),
    and notes what was asked of it. None: training diverges."""

    def __init__(self, worlds: Mapping[int, Mapping[float, float | None]]) -> None:
        self.worlds, self.asked = worlds, list[tuple[int, int, float]]()

    def __call__(self, recipe: Recipe) -> dict[str, float]:
        mu = recipe.method["mu"]
        self.asked.append((recipe.data.seed, recipe.seed, mu))
        score = self.worlds[recipe.data.seed][mu]
        if score is None:
            raise Diverged("it blew up")
        return {"top1": score + recipe.seed, "loss": -score}


def table(*rows: Row, rule: Choose | None = RULE, seeds: tuple[int, ...] = (0, 1)) -> Table:
    return Table(rows, ("top1",), {"smoke": Scale("recognition", seeds, choose=rule)}, factor=100.0)


def prox(compute: Tried, *values: float) -> Row:
    return Row("fedprox", {"method.name": "fedprox"}, compute=compute, grid={"method.mu": values})  # type: ignore[arg-type]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda made: monkeypatch.setattr(harness, "find_table", lambda system, name: made)


def test_a_row_takes_what_is_best_for_the_row_it_is_chosen_by(tmp_path: Path, use: Any) -> None:
    """Its own tries, in which another value would win, are not run."""
    model = Tried({1: {0.1: 0.2, 0.01: 0.6}, 0: {0.01: 0.3}})
    own = Tried({1: {0.1: 0.9, 0.01: 0.1}, 0: {0.01: 0.5}})
    first = prox(model, 0.1, 0.01)
    use(table(first, replace(prox(own, 0.1, 0.01), name="like it", chosen_by=first), seeds=(0,)))
    rows = reproduce("any", "table", out=tmp_path)["table"]["rows"]
    assert model.asked == [(1, 0, 0.1), (1, 0, 0.01), (0, 0, 0.01)]
    assert own.asked == [(0, 0, 0.01)]
    assert [row["chosen"] for row in rows] == [{"method.mu": 0.01}] * 2
    assert [row["metrics"]["top1"]["mean"] for row in rows] == pytest.approx([30.0, 50.0])


def test_the_best_of_another_world_is_used_for_all_seeds(tmp_path: Path, use: Any) -> None:
    compute = Tried({1: {0.1: 0.2, 0.01: 0.6, 1.0: 0.6}, 0: {0.1: 0.9, 0.01: 0.3, 1.0: 0.8}})
    use(table(prox(compute, 0.1, 0.01, 1.0)))
    for _ in range(2):  # the second time, all is there
        content = reproduce("any", "table", out=tmp_path)["table"]
        assert compute.asked == [(1, 0, 0.1), (1, 0, 0.01), (1, 0, 1.0), (0, 0, 0.01), (0, 1, 0.01)]
    (row,) = content["rows"]
    assert row["metrics"]["top1"]["mean"] == pytest.approx(80.0)  # 0.3 and 1.3; of equals the first
    assert row["chosen"] == {"method.mu": 0.01}
    assert [(t["settings"]["method.mu"], t["score"]) for t in row["tries"]] == [(0.1, 0.2), (0.01, 0.6), (1.0, 0.6)]
    said = "chosen on another world (data.seed=1) by top1 under seed 0: fedprox mu=0.01 among 0.1 | 0.01 | 1.0"
    assert said in content["notes"]
    assert json.loads((tmp_path / "table.json").read_text()) == content
    page = (tmp_path / "table.html").read_text()
    for text in (said, ">chosen<", ">mu=0.01<", "mu=1.0: 0.600"):
        assert text in page, text


@pytest.mark.parametrize(
    ("found", "asked", "best"),
    [
        ({0.1: 0.2, 0.3: 0.4, 1.0: 0.6, 3.0: None}, [0.1, 0.3, 1.0, 3.0], 1.0),
        ({0.1: 0.2, 0.3: 0.1, 0.03: 0.3, 0.01: 0.3}, [0.1, 0.3, 0.03, 0.01], 0.03),
        ({0.1: 0.2, 0.3: 0.1, 0.03: 0.1}, [0.1, 0.3, 0.03], 0.1),
        ({0.5: 0.1, 0.2: 0.2, 0.1: 0.4, 0.03: 0.3}, [0.5, 0.2, 0.1, 0.03], 0.1),
        ({0.1: 1, 0.3: 2, 1.0: 3, 3.0: 4, 10.0: 5, 30.0: 6}, [0.1, 0.3, 1.0, 3.0, 10.0, 30.0], 30.0),
    ],
)
def test_the_best_is_to_be_between_worse_ones(
    tmp_path: Path, use: Any, found: Mapping[float, float | None], asked: list[float], best: float
) -> None:
    compute = Tried({1: found, 0: {best: 0.5}})
    use(table(prox(compute, *asked[:2]), rule=replace(RULE, beyond=("method.mu",)), seeds=(0,)))
    for _ in range(2):  # the second time, all is there
        (row,) = reproduce("any", "table", out=tmp_path)["table"]["rows"]
        assert compute.asked == [*((1, 0, mu) for mu in asked), (0, 0, best)]
    assert row["chosen"] == {"method.mu": best}
    assert [t["settings"]["method.mu"] for t in row["tries"]] == asked


def test_beyond_a_grid_of_two_settings_all_of_the_other_one_are_tried() -> None:
    options = Row("fedprox", {}, grid={"method.mu": (0, 1), "train.lr": (0.01, 0.03)}).tries
    more = [{"method.mu": 0, "train.lr": 0.1}, {"method.mu": 1, "train.lr": 0.1}]
    assert further(options, {"method.mu": 1, "train.lr": 0.03}, ("train.lr",)) == more
    assert further(options, options[0], ()) == []
    assert further(options[:1], options[0], ("train.lr",)) == []  # a user wants this one


def test_less_may_be_better(tmp_path: Path, use: Any) -> None:
    compute = Tried({1: {0.1: 0.2, 0.01: 0.6}, 0: {0.1: 0.9, 0.01: 0.3}})
    for metric, higher, best in (("top1", False, 0.1), ("loss", False, 0.01), ("loss", True, 0.1)):
        use(table(prox(compute, 0.1, 0.01), rule=Choose(metric, {"data.seed": 1}, "there", higher)))
        (row,) = reproduce("any", "table", out=tmp_path)["table"]["rows"]
        assert row["chosen"] == {"method.mu": best}


def test_a_grid_of_two_settings_holds_all_pairs() -> None:
    row = Row("fedprox", {}, grid={"method.mu": (0, 1), "train.lr": (2, 3)})
    pairs = [(t["method.mu"], t["train.lr"]) for t in row.tries]
    assert pairs == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert Row("fedavg", {}).tries == []


def test_what_diverges_is_not_chosen_and_not_hidden(tmp_path: Path, use: Any) -> None:
    compute = Tried({1: {0.1: None, 0.01: 0.1}, 0: {0.1: 0.9, 0.01: None}})
    use(table(prox(compute, 0.1, 0.01), seeds=(0,)))
    for _ in range(2):
        content = reproduce("any", "table", out=tmp_path)["table"]
        assert compute.asked == [(1, 0, 0.1), (1, 0, 0.01), (0, 0, 0.01)]  # what has diverged is not run again
    (row,) = content["rows"]
    assert row["chosen"] == {"method.mu": 0.01}
    assert row["tries"][0]["score"] is None
    assert row["metrics"]["top1"] == {"mean": None, "sd": None, "n": 0, "values": [None]}
    assert any("among 0.1 | 0.01 (diverged: 0.1)" in text for text in content["notes"])
    assert "fedprox, seed 0: diverged, not in the mean (it blew up)" in content["notes"]
    assert "mu=0.1: diverged" in (tmp_path / "table.html").read_text()


def test_training_that_really_diverges_ends_a_cell_and_not_the_sweep(data: Path, tmp_path: Path, use: Any) -> None:
    rows = (Row("wild", {"train.lr": 1e30}), Row("tame", {}))
    use(Table(rows, ("top1",), {"smoke": Scale("recognition", (0,), SETTINGS)}))
    content = reproduce("any", "table", data=data, out=tmp_path, device="cpu")["table"]
    assert [row["metrics"]["top1"]["n"] for row in content["rows"]] == [0, 1]
    assert any(text.startswith("wild, seed 0: diverged") for text in content["notes"])


def test_without_a_rule_or_on_given_data_nothing_is_tried(data: Path, tmp_path: Path, use: Any) -> None:
    compute = Tried({0: {0.01: 0.5}})
    row = replace(prox(compute, 0.1, 0.2), settings={"method.name": "fedprox", "method.mu": 0.01})
    for made, source in ((table(row, rule=None, seeds=(0,)), None), (table(row, seeds=(0,)), data)):
        compute.asked.clear()
        use(made)
        content = reproduce("any", "table", data=source, out=tmp_path / str(bool(source)))["table"]
        assert compute.asked == [(0, 0, 0.01)]
        assert "chosen" not in content["rows"][0]
        assert harness.UNCHOSEN in content["notes"]


def test_a_user_cannot_set_what_is_chosen(tmp_path: Path) -> None:
    for settings, rows, said in (
        ({"train.lr": 1}, "", "train.lr is chosen for the row 'centralised'"),
        ({"method.mu": 1}, "fedprox", "method.mu is chosen for the row 'fedprox'"),
        ({"data.seed": 1}, "fedprox", "chosen under another data.seed"),
    ):
        with pytest.raises(RecipeError, match=said):
            reproduce("recognition", "methods", scale="small", rows=rows, set=settings, out=tmp_path / "t")
        words = [f"--set={key}={value}" for key, value in settings.items()]
        told = cli("reproduce", "recognition", "methods", "--scale", "small", "--rows", rows, *words)
        assert (told.code, said in told.err) == (2, True)
    assert not (tmp_path / "t").exists()


def test_one_of_the_values_narrows_the_grid(tmp_path: Path, use: Any) -> None:
    compute = Tried({1: {0.1: 0.9, 0.01: 0.1}, 0: {0.1: 0.5, 0.01: 0.4}})
    use(table(prox(compute, 0.1, 0.01), seeds=(0,)))
    content = reproduce("any", "table", set={"method.mu": 0.01}, out=tmp_path)["table"]
    assert compute.asked == [(0, 0, 0.01)]  # nothing is tried where there is no choice
    (row,) = content["rows"]
    assert row["chosen"] == {"method.mu": 0.01}
    assert row["tries"] == [{"settings": {"method.mu": 0.01}, "score": None}]
    assert any("fedprox mu=0.01 (not tried: there was no choice)" in text for text in content["notes"])
    assert "--set method.mu=0.01" in content["command"]
    with pytest.raises(RecipeError, match=r"one of 0\.1, 0\.01"):
        reproduce("any", "table", set={"method.mu": 0.02}, out=tmp_path)


def test_every_shared_method_gets_the_same_number_of_tries() -> None:
    rows = TABLES["methods"].rows_for(None)
    assert {row.name: len(row.tries) for row in rows} == dict.fromkeys((row.name for row in rows), 3)


def test_the_first_try_of_a_shared_method_is_what_it_has_anyway() -> None:
    """So a scale that chooses nothing runs the first values."""
    size = TABLES["methods"].scales["smoke"]
    for row in TABLES["methods"].rows_for(None):
        first = load_recipe(size.recipe, {**row.settings, **row.tries[0]})
        plain = load_recipe(size.recipe, row.settings)
        assert make_method(first) == make_method(plain), row.name
        assert as_table(first)["train"] == as_table(plain)["train"], row.name


@pytest.mark.parametrize(("system", "name", "scale"), CHOOSING)
def test_choosing_is_apart_and_every_try_is_a_recipe_of_its_own(system: str, name: str, scale: str) -> None:
    spec = harness.find_table(system, name)
    size, rule = spec.scales[scale], spec.scales[scale].choose
    for row in spec.rows_for(None):
        for seed in size.seeds:
            reported = load_recipe(size.recipe, harness._settings(spec, size, row, seed))
            apart = load_recipe(size.recipe, {**harness._settings(spec, size, row, seed), **rule.settings})
            assert reported != apart, row.name
        tries = [load_recipe(size.recipe, {**harness._settings(spec, size, row, 0), **tried}) for tried in row.tries]
        made = [(make_task(recipe), make_method(recipe), recipe.train, recipe.round) for recipe in tries]
        assert all(a != b for i, a in enumerate(made) for b in made[:i]), row.name


@pytest.mark.parametrize(
    ("table", "smaller", "full", "share"),
    [
        ("fsar table1", "medium", "paper", 1 / 5),
        ("cfedvs table2", "small", "paper", 1 / 2),
        ("cfedvs fig6", "small", "paper", 1 / 2),  # of fewer rounds
        ("fedvmr table1", "medium", "paper", 1 / 5),
        ("fedvmr table1", "medium", "activitynet", 1 / 5),
    ],
)
def test_at_full_scale_settings_are_chosen_as_at_a_smaller_one(
    table: str, smaller: str, full: str, share: float
) -> None:
    """By the same metric of the same part of the data, and in as much of the rounds: the rate falls as in the run."""
    rules = []
    for size in map(harness.find_table(*table.split()).scales.get, (smaller, full)):
        assert size is not None
        assert size.choose_given is not None
        run, tried = (
            load_recipe(size.recipe, {**size.settings, **size.given, **more})
            for more in ({}, size.choose_given.settings)
        )
        assert (run.data.validate, tried.data.validate) == (False, True)
        assert tried.round.rounds == share * run.round.rounds
        assert list(tried.train.milestones) == [share * round for round in run.train.milestones]
        rules.append((size.choose_given.metric, size.choose_given.where, size.choose_given.without))
    assert rules[0] == rules[1]


def test_what_a_rule_leaves_fixed_is_not_chosen(tmp_path: Path, use: Any) -> None:
    compute = Tried({1: {0.1: 0.2, 0.01: 0.6}, 0: {0.01: 0.5}})
    grid = {"method.mu": (0.1, 0.01), "train.epochs": (4, 1)}
    row = replace(prox(compute), grid=grid)
    use(table(row, rule=replace(RULE, fixed=("train.epochs",)), seeds=(0,)))
    (found,) = reproduce("any", "table", out=tmp_path / "a")["table"]["rows"]
    assert compute.asked == [(1, 0, 0.1), (1, 0, 0.01), (0, 0, 0.01)]
    assert found["chosen"] == {"method.mu": 0.01}
    reproduce("any", "table", set={"train.epochs": 7}, out=tmp_path / "b")  # it may be set like any other
    use(table(row, seeds=(0,)))
    with pytest.raises(RecipeError, match=r"train\.epochs is chosen"):
        reproduce("any", "table", set={"train.epochs": 7}, out=tmp_path / "c")


def test_there_is_a_table_that_chooses() -> None:
    assert ("recognition", "methods", "small") in CHOOSING


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("method.mu", 0.5, "method.mu is 0.1 in the row 'FedProx'"),
        ("method", "fedavg", "method.name is fedprox in the row 'FedProx'"),
        ("task.backbone.topology", "both", "task.backbone.topology is graph in the row 'ablation'"),
        ("task.backbone", "ctrgcn", "in the row 'ablation'"),
        ("method.mu", 0.1, ""),
        ("train.lr", 0.5, ""),
        ("task.length", 5, ""),
    ],
)
def test_what_makes_a_row_cannot_be_set(key: str, value: Any, refused: str) -> None:
    rows = (
        Row("FedProx", {"method.name": "fedprox", "method.mu": 0.1}),
        Row("ablation", {"task.backbone": {"name": "stgcn", "topology": "graph"}}),
    )
    size = Scale("fsar", (0,), over={key: value})
    if not refused:
        check_unset(rows, size)
        return
    with pytest.raises(RecipeError, match=re.escape(refused)) as caught:
        check_unset(rows, size)
    assert caught.value.where == f"--set {key}"


def by_loss(run: Path) -> dict[str, float]:
    return {"score": -json.loads((run / "summary.json").read_text())["metrics"]["loss"]}


def by_top1(run: Path) -> dict[str, float]:
    return {"score": json.loads((run / "summary.json").read_text())["metrics"]["top1"]}


def test_tables_that_share_tries_may_choose_by_different_measures_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two values each is best by one measure. Both are tried once, with both measures read off; then each table has
    a cell of its own."""
    ran: list[tuple[bool, float]] = []

    def run(recipe: str, folder: Path, *, set: dict[str, Any], **_: Any) -> None:
        mu = set["method.mu"]
        ran.append((set.get("data.validate", False), mu))
        folder.mkdir(parents=True)
        metrics = {"top1": mu, "loss": mu}
        (folder / "summary.json").write_text(json.dumps({"metrics": metrics, "complete": True}))

    row = Row("fedprox", {"method.name": "fedprox"}, grid={"method.mu": (0.1, 1.0)})
    rules = {f.__name__: Choose("score", {"data.validate": True}, "a part", derive=(f,)) for f in (by_loss, by_top1)}
    tables = {name: table(row, rule=rule, seeds=(0,)) for name, rule in rules.items()}
    monkeypatch.setattr("fedreel.api.run", run)
    monkeypatch.setattr(harness, "find_table", lambda system, name: tables[name])
    found = reproduce("any", *tables, out=tmp_path)
    assert [found[name]["rows"][0]["chosen"]["method.mu"] for name in tables] == [0.1, 1.0]
    assert ran == [(True, 0.1), (True, 1.0), (False, 0.1), (False, 1.0)]
