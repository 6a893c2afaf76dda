"""The Python API: running on good and bad data, and loading what came of it, whole or broken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fedreel
from fedreel.config import load_recipe
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.runs.reading import read_metrics
from fedreel.tasks.vision.clips import ClipPopulation, open_clips
from support.tiny import SETTINGS, cli, sets


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run. Tests that change it take a copy."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "run"
    fedreel.run("recognition", out, set={**SETTINGS, "data.source": data})
    return out


def test_the_report_is_written_when_a_run_ends_and_then_left_alone(finished: Path, data: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    page = out / "report.html"
    assert "<html" in page.read_text()[:500]

    def again() -> str:
        fedreel.run("recognition", out, set={**SETTINGS, "data.source": data}, resume=True)
        return page.read_text()

    page.write_text("mine")
    assert again() == "mine"
    drawn_halfway = (out / "summary.json").stat().st_mtime - 10
    os.utime(page, (drawn_halfway, drawn_halfway))
    assert "<html" in again()[:500]


def settings_with(source: Path, **more: Any) -> dict[str, Any]:
    return {**SETTINGS, "data.source": source, **more}


def test_broken_videos_are_skipped_and_counted(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "owner0" / "class0" / "0.mp4").write_bytes(b"this is no video")
    (tmp_path / "data" / "owner1" / "class1" / "2.mp4").write_bytes(b"")
    fedreel.run("recognition", tmp_path / "run", set=settings_with(tmp_path / "data"))
    row = next(read_metrics(tmp_path / "run", "partition"))
    assert row["broken"] == 2
    assert sum(n for part in ("train", "test") for counts in row[part].values() for n in counts) == 10


def test_only_broken_videos_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data" / "me" / "wave" / "0.mp4"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is no video")
    with pytest.raises(DataError, match="none of the clips can be read as video") as caught:
        fedreel.run("recognition", tmp_path / "run", set=settings_with(tmp_path / "data"))
    assert str(path) in str(caught.value)


def test_data_errors_name_place_expected_and_found(data: Path, tmp_path: Path) -> None:
    def told(source: Path, **more: Any) -> DataError:
        with pytest.raises(DataError) as caught:
            fedreel.run("recognition", tmp_path / "run", set=settings_with(source, **more))
        return caught.value

    (tmp_path / "empty").mkdir()
    error = told(data, **{"task.classes": 5})
    assert (error.where, error.expected) == (str(data), "5")
    assert error.found.startswith("2: class0, class1")
    assert "task.classes=2" in error.hint
    assert told(tmp_path / "nowhere").where == str(tmp_path / "nowhere")
    assert told(tmp_path / "empty").where == str(tmp_path / "empty")
    classes_only = told(data / "owner0")
    assert (classes_only.where, classes_only.found) == (str(data / "owner0"), "6 of 6, the first is class0/0.mp4")
    assert classes_only.problem == "some clips have no owner"
    assert told(data / "owner0" / "class0").problem == "some clips have no label"


def test_owners_are_not_needed_where_the_recipe_divides(data: Path, tmp_path: Path) -> None:
    partition = {"name": "iid", "num_partitions": 2}
    settings = settings_with(data / "owner0", **{"data.partition": partition, "data.test_share": 0.34})
    result = fedreel.run("recognition", tmp_path, set=settings)
    assert result.summary["clients"] == 2


def test_nothing_to_test_on_is_no_error(data: Path, tmp_path: Path) -> None:
    said = cli("run", "recognition", *sets(settings_with(data, **{"data.test_share": 0})), "--out", tmp_path, "--quiet")
    assert said.code == 0
    assert "nothing to test on" in said.out


def test_a_loaded_model_predicts_as_the_run_tested(finished: Path, data: Path) -> None:
    """The summary's accuracy, recounted with the loaded model over every client's test clips."""
    rng = torch.get_rng_state()
    loaded = fedreel.load(finished)
    assert torch.equal(rng, torch.get_rng_state())
    assert not loaded.model.training
    assert loaded.card["not_trained"] == []
    recipe = load_recipe(finished / "recipe.toml")
    population = ClipPopulation(open_clips(recipe.data, 16), recipe.data, 4, recipe.data.seed)
    right = total = 0
    with torch.no_grad():
        for client in population.clients:
            for clips, labels in population.data(client).test.batches(8):
                right += int((loaded.task.forward(loaded.model, (clips, labels)).logits.argmax(1) == labels).sum())
                total += len(labels)
    assert json.loads((finished / "summary.json").read_text())["metrics"]["top1"] == right / total
    again = fedreel.load(finished / "model").model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in loaded.model.state_dict().items())


def test_a_run_from_python_is_the_run_of_the_command_line(finished: Path, data: Path, tmp_path: Path) -> None:
    args = sets({**SETTINGS, "data.source": data})
    assert cli("run", "recognition", *args, "--out", tmp_path / "run", "--quiet").code == 0
    model = Path("model", "global.safetensors")
    assert (tmp_path / "run" / model).read_bytes() == (finished / model).read_bytes()
    result = fedreel.run(load_recipe("recognition", {**SETTINGS, "data.source": data}), finished, resume=True)
    assert result.metrics == json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    assert result.path == finished


def test_wrong_words_from_python(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="goes with a recipe's name or file"):
        fedreel.run(load_recipe("recognition"), tmp_path / "x", set={"seed": 1})
    with pytest.raises(RecipeError, match="did you mean 'local'"):
        fedreel.run("recognition", tmp_path / "x", engine="locl")
    with pytest.raises(RecipeError, match="unknown key 'speed'"):
        fedreel.run("recognition", tmp_path / "x", set={"engine.speed": 1})
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        fedreel.runn  # noqa: B018


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit_card(folder: Path, **changes: Any) -> None:
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({k: v for k, v in {**card, **changes}.items() if v is not None}))


BREAKAGES: dict[str, Callable[[Path], Any]] = {
    "no card": lambda m: (m / "card.json").unlink(),
    "half a card": lambda m: cut(m / "card.json"),
    "a card of another kind": lambda m: (m / "card.json").write_text("[]"),
    "no recipe": lambda m: edit_card(m, recipe=None),
    "no model": lambda m: (m / "global.safetensors").unlink(),
    "half a model": lambda m: cut(m / "global.safetensors"),
    "an empty model": lambda m: save_file({}, m / "global.safetensors"),
    "a foreign model": lambda m: save_file({"other": torch.zeros(2)}, m / "global.safetensors"),
    "other shapes": lambda m: save_file({"head.fc.bias": torch.zeros(7)}, m / "global.safetensors"),
    "no folder": shutil.rmtree,
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_a_broken_model_folder_is_a_run_error(finished: Path, tmp_path: Path, what: str) -> None:
    model = tmp_path / "run" / "model"
    shutil.copytree(finished / "model", model)
    fedreel.load(tmp_path / "run")
    BREAKAGES[what](model)
    with pytest.raises(RunError) as caught:
        fedreel.load(tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)


def test_an_unknown_model_name_is_answered_by_the_nearest(finished: Path) -> None:
    with pytest.raises(RunError, match="did you mean 'global'"):
        fedreel.load(finished, model="globl")
    with pytest.raises(RunError, match="there is no model"):
        fedreel.load(finished, model="../../secrets")


def test_private_tensors_of_a_loaded_model_are_as_initialised(tmp_path: Path, data: Path) -> None:
    fedreel.run("recognition", tmp_path, set={**SETTINGS, "data.source": data, "method.name": "fedbn"})
    loaded = fedreel.load(tmp_path)
    assert loaded.card["not_trained"] == sorted(loaded.card["private"])
    assert loaded.card["private"]
    bn = loaded.model.get_submodule(loaded.card["private"][0].rpartition(".")[0])
    assert torch.equal(bn.weight, torch.ones_like(bn.weight))


def test_a_model_of_which_nothing_travelled_is_the_same_at_every_load(tmp_path: Path, data: Path) -> None:
    fedreel.run("recognition", tmp_path, set={**SETTINGS, "data.source": data, "method.name": "local-only"})
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(fedreel.load(tmp_path).model.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
