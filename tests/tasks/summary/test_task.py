"""The task of summarization: its loss and measures by hand, its models, what it refuses, and whole runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedreel.tasks.summary.task as summary
from fedreel import playground
from fedreel.config import DataConfig, load_recipe, make_recipe
from fedreel.core.task import Outputs
from fedreel.data.features import Plain, same_features
from fedreel.errors import DataError, RecipeError
from fedreel.runs.run import load, run
from fedreel.tasks.summary.data import SummaryVideo, read_summary
from fedreel.tasks.summary.metrics import score
from fedreel.tasks.summary.split import Videos
from fedreel.tasks.summary.task import Summary
from support import annotated

MODELS = ("vslstm", "attention", "mixture_transformer")


def small(**settings: Any) -> Summary:
    return Summary(**{"features": "own", "width_in": 4, "width": 8, "hidden": 8, "fps": 2.0, **settings})


def examples(count: int = 3, **settings: Any) -> Videos:
    return Videos.of([annotated.video(f"v{i}", i, 3 + 2 * i, **settings) for i in range(count)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of four owners' videos, three each, one of them for testing."""
    names = [(f"o{i}", f"v{i}{k}") for i in range(4) for k in range(3)]
    content = {name: annotated.keys(n, shots=4 + n) for n, (_, name) in enumerate(names)}
    attrs = {n: {"owner": o, "category": o, "split": "test" if n.endswith("2") else "train"} for o, n in names}
    (tmp_path / "data").mkdir()
    annotated.write(tmp_path / "data" / "a.h5", content, attrs)
    return tmp_path / "data"


def recipe(folder: Path, **overrides: Any) -> Any:
    table = {
        "task": {"name": "summary", "features": "own", "width_in": 4, "width": 8, "hidden": 8, "blocks": 1, "fps": 2.0},
        "method": {"name": "fedavg"},
        "data": {"source": str(folder), "public": str(folder)},
        "train": {"batch_size": 2, "lr": 0.01, "optimizer": "adam"},
        "round": {"rounds": 2},
        "device": "cpu",
    }
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        table.setdefault(section, {})[name] = value  # type: ignore[union-attr, attr-defined]
    return make_recipe(table)


# loss and forward pass


def test_the_loss_is_the_mean_over_videos_of_the_mean_over_real_steps() -> None:
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    target = torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0]])
    scores = torch.tensor([[1.0, 0, 1, 0], [0.5, 9, 9, 9]])
    batch = (torch.zeros(2, 4, 4), mask, target, torch.arange(2))
    assert small().loss(Outputs(scores, scores), batch).item() == pytest.approx((2 / 4 + 0.25) / 2)


