"""Recipes: to TOML and back without loss, and every wrong word answered by the nearest right one."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.config import (
    DataConfig,
    Recipe,
    RoundConfig,
    TrainConfig,
    TransferConfig,
    as_table,
    build,
    load_recipe,
    make_recipe,
    recipe_names,
    stated,
)
from fedreel.core.job import make_method, make_task
from fedreel.data.division import make_partitioner
from fedreel.errors import RecipeError, nearest
from fedreel.registry import BACKBONES, ENGINES, METHODS, TASKS, Registry
from support.recipes import WITHOUT_WEIGHTS

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
positive = st.floats(0, 1e6)
share = st.floats(0, 1)
whole = st.integers(0, 2**40)
values = st.recursive(
    text | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
recipes = st.builds(
    Recipe,
    system=text,
    description=text,
    seed=whole,
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    policy=text,
    track=st.lists(text, max_size=3).map(tuple),
    task=st.dictionaries(text, values, max_size=3).map(lambda d: {**d, "name": "recognition"}),
    method=st.sampled_from(sorted(METHODS)).map(lambda name: {"name": name, "mu": 0.1}),
    engine=st.just({"name": "local"}),
    data=st.builds(
        DataConfig,
        source=text,
        size=text,
        seed=whole,
        partition=st.dictionaries(text, values, max_size=3),
        test_share=st.floats(0, 0.99),
    ),
    train=st.builds(
        TrainConfig,
        epochs=whole.map(lambda n: n + 1),
        batch_size=whole.map(lambda n: n + 1),
        shuffle=st.booleans(),
        optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
        lr=positive,
        momentum=share,
        weight_decay=positive,
        clip_norm=positive,
        schedule=st.sampled_from(["constant", "cosine", "step"]),
        milestones=st.lists(whole, max_size=4).map(tuple),
        decay=st.floats(allow_nan=False),
    ),
    round=st.builds(
        RoundConfig,
        rounds=whole.map(lambda n: n + 1),
        fraction=share,
        clients=whole,
        evaluate_every=whole,
        min_answers=share,
        repeat=whole,
        time_limit=positive,
        max_change=st.floats(0),
    ),
    transfer=st.none()
    | st.builds(
        TransferConfig,
        up=st.sampled_from(["full", "bf16", "int8", "top-k"]),
        keep=st.floats(0.001, 1),
        feedback=st.booleans(),
        together=st.booleans(),
        down=st.sampled_from(["full", "changes"]),
    ),
)


@settings(max_examples=60, deadline=None)
@given(recipe=recipes)
def test_a_recipe_comes_back_from_its_file(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_text(tomli_w.dumps(as_table(recipe)), encoding="utf-8")
    assert load_recipe(path) == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_comes_along_can_be_built(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.system
    assert recipe.description
    assert "classes" not in recipe.task  # they are counted
    task = make_task(load_recipe(name, WITHOUT_WEIGHTS.get(name, ())))
    assert hasattr((replace(task, classes=2) if hasattr(task, "classes") else task).model(), "backbone")
    make_method(recipe)
    make_partitioner(recipe.data.partition)
    assert make_recipe(as_table(recipe)) == recipe


@pytest.mark.parametrize(
    ("table", "kind"), [(METHODS, "methods"), (TASKS, "tasks"), (ENGINES, "engines"), (BACKBONES, "backbones")]
)
def test_every_registered_name_leads_to_a_class(table: Registry, kind: str) -> None:
    for name in table.names():
        assert isinstance(table.lookup(name), type)
        assert table.name_of(table.lookup(name)) == name
    with pytest.raises(RecipeError, match=f"fedreel.{kind}"):
        table.lookup("no such thing")
    with pytest.raises(RecipeError, match="there is no"):
        table.lookup("os:system")  # a recipe cannot name code


def test_overrides_by_text_and_by_mapping_say_the_same() -> None:
    by_text = load_recipe(
        "recognition",
        [
            "seed=3",
            "train.lr = 1e-3",
            "train.milestones=[1, 2]",
            "data.source=/a b/c",
            "data.partition={name = 'iid', num_partitions = 2}",
            "description=1 = one",
        ],
    )
    by_mapping = load_recipe(
        "recognition",
        {
            "seed": 3,
            "train.lr": 1e-3,
            "train.milestones": (1, 2),
            "data.source": Path("/a b/c"),
            "data.partition": {"name": "iid", "num_partitions": 2},
            "description": "1 = one",
        },
    )
    assert by_text == by_mapping
    assert by_text.train.milestones == (1, 2)
    assert by_text.data.partition["num_partitions"] == 2
    assert by_text.data.source == "/a b/c"


def test_later_overrides_win_and_the_rest_stays() -> None:
    plain, changed = load_recipe("recognition"), load_recipe("recognition", ["train.lr=1", "train.lr=2"])
    assert changed.train.lr == 2.0
    assert isinstance(changed.train.lr, float)
    others = [f.name for f in fields(TrainConfig) if f.name != "lr"]
    assert [getattr(plain.train, n) for n in others] == [getattr(changed.train, n) for n in others]


def test_settings_of_the_default_engine_do_not_have_to_name_it() -> None:
    assert load_recipe("recognition", ["engine.workers=2"]).engine == {"name": "auto", "workers": 2}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"trian": {}}, "did you mean 'train'"),
    "inner key": ({"train": {"learning_rate": 1}}, "unknown key 'learning_rate'"),
    "value": ({"train": {"optimizer": "sdg"}}, "did you mean 'sgd'"),
    "type": ({"round": {"rounds": "many"}}, "expected: int"),
    "bool is no int": ({"round": {"rounds": True}}, "expected: int"),
    "float is no int": ({"seed": 1.5}, "expected: int"),
    "item": ({"train": {"milestones": [1, "x"]}}, "expected: int"),
    "section": ({"train": 3}, "expected: a section"),
    "method": ({"method": {"name": "fedpro"}}, "did you mean 'fedprox'"),
    "task": ({"task": {"name": "recognitoin"}}, "did you mean 'recognition'"),
    "engine": ({"engine": {"name": "locl"}}, "did you mean 'local'"),
    "no method": ({"method": {}}, "unknown method 'None'"),
    "device": ({"device": "cdua"}, "did you mean 'cuda'"),
    "rounds": ({"round": {"rounds": 0}}, "expected: 1 or more"),
    "fraction": ({"round": {"fraction": 1.1}}, "expected: 0 to 1"),
    "batch": ({"train": {"batch_size": 0}}, "batch_size is out of range"),
    "nan": ({"train": {"lr": float("nan")}}, "lr is out of range"),
    "seed": ({"seed": -1}, "seed is out of range"),
    "test share": ({"data": {"test_share": 1.0}}, "test_share is out of range"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str) -> None:
    change, said = WRONG[what]
    right: dict[str, Any] = {"task": {"name": "recognition"}, "method": {"name": "fedavg"}}
    make_recipe(right)
    with pytest.raises(RecipeError) as caught:
        make_recipe({**right, **change}, "my.toml")
    assert said in " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        ({"name": "dirchlet"}, "did you mean 'dirichlet'"),
        ({"name": ["iid"]}, "unknown partition"),
        ({}, "unknown partition 'None'"),
        ({"name": "iid"}, "the setting 'num_partitions' is missing"),
        ({"name": "iid", "num_partition": 2}, "did you mean 'num_partitions'"),
        ({"name": "iid", "num_partitions": 0}, "too small"),
    ],
)
def test_wrong_partitions_are_named(partition: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make_partitioner(partition)


def test_settings_that_do_not_fit_together_are_an_error_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match=r"\[method\] fedprox") as caught:
        make_method(load_recipe("recognition", {"method.name": "fedprox", "method.muu": 1}))
    assert "did you mean 'mu'?" in str(caught.value)
    with pytest.raises(RecipeError, match=r"tuple\[int, int, int, int\]"):
        build(TASKS.lookup("recognition"), {"backbone": {"blocks": [1, 1]}}, "[task]")
    with pytest.raises(RecipeError, match="frames is out of range"):
        build(TASKS.lookup("recognition"), {"frames": 0}, "[task]")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"train = {", "not valid TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "unknown task 'None'"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "my.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=said) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)


def test_a_wrong_setting_of_a_section_that_may_be_missing_is_told_as_of_any_other() -> None:
    assert load_recipe("recognition").transfer is None
    assert load_recipe("recognition", ["transfer.up=int8"]).transfer == TransferConfig(up="int8")
    with pytest.raises(RecipeError, match="'int4' is not a possible value") as caught:
        load_recipe("recognition", ["transfer.up=int4"])
    assert "did you mean 'int8'?" in str(caught.value)
    with pytest.raises(RecipeError, match="unknown key 'upp'"):
        load_recipe("recognition", ["transfer.upp=int8"])


def test_nearest_names_the_closest_or_all() -> None:
    assert nearest("fedprx", ["fedavg", "fedprox"]) == "did you mean 'fedprox'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "known: none"


def test_another_method_does_not_inherit_the_settings_of_the_recipes(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[task]\nname = "recognition"\n[method]\nname = "fedprox"\nmu = 0.5\n')
    assert load_recipe(path, ["method.weight_by=equal", "method.name=fedavg"]).method == {
        "name": "fedavg",
        "weight_by": "equal",
    }
    assert load_recipe(path, ["method.name=fedprox"]).method == {"name": "fedprox", "mu": 0.5}


def test_a_bare_name_stands_for_a_section(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "recognition"\nmethod = "fedprox"\n')
    assert load_recipe(path).method == {"name": "fedprox"}
    assert load_recipe(path, ["method.mu=0.5", "method=fedprox"]).method == {"name": "fedprox", "mu": 0.5}
    assert load_recipe("recognition", {"engine": "streams"}).engine == {"name": "streams"}
    with pytest.raises(RecipeError, match="did you mean 'fedprox'"):
        load_recipe(path, ["method=fedprx"])


def test_what_a_recipe_states_leaves_defaults_out() -> None:
    recipe = load_recipe("fsar", {"train.lr": 0.5, "round.mean_over": "all", "seed": 0})
    said = stated(recipe)
    assert said["train"]["lr"] == 0.5
    assert "mean_over" not in said["round"]
    assert "seed" not in said
    assert said["task"] == recipe.task
    assert make_recipe(said) == recipe
