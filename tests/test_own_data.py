"""A person's own folder: one option names it, classes are counted from it, and the run says what to type next."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

import fedreel
from fedreel.cli import app
from fedreel.cli.outcome import outcome
from fedreel.config import DataConfig, PrivacyConfig, Recipe, RoundConfig, read_toml
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.models.r3d import R3DConfig
from fedreel.models.resnet import ResNet10Config
from fedreel.registry import TASKS
from fedreel.tasks.image.task import Image
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.skeleton.task import SkeletonRecognition
from support.moves import make_sets
from support.tiny import SETTINGS, cli, sets, videos

RECOGNITION = Recognition(backbone=R3DConfig(width=2), size=16, frames=4)
IMAGE = Image(backbone=ResNet10Config(width=2), size=16)
SUMMARY = {"metrics": {}, "refused": {}, "rounds": 1, "wall_seconds": 1.0, "task": "image", "method": "fedca"}


def refused(*args: object) -> str:
    said = cli(*args)
    assert said.code == 2, said
    return said.err


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of two owners."""
    return videos(tmp_path_factory.mktemp("three") / "clips", classes=3)


def test_the_folder_is_all_that_is_said(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("run", "recognition", "--data", three, *sets({**SETTINGS, "round.rounds": 1}), "--quiet")
    assert said.code == 0, said
    run = Path("runs/recognition-clips-fedavg-0")
    assert read_toml(run / "recipe.toml")["task"]["classes"] == 3
    assert fedreel.load(run).model.head["fc"].out_features == 3  # type: ignore[index]
    lines = said.out.splitlines()
    assert lines[-3:] == [
        f"run:    {run}",
        f"report: {run.resolve() / 'report.html'} (open it in a browser)",
        f"next:   fedreel recognize CLIP --model {run}",
    ]
    clip = three / "owner0" / "class2" / "0.mp4"
    assert cli(*shlex.split(lines[-1].removeprefix("next:   fedreel ").replace("CLIP", str(clip)))).code == 0


def test_labels_that_are_named_are_counted_instead(three: Path, tmp_path: Path) -> None:
    named = [f"class{n}" for n in range(5)]
    fedreel.run("recognition", tmp_path / "run", data=three, set={**SETTINGS, "data.labels": named, "round.rounds": 1})
    assert read_toml(tmp_path / "run" / "recipe.toml")["task"]["classes"] == 5


@pytest.mark.parametrize("task", [RECOGNITION, IMAGE])
def test_at_real_sites_the_recipe_must_name_them(task: Any) -> None:
    assert task.for_data(DataConfig(labels=("a", "b", "c")), here=False).classes == 3
    with pytest.raises(RecipeError, match="a single site may lack some") as caught:
        task.for_data(DataConfig(source="nowhere"), here=False)
    assert "data.labels=" in caught.value.hint


def test_a_number_that_was_set_stays(three: Path) -> None:
    assert Recognition(classes=7).for_data(DataConfig(source="nowhere"), here=False).classes == 7


def test_where_views_are_learned_nothing_is_counted() -> None:
    task = replace(IMAGE, objective="views")
    assert task.for_data(DataConfig(source="nowhere"), here=True) is task
    task.model()


def test_a_model_before_the_count_is_an_error() -> None:
    for task in (RECOGNITION, IMAGE, SkeletonRecognition()):
        with pytest.raises(RecipeError, match="number of classes is not known"):
            task.model()


def test_the_longest_list_of_several_sets_counts(tmp_path: Path) -> None:
    make_sets(tmp_path)
    task = SkeletonRecognition(length=8, joints="kinect-v1")
    lists = task.population(DataConfig(source=str(tmp_path)), 0).describe()["sets"]
    assert task.for_data(DataConfig(source=str(tmp_path)), here=True).classes == max(
        len(told["classes"]) for told in lists.values()
    )
    with pytest.raises(RecipeError, match="longest list"):
        task.for_data(DataConfig(source=str(tmp_path)), here=False)


def test_one_class_cannot_be_told_apart(three: Path, tmp_path: Path) -> None:
    shutil.copytree(three / "owner0" / "class0", tmp_path / "clips" / "me" / "class0")
    with pytest.raises(DataError, match="fewer than two classes") as caught:
        RECOGNITION.for_data(DataConfig(source=str(tmp_path / "clips")), here=True)
    assert caught.value.found == "1 class"


def test_without_owners_the_error_says_what_to_type_and_that_works(three: Path, tmp_path: Path) -> None:
    command = ("run", "recognition", "--data", three / "owner0", *sets({**SETTINGS, "round.rounds": 1}), "--quiet")
    error = refused(*command, "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    ways = [words for words in shlex.split(error.split("next:")[1].replace("client's", "client")) if "data." in words]
    assert len(ways) == 2
    for number, way in enumerate(ways):
        out = tmp_path / str(number)
        assert cli(*command, "--set", way.rstrip(","), "--out", out).code == 0
    assert read_toml(tmp_path / "0" / "recipe.toml")["data"]["partition"]["num_partitions"] == 4
    assert read_toml(tmp_path / "1" / "recipe.toml")["data"]["owner"] == "me"


def test_a_folder_in_use_is_refused_before_the_data_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").touch()
    with pytest.raises(RunError, match="already holds a run"):
        fedreel.run("recognition", tmp_path / "run", data=tmp_path / "nowhere")
    with pytest.raises(DataError, match="does not exist"):
        fedreel.run("recognition", tmp_path / "other", data=tmp_path / "nowhere")


@pytest.mark.parametrize("section", [{}, {"objective": "views"}])
@pytest.mark.parametrize("task", TASKS)
def test_every_run_ends_with_a_command_that_exists(task: str, section: dict[str, str]) -> None:
    recipe = Recipe(task={"name": task, **section}, method={"name": "fedavg"})
    said = outcome(Path("runs/x y"), {**SUMMARY, "task": task}, recipe)[-1]
    program, name, *arguments = shlex.split(said.removeprefix("next:   "))
    assert (program, name == "export") == ("fedreel", bool(section))
    assert "runs/x y" in arguments
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined, arg-type]
    command.make_context(name, arguments)


def test_a_task_without_verbs_ends_with_its_report() -> None:
    said = outcome(Path("x"), {**SUMMARY, "task": "a package's"}, Recipe(task={}, method={"name": "fedavg"}))
    assert said[-1].startswith("report: ")


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({}, "nothing to test on"),
        ({"privacy": PrivacyConfig(noise=1.0)}, "nothing to test on"),
        ({"privacy": PrivacyConfig(noise=1.0, tests="off")}, 'not tested ([privacy] tests = "off")'),
        ({"round": RoundConfig(evaluate_every=0)}, "not tested (round.evaluate_every = 0)"),
    ],
)
def test_a_run_without_results_says_why(sections: dict[str, Any], why: str) -> None:
    recipe = Recipe(task={"name": "image"}, method={"name": "fedavg"}, **sections)
    assert outcome(Path("x"), {**SUMMARY, "task": "image", "metrics": {}}, recipe)[0].endswith(f" s, {why}")
