"""`fedreel evaluate`: the same numbers as the tables', for runs, files of weights and weights that learned nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedreel
from fedreel.config import DataConfig
from fedreel.data.clip_index import find
from fedreel.data.shards import build
from fedreel.errors import DataError, FedreelError, RecipeError, RunError
from fedreel.reproduce import reproduce
from fedreel.reproduce.fedvssl import SCALES
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import load
from fedreel.tasks.pretrain.analysis import TRIAL_EPOCHS
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.vision.clips import open_clips
from fedreel.tasks.vision.evaluate import evaluate as module
from fedreel.tasks.vision.evaluate import measures
from fedreel.tasks.vision.evaluate.measures import MEASURES, Trial
from fedreel.tasks.vision.evaluate.retrieval import labelled_set, retrieval, settle
from support.embedded import other_task, train
from support.networks import small_r3d
from support.shelf import Known, flat, shelved
from support.tiny import SETTINGS, cli, videos


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Owners' videos, and a labelled set of twelve videos to learn from and twelve to test on."""
    folder = tmp_path_factory.mktemp("given")
    videos(folder / "pretrain", owners=range(4))
    videos(folder / "made", classes=4)
    for number, split in enumerate(("train", "test")):
        shutil.copytree(folder / "made" / f"owner{number}", folder / "downstream" / "bars" / split)
    return folder


@pytest.fixture(scope="module")
def bars(given: Path) -> Path:
    return given / "downstream" / "bars"


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the task recognition, with seed 3."""
    return train(tmp_path_factory.mktemp("trained") / "run", data, seed=3)


@pytest.fixture
def weights(trained: Path, tmp_path: Path) -> Path:
    """The backbone of the run as a file."""
    fedreel.export(trained, tmp_path / "backbone.safetensors")
    return tmp_path / "backbone.safetensors"


# the numbers


def test_random_weights_are_the_row_of_the_table(given: Path, bars: Path, tmp_path: Path) -> None:
    table = reproduce("fedvssl", "table3", data=given, rows="random weights", out=tmp_path / "out", device="cpu")
    (row,) = table["table3"]["rows"]
    printed = {name: cell["mean"] for name, cell in row["metrics"].items()}
    settings = {**SCALES["smoke"].settings, "data.source": given / "pretrain"}
    few = {"device": "cpu", "epochs": TRIAL_EPOCHS}  # as at this scale
    found = fedreel.evaluate("random", bars, recipe="fedvssl", set=settings, seed=0, **few)
    shared = {"r1", "r5", "r1 pooled", "probe", "tune"}
    assert shared <= {*printed}
    assert {name: 100 * found.metrics[name] for name in shared} == {name: printed[name] for name in shared}
    assert len({*found.metrics.values()}) > 3  # else the equality would be no test
    (cell,) = (path.parent for path in (tmp_path / "out").rglob("summary.json"))
    assert fedreel.evaluate(cell, bars, **few).metrics == found.metrics
    assert "statistics" in found.notes[0]


def test_weights_of_a_file_are_worth_what_their_run_is(trained: Path, weights: Path, bars: Path) -> None:
    run = fedreel.evaluate(trained, bars, device="cpu", epochs=2)
    file = fedreel.evaluate(weights, bars, recipe="recognition", set=SETTINGS, seed=3, device="cpu", epochs=2)
    assert file.metrics == run.metrics
    assert (run.seed, run.train, run.test, run.classes) == (3, 12, 12, 4)
    assert (file.notes, file.run) == ([], weights)


def test_settled_statistics_are_those_of_the_training_videos(trained: Path, bars: Path) -> None:
    found = fedreel.evaluate(trained, bars, only="retrieval", settle=True, device="cpu")
    loaded = load(trained, device="cpu")
    among = labelled_set("bars", open_clips(DataConfig(source=str(bars)), loaded.task.side, setting=""))
    settle(loaded.model, loaded.task, among)
    trial = Trial(loaded.model, loaded.task, among, found.seed)
    assert found.metrics == measures.recalls(trial)
    assert found.notes == ["batch norms took their statistics anew from the training videos"]


def test_one_look_at_the_videos_serves_all_that_is_found_by_neighbours(
    trained: Path, bars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten clips of each of 24 videos, for both poolings."""
    loaded = load(trained, device="cpu")
    among = labelled_set("bars", open_clips(DataConfig(source=str(bars)), loaded.task.side, setting=""))
    apart = [retrieval(loaded.model, loaded.task, among, pooling) for pooling in ("grid", "mean")]
    look, seen = loaded.model.backbone.features, []
    monkeypatch.setattr(loaded.model.backbone, "features", lambda clips: seen.append(len(clips)) or look(clips))
    trial = Trial(loaded.model, loaded.task, among)
    found = measures.recalls(trial) | measures.neighbours(trial)
    assert sum(seen) == 10 * 24
    for by, metrics in zip(("", " pooled"), apart):
        assert {k: found[f"r{k}{by}"] for k in metrics} == metrics


