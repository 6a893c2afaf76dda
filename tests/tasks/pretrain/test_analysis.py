"""What is read off runs of pretraining: by hand where that can be, and on a small run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from statistics import stdev

import pytest
from torch import nn

from fedreel.api import run as start
from fedreel.config import DataConfig, Recipe
from fedreel.core.update import TRAIN, Order
from fedreel.errors import DataError, RunError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedvssl import FedVSSL
from fedreel.reproduce import reproduce
from fedreel.reproduce.cells import DERIVED
from fedreel.reproduce.fedvssl_data import adapt
from fedreel.reproduce.fedvssl_effort import effort, relate
from fedreel.reproduce.fedvssl_work import _counts
from fedreel.reproduce.spec import Row
from fedreel.tasks.pretrain import analysis as pretraining
from fedreel.tasks.pretrain.perturbation import SIZES
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.vision.evaluate import measures, retrieval
from fedreel.tasks.vision.evaluate.retrieval import labelled_set
from fedreel.tasks.vision.footage import Stored
from support.networks import small_r3d
from support.shelf import flat, shelved
from support.tiny import cli, videos
from support.toy import federate, make_worker

SETTINGS = {
    "task.backbone.width": 2,
    "task.frames": 2,
    "task.size": 14,
    "train.epochs": 1,
    "train.batch_size": 4,
    "round.rounds": 2,
    "round.evaluate_every": 1,
}


def write(folder: Path, *records: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def divergence(number: int, **clients: tuple[float, float]) -> dict:
    moved = {client: {"backbone": b, "head": h} for client, (b, h) in clients.items()}
    return {"round": number, "phase": "divergence", "clients": moved}


def test_spreads_are_deviations_over_clients_and_means_over_rounds(tmp_path: Path) -> None:
    run = write(tmp_path, divergence(1, a=(1.0, 2.0), b=(3.0, 8.0)), divergence(2, b=(2.0, 5.0), c=(2.0, 6.0)))
    found = pretraining.divergences(run)
    assert found["backbone spread"] == pytest.approx((math.sqrt(2) + 0) / 2)
    assert found["head spread"] == pytest.approx((stdev([2, 8]) + stdev([5, 6])) / 2)
    assert (found["backbone moved"], found["head moved"]) == (2.0, 5.25)


def test_one_client_has_no_spread(tmp_path: Path) -> None:
    assert set(pretraining.divergences(write(tmp_path, divergence(1, a=(1.0, 2.0))))) == {
        "backbone moved",
        "head moved",
    }


@pytest.mark.parametrize(("method", "parts"), [(FedAvg(), {"backbone", "head"}), (FedVSSL(), {"backbone"})])
def test_a_round_records_how_far_each_client_moved_what_it_trains(tmp_path: Path, method: FedAvg, parts: set) -> None:
    clients = ["c0", "c1", "c2", "c3"]
    worker = make_worker(tmp_path / "by hand", method)
    start = worker.start.clone()
    updates = [worker.execute(Order(1, i + 1, c, TRAIN, {"global": start})) for i, c in enumerate(clients)]
    _, notes = federate(tmp_path / "run", method, rounds=1, divergence=True)
    (record,) = notes.of("divergence")
    assert list(record["clients"]) == clients
    for update in updates:
        moved = record["clients"][update.client]
        assert set(moved) == parts
        for part, distance in moved.items():
            trained = [n for n in start if n.startswith(part) and "running" not in n and "tracked" not in n]
            square = sum(float((update.weights[n].double() - start[n].double()).square().sum()) for n in trained)
            assert distance == pytest.approx(math.sqrt(square), rel=1e-5)
            assert distance > 0


def costing(folder: Path, clients: list[list[str]], accuracies: list[float], epochs: int) -> Path:
    """A run of clients a (30 clips) and b (10)."""
    rounds = range(1, len(clients) + 1)
    write(
        folder,
        {"round": 0, "phase": "partition", "train": {"a": [10, 20], "b": [4, 6]}, "test": {}},
        *({"round": n, "phase": "train", "clients": who} for n, who in zip(rounds, clients)),
        *({"round": n, "phase": "test", "metrics": {"accuracy": x}} for n, x in zip(rounds, accuracies)),
    )
    (folder / "recipe.toml").write_text(
        f'[task]\nname = "pretrain"\n[method]\nname = "fedavg"\n[train]\nepochs = {epochs}\n'
    )
    return folder


def test_costs_beside_the_run_in_one_place(tmp_path: Path) -> None:
    centre = costing(tmp_path / "centre", [["everyone"]] * 4, [0.2, 0.4, 0.5, 0.6], epochs=2)
    quick = costing(tmp_path / "quick", [["a"], ["b"], ["a", "b"]], [0.3, 0.7, 0.6], epochs=1)
    slow = costing(tmp_path / "slow", [["b"]] * 2, [0.3, 0.59], epochs=3)
    assert [pretraining.passes(run) for run in (centre, quick, slow)] == [8.0, 2.0, 1.5]
    names = ("centralised", "FedAvg", "FedVSSL")
    cells = [(Row(name, {}), path) for name, path in zip(names, (centre, quick, slow))]
    assert relate(cells) == [{}, {}, {}]  # nothing is read off them yet
    for _, path in cells:
        (path / DERIVED).write_text(json.dumps({"effort": effort(path)}))
    found = relate(cells)
    assert found[0] == {"saved": 0.0, "rounds": 4.0}
    assert found[1] == {"saved": 0.75, "rounds": 2.0}
    assert found[2] == {"saved": pytest.approx(1 - 1.5 / 8)}  # never as good
    assert relate(cells[1:2]) == [{}]


def test_twenty_seven_epochs_of_the_paper_are_seven_tenths_less_than_ninety(tmp_path: Path) -> None:
    rounds = [[f"c{(5 * r + i) % 100}" for i in range(5)] for r in range(540)]
    write(
        tmp_path,
        {"round": 0, "phase": "partition", "train": {f"c{i}": [2000] for i in range(100)}, "test": {}},
        *({"round": n + 1, "phase": "train", "clients": who} for n, who in enumerate(rounds)),
    )
    shutil.copy(costing(tmp_path / "other", [], [], 1) / "recipe.toml", tmp_path)
    assert pretraining.passes(tmp_path) == 27
    assert 1 - pretraining.passes(tmp_path) / 90 == pytest.approx(0.7)


def test_several_sets_are_told_apart_and_averaged(tmp_path: Path) -> None:
    made = [
        labelled_set(n, shelved(tmp_path / n, [flat(0)] * 2, ["a", "a"], ["train", "test"])) for n in ("ucf", "hmdb")
    ]
    values = {"ucf": {"r1": 0.5, "r5": 1.0}, "hmdb": {"r1": 0.1, "r5": 0.2}}
    found = pretraining.over_sets(made, lambda s: values[s.name])
    assert found == {"r1": 0.3, "r5": 0.6, "r1/ucf": 0.5, "r5/ucf": 1.0, "r1/hmdb": 0.1, "r5/hmdb": 0.2}
    assert pretraining.over_sets(made[:1], lambda s: values[s.name]) == values["ucf"]


def test_the_pretext_of_patches_is_judged_by_overlap(tmp_path: Path) -> None:
    run = write(tmp_path, *({"round": n, "phase": "test", "metrics": {"iou": n / 10, "loss": 1}} for n in (5, 10)))
    assert pretraining.pretext_curve(run) == {5: 0.5, 10: 1.0}
    assert pretraining.rounds_to({5: 0.5, 10: 1.0}, 0.6) == 10
    assert pretraining.rounds_to({5: 0.5, 10: 1.0}, 1.1) is None


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Owners' videos, and two labelled sets: train and test are what owners are elsewhere."""
    folder = tmp_path_factory.mktemp("given")
    videos(folder / "pretrain", owners=range(4))
    for name in ("bars", "stripes"):
        videos(folder / "made")
        (folder / "downstream" / name).mkdir(parents=True)
        for number, split in enumerate(("train", "test")):
            shutil.move(folder / "made" / f"owner{number}", folder / "downstream" / name / split)
        (folder / "made").rmdir()
    return folder


