"""How transformers are fine-tuned: rates by epoch and by layer, what is dropped, and that it teaches them something."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedreel.core.abilities import Embeds
from fedreel.core.task import Outputs
from fedreel.errors import Diverged
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.evaluate import measures
from fedreel.tasks.vision.evaluate.downstream import _Tuned, fine_tune, top1
from fedreel.tasks.vision.evaluate.measures import Trial
from fedreel.tasks.vision.evaluate.retrieval import labelled_set
from fedreel.tasks.vision.evaluate.tuning import CONVOLUTIONAL, TRANSFORMER, new_classifier, rate_scales, tuning_of
from support.networks import small_r3d
from support.shelf import bars, flat, shelved

pytest.importorskip("transformers")
from fedreel.models.videomae import DropPath, VideoMAEConfig

SMALL = VideoMAEConfig(width=24, depth=3, heads=2, mlp=48, patch=4)
TASK = Pretrain(backbone=SMALL, frames=4, size=12, stored=16)


def classifier() -> Any:
    return new_classifier(TASK.model().backbone, 2, 0.01, TRANSFORMER)


def test_each_backbone_is_tuned_as_its_authors_do_it() -> None:
    assert tuning_of(TASK) is TRANSFORMER
    assert tuning_of(Pretrain(backbone=small_r3d())) is CONVOLUTIONAL
    assert TRANSFORMER.train.epochs == CONVOLUTIONAL.train.epochs
    assert TRANSFORMER.train.batch_size == CONVOLUTIONAL.train.batch_size
    assert len(TRANSFORMER.rates) == len(CONVOLUTIONAL.rates), "equal effort"
    for tuning in (TRANSFORMER, CONVOLUTIONAL):
        assert tuning.train.lr in tuning.rates


def test_the_rate_rises_then_falls_along_a_cosine() -> None:
    tuning = replace(TRANSFORMER.shortened(40), train=replace(TRANSFORMER.train, epochs=40, lr=2.0))
    rates = tuning.by_epoch()
    assert rates[:3] == pytest.approx([1.0, 2.0, 2.0])
    assert rates[2:] == pytest.approx([1 + math.cos(math.pi * k / 38) for k in range(38)])
    assert CONVOLUTIONAL.shortened(5).by_epoch() == pytest.approx([0.01, 0.01, 1e-3, 1e-3, 1e-4])


def test_rates_fall_by_the_same_factor_from_layer_to_layer() -> None:
    scales = rate_scales(classifier(), 0.5)
    for name, scale in scales.items():
        layer = next((k for k in range(3) if f"encoder.layer.{k}." in name), None)
        expected = {None: 1 / 16 if "embeddings" in name else 1.0, 0: 1 / 8, 1: 1 / 4, 2: 1 / 2}[layer]
        assert scale == expected, name
    assert {*scales.values()} == {1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0}


def test_biases_and_norms_have_no_weight_decay() -> None:
    spared = {name for name, p in classifier().named_parameters() if p.no_decay}
    assert all(("bias" in name) or ("norm" in name) or name.startswith("head.dropout.0") for name in spared)
    assert "head.fc.bias" in spared
    assert "backbone.encoder.layer.0.layernorm_before.weight" in spared
    assert "head.fc.weight" not in spared


def test_paths_are_dropped_in_training_by_the_sample_and_the_mean_stays() -> None:
    torch.manual_seed(0)
    drop = DropPath(0.25)
    seen = drop(torch.ones(4000, 2, 3))
    assert torch.equal(seen, seen[:, :1, :1].expand_as(seen))
    assert seen[:, 0, 0].unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(seen.mean()) == pytest.approx(1, abs=0.03)
    assert torch.equal(drop.eval()(seen), seen)


def test_later_layers_are_dropped_more_often() -> None:
    layers: Any = classifier().backbone.encoder.layer
    shares = [(layer.attention.output.dropout.share, layer.output.dropout.share) for layer in layers]
    assert shares == [pytest.approx((0.1 * k / 2,) * 2) for k in range(3)]


def test_a_layer_whose_paths_are_dropped_hands_on_what_it_was_given() -> None:
    backbone = TASK.model().backbone.train()
    backbone.drop_paths(0.1)
    layer: Any = backbone.encoder.layer[0]  # type: ignore[index, union-attr]
    tokens = torch.randn(2, 5, 24)
    assert not torch.equal(layer(tokens), tokens)
    layer.attention.output.dropout.share = layer.output.dropout.share = 1 - 1e-9
    assert torch.equal(layer(tokens), tokens)


def test_smoothed_labels_share_a_tenth_among_all_classes() -> None:
    logits, labels = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
    log = torch.log_softmax(logits, 1)[0]
    task = _Tuned(TASK, Views(12), 0.1)
    expected = -(0.9 * log[0] + 0.1 * log.mean())
    assert float(task.loss(Outputs(logits, logits), (logits, labels))) == pytest.approx(float(expected))


def test_it_teaches_a_transformer_what_it_does_not_know_yet(tmp_path: Path) -> None:
    found = bars(tmp_path / "s", train=32)
    torch.manual_seed(0)
    model, views = TASK.model(), Views(12, (1.0, 1.143))
    right = []
    for rate in (TRANSFORMER.train.lr, 1e-9):
        short = replace(TRANSFORMER, train=replace(TRANSFORMER.train, epochs=20, batch_size=8, lr=rate))
        right.append(top1(fine_tune(model, TASK, found, views, short), TASK, found))
    assert right[0] > 0.9 > right[1]


def test_what_a_transformer_is_searched_and_probed_by_is_the_mean_of_its_tokens_after_the_last_norm() -> None:
    model: Any = TASK.model().eval()
    clips = torch.randint(256, (2, 4, 16, 16, 3), dtype=torch.uint8)
    with torch.no_grad():
        shown = TASK._input(clips[:, :, 2:14, 2:14])
        tokens = model.backbone.encoder(model.backbone.tokens(shown)).last_hidden_state
        expected = model.backbone.layernorm(tokens).mean(1)
        assert torch.allclose(TASK.embed(model, clips), expected, atol=1e-5)
        assert TASK.embed(model, clips, "grid").shape == (2, 24 * 2 * 1 * 1)


@pytest.mark.parametrize(("width", "playground", "epochs"), [(24, False, 60), (24, True, 30), (384, False, 150)])
def test_small_transformers_are_tuned_as_long_as_small_convolutions_and_probed_on_standardised_vectors(
    width: int, playground: bool, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(measures, "_tuned", lambda trial, tuning: seen.append(tuning) or 0.5)
    monkeypatch.setattr(measures, "linear_probe", lambda *args, **how: seen.append(how["standardise"]) or 0.5)
    trial = Trial(nn.Identity(), replace(TASK, backbone=replace(SMALL, width=width)), None, playground=playground)  # type: ignore[arg-type]
    assert measures.tunings(trial) | measures.probes(trial) == {"tune": 0.5, "probe": 0.5}
    assert seen == [TRANSFORMER.shortened(epochs), True]
    assert measures.longer_tunings(trial) == {"tune longer": 0.5}
    assert measures.longer_tunings(replace(trial, epochs=5)) == {"tune longer": 0.5}
    assert seen[2:] == [TRANSFORMER, TRANSFORMER.shortened(5)]


def test_one_rate_for_all_sets_is_chosen_on_held_out_training_videos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three rates the first diverges, and the last is best on average, though not on the first set."""
    asked: list[tuple[int, int]] = []  # videos to learn from, and epochs
    worth = {("a", 0.01): 0.8, ("a", 0.03): 0.7, ("b", 0.01): 0.2, ("b", 0.03): 0.4}

    def tuned(trial: Trial, tuning: Any) -> float:
        rate, name = tuning.train.lr, trial.labelled.name
        asked.append((len(trial.labelled.train), tuning.train.epochs))
        if rate == 0.003:
            raise Diverged("training diverged")
        return worth[name, rate]

    monkeypatch.setattr(measures, "_tuned", tuned)
    task: Embeds = Pretrain(backbone=small_r3d())
    sets = [
        labelled_set(n, shelved(tmp_path / n, [flat(0)] * 11, ["x"] * 11, ["train"] * 10 + ["test"]))
        for n in ("a", "b")
    ]
    rate, found = measures.chosen_tunings([Trial(nn.Identity(), task, labelled) for labelled in sets])
    assert (rate, found) == (0.03, [{"tune": 0.7}, {"tune": 0.4}])
    assert asked == [(8, 20)] * 6 + [(10, 60)] * 2