def test_the_folder_model_of_a_run_is_enough(trained: Path, bars: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "model", tmp_path / "elsewhere")
    found = fedreel.evaluate(tmp_path / "elsewhere", bars, only="retrieval", device="cpu")
    assert found.metrics == fedreel.evaluate(trained, bars, only="retrieval", device="cpu").metrics


def test_answers_are_those_of_recognize_and_their_errors_those_of_its_confidence(
    trained: Path, bars: Path, tmp_path: Path
) -> None:
    own = [path for path in bars.rglob("*.mp4") if path.parent.name in _classes(trained)]
    for path in own:
        copy = tmp_path / "own" / path.relative_to(bars)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    found = fedreel.evaluate(trained, tmp_path / "own", only="answers", device="cpu").metrics
    answers = fedreel.recognize(tmp_path / "own" / "test", trained, device="cpu").entries
    sure = torch.tensor([answer.confidence for answer in answers])
    right = torch.tensor([answer.label == answer.source.parent.name for answer in answers]).double()
    bins = (15 * sure).ceil()
    parts = [float((sure - right)[bins == b].sum().abs()) for b in bins.unique()]
    assert found["top1"] == pytest.approx(float(right.mean()))
    assert found["ece"] == pytest.approx(sum(parts) / len(answers), abs=1e-5)
    assert 0 <= found["ece uncalibrated"] <= 1


def test_answers_of_other_classes_are_left_out_or_refused(trained: Path, bars: Path) -> None:
    assert "does not name the classes" in refused(RecipeError, trained, bars, only="answers")
    with pytest.MonkeyPatch.context() as patch:
        quick = {name: (lambda trial, name=name: {name: 1.0}) for name in MEASURES}
        patch.setattr(module, "MEASURES", MappingProxyType(quick))
        assert [*fedreel.evaluate(trained, bars, device="cpu").metrics] == [*MEASURES][1:]


def _classes(run: Path) -> list[str]:
    return next(read_metrics(run, "partition"))["classes"]