def test_given_folders_are_checked_before_anything_is_run(given: Path, tmp_path: Path) -> None:
    assert adapt(given) == {"data.source": str((given / "pretrain").resolve())}
    with pytest.raises(DataError, match="no videos to learn from"):
        adapt(tmp_path)
    shutil.copytree(given / "pretrain", tmp_path / "pretrain")
    with pytest.raises(DataError, match="no labelled sets"):
        adapt(tmp_path)


def test_folders_of_owners_without_classes_are_a_client_each(given: Path, tmp_path: Path) -> None:
    for owner in (given / "pretrain").iterdir():
        shutil.copytree(owner / "class0", tmp_path / "pretrain" / owner.name)
    shutil.copytree(given / "downstream", tmp_path / "downstream")
    settings = adapt(tmp_path)
    data = DataConfig(source=settings["data.source"], partition=settings["data.partition"])
    population = Pretrain(backbone=small_r3d(), frames=2, size=14).population(data, 0)
    assert len(population.clients) == 4
    assert [len(population.data(c).train) + len(population.data(c).test) for c in population.clients] == [3] * 4


@pytest.mark.slow
def test_the_playground_s_own_clips_are_its_downstream_set() -> None:
    task = Pretrain(backbone=small_r3d(), frames=4, size=28)
    (found,) = pretraining.sets(Recipe(data=DataConfig(size="tiny")), task)
    assert found.name == "actions"
    assert len(found.classes) == 8
    assert (len(found.train), len(found.test)) == (8 * 6, 8 * 3)
    assert found.source.side == 32


