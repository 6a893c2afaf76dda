"""Probes on planted vectors, fine-tuning on planted clips, and videos judged by ten clips together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.errors import DataError
from fedreel.models.backbone import Backbone
from fedreel.models.classifier import Classifier
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.evaluate.downstream import RandomClips, fine_tune, linear_probe, top1
from fedreel.tasks.vision.evaluate.retrieval import LabelledSet, end_to_end, in_ten_parts, labelled_set, ten_clips
from fedreel.tasks.vision.evaluate.tuning import CONVOLUTIONAL, TUNE, Tuning, shortened
from fedreel.tasks.vision.footage import Held, Stored, at_hand
from fedreel.tasks.vision.probe import PROBE, probe
from support.networks import small_r3d
from support.shelf import Known, bars, flat, shelved

TINY = Pretrain(backbone=small_r3d(bn_eps=1e-3, stem_size=3), frames=4, size=14)  # stored at 16 pixels
VIEWS = Views(14, (1.0, 1.143))
CPU = torch.device("cpu")


def right(classifier: nn.Module, vectors: Tensor, labels: Tensor) -> float:
    return float((classifier(vectors).mean(1).argmax(1) == labels).float().mean())


def planted(videos: int, signal: float, seed: int) -> tuple[Tensor, Tensor]:
    """Ten vectors of each video, noise about the corner of its class (of 4)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(videos) % 4
    return signal * F.one_hot(labels, 8)[:, None] + torch.randn(videos, 10, 8, generator=generator), labels


def test_a_probe_separates_what_a_plane_separates() -> None:
    vectors, labels = planted(160, 3.0, 0)
    assert right(probe(vectors, labels, 4), *planted(200, 3.0, 1)) > 0.97


def test_a_probe_on_noise_stays_at_chance() -> None:
    vectors, labels = planted(160, 0.0, 0)
    assert right(probe(vectors, labels, 4), *planted(400, 0.0, 1)) == pytest.approx(0.25, abs=0.07)


def test_a_probe_is_the_same_for_a_seed_and_leaves_random_numbers_alone() -> None:
    vectors, labels = planted(40, 1.0, 0)
    config = shortened(PROBE, 3)
    before = torch.get_rng_state()
    one, same, other = (probe(vectors, labels, 4, config, seed)[1].weight for seed in (0, 0, 1))  # type: ignore[index]
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_momentum_goes_on_when_the_rate_falls() -> None:
    vectors, labels = planted(40, 1.0, 0)
    steady = replace(shortened(PROBE, 4), schedule="constant")
    hardly = replace(steady, schedule="step", milestones=(1, 2, 3), decay=1 - 1e-7)
    a, b = (probe(vectors, labels, 4, config)[1].weight for config in (steady, hardly))  # type: ignore[index]
    assert torch.allclose(a, b, atol=1e-6)


def test_fewer_epochs_have_the_falls_of_the_rate_at_the_same_shares() -> None:
    assert (TUNE.epochs, TUNE.milestones) == (150, (60, 120))
    assert CONVOLUTIONAL.train == TUNE
    assert shortened(TUNE, 30) == replace(TUNE, epochs=30, milestones=(12, 24))
    assert shortened(PROBE, 20).milestones == (12, 16)


def test_a_linear_probe_learns_from_the_backbone_s_vectors(tmp_path: Path) -> None:
    values = np.random.default_rng(0).permutation(np.repeat([10, 90, 170, 250], 12))
    splits = ["train"] * 32 + ["test"] * 16
    found = labelled_set("greys", shelved(tmp_path / "s", [flat(v) for v in values], [f"{v}" for v in values], splits))
    telling = Known(lambda grey: F.one_hot((grey / 80).long(), 4).float())
    assert linear_probe(nn.Linear(1, 1), telling, found) == 1.0
    silent = Known(lambda grey: torch.ones(len(grey), 4))
    assert linear_probe(nn.Linear(1, 1), silent, found) <= 0.5