def test_neighbours_vote(tmp_path: Path) -> None:
    """On a circle, greys are angles in degrees. Of the queries at 0 (b) and 90 (b), the first has the neighbours a (1),
    b (2), b (3), b (20), a (40); the second a (90), a (88), a (40), b (20), b (3)."""
    angles, labels = [1, 2, 3, 20, 40, 88, 90, 0, 90], [*"abbbaaabb"]
    source = shelved(tmp_path / "s", [flat(v) for v in angles], labels, ["train"] * 7 + ["test"] * 2)
    task = Known(lambda grey: torch.stack([torch.deg2rad(grey).cos(), torch.deg2rad(grey).sin()], dim=1))
    trial = Trial(nn.Linear(1, 1), task, labelled_set("circle", source))
    assert measures.neighbours(trial) == {"knn1": 0.0, "knn5": 0.5, "knn20": 0.0}  # 7 in all: 4 a, 3 b
    recalls = measures.recalls(trial)
    assert (recalls["r1 pooled"], recalls["r5 pooled"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("width", "playground", "asked", "epochs", "flip"),
    [(64, False, 0, 150, 0.35), (2, False, 0, 60, 0.35), (64, True, 0, 30, 0.0), (64, False, 7, 7, 0.35)],
)
def test_fine_tuning_is_shorter_for_small_networks_and_on_the_playground(
    width: int, playground: bool, asked: int, epochs: int, flip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(measures, "fine_tune", lambda *args: calls.append(args))
    monkeypatch.setattr(measures, "top1", lambda *args: 0.5)
    task = Pretrain(backbone=small_r3d(width=width, blocks=(2, 2, 2, 2)), size=112)
    assert measures.tunings(Trial(nn.Identity(), task, None, 5, "bf16", playground, asked)) == {"tune": 0.5}  # type: ignore[arg-type]
    ((_, _, _, views, tuning, seed),) = calls
    assert (tuning.train.epochs, tuning.train.precision, seed) == (epochs, "bf16", 5)
    assert tuning.train.milestones == (round(0.4 * epochs), round(0.8 * epochs))
    assert (views.size, views.scales, views.flip) == (112, task.scales, flip)


def test_a_task_that_keeps_no_larger_frames_is_tuned_on_all_of_them() -> None:
    assert Recognition(size=24).crops == (24, (1.0,))


# the command


def test_the_command_prints_a_table_and_writes_json(trained: Path, bars: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "found.json"
    said = cli("evaluate", trained, "--on", bars, "--only", "knn,retrieval", "--json", file, "--device", "cpu")
    lines = said.out.splitlines()
    assert (said.code, said.err) == (0, "")
    assert lines[0] == "bars: 12 videos for training, 12 for testing, 4 classes"
    told = json.loads(file.read_text())
    assert [line.split("  ")[1] for line in lines[1:-1]] == [*told["metrics"]]
    assert [float(line.split()[-2]) for line in lines[1:-1]] == pytest.approx(
        [100 * share for share in told["metrics"].values()], abs=0.005
    )
    assert lines[-1] == str(file)
    assert [*told["metrics"]][-3:] == ["knn1", "knn5", "knn20"]  # in the order of the measures
    assert told["metrics"]["knn1"] == told["metrics"]["r1 pooled"]
    assert (told["source"], told["run"], told["seed"]) == (str(bars), str(trained), 3)


def test_settings_of_the_command_line_are_those_of_python(weights: Path, bars: Path) -> None:
    words = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={str(value).lower()}")]
    options = ("--only", "probe", "--seed", "3", "--recipe", "recognition", "--json", "-", "--device", "cpu")
    said = cli("evaluate", weights, "--on", bars, *options, *words)
    found = fedreel.evaluate(weights, bars, only="probe", recipe="recognition", set=SETTINGS, seed=3, device="cpu")
    assert json.loads(said.out)["metrics"] == found.metrics


def test_broken_videos_are_left_out_and_named(trained: Path, bars: Path, tmp_path: Path) -> None:
    shutil.copytree(bars, tmp_path / "bars")
    (tmp_path / "bars" / "test" / "class0" / "0.mp4").write_bytes(b"no video")
    found = fedreel.evaluate(trained, tmp_path / "bars", only="retrieval", device="cpu")
    assert (found.test, [broken.path for broken in found.skipped]) == (11, ["test/class0/0.mp4"])


def test_interrupted_it_says_what_was_found_and_writes_nothing(
    trained: Path, bars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trial: Trial) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "MEASURES", MappingProxyType({**MEASURES, "probe": interrupted}))
    said = cli("evaluate", trained, "--on", bars, "--json", tmp_path / "found.json", "--device", "cpu")
    assert said.code == 130
    assert "Nothing was written. Found so far: r1 " in said.err
    assert [*tmp_path.iterdir()] == []


# published splits


@pytest.fixture(scope="module")
def published(given: Path) -> Path:
    """The videos of the labelled set as UCF-101's lie, CLASS/*.mp4, and lists of two splits elsewhere: `lists` beside
    the folder. The second has the parts of the first the other way about."""
    folder, lists = given / "published" / "videos", given / "published" / "lists"
    lists.mkdir(parents=True)
    for fold, parts in enumerate((("train", "test"), ("test", "train")), 1):
        for owner, part in enumerate(parts):
            own = given / "made" / f"owner{owner}"
            names = []
            for path in sorted(own.rglob("*.mp4")):
                name = f"{path.parent.name}/v_g0{owner}_c0{path.name}"
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)
                names.append(name)
            (lists / f"{part}list0{fold}.txt").write_text("".join(f"{name}\n" for name in names))
    return folder


def test_each_published_split_is_that_of_folders_laid_out_like_it(
    trained: Path, published: Path, bars: Path, tmp_path: Path
) -> None:
    for one, other in (("train", "test"), ("test", "train")):
        shutil.copytree(bars / one, tmp_path / other)
    only = {"only": "retrieval,knn", "device": "cpu"}
    lists = str(published.parent / "lists")
    first, second = (fedreel.evaluate(trained, published, lists=lists, fold=fold, **only) for fold in (1, 2))
    assert first.metrics == fedreel.evaluate(trained, bars, **only).metrics
    assert second.metrics == fedreel.evaluate(trained, tmp_path, **only).metrics
    assert first.metrics != second.metrics
    words = ("--lists", "../lists", "--fold", 2, "--only", "retrieval,knn", "--json", "-", "--device", "cpu")
    assert json.loads(cli("evaluate", trained, "--on", published, *words).out)["metrics"] == second.metrics


def test_lists_beside_the_videos_are_found_and_their_number_can_be_said(
    trained: Path, published: Path, tmp_path: Path
) -> None:
    shutil.copytree(published, tmp_path / "videos")
    shutil.copytree(published.parent / "lists", tmp_path / "videos" / "ucfTrainTestlist")
    only = {"only": "retrieval", "device": "cpu"}
    lists = str(published.parent / "lists")
    for fold in (1, 2):
        elsewhere = fedreel.evaluate(trained, published, lists=lists, fold=fold, **only)
        assert fedreel.evaluate(trained, tmp_path / "videos", fold=fold, **only).metrics == elsewhere.metrics
    assert "one of those that there are" in refused(DataError, trained, tmp_path / "videos", fold=3)


def test_a_split_of_what_has_none_is_refused(trained: Path, bars: Path, tmp_path: Path) -> None:
    assert "there are no lists to choose from" in refused(DataError, trained, bars, fold=2)
    assert "there are no such lists" in refused(DataError, trained, bars, lists=str(tmp_path / "none"))
    assert "fold is out of range" in refused(RecipeError, trained, bars, fold=0)
    build(find(bars), bars, tmp_path / "shards", side=16)
    assert "fedreel data shard VIDEOS --lists LISTS" in refused(DataError, trained, tmp_path / "shards", fold=2)
    assert "lists are for folders of videos" in refused(DataError, trained, "playground", fold=2)


def test_videos_are_kept_as_pictures_where_the_recipe_keeps_its_own_so(
    weights: Path, trained: Path, bars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    look = module.labelled_set
    monkeypatch.setattr(module, "labelled_set", lambda name, source: kept.append(source.quality) or look(name, source))
    how = {"only": "retrieval", "device": "cpu"}
    fedreel.evaluate(trained, bars, **how)
    fedreel.evaluate(weights, bars, recipe="recognition", set={**SETTINGS, "data.quality": 90}, **how)
    assert kept == [0, 90]


# what is refused


def refused(kind: type[FedreelError], *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as error:
        fedreel.evaluate(*args, **{"device": "cpu", **options})
    return str(error.value)


def test_what_is_not_known_is_refused_before_any_work(trained: Path, bars: Path, tmp_path: Path) -> None:
    assert "did you mean 'retrieval'" in refused(RecipeError, trained, bars, only="retreival")
    assert "0 or more" in refused(RecipeError, trained, bars, epochs=-1)
    assert "no such folder" in refused(DataError, trained, tmp_path / "none")
    assert "the word random" in refused(RunError, tmp_path / "none", bars)
    assert "no such file of weights" in refused(DataError, tmp_path / "none.pth", bars, recipe="fedvssl")
    (tmp_path / "notes.txt").write_text("no weights")
    assert "no file of weights" in refused(DataError, tmp_path / "notes.txt", bars, recipe="fedvssl")


def test_data_must_say_what_is_for_training_and_what_for_testing(trained: Path, data: Path) -> None:
    assert "0 for training, 0 for testing" in refused(DataError, trained, data)


def test_shards_are_the_same_videos_and_must_have_the_side_of_the_task(
    trained: Path, bars: Path, tmp_path: Path
) -> None:
    for side in (16, 24):
        build(find(bars), bars, tmp_path / f"{side}", side=side)
    found = fedreel.evaluate(trained, tmp_path / "16", only="retrieval", device="cpu")
    assert found.metrics == fedreel.evaluate(trained, bars, only="retrieval", device="cpu").metrics
    error = refused(DataError, trained, tmp_path / "24")
    assert "a shorter side of 16 pixels" in error
    assert "task." not in error  # a run's settings cannot be changed


def test_a_run_has_its_own_recipe_and_a_file_needs_one(trained: Path, weights: Path, bars: Path) -> None:
    assert "--recipe" in refused(RecipeError, trained, bars, recipe="recognition")
    assert "--set" in refused(RecipeError, trained, bars, set={"task.size": 16})
    assert "--recipe fedvssl-paper" in refused(RecipeError, weights, bars)
    assert "--recipe fedvssl-paper" in refused(RecipeError, "random", bars)
    assert "nobody's own" in refused(RecipeError, weights, bars, recipe="recognition", client="owner0")
    twice = {**SETTINGS, "task.backbone.init": "other.pth"}
    assert "given twice" in refused(RecipeError, weights, bars, recipe="recognition", set=twice)


def test_models_without_vectors_of_clips_are_refused(trained: Path, weights: Path, bars: Path, tmp_path: Path) -> None:
    other = other_task(trained, tmp_path / "other", "image")
    assert "pretrain or recognition" in refused(RunError, other, bars)
    assert "pretrain or recognition" in refused(RecipeError, weights, bars, recipe="fedlid")
    assert "pretrain or recognition" in refused(RecipeError, "random", bars, recipe="fedlid")


def test_weights_of_another_network_are_refused(weights: Path, bars: Path) -> None:
    wider = {**SETTINGS, "task.backbone.width": 4}
    assert "(2, 3, 3, 3, 3) instead of (4," in refused(DataError, weights, bars, recipe="recognition", set=wider)


def test_random_weights_begin_with_none(weights: Path, bars: Path) -> None:
    settings = {**SETTINGS, "task.backbone.init": weights}
    assert "would not be random" in refused(RecipeError, "random", bars, recipe="recognition", set=settings)


def test_nothing_that_is_read_is_overwritten(trained: Path, weights: Path, bars: Path, tmp_path: Path) -> None:
    video = bars / "test" / "class0" / "0.mp4"
    assert "would overwrite" in refused(DataError, trained, bars, json=video)
    assert "would overwrite" in refused(DataError, trained, bars, json=trained / "model" / "card.json")
    assert "would overwrite" in refused(DataError, weights, bars, recipe="recognition", json=weights)
    assert "folder" in refused(DataError, trained, bars, json=tmp_path)


def test_a_backbone_that_gives_no_numbers_is_refused(trained: Path, bars: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    state = load(trained).model.state_dict()
    state["backbone.stem.0.weight"] = state["backbone.stem.0.weight"] * float("nan")
    save_file(state, tmp_path / "run" / "model" / "global.safetensors")
    assert "not finite" in refused(DataError, tmp_path / "run", bars, only="retrieval")