@pytest.mark.parametrize("method", ["fedvssl", "fedavg"])
def test_a_backbone_is_put_to_use_on_all_sets(
    given: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "SMALL_SHARE", 0.02)
    monkeypatch.setattr(pretraining, "POINTS", 3)
    monkeypatch.setattr(pretraining, "RADIUS", 1.0)
    settings = {**SETTINGS, **adapt(given), "method.name": method}
    out = start("fedvssl", tmp_path / "run", set=settings, device="cpu").path
    found = pretraining.recalls(out) | pretraining.probes(out) | pretraining.tunings(out)
    for name in ("r1", "r5", "r50", "r1 pooled", "probe", "tune"):
        both = [found[f"{name}/{which}"] for which in ("bars", "stripes")]
        assert found[name] == pytest.approx(sum(both) / 2)
        assert all((6 * share) == pytest.approx(round(6 * share)) for share in both)  # six test videos
    assert found["r50"] == 1.0
    noisy = pretraining.perturbations(out)
    assert all(noisy[f"r1 at 0{of}"] == found[f"r1{of}"] for of in ("", "/bars", "/stripes"))
    assert {name.partition("/")[0] for name in noisy} == {f"r1 at {size:g}" for size in (0, *SIZES)}
    settled = pretraining.settled(out)
    assert settled == pretraining.settled(out), "what was there before plays no part"
    assert {"r1 settled", "r1 settled/bars", "probe settled"} <= settled.keys()
    assert pretraining.longer_tunings(out).keys() == {"tune longer", "tune longer/bars", "tune longer/stripes"}
    monkeypatch.setattr(measures, "chosen_tunings", lambda trials: (0.03, [{"tune": 0.25}, {"tune": 0.75}]))
    fitted = {"tune fitted": 0.5, "tune fitted/bars": 0.25, "tune fitted/stripes": 0.75}
    assert pretraining.fitted_tunings(out) == {"tune rate": 0.03, **fitted}
    assert math.isfinite(pretraining.flatness(out)["sharpness"])
    assert "Loss landscape" in (out / "landscape.html").read_text()
    assert len(pretraining.pretext_curve(out)) == 2


@pytest.mark.parametrize("method", ["fedavg", "fedvssl"])
def test_the_pretext_is_put_to_owners_that_took_no_part_and_kept_models_are_searched_with(
    given: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "data.source": given / "pretrain", "method.name": method, "round.keep_models": 2}
    out = start("fedvssl", tmp_path / "run", set=settings, quiet=True).path
    found = pretraining.unseen(out)
    assert 0 <= found["unseen accuracy"] <= 1
    assert {name.partition("/")[0] for name in found} == {"unseen accuracy"}
    of_all = pretraining.recalls(out)
    asked: list[nn.Module] = []
    search = pretraining.retrieval
    monkeypatch.setattr(pretraining, "retrieval", lambda model, *how: asked.append(model) or search(model, *how))
    curve = pretraining.recall_curve(out)
    assert len(asked) == 2, "the model of the first half, on two sets: the last one is the run's own"
    assert curve["r1 after 100 %"] == of_all["r1"]
    assert list(curve) == ["r1 after  50 %", "r1 after 100 %"]
    assert curve["r1 after 100 %"] == pretraining.recalls(out)["r1"], "the last model that was kept is the last model"