def test_a_probe_on_standardised_vectors_does_not_mind_their_scale_and_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, values = rng.integers(0, 4, 60), rng.permutation(200)[:60]
    splits = ["train"] * 40 + ["test"] * 20
    found = labelled_set("any", shelved(tmp_path / "s", [flat(v) for v in values], [f"{k}" for k in labels], splits))
    book = torch.from_numpy(rng.normal(size=(200, 6))).float()
    book[values, labels] += 3  # the class shows
    plain, small = Known(lambda grey: book[grey.long()]), Known(lambda grey: 1e-3 * book[grey.long()] + 7)
    model, config = nn.Linear(1, 1), shortened(PROBE, 30)
    good = linear_probe(model, plain, found, config, standardise=True)
    assert good > 0.8
    assert linear_probe(model, small, found, config, standardise=True) == pytest.approx(good, abs=0.05)
    assert linear_probe(model, small, found, config) < 0.6


class Grey(Backbone):
    out_channels = 1

    def features(self, x: Tensor) -> Tensor:
        return x


def test_a_video_s_class_is_that_of_its_mean_logits_not_of_most_clips(tmp_path: Path) -> None:
    mostly_dark = np.concatenate([flat(0, 7), flat(200, 3)])  # ten clips of one frame; mean 60
    dark = np.concatenate([flat(0, 9), flat(200, 1)])  # mean 20
    clips = [flat(0), mostly_dark, dark]
    found = labelled_set("greys", shelved(tmp_path / "s", clips, ["b", "b", "a"], ["train", "test", "test"]))
    classifier = Classifier(Grey(), 2, dropout=0.9)
    with torch.no_grad():
        classifier.head["fc"].weight.copy_(torch.tensor([[0.0], [1.0]]))
        classifier.head["fc"].bias.copy_(torch.tensor([40.0, 0.0]))  # class b from a grey of 40 on
    assert top1(classifier, Known(lambda grey: grey[:, None], frames=1), found, end_to_end) == 1.0


def loss(classifier: Classifier, found: LabelledSet) -> float:
    examples = RandomClips(found.footage(CPU), found.train, found.labels, TINY.frames, 2)
    ((clips, labels),) = examples.batches(100, torch.Generator().manual_seed(0))
    with torch.no_grad():
        return float(F.cross_entropy(classifier.classify(TINY.embed(classifier, clips))[1], labels))


def test_fine_tuning_lowers_the_loss_learns_the_classes_and_leaves_the_model_alone(tmp_path: Path) -> None:
    found = bars(tmp_path / "s")
    torch.manual_seed(0)
    model = TINY.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = replace(shortened(TUNE, 12), batch_size=8)
    short, tuned, again = (
        fine_tune(model, TINY, found, VIEWS, Tuning(replace(config, epochs=n)))
        for n in (1, config.epochs, config.epochs)
    )
    assert loss(tuned, found) < 0.5 * loss(short, found)
    assert top1(tuned, TINY, found) > 0.9
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    changed = [not torch.equal(t, before[f"backbone.{name}"]) for name, t in tuned.backbone.named_parameters()]
    assert all(changed), "all weights are trained"
    assert all(torch.equal(a, b) for a, b in zip(tuned.state_dict().values(), again.state_dict().values()))
    assert not tuned.training


def test_fine_tuning_trains_batch_norms_of_a_model_that_was_loaded_for_use(tmp_path: Path) -> None:
    found = bars(tmp_path / "s")
    torch.manual_seed(0)
    model = TINY.model()
    config = replace(shortened(TUNE, 2), batch_size=8)
    learned = [fine_tune(model.train(mode), TINY, found, VIEWS, Tuning(config)).state_dict() for mode in (True, False)]
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in learned)))
    means = [name for name in learned[0] if name.endswith("running_mean")]
    assert means
    assert not any(torch.equal(learned[1][name], model.state_dict()[name]) for name in means)


