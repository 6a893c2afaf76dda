"""Moment retrieval as a task: its metrics, what it samples and counts, words, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedreel.config import DataConfig, load_recipe, make_recipe
from fedreel.core.task import Tensors
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.models.sentences import _opened, make_encoder
from fedreel.runs.run import load, run
from fedreel.tasks.moments.question import read_question
from fedreel.tasks.moments.task import MomentRetrieval
from support.encoders import tiny_bert

SETTINGS = {
    "features": "own",
    "width_in": 4,
    "length": 8,
    "width": 8,
    "word_width": 4,
    "vocabulary": 40,
    "dropout": 0.0,
}
KINDS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes, eight videos of 16 s each; in each a coloured stretch that a sentence asks for."""
    root = tmp_path_factory.mktemp("moments")
    rng = np.random.default_rng(0)
    rows, lines, videos = {}, [], ["id,owner,length,split"]
    for owner in ("kitchen", "hall"):
        for n in range(8):
            name = f"{owner}{n}"
            x = rng.normal(0, 0.1, (16, 4)).astype(np.float32)
            for kind, start in zip(rng.permutation(3), (1, 6, 11)):
                x[start : start + 4, kind] += 2
                lines.append(f"{name} {start}.0 {start + 4}.0##something {KINDS[kind]} comes.")
            rows[name] = x
            videos.append(f"{name},{owner},16,{'test' if n > 5 else 'train'}")
    (root / "annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "videos.csv").write_text("\n".join(videos) + "\n")
    offsets = np.cumsum([0, *map(len, rows.values())])
    np.savez(root / "own.npz", ids=np.array([*rows]), offsets=offsets, features=np.concatenate([*rows.values()]))
    return root


def task(**changes: Any) -> MomentRetrieval:
    return MomentRetrieval(**{**SETTINGS, **changes})


def train(out: Path, folder: Path, method: dict[str, Any], rounds: int = 2, **changes: Any) -> dict[str, Any]:
    table = {
        "task": {"name": "moments", **SETTINGS, **changes},
        "method": method,
        "data": {"source": str(folder)},
        "train": {"batch_size": 8, "lr": 3e-3, "optimizer": "adam", "epochs": 2},
        "round": {"rounds": rounds, "evaluate_every": rounds, "trust": False},
        "device": "cpu",
    }
    return run(make_recipe(table), out, quiet=True).summary


DETR = {"form": "qd-detr", "encoder": "attention"}


@pytest.mark.parametrize("form", ["pointer", "anchor-free", "proposal"])
def test_a_run_learns_to_find_what_a_sentence_says_and_not_without_the_video(
    folder: Path, tmp_path: Path, form: str
) -> None:
    method = {"name": "fedavg"}
    seeing = train(tmp_path / "a", folder, method, 12, form=form, width=16)["metrics"]["miou"]
    blind = train(tmp_path / "b", folder, method, 12, form=form, width=16, use_video=False)["metrics"]["miou"]
    assert seeing > blind + 0.15


def test_a_run_of_qd_detr_learns_moments_and_highlights(folder: Path, tmp_path: Path) -> None:
    """Of a video's windows, those that are salient for a sentence are those of its moment."""
    settings = {**DETR, "width": 16}
    path = tmp_path / "run"
    assert train(path, folder, {"name": "fedavg"}, 25, **settings)["metrics"]["miou"] > 0.5
    loaded = load(path)
    mine = loaded.task.population(DataConfig(source=str(folder)), 0).data("hall").test
    (batch,) = mine.batches(100)
    with torch.no_grad():
        saliency = loaded.task.forward(loaded.model, batch).located.scores
    places = torch.arange(8)
    inside = (places >= batch[2][:, :1]) & (places <= batch[2][:, 1:])
    best = saliency.argmax(1, keepdim=True)
    assert inside.gather(1, best).float().mean() > 0.8


@pytest.mark.parametrize("method", ["fedvmr", "fedcmr", "cyclic", "local-only"])
def test_methods_train_qd_detr(folder: Path, tmp_path: Path, method: str) -> None:
    metrics = train(tmp_path / "run", folder, {"name": method}, 1, **DETR)["metrics"]
    assert 0 <= metrics["r70"] <= metrics["r30"] <= 1


def test_a_run_with_a_sentence_encoder_knows_words_that_no_training_sentence_has(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))
    encoder = f"bert:{tiny_bert(tmp_path / 'bert')}"
    assert 0 <= train(tmp_path / "run", folder, {"name": "fedvmr"}, 1, sentences=encoder)["metrics"]["miou"] <= 1
    loaded = load(tmp_path / "run")
    card = loaded.card["input"]["sentences"]
    assert card == {"name": encoder, "width": 12, "fingerprint": make_encoder(encoder).fingerprint}
    one, other = (read_question(s, loaded.task, tmp_path / "run", loaded.card) for s in ("zebras graze", "a quilt"))
    assert one.tokens.shape == other.tokens.shape == (15, 12)
    assert not one.unknown
    assert not np.array_equal(one.tokens, other.tokens)  # unlike words of a list, which are all one unknown word
    assert "[UNK]" in make_encoder(encoder).pieces("☃")
    assert read_question("red ☃☃", loaded.task, tmp_path / "run", loaded.card).notes == []  # no word, so not missed
    assert read_question("red ß漢", loaded.task, tmp_path / "run", loaded.card).unknown == ["ß漢"]
    with pytest.raises(DataError, match="none of these words"):
        read_question("漢", loaded.task, tmp_path / "run", loaded.card)
    (note,) = read_question("a " * 20, loaded.task, tmp_path / "run", loaded.card).notes
    assert note == "the model looks at 15 of the sentence's 20 tokens"
    tiny_bert(tmp_path / "bert", seed=1)
    _opened.cache_clear()
    with pytest.raises(RunError, match="not the one that the model was trained with"):
        read_question("red", loaded.task, tmp_path / "run", loaded.card)


