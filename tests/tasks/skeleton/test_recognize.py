"""Recognised motions: the model's own numbers by hand, whose classifier speaks, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedreel.config import make_recipe
from fedreel.core.job import make_task
from fedreel.errors import DataError, FedreelError, RunError
from fedreel.runs.run import load, run
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2
from fedreel.tasks.skeleton.prepare import prepare
from fedreel.tasks.use.recognize import recognize
from support.moves import BACKBONE, LEFT, RIGHT, TASK, make_sets, motion, one, train
from support.tiny import cli


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def federated(sets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two data sets. Tests that change it take a copy."""
    torch.set_num_threads(1)
    return train(tmp_path_factory.mktemp("trained") / "run", sets)


@pytest.fixture
def copied(federated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(federated, tmp_path / "copy"))


def change_card(folder: Path, **values: Any) -> None:
    path = folder / "model" / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def softmax(values: list[float]) -> list[float]:
    powers = np.exp(np.array(values) - max(values))
    return (powers / powers.sum()).tolist()


# the answer


@pytest.mark.parametrize(("client", "classes"), [("left", LEFT), ("right", RIGHT)])
def test_the_answer_is_the_clients_model_on_the_prepared_recording(
    client: str, classes: tuple[str, ...], federated: Path, tmp_path: Path
) -> None:
    made = recognize(one(tmp_path / "a.npz", motion(1)), federated, client=client)
    loaded = load(federated, client=client)
    x = torch.from_numpy(prepare(motion(1)[:, None], KINECT_V1, 12, 1, True))[None]
    with torch.no_grad():
        batch = (x, torch.tensor([0]), torch.tensor([len(classes)]))
        logits = loaded.task.forward(loaded.model, batch).logits[0].tolist()
    temperature = loaded.card["trust"]["clients"][client]["temperature"]
    by_hand = dict(zip(classes, softmax([logit / temperature for logit in logits[: len(classes)]])))
    assert dict(made.ranking) == pytest.approx(by_hand, abs=1e-6)
    assert (made.label, made.confidence) == made.ranking[0]
    assert (made.client, made.frames) == (client, 15)


@pytest.mark.parametrize(("client", "classes"), [("left", LEFT), ("right", RIGHT)])
def test_probabilities_are_over_the_clients_own_classes(
    client: str, classes: tuple[str, ...], federated: Path, sets: Path
) -> None:
    made = recognize(f"{sets / 'left.npz'}#m4", federated, client=client)
    shares = [share for _, share in made.ranking]
    assert sorted(label for label, _ in made.ranking) == sorted(classes)
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)


def test_the_classifier_is_the_one_in_the_clients_own_state(copied: Path, tmp_path: Path) -> None:
    """A bias of 50 for the class `kick` at one client makes this client sure, and leaves the other as it was."""
    file = one(tmp_path / "a.npz", motion(0))
    before = recognize(file, copied, client="right")
    state = max((copied / "clients" / "left").iterdir())
    tensors = load_file(state)
    tensors["model/head.fc.bias"] = torch.tensor([0.0, 50.0, 0.0])
    save_file(tensors, state, metadata={"numbers": "{}"})
    made = recognize(file, copied, client="left")
    assert (made.label, made.confidence) == ("kick", pytest.approx(1))
    assert recognize(file, copied, client="right").ranking == before.ranking


def test_statistics_and_topology_are_the_clients_too(federated: Path) -> None:
    kept = {c: load_file(max((federated / "clients" / c).iterdir())) for c in ("left", "right")}
    for part in ("running_mean", ".unique", "head.fc.weight"):
        names = [name for name in kept["left"] if name.startswith("model/") and part in name]
        assert names, part
        assert any(not torch.equal(kept["left"][name], kept["right"][name]) for name in names), part
        for client, tensors in kept.items():
            loaded = load(federated, client=client).model.state_dict()
            assert all(torch.equal(loaded[name.removeprefix("model/")], tensors[name]) for name in names)


def test_the_order_of_joints_does_not_matter(federated: Path, tmp_path: Path) -> None:
    straight = recognize(one(tmp_path / "a.npz", motion(2)), federated, client="left")
    order = np.random.default_rng(0).permutation(20)
    names = np.array(KINECT_V1.names)[order]
    mixed = recognize(one(tmp_path / "b.npz", motion(2)[:, order], joint_names=names), federated, client="left")
    assert mixed.ranking == straight.ranking