def test_random_clips_begin_everywhere_they_fit_and_short_videos_stand_still_at_their_end(tmp_path: Path) -> None:
    long, short = (np.arange(n, dtype=np.uint8)[:, None, None, None].repeat(3, 3) for n in (9, 2))
    found = labelled_set(
        "two", shelved(tmp_path / "s", [long, short, long], ["a", "b", "a"], ["train", "train", "test"])
    )
    examples = RandomClips(found.footage(CPU), found.train, found.labels, frames=3, stride=2)
    generator = torch.Generator().manual_seed(0)
    seen: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    for _ in range(60):
        for clips, labels in examples.batches(1, generator):
            assert clips.shape == (1, 3, 1, 1, 3)
            seen[int(labels)].add(tuple(clips[0, :, 0, 0, 0].tolist()))
    assert seen[0] == {(s, s + 2, s + 4) for s in range(5)}
    assert seen[1] == {(0, 1, 1)}
    assert len(examples) == 2


def odd(folder: Path) -> LabelledSet:
    """Videos of random bytes, of several lengths and shapes: wide, tall and square."""
    rng = np.random.default_rng(0)
    shapes = [(9, 4, 6), (3, 7, 4), (12, 4, 4), (1, 4, 9), (30, 5, 4), (8, 4, 5)]
    clips = [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]
    return labelled_set("odd", shelved(folder, clips, [*"abcabc"], ["train"] * 5 + ["test"]))


def by_hand(found: LabelledSet, size: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Random clips cut from the shards one by one."""
    lengths = torch.tensor([found.source.clips[i].frames for i in found.train])
    spare = (lengths - 5).clamp(min=0)  # three frames, two apart
    starts = torch.minimum((torch.rand(5, generator=generator) * (spare + 1)).long(), spare)
    share = torch.rand(5, generator=generator)
    order = torch.randperm(5, generator=generator)
    clips = []
    for k in order.tolist():
        clip = found.source.clips[found.train[k]]
        top, left = (min(int(float(share[k]) * (n - 3)), n - 4) for n in (clip.height, clip.width))
        clips.append(found.source.frames(int(found.train[k]), int(starts[k]) + 2 * np.arange(3), (top, left)))
    labels = torch.from_numpy(found.labels[found.train])[order]
    return [*zip(torch.from_numpy(np.stack(clips)).split(size), labels.split(size))]


def test_clips_are_the_same_read_in_turn_or_held_in_memory(tmp_path: Path) -> None:
    found = odd(tmp_path / "s")
    stored = found.footage(CPU)
    assert isinstance(stored, Stored), "raw frames are mapped into memory as they are"
    for footage in (stored, stored.held()):
        examples = RandomClips(footage, found.train, found.labels, frames=3, stride=2)
        ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
        for _ in range(3):  # epochs
            for mine, other in zip(examples.batches(3, ours), by_hand(found, 3, theirs), strict=True):
                assert all(torch.equal(a, b) for a, b in zip(mine, other))
        whole = np.stack([found.source.clip(i)[in_ten_parts(found.source.clips[i].frames, 3)] for i in range(6)])
        (seen,) = ten_clips(footage, range(6), 3, in_ten_parts)
        assert np.array_equal(seen.numpy(), whole)


def test_videos_are_held_where_they_would_have_to_be_decoded_and_fit(tmp_path: Path) -> None:
    found = odd(tmp_path / "s")
    stored = found.footage(CPU)
    assert isinstance(stored, Stored)
    found.source.quality = 90  # as if frames were pictures
    size = sum(clip.nbytes for clip in found.source.clips)
    assert at_hand(stored, size - 1) is stored
    found.source.parts.quality = 0
    assert isinstance(at_hand(stored, size), Held)
    assert found.footage(CPU) is stored, "brought there once"


def test_every_fifth_training_video_class_by_class_is_held_out_and_no_test_video_is_seen(tmp_path: Path) -> None:
    labels = [*"abbaabbbab", *"ab"]
    source = shelved(tmp_path / "s", [flat(0)] * 12, labels, ["train"] * 10 + ["test"] * 2)
    whole = labelled_set("two", source)
    part = whole.held_out()  # of a: 0 3 4 8, of b: 1 2 5 6 7 9
    assert part.test.tolist() == [1, 9]
    assert part.train.tolist() == [0, 2, 3, 4, 5, 6, 7, 8]
    assert part.footage(CPU) is whole.footage(CPU)
    with pytest.raises(DataError, match="too few videos to choose settings by"):
        part.held_out().held_out().held_out().held_out().held_out()  # from 8, 7, 6, 5 and at last 4