def test_sentences_are_read_by_a_list_or_by_an_encoder() -> None:
    with pytest.raises(RecipeError, match=r"task\.words"):
        task(sentences="minilm", words="glove.npz")
    with pytest.raises(RecipeError, match="no such encoder"):
        task(sentences="minlm").model()


def test_qd_detr_reads_by_attention_and_others_do_not() -> None:
    for settings in ({"form": "qd-detr"}, {"encoder": "attention"}, {**DETR, "prior": False}):
        with pytest.raises(RecipeError):
            task(**settings).model()


@pytest.mark.parametrize("method", ["fedvmr", "fedcmr", "cyclic", "fedavg", "fedprox", "centralised", "local-only"])
def test_every_method_trains_on_moments(folder: Path, tmp_path: Path, method: str) -> None:
    metrics = train(tmp_path / "run", folder, {"name": method})["metrics"]
    assert {"r30", "r50", "r70", "miou", "score", "loss"} <= set(metrics)
    assert all(0 <= metrics[name] <= 1 for name in ("r30", "r50", "r70", "miou", "score"))
    assert metrics["r30"] >= metrics["r50"] >= metrics["r70"]


def test_a_sample_holds_all_questions_about_some_videos_and_can_be_tested_on(folder: Path) -> None:
    t = task()
    population = t.population(DataConfig(source=str(folder)), 0)
    mine = population.data("kitchen").train
    torch.manual_seed(0)
    for share, videos in ((0.0, 1), (0.5, 3), (1.0, 6)):
        sample = t.sample(mine, share)
        assert len(sample["words"]) == 3 * videos
        assert len(torch.unique(sample["video"].flatten(1), dim=0)) == videos
    whole = Tensors(tuple(t.sample(mine, 1.0).values()))
    model = t.model().eval()
    with torch.no_grad():
        one, other = t.evaluate(model, whole, 7), t.evaluate(model, mine, 100)
    assert all(one[name] == pytest.approx(other[name], rel=1e-5) for name in one)


def test_counts_are_those_of_the_true_moments(folder: Path) -> None:
    t = task()
    mine = t.population(DataConfig(source=str(folder)), 0).data("hall").train
    counts = t.temporal_counts(mine, 4).reshape(4, 4)
    assert int(counts.sum()) == 18
    assert counts[0, 1] == counts[1, 2] == counts[2, 3] == 6  # 1-5, 6-10 and 11-15 of 16 s
    assert t.categories(mine) == 1


def test_words_come_from_training_or_from_a_file(folder: Path, tmp_path: Path) -> None:
    source = DataConfig(source=str(folder))
    assert {*task().population(source, 0).words.words} == {"something", "comes", *KINDS}
    np.savez(tmp_path / "glove.npz", words=np.array(["red", "comes"]), vectors=np.eye(2, 6, dtype=np.float32))
    known = task(words=str(tmp_path / "glove.npz"))
    assert known.population(source, 0).words.words == ("red", "comes")
    assert not [n for n in known.model().state_dict() if "vectors" in n]  # fixed, and no part of the model
    (tmp_path / "list.txt").write_text("red\ncomes\n")
    assert task(words=str(tmp_path / "list.txt")).model().backbone.sentence.vectors.weight.shape == (4, 4)


@pytest.mark.parametrize(
    ("changes", "said"), [({"width_in": 5}, "task.width_in=4"), ({"vocabulary": 4}, "vocabulary=7")]
)
def test_data_that_do_not_fit_are_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        task(**changes).population(DataConfig(source=str(folder)), 0)


@pytest.mark.parametrize("setting", [{"length": 0}, {"dropout": 2.0}, {"max_share": 0.0}, {"width": 7}])
def test_settings_that_cannot_be_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        task(**setting).model()


def test_the_card_says_which_features_a_user_must_feed_the_model() -> None:
    assert task().card()["input"]["features"] == {"name": "own", "width": 4, "fps": 2.0}
    json.dumps(task().card())


@pytest.mark.slow
def test_the_recipe_runs_on_the_playground(tmp_path: Path) -> None:
    recipe = load_recipe("fedvmr", {"round.rounds": 1, "data.size": "tiny", "task.width": 8, "device": "cpu"})
    assert run(recipe, tmp_path / "run", quiet=True).summary["metrics"]["miou"] >= 0


def test_a_network_begins_with_a_file_unless_words_are_those_of_the_training_sentences(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("red\ngreen\nblue\n")
    words = {"words": str(tmp_path / "words.txt")}
    torch.manual_seed(0)
    source = task(**words).model().state_dict()
    torch.save(source, tmp_path / "w.pth")
    found = task(**words, init=str(tmp_path / "w.pth")).model().state_dict()
    assert all(torch.equal(source[name], found[name]) for name in source)
    with pytest.raises(RecipeError, match="belong to other words"):
        task(init=str(tmp_path / "w.pth"))