def test_what_does_not_fit_into_memory_is_read_in_turn_and_answers_are_the_same(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "POINTS", 3)
    monkeypatch.setattr(pretraining, "RADIUS", 1.0)
    brought: list[int] = []  # clips that were decoded whole, and stay
    hold = Stored.held
    monkeypatch.setattr(Stored, "held", lambda self: brought.append(len(self.rows)) or hold(self))
    found = []
    for memory in (1.0, 1e-9):  # GB; one byte
        settings = {**SETTINGS, **adapt(given), "data.quality": 90, "data.memory": memory}
        out = start("fedvssl", tmp_path / f"{memory}", set=settings, device="cpu", quiet=True).path
        monkeypatch.setattr(retrieval, "memory_of", lambda device, memory=memory: int(memory * 1e9))
        pretraining._set_in.cache_clear()
        brought.clear()
        found.append((pretraining.unseen(out), pretraining.flatness(out), [*brought]))
    pretraining._set_in.cache_clear()
    assert found[0][:2] == found[1][:2]
    assert found[0][2] == [12, 12, 2, 1, 2]  # both sets; the test clips of three clients
    assert found[1][2] == []


def test_videos_of_the_sets_are_kept_as_the_run_s_own_are(given: Path) -> None:
    task = Pretrain(backbone=small_r3d(), frames=2, size=14)
    for quality in (0, 90):
        recipe = Recipe(data=DataConfig(source=str(given / "pretrain"), quality=quality))
        assert [one.source.quality for one in pretraining.sets(recipe, task)] == [quality, quality]


def test_a_set_may_be_shards_of_any_of_its_splits(given: Path, tmp_path: Path) -> None:
    shutil.copytree(given / "pretrain", tmp_path / "pretrain")
    lists = tmp_path / "lists"
    lists.mkdir()
    for number, parts in enumerate((("train", "test"), ("test", "train")), 1):
        for part, owner in zip(parts, ("owner0", "owner1")):
            names = [
                path.relative_to(given / "pretrain" / owner) for path in (given / "pretrain" / owner).rglob("*.mp4")
            ]
            (lists / f"{part}list0{number}.txt").write_text("".join(f"{owner}/{name}\n" for name in sorted(names)))
    task = Pretrain(backbone=small_r3d(), frames=2, size=14)
    made = tmp_path / "downstream" / "bars"
    options = ("--lists", lists, "--fold", 2, "--size", task.side, "--quality", 90)
    assert cli("data", "shard", given / "pretrain", "--out", made, *options).code == 0
    (found,) = pretraining.sets(Recipe(data=DataConfig(source=str(tmp_path / "pretrain"))), task)
    assert {found.source.clips[row].path.partition("/")[0] for row in found.train} == {"owner1"}
    assert {found.source.clips[row].path.partition("/")[0] for row in found.test} == {"owner0"}
    assert (len(found.train), len(found.test)) == (6, 6)
    assert _counts(tmp_path) == (24, 6, 6)


def test_a_run_of_another_task_is_refused(given: Path, tmp_path: Path) -> None:
    settings = {"task.backbone.width": 2, "task.classes": 2, "task.size": 16, "task.frames": 4, "round.rounds": 1}
    out = start("recognition", tmp_path / "run", set={**settings, "data.source": given / "pretrain"}, device="cpu").path
    with pytest.raises(RunError, match="no pretraining"):
        pretraining.recalls(out)


def test_the_figure_of_divergence_is_made_of_given_videos(given: Path, tmp_path: Path) -> None:
    table = reproduce("fedvssl", "fig5", data=given, out=tmp_path / "out", device="cpu")["fig5"]
    (row,) = table["rows"]
    assert all(cell["mean"] >= 0 for cell in row["metrics"].values())
    assert {*row["metrics"]} == {"backbone spread", "head spread", "backbone moved", "head moved"}