def test_frames_without_a_body_change_nothing(federated: Path, tmp_path: Path) -> None:
    full = motion(0, 12)
    holes = np.insert(np.insert(full, 3, 0, axis=0), 9, np.nan, axis=0)
    given = recognize(one(tmp_path / "a.npz", holes), federated, client="left")
    assert given.ranking == recognize(one(tmp_path / "b.npz", full), federated, client="left").ranking
    assert given.frames == 14


def test_the_folder_of_the_model_is_as_good_as_the_run(federated: Path, sets: Path) -> None:
    file = f"{sets / 'left.npz'}#m0"
    assert recognize(file, federated / "model", client="left") == recognize(file, federated, client="left")


def test_a_client_speaks_through_the_model_of_its_community(copied: Path, sets: Path) -> None:
    """In the community's model every shared tensor is 0, so features are 0, and the classifier's bias is all."""
    shared = load_file(copied / "model" / "global.safetensors")
    save_file({n: torch.zeros_like(t) for n, t in shared.items()}, copied / "model" / "community-0.safetensors")
    change_card(copied, models=["community-0", "global"], communities={"left": "community-0"})
    temperature = json.loads((copied / "model" / "card.json").read_text())["trust"]["clients"]["left"]["temperature"]
    bias = (load_file(max((copied / "clients" / "left").iterdir()))["model/head.fc.bias"] / temperature).tolist()
    made = recognize(f"{sets / 'left.npz'}#m0", copied, client="left")
    assert dict(made.ranking) == pytest.approx(dict(zip(LEFT, softmax(bias))), abs=1e-6)


# whose classifier


def test_the_only_client_needs_no_name(sets: Path, tmp_path: Path) -> None:
    trained = train(tmp_path / "run", sets / "right.npz", rounds={"rounds": 1})
    made = recognize(f"{sets / 'right.npz'}#m1", trained)
    assert made.client == "right"
    assert {label for label, _ in made.ranking} == {*RIGHT}


def test_of_several_clients_one_must_be_named(federated: Path, sets: Path) -> None:
    with pytest.raises(RunError, match="whose model is meant") as error:
        recognize(f"{sets / 'left.npz'}#m0", federated)
    assert error.value.found == "clients left, right"
    assert "--client" in error.value.expected
    assert "its own list of classes" in error.value.hint


def test_a_model_that_all_clients_share_needs_no_client(sets: Path, tmp_path: Path) -> None:
    shutil.copy(sets / "right.npz", tmp_path / "a.npz")
    settings = {"own_classifier": False, "own_statistics": False, "backbone": BACKBONE | {"topology": "graph"}}
    table = {
        "task": TASK | settings,
        "method": {"name": "fedavg"},
        "data": {"source": str(tmp_path / "a.npz"), "partition": {"name": "iid", "num_partitions": 2}},
        "train": {"batch_size": 2},
        "round": {"rounds": 1},
        "device": "cpu",
    }
    trained = run(make_recipe(table), tmp_path / "run", quiet=True).path
    assert load(trained).card["private"] == []
    assert {label for label, _ in recognize(f"{tmp_path / 'a.npz'}#m0", trained).ranking} == {*RIGHT}


def test_an_unknown_client_is_told_with_the_nearest_one(federated: Path, sets: Path) -> None:
    with pytest.raises(RunError, match="did you mean 'right'"):
        recognize(f"{sets / 'left.npz'}#m0", federated, client="rigth")


def test_a_client_that_never_trained_is_told(sets: Path, tmp_path: Path) -> None:
    trained = train(tmp_path / "run", sets, rounds={"rounds": 1, "clients": 1, "min_answers": 1.0})
    (took_part,) = (p.name for p in (trained / "clients").iterdir())
    (other,) = {"left", "right"} - {took_part}
    assert recognize(f"{sets / 'left.npz'}#m0", trained, client=took_part).client == took_part
    with pytest.raises(RunError, match=f"part of client '{other}' has never been trained") as error:
        recognize(f"{sets / 'left.npz'}#m0", trained, client=other)
    assert error.value.found == f"trained are {took_part}"


