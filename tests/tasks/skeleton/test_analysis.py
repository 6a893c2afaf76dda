"""What is read off runs over skeleton sets: by hand where that can be, and on small runs."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev

import pytest
import torch
from torch import nn

from fedreel.config import DataConfig
from fedreel.core.batchnorm import settling
from fedreel.errors import RecipeError, RunError
from fedreel.runs.run import load
from fedreel.tasks.skeleton import analysis as skeletons
from fedreel.tasks.skeleton.task import SkeletonRecognition
from support.moves import BACKBONE, make_sets, train


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def run(sets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(
        tmp_path_factory.mktemp("run") / "run",
        sets,
        backbone=BACKBONE | {"topology": "learnable"},
        rounds={"rounds": 3},
        settings={"engine": {"name": "local", "keep_trained": True}},
    )


def test_accuracies_are_the_last_rounds_and_their_unrest_that_of_the_second_half(tmp_path: Path) -> None:
    curves = {"a": [0.1, 0.9, 0.5, 0.7, 0.6, 0.8], "b": [0.0, 0.0, 0.2, 0.2, 0.2, 0.2]}
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for i in range(6):
            clients = {c: {"top1": v[i], "n": 3} for c, v in curves.items()}
            file.write(json.dumps({"round": i + 1, "phase": "test", "clients": clients}) + "\n")
    found = skeletons.accuracies(tmp_path)
    assert (found["top1/a"], found["top1/b"]) == (0.8, 0.2)
    assert found["unsteady"] == pytest.approx((stdev([0.7, 0.6, 0.8]) + 0.0) / 2)


def test_statistics_settle_on_those_of_the_data() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        model[1].running_mean.fill_(50)  # whatever was there is forgotten
    x = 3 * torch.randn(skeletons.AT_ONCE, 3) + 2
    with torch.no_grad(), settling(model):
        for part in x.split(skeletons.AT_ONCE):
            model(part)
    out = model[0](x).detach()
    assert torch.allclose(model[1].running_mean, out.mean(0), atol=1e-5)
    assert torch.allclose(model[1].running_var, out.var(0), atol=1e-4)
    assert not model.training


def test_neighbours_are_looked_for_in_the_set_that_was_left_out(sets: Path, tmp_path: Path, run: Path) -> None:
    out = train(tmp_path / "run", sets, leave_out="right")
    found = skeletons.neighbours(out)
    assert set(found) == {"knn1", "knn5", "knn20"}
    tests = len(skeletons.opened(out)[1].unseen.labels) // 2  # type: ignore[union-attr]
    assert all(0 <= v <= 1 and (v * tests).is_integer() for v in found.values())
    assert skeletons.neighbours(run) == {}  # nothing was left out


def test_the_servers_model_for_an_unseen_set_has_no_unique_topology(run: Path) -> None:
    loaded = load(run, client="left")
    before = {n: p.clone() for n, p in loaded.model.backbone.named_parameters()}
    server = dict(skeletons._server(loaded).named_parameters())
    for name, parameter in server.items():
        expected = torch.zeros_like(parameter) if name.endswith("unique") else before[name]
        assert torch.equal(parameter, expected), name


def test_coefficients_are_each_clients_own(run: Path) -> None:
    found = skeletons.coefficients(run)
    assert set(found) == {f"{c}/{s}" for c in ("alpha", "beta", "gamma") for s in ("left", "right")}
    kept = load(run, client="right").model.state_dict()["backbone.topologies.0.coefficients"]
    assert [found[f"{c}/right"] for c in ("alpha", "beta", "gamma")] == pytest.approx(kept.tolist())


def test_likeness_of_a_client_with_itself_is_1(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = skeletons.likeness(run)
    assert set(found) == {"cka1", "cka2", "cka3"}
    assert all(0 < v < 1 for v in found.values())
    same = load(run, client="left")
    monkeypatch.setattr(skeletons, "load", lambda *_, **__: same)
    assert all(v == pytest.approx(1) for v in skeletons.likeness(run).values())


def test_clients_models_are_kept_as_they_trained_them(run: Path) -> None:
    one, other = (load(run, client=c, trained=3).model.state_dict() for c in ("left", "right"))
    shared, own = "backbone.topologies.0.inflected", "backbone.topologies.0.unique"
    assert not torch.equal(one[shared], other[shared])  # not averaged yet
    for client, kept in (("left", one), ("right", other)):
        assert torch.equal(kept[own], load(run, client=client).model.state_dict()[own])  # that stays as it is
    first = load(run, client="left", trained=1).model.state_dict()
    assert not torch.equal(first[own], one[own])
    assert {p.name for p in (run / "trained").iterdir()} == {"round-0001", "round-0003"}


def test_the_mean_of_kept_models_is_the_servers(sets: Path, tmp_path: Path) -> None:
    keep = {"engine": {"name": "local", "keep_trained": True}}
    out = train(tmp_path / "run", sets, "fedavg", settings=keep)
    kept = [load(out, client=c, trained=2).model.state_dict() for c in ("left", "right")]
    sizes = [len(skeletons.opened(out)[1].data(c).train) for c in ("left", "right")]
    name = "backbone.topologies.0.inflected"
    mean = (sizes[0] * kept[0][name] + sizes[1] * kept[1][name]) / sum(sizes)
    torch.testing.assert_close(load(out).model.state_dict()[name], mean)


def test_models_that_were_not_kept_cannot_be_looked_at(sets: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "run", sets)
    assert not (out / "trained").exists()
    with pytest.raises(RunError, match="keep_trained"):
        skeletons.likeness(out)


def test_topologies_are_compared_by_the_correlation_of_their_entries(run: Path) -> None:
    found = skeletons.heat_maps(run)
    assert set(found) == {f"{letter} alike, {when}" for letter in "IU" for when in ("first", "last")}
    for number, when in ((1, "first"), (3, "last")):
        for letter, kind in (("I", "inflected"), ("U", "unique")):
            one, other = (
                load(run, client=c, trained=number).model.state_dict()[f"backbone.topologies.0.{kind}"].flatten()
                for c in ("left", "right")
            )
            one, other = one - one.mean(), other - other.mean()
            expected = float(one @ other / (one.norm() * other.norm()))
            assert found[f"{letter} alike, {when}"] == pytest.approx(expected, abs=1e-5)


def test_of_each_part_of_a_set_so_many_are_taken(sets: Path) -> None:
    source = DataConfig(source=str(sets))
    all_of, some = (
        SkeletonRecognition(joints="kinect-v1", classes=3, length=12, bodies=1, most=most).population(source, 0)
        for most in (0, 3)
    )
    for client in ("left", "right"):
        for whole, part in zip(*((p.data(client).train, p.data(client).test) for p in (all_of, some))):
            taken = {x.numpy().tobytes() for x in part.tensors[0]}  # type: ignore[attr-defined]
            assert len(taken) == len(part) == 3 < len(whole)
            assert taken <= {x.numpy().tobytes() for x in whole.tensors[0]}  # type: ignore[attr-defined]


def test_some_sets_take_part_and_others_do_not(sets: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "run", sets, sets=["right"])
    assert skeletons.opened(out)[1].clients == ("right",)
    with pytest.raises(RecipeError, match="there is no set 'wrong'"):
        train(tmp_path / "other", sets, sets=["wrong"])


def test_pages_of_topologies_and_landscapes_are_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skeletons.heat_maps(run)
    page = (run / "topology.html").read_text()
    for words in ("I of left, round 1", "I of right, round 3", "U of left, round 3", "U of right", "shoulder_center"):
        assert words in page
    monkeypatch.setattr(skeletons, "POINTS", 5)
    found = skeletons.flatness(run)
    assert found["sharpness"] == pytest.approx((found["sharpness/left"] + found["sharpness/right"]) / 2)
    assert "Loss landscapes" in (run / "landscape.html").read_text()