@pytest.mark.parametrize("kind", MODELS)
def test_padding_changes_neither_scores_nor_loss(kind: str) -> None:
    task = small(summarizer=kind)
    model = task.model().eval()
    videos = examples()
    with torch.no_grad():
        together = next(videos.batches(3))
        outputs = task.forward(model, together)
        alone = [(task.forward(model, b), b) for b in videos.batches(1)]
    assert outputs.features.shape[0] == 3
    for row, (single, batch) in enumerate(alone):
        n = batch[0].shape[1]
        torch.testing.assert_close(outputs.logits[row, :n], single.logits[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(outputs.features[row], single.features[0], atol=1e-5, rtol=1e-4)
    losses = [task.loss(single, batch).item() for single, batch in alone]
    assert task.loss(outputs, together).item() == pytest.approx(float(np.mean(losses)), rel=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_learns_its_training_videos(kind: str) -> None:
    task = small(summarizer=kind, dropout=0.0)
    torch.manual_seed(0)
    model, batch = task.model(), next(examples(2).batches(2))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(80):
        loss = task.loss(task.forward(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"backbone", "head"}


# measures


class Given(nn.Module):
    """A model that knows the scores: each step's first feature."""

    def features_and_scores(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return x, x[..., 0]


def test_measures_are_means_over_videos_of_each_video_s_own() -> None:
    videos = examples(4, scores=True)
    expected = [score(s[:, 0].double().numpy(), t) for s, t in zip(videos.sequences, videos.truths)]
    errors = [float((s[:, 0] - t).square().mean()) for s, t in zip(videos.sequences, videos.targets)]
    for size in (1, 3):
        found = small().evaluate(Given(), videos, size)
        assert {*found} == {"f1", "tau", "rho", "loss", "n"}
        assert found["n"] == 4
        assert found["loss"] == pytest.approx(np.mean(errors), rel=1e-5)
        for name in ("f1", "tau", "rho"):
            assert found[name] == pytest.approx(np.mean([getattr(e, name) for e in expected]))


def test_the_annotators_order_has_a_correlation_of_1() -> None:
    videos = [annotated.video(f"v{i}", i, scores=True) for i in range(3)]
    unanimous = []
    for video in videos:
        steps = len(video.target)
        truth = replace(video.truth, user_scores=np.tile(np.arange(steps), (3, 1)))
        unanimous.append(replace(video, features=np.exp(np.linspace(-3, 1, steps))[:, None].astype("f4"), truth=truth))
    found = small().evaluate(Given(), Videos.of(unanimous), 2)
    assert found["tau"] == pytest.approx(1)
    assert found["rho"] == pytest.approx(1)


def test_measures_that_are_not_defined_are_left_out() -> None:
    videos = [annotated.video(f"v{i}", i, scores=True) for i in range(2)]
    flat = [replace(v, truth=replace(v.truth, user_scores=np.ones_like(v.truth.user_scores))) for v in videos]
    found = small().evaluate(Given(), Videos.of(flat), 2)
    assert {*found} == {"f1", "loss", "n"}
    one = small().evaluate(Given(), Videos.of([flat[0], videos[1]]), 2)
    assert one["tau"] == small().evaluate(Given(), Videos.of(videos[1:]), 2)["tau"]
    json.dumps([found, one], allow_nan=False)
    assert small().evaluate(Given(), Videos.of([]), 2) == {"n": 0.0}


# settings


def test_features_that_do_not_fit_are_refused(folder: Path) -> None:
    with pytest.raises(RecipeError, match="64 for the features 'plain'"):
        Summary(width_in=1280)
    with pytest.raises(DataError, match=r"task\.width_in=4"):
        small(width_in=5).population(DataConfig(source=str(folder)), 0)
    with pytest.raises(RecipeError):
        small(ratio=0.0)
    with pytest.raises(RecipeError):
        small(fragments=-1)


def test_another_number_of_steps_a_second_is_refused(tmp_path: Path) -> None:
    content = {**annotated.keys(1), "fps": 10.0, "category": "a"}  # a step every 5 frames: 2 a second
    path = annotated.write(tmp_path / "a.h5", {"v1": content, "v2": content})
    small(fps=2.0).population(DataConfig(source=str(path), owner="ann"), 0)
    with pytest.raises(DataError, match=r"set task\.fps="):
        small(fps=1.0).population(DataConfig(source=str(path), owner="ann"), 0)


def test_the_card_says_what_a_user_must_feed_the_model() -> None:
    card = json.loads(json.dumps(Summary(fps=1.0).card(), allow_nan=False))
    assert same_features(card["input"]["features"], {**Plain().card(), "fps": 1.0})
    assert not same_features(card["input"]["features"], {**Plain().card(), "fps": 2.0})
    assert card["summary"] == {"model": "mixture_transformer", "ratio": 0.15}
    assert small().card()["input"]["features"]["name"] == "own"


def test_the_public_video_is_one_for_testing_and_depends_on_the_seed(folder: Path) -> None:
    data = DataConfig(public=str(folder))
    lengths = [len(small().public(data, seed).sequences[0]) for seed in range(8)]
    tests = {len(annotated.keys(n, shots=4 + n)["picks"]) for n in (2, 5, 8, 11)}
    assert {*lengths} <= tests
    assert len({*lengths}) > 1
    assert lengths[:2] == [len(small().public(data, seed).sequences[0]) for seed in range(2)]
    with pytest.raises(RecipeError, match=r"set data\.public"):
        small().public(DataConfig(), 0)


@pytest.mark.parametrize("public", ["same", ""])
def test_proxies_of_the_clients_own_file_are_videos_that_nobody_trains_on(tmp_path: Path, public: str) -> None:
    """Nothing is marked, so that each seed draws its own test videos; also where settings are chosen."""
    content = {f"v{n}": {**annotated.keys(n, shots=5 + n), "category": "ab"[n % 2]} for n in range(10)}
    path = annotated.write(tmp_path / "a.h5", content)
    task, firsts = small(fragments=2), set()
    for seed in range(6):
        iid = {"name": "iid", "num_partitions": 2}
        data = DataConfig(source=str(path), public=str(path) if public else "", partition=iid, seed=seed)
        proxies = task.public(data, seed)
        firsts.add(proxies.sources[0])
        for validate in (False, True):
            clients = task.population(replace(data, validate=validate), seed)
            trained = {s for c in clients.clients for s in clients.data(c).train.sources}
            assert trained
            assert not trained & {*proxies.sources}
        assert len({*proxies.sources}) == len(proxies) > 0
        for name, sequence in zip(proxies.sources, proxies.sequences):  # whole videos, not parts
            np.testing.assert_array_equal(sequence.numpy(), content[name]["features"])
    assert len(firsts) > 1
    with pytest.raises(DataError, match="none can be the proxy"):
        task.public(replace(data, test_share=0.0), 0)


def test_topics_are_counted_over_all_that_there_are(folder: Path) -> None:
    task, data = small(), DataConfig(source=str(folder))
    clients = task.population(data, 0)
    assert [task.topics(clients.data(c).train).tolist() for c in clients.clients] == [
        [2, 0, 0, 0],
        [0, 2, 0, 0],
        [0, 0, 2, 0],
        [0, 0, 0, 2],
    ]


def test_rounding_lengths_up_changes_neither_loss_nor_gradients() -> None:
    """As on a GPU, where batches of one video are padded and made once."""
    task, videos = small(dropout=0.0), examples(4)
    rounded = Videos(videos.sequences, videos.targets, videos.truths, whole=16)
    model = task.model()
    for kind in (videos, rounded):
        assert next(kind.batches(1))[0] is next(kind.batches(1))[0]
    found = []
    for (x, mask, target, index), plain in zip(rounded.batches(1), videos.batches(1)):
        assert x.shape[1] % 16 == 0
        assert int(mask.sum()) == plain[0].shape[1]
        padded = (torch.cat([x, x]), torch.cat([mask, mask]), torch.cat([target, target]), index)  # two: with the mask
        for batch in (padded, plain):
            loss = task.loss(task.forward(model, batch), batch)
            found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for with_padding, without in zip(found[::2], found[1::2]):
        for a, b in zip(with_padding, without):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


@pytest.mark.slow
def test_without_public_data_a_video_of_another_playground_world_is_made() -> None:
    found = Summary().public(DataConfig(), 0)
    assert len(found) == 3
    assert found.sequences[0].shape == (len(found.targets[0]), 64)
    assert torch.equal(found.sequences[0], Summary().public(DataConfig(), 0).sequences[0])


# whole runs


def test_a_run_ends_with_measures_and_a_model_that_loads(folder: Path, tmp_path: Path) -> None:
    result = run(recipe(folder), tmp_path / "run", quiet=True)
    assert {"f1", "tau", "rho", "loss"} <= {*result.metrics}
    loaded = load(tmp_path / "run")
    assert loaded.card["input"]["features"]["width"] == 4
    assert loaded.model(torch.zeros(1, 7, 4)).shape == (1, 7)


def test_a_file_is_read_once_until_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path, *args: Any, **settings: Any) -> list[SummaryVideo]:
        read.append(path)
        return read_summary(path, *args, **settings)

    monkeypatch.setattr(summary, "read_summary", counted)
    task, data = small(fragments=2), DataConfig(source=str(folder))
    first = task.population(data, 0)
    again = replace(task, width=16).population(data, 0)
    assert [v.name for v in first.videos] == [v.name for v in again.videos]
    assert len(read) == 1
    small(fragments=2, standardise=True).population(data, 0)
    assert len(read) == 2
    attrs = {"new": {"owner": "o0"}, "other": {"owner": "o1"}}
    annotated.write(folder / "a.h5", {n: annotated.keys(7 + i, shots=4) for i, n in enumerate(attrs)}, attrs)
    assert {v.source for v in task.population(data, 0).videos} == {*attrs}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedprox", "moon", "centralised", "local-only", "cfedvs", "ifca", "fedgroup"])
def test_every_method_trains_summarizers(folder: Path, tmp_path: Path, method: str) -> None:
    result = run(recipe(folder, method__name=method, task__fragments=2), tmp_path / "run", quiet=True)
    assert 0 <= result.metrics["f1"] <= 1


@pytest.mark.slow
def test_the_vector_engine_gives_what_the_local_one_gives(folder: Path, tmp_path: Path) -> None:
    one = run(recipe(folder), tmp_path / "one", quiet=True)
    other = run(recipe(folder, engine__name="vector"), tmp_path / "other", quiet=True)
    assert one.metrics == pytest.approx(other.metrics)


@pytest.mark.slow
def test_the_recipe_runs_on_a_folder_of_videos_without_features(tmp_path: Path) -> None:
    few = replace(playground.SMALL, name="tiny", summary_owners=3, summary_videos=3)
    world = playground.make(tmp_path / "world", 3, few, ["summary"])
    settings = {"data.source": str(world), "round.rounds": 3, "method.name": "fedavg", "device": "cpu"}
    run(load_recipe("cfedvs", settings), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["communities"] == {"owner-01": "speed", "owner-02": "colour", "owner-03": "crowd"}
    losses = [line["loss"] for line in lines if line["phase"] == "train"]
    assert losses[-1] < losses[0]