def test_private_parts_at_real_sites_are_told_to_be_there(copied: Path, sets: Path) -> None:
    shutil.rmtree(copied / "clients")
    with pytest.raises(RunError, match="never been trained"):
        recognize(f"{sets / 'left.npz'}#m0", copied, client="left")
    recipe = load(copied).card["recipe"]
    change_card(copied, recipe={**recipe, "engine": {"name": "flower"}})
    with pytest.raises(RunError, match="at real sites it stays at the site"):
        recognize(f"{sets / 'left.npz'}#m0", copied, client="left")


def test_classes_without_names_are_numbered(copied: Path, sets: Path) -> None:
    named = recognize(f"{sets / 'left.npz'}#m0", copied, client="left")
    (copied / "metrics.jsonl").write_text('{"round": 0, "phase": "partition", "train": {"left": [], "right": []}}\n')
    made = recognize(f"{sets / 'left.npz'}#m0", copied, client="left")
    numbers = {name: f"class {n}" for n, name in enumerate(LEFT, 1)}
    assert made.ranking == [(numbers[label], share) for label, share in named.ranking]
    (copied / "metrics.jsonl").unlink()
    assert recognize(f"{sets / 'left.npz'}#m0", copied, client="left").ranking == made.ranking


# what is refused


@pytest.mark.parametrize(("task", "hint"), [("summary", "fedreel summarize"), ("pretrain", "fedreel search")])
def test_a_run_of_another_task_is_refused(task: str, hint: str, copied: Path, sets: Path) -> None:
    """Of a model of the other task, built from scratch."""
    table = {"task": {"name": task}, "method": {"name": "fedavg"}}
    state = make_task(make_recipe(table)).model().state_dict()
    save_file(dict(state), copied / "model" / "global.safetensors")
    change_card(copied, task=task, recipe=table, travelling=[*state], private=[])
    with pytest.raises(RunError, match="does not recognise skeletons, images or videos") as error:
        recognize(f"{sets / 'left.npz'}#m0", copied, client="left")
    assert (error.value.expected, error.value.found) == ("a run of the task image, recognition or skeleton", task)
    assert hint in error.value.hint


def test_recordings_that_cannot_be_used_leave_nothing(federated: Path, tmp_path: Path) -> None:
    (tmp_path / "text.skeleton").write_text("dear diary\n")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no")
    (tmp_path / "film.mp4").write_bytes(b"")
    few = np.array([*KINECT_V1.names[:5], *(f"marker{i}" for i in range(15))])
    files = {
        "none.npz": "no such file",
        "text.skeleton": "cannot be used",
        "broken.npz": "not a readable",
        "film.mp4": "cannot be read as video|weights are not here|fedreel.pose",
        one(tmp_path / "few.npz", motion(0), joint_names=few).name: "too few of the joints",
        one(tmp_path / "empty.npz", 0 * motion(0)).name: "no body in any frame",
        one(tmp_path / "nan.npz", motion(0) * np.float32("nan")).name: "no body in any frame",
    }
    before = sorted(p.name for p in tmp_path.iterdir())
    for name, problem in files.items():
        with pytest.raises(DataError, match=problem) as error:
            recognize(tmp_path / name, federated, client="left", page=tmp_path / "p.html", json=tmp_path / "p.json")
        if "weights" not in error.value.problem:  # which may be missing before anybody looks at the film
            assert str(tmp_path / name) in error.value.where
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("what", ["page", "out", "json"])
def test_the_recording_is_never_overwritten(what: str, federated: Path, tmp_path: Path) -> None:
    source = one(tmp_path / "a.npz", motion(0))
    (tmp_path / "link").symlink_to(source)
    before = source.read_bytes()
    for name in ("a.npz", "link"):
        with pytest.raises(DataError, match="overwrite the recording itself"):
            recognize(f"{source}#m0", federated, client="left", **{what: tmp_path / name})  # type: ignore[arg-type]
    assert source.read_bytes() == before


def test_outputs_that_cannot_be_are_refused(federated: Path, tmp_path: Path) -> None:
    source = one(tmp_path / "a.npz", motion(0))
    with pytest.raises(DataError, match="would overwrite the GIF"):
        recognize(source, federated, client="left", page=tmp_path / "x.gif", out=tmp_path / "x.gif")
    with pytest.raises(DataError, match="written as GIF"):
        recognize(source, federated, client="left", out=tmp_path / "x.mp4")
    with pytest.raises(DataError, match="would be a folder"):
        recognize(source, federated, client="left", json=tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        recognize(source, federated, client="left", json=source / "x.json")
    with pytest.raises(FedreelError, match="nothing to show"):
        recognize(source, federated, client="left", top=0)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_a_model_that_diverged_is_told(copied: Path, sets: Path) -> None:
    state = max((copied / "clients" / "left").iterdir())
    tensors = {n: t * torch.nan if n == "model/head.fc.weight" else t for n, t in load_file(state).items()}
    save_file(tensors, state, metadata={"numbers": "{}"})
    with pytest.raises(RunError, match="no finite numbers"):
        recognize(f"{sets / 'left.npz'}#m0", copied, client="left")


# JSON and command


def test_the_json_holds_all_classes(federated: Path, tmp_path: Path) -> None:
    file = one(tmp_path / "a.npz", motion(1), fps=np.array(25))
    made = recognize(file, federated, client="left", json=tmp_path / "a.json", top=1)
    told = json.loads((tmp_path / "a.json").read_text())
    assert [(row["label"], row["probability"]) for row in told.pop("ranking")] == made.ranking
    assert len(made.ranking) == 3
    assert told.pop("trust") == {**asdict(made.trust), "near_chance": "yes", "unlike": "not known"}  # of 6 recordings
    assert told == {
        "source": str(file),
        "run": str(federated),
        "client": "left",
        "notes": made.notes,
        "label": made.label,
        "confidence": made.confidence,
        "frames": 15,
        "fps": 25.0,
        "joints": "kinect-v1",
    }


@pytest.mark.parametrize(("said", "fps"), [(15, 15.0), (-1, None), ("fast", None), ([25, 30], None)])
def test_only_a_sensible_frame_rate_is_believed(said: Any, fps: float | None, federated: Path, tmp_path: Path) -> None:
    assert recognize(one(tmp_path / "a.npz", motion(0), fps=np.array(said)), federated, client="left").fps == fps


def test_a_recording_of_a_kinect_v2_is_brought_to_the_models_joints(federated: Path, tmp_path: Path) -> None:
    """PKU-MMD's format: a frame a line, 25 joints of one person and the other. 30 frames a second."""
    frames = np.zeros((9, 2, 25, 3))
    frames[:, 0] = np.random.default_rng(1).normal(2, 0.3, (25, 3)) + np.linspace(0, 1, 9)[:, None, None]
    np.savetxt(tmp_path / "0001-L.txt", frames.reshape(9, 150))
    made = recognize(tmp_path / "0001-L.txt", federated, client="right", page=tmp_path / "p.html")
    names = [n.replace("hip_center", "spine_base") for n in KINECT_V1.names]
    names = ["spine_mid" if n == "spine" else "spine_shoulder" if n == "shoulder_center" else n for n in names]
    own = frames[:, 0, [KINECT_V2.names.index(n) for n in names]].astype(np.float32)
    assert dict(made.ranking) == pytest.approx(
        dict(recognize(one(tmp_path / "a.npz", own), federated, client="right").ranking), abs=1e-5
    )
    assert (made.frames, made.fps) == (9, 30.0)
    assert "9, 30 a second" in (tmp_path / "p.html").read_text()


def test_the_command_prints_the_action_the_ranking_and_the_files(federated: Path, sets: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / "p.gif", tmp_path / "p.html", tmp_path / "p.json"]
    options = [word for flag, path in zip(("-o", "--page", "--json"), outputs) for word in (flag, path)]
    said = cli("recognize", f"{sets / 'left.npz'}#m2", "--model", federated, "--client", "left", "--top", 2, *options)
    assert said.code == 0, said.err
    made = recognize(f"{sets / 'left.npz'}#m2", federated, client="left")
    first, *rest = said.out.splitlines()
    assert first == f"{made.label}  {100 * made.confidence:.0f} %"
    assert [line.rsplit(maxsplit=2) for line in rest[:2]] == [
        [f"  {label}", f"{100 * share:.1f}", "%"] for label, share in made.ranking[:2]
    ]
    assert rest[2:] == [str(path) for path in outputs]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.gif", "p.html", "p.json"]


def test_the_command_ends_with_status_2_when_no_client_is_named(federated: Path, sets: Path) -> None:
    said = cli("recognize", f"{sets / 'left.npz'}#m2", "--model", federated)
    assert (said.code, said.out) == (2, "")
    assert "left, right" in said.err
