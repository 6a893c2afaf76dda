"""Parts of videos that tile them, batches of videos of different lengths, and clients without a leak between sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE
from fedreel.errors import DataError, FedreelError
from fedreel.tasks.summary.data import SummaryVideo, read_summary
from fedreel.tasks.summary.metrics import summarize
from fedreel.tasks.summary.split import SummaryPopulation, Videos, cut, held_out_sources
from support import annotated
from support.shared import SHARED

DATA = SHARED / "summary"
TVSUM, SUMME = DATA / "tvsum50_effnetlite0.h5", DATA / "summe14_dino_vitb16.h5"
CARD = {"name": "own", "width": 4}
needs_tvsum = pytest.mark.skipif(not TVSUM.exists(), reason="the TVSum file is not here (set FEDREEL_DATA)")
needs_summe = pytest.mark.skipif(not SUMME.exists(), reason="the SumMe file is not here (set FEDREEL_DATA)")


# parts of videos


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_parts_tile_the_video_and_shots_tile_each_part(scores: bool, parts: int) -> None:
    for seed in range(12):
        video = annotated.video(f"v{seed}", seed, shots=6, scores=scores)
        cuts = cut(video, parts, seed)
        assert 1 <= len(cuts) <= parts
        np.testing.assert_array_equal(np.concatenate([p.features for p in cuts]), video.features)
        np.testing.assert_array_equal(np.concatenate([p.target for p in cuts]), video.target)
        assert sum(p.truth.n_frames for p in cuts) == video.truth.n_frames
        begin, picks, shots = 0, [], []
        for part in cuts:
            truth = part.truth
            assert (part.source, len(part.target)) == (video.name, len(truth.picks))
            assert truth.change_points[0, 0] == 0
            assert truth.change_points[-1, 1] == truth.n_frames - 1
            np.testing.assert_array_equal(truth.change_points[1:, 0], truth.change_points[:-1, 1] + 1)
            picks += [*(truth.picks + begin)]
            shots += [*(truth.change_points + begin)]
            begin += truth.n_frames
        np.testing.assert_array_equal(picks, video.truth.picks)
        np.testing.assert_array_equal(shots, video.truth.change_points)
        if not scores:
            users = np.concatenate([p.truth.user_summary for p in cuts], axis=1)
            np.testing.assert_array_equal(users, video.truth.user_summary)


def test_with_scores_each_user_makes_a_summary_of_every_part() -> None:
    video = annotated.video("v", 5, shots=12, scores=True)
    for part in cut(video, 3, 0, ratio=0.4):
        truth = part.truth
        assert truth.user_scores is not None
        for user, given in enumerate(truth.user_scores):
            np.testing.assert_array_equal(truth.user_summary[user], summarize(given, truth, 0.4))
            assert truth.user_summary[user].sum() <= 0.4 * truth.n_frames


def test_a_video_of_few_shots_gives_fewer_parts() -> None:
    assert len(cut(annotated.video("v", 1, shots=1), 4, 0)) == 1
    assert len(cut(annotated.video("v", 1, shots=2), 4, 0)) == 2
    assert [p.name for p in cut(annotated.video("v", 1, shots=2), 4, 0)] == ["v#1", "v#2"]


def test_every_way_to_cut_is_as_likely_and_depends_on_the_seed_alone() -> None:
    video = annotated.video("v", 2, shots=4)
    assert len({*np.searchsorted(video.truth.picks, video.truth.change_points[:, 0])}) == 4  # a step in every shot
    first = [cut(video, 2, seed)[0].truth.n_frames for seed in range(600)]
    assert first == [cut(video, 2, seed)[0].truth.n_frames for seed in range(600)]
    counts = Counter(first)
    assert len(counts) == 3
    assert all(150 < n < 250 for n in counts.values())  # 200 each, deviation 11.5


def test_every_part_has_a_step_even_where_shots_have_none() -> None:
    video = annotated.video("v", 2, shots=9)
    sparse = slice(None, None, 4)
    truth = replace(video.truth, picks=video.truth.picks[sparse])
    thin = replace(video, features=video.features[sparse], target=video.target[sparse], truth=truth)
    for seed in range(30):
        assert all(len(p.target) for p in cut(thin, 5, seed))


# examples


def test_a_batch_is_padded_and_says_what_is_real() -> None:
    videos = [annotated.video(f"v{i}", i, shots) for i, shots in enumerate((3, 9, 5))]
    examples = Videos.of(videos)
    features, mask, target, index = next(examples.batches(3))
    longest = max(len(v.target) for v in videos)
    assert features.shape == (3, longest, 4)
    assert mask.shape == target.shape == (3, longest)
    assert index.tolist() == [0, 1, 2]
    for row, video in enumerate(videos):
        n = len(video.target)
        assert mask[row].tolist() == [True] * n + [False] * (longest - n)
        np.testing.assert_array_equal(features[row, :n], video.features)
        np.testing.assert_array_equal(target[row, :n], video.target)
        assert not features[row, n:].any()


def test_batches_of_one_have_no_padding_and_shuffling_loses_nothing() -> None:
    examples = Videos.of([annotated.video(f"v{i}", i, 3 + i) for i in range(7)])
    order = []
    for features, mask, _, index in examples.batches(1, torch.Generator().manual_seed(0)):
        assert features.shape[1] == len(examples.sequences[int(index)])
        assert mask.all()
        order.append(int(index))
    assert sorted(order) == list(range(7))
    assert order != list(range(7))
    assert order == [int(b[3]) for b in examples.batches(1, torch.Generator().manual_seed(0))]
    assert [len(b[0]) for b in examples.batches(3)] == [3, 3, 1]
    assert list(Videos.of([]).batches(3)) == []
    assert len(examples.to(torch.device("cpu"))) == 7


def test_a_video_is_held_once_with_the_zeros_that_a_batch_of_it_needs() -> None:
    """As on a GPU, where batches of one have few lengths."""
    videos = [annotated.video(f"v{i}", i, 3 + i) for i in range(4)]
    plain = Videos.of(videos)
    padded = Videos(plain.sequences, plain.targets, plain.truths, whole=16)
    lengths = [-(-len(v.target) // 16) * 16 for v in videos]
    assert lengths != [len(v.target) for v in videos]
    for size in (1, 3):
        assert [b[0].shape[1] for b in padded.batches(size)] == [max(lengths[i : i + size]) for i in range(0, 4, size)]
        for ours, theirs in zip(padded.batches(size), plain.batches(size)):
            steps = theirs[1].shape[1]
            for mine, expected in zip(ours[:3], theirs):
                assert torch.equal(mine[:, :steps], expected)
                assert not mine[:, steps:].any()
            assert torch.equal(ours[3], theirs[3])
    assert [torch.equal(*rows) for rows in zip(padded.sequences, plain.sequences)] == [True] * 4
    alone = [batch[part] for batch in padded.batches(1) for part in (0, 2)]
    addresses = {rows.data_ptr() for rows in (*padded.sequences, *padded.targets)}
    assert {rows.data_ptr() for rows in alone} == addresses
    assert padded.nbytes == sum(rows.nbytes for rows in alone)


# clients


def population(videos: list[SummaryVideo], fragments: int = 0, seed: int = 0, **data: Any) -> SummaryPopulation:
    return SummaryPopulation(videos, DataConfig(source="here", **data), seed, features=CARD, fragments=fragments)


def sources(found: SummaryPopulation, side: int) -> dict[str, set[str]]:
    return {c: {found.videos[i].source for i in rows[side]} for c, rows in found._parts.items()}


def test_owners_are_clients_and_their_frames_are_counted() -> None:
    videos = annotated.owned(["ann", "bob"], 4)
    found = population(videos)
    assert found.clients == ("ann", "bob")
    for client in found.clients:
        data = found.data(client)
        assert (len(data.train), len(data.test)) == (3, 1)
        assert data.numbers == {"frames": float(sum(len(s) for s in data.train.sequences))}  # type: ignore[attr-defined]
    everyone = found.data(EVERYONE)
    assert (len(everyone.train), len(everyone.test)) == (6, 2)
    assert found.agreement() == {"features": CARD}


def test_given_splits_are_kept_and_validation_videos_left_alone() -> None:
    splits = ["train", "test", "val", "", "train", "test"]
    videos = [replace(v, split=s) for v, s in zip(annotated.owned(["ann"], 6), splits)]
    found = population(videos)
    assert sources(found, 0) == {"ann": {"ann-0", "ann-3", "ann-4"}}
    assert sources(found, 1) == {"ann": {"ann-1", "ann-5"}}
    without_test = [v for v in videos if v.split != "test"]
    assert sources(population(without_test), 1) == {"ann": {"ann-2"}}


@pytest.mark.parametrize(
    "partition",
    [
        {"name": "by-owner"},
        {"name": "iid", "num_partitions": 5},
        {"name": "pathological", "num_partitions": 6, "num_classes_per_partition": 1},
        {"name": "pathological", "num_partitions": 6, "num_classes_per_partition": 2},
        {"name": "dirichlet", "num_partitions": 4, "alpha": 1.0, "min_partition_size": 4},
    ],
)
@pytest.mark.parametrize("fragments", [0, 4])
def test_no_video_has_parts_on_both_sides_anywhere(partition: dict[str, Any], fragments: int) -> None:
    for seed in range(6):
        videos = annotated.owned([f"o{i}" for i in range(6)], 6, categories=("a", "b", "c"))
        found = population(videos, fragments, seed, partition=partition)
        train, test = (set.union(*sources(found, side).values()) for side in (0, 1))
        assert not train & test
        assert test
        held = np.concatenate([np.concatenate(rows) for rows in found._parts.values()])
        assert sorted(held) == list(range(len(found.videos)))


def test_each_client_tests_on_its_share_of_videos() -> None:
    videos = annotated.owned(["ann", "bob", "cid"], 5)
    for share, count in ((0.2, 1), (0.4, 2), (0.01, 1), (0.99, 4), (0.0, 0)):
        found = population(videos, fragments=3, test_share=share)
        assert {c: len(s) for c, s in sources(found, 1).items()} == dict.fromkeys(found.clients, count)


def test_pathological_clients_hold_so_many_categories() -> None:
    videos = annotated.owned(["-"], 40, categories=("a", "b", "c", "d"))
    partition = {"name": "pathological", "num_partitions": 8, "num_classes_per_partition": 2}
    found = population(videos, fragments=3, partition=partition)
    told = found.describe()
    assert told["classes"] == ["a", "b", "c", "d"]
    for client in found.clients:
        both = np.array(told["train"][client]) + told["test"][client]
        assert np.count_nonzero(both) == 2
    assert "communities" in told


def test_the_communities_of_clients_are_told_where_they_are_known() -> None:
    taste = {"ann": "speed", "bob": "colour", "cid": ""}
    videos = [replace(v, community=taste[v.owner]) for v in annotated.owned([*taste], 2)]
    assert population(videos).describe()["communities"] == {"ann": "speed", "bob": "colour"}


def test_what_a_partition_needs_to_know_is_asked_for() -> None:
    nameless = [annotated.video(f"v{i}", i) for i in range(4)]
    with pytest.raises(DataError, match="some videos have no owner"):
        population(nameless)
    pathological = {"name": "pathological", "num_partitions": 2, "num_classes_per_partition": 1}
    with pytest.raises(DataError, match="some videos have no category"):
        population(nameless, partition=pathological)
    assert population(nameless, owner="ann").clients == ("ann",)
    assert population(nameless, partition={"name": "iid", "num_partitions": 2}).classes == ["unknown"]
    with pytest.raises(DataError, match="does not name"):
        population(nameless, owner="ann", labels=("a", "b"))
    only_tests = [replace(v, split="test") for v in nameless]
    with pytest.raises(DataError, match="nothing to train on"):
        population(only_tests, owner="ann")
    with pytest.raises(FedreelError):
        population(nameless, partition={"name": "no-such"})


def test_a_client_with_one_video_trains_on_it() -> None:
    parts = {"a": np.array([0]), "b": np.array([1, 2])}
    videos = [annotated.video(f"v{i}", i) for i in range(3)]
    assert len(held_out_sources(parts, videos, 0.5, 0) & {"v0"}) == 0


def test_no_client_s_last_video_is_held_out_for_another() -> None:
    videos = [annotated.video(f"v{i}", i) for i in range(8)]
    for seed in range(200):
        rng = np.random.default_rng(seed)
        parts = {f"c{i}": rng.permutation(8)[: rng.integers(1, 4)] for i in range(6)}
        test = held_out_sources(parts, videos, 0.5, seed)
        assert all({f"v{i}" for i in rows} - test for rows in parts.values())


# the real files


@pytest.mark.slow
@needs_tvsum
def test_the_paper_s_partitions_of_tvsum_can_be_made() -> None:
    videos = read_summary(TVSUM)
    for classes in (1, 4):
        partition = {"name": "pathological", "num_partitions": 10, "num_classes_per_partition": classes}
        config = DataConfig(source="tvsum", partition=partition, test_share=0.2)
        found = SummaryPopulation(videos, config, 0, features={}, fragments=3)
        assert len(found.videos) == 150
        train, test = (set.union(*sources(found, side).values()) for side in (0, 1))
        assert not train & test
        assert all(len(found.data(c).test) for c in found.clients)
        if classes == 1:
            assert all(len(found.data(c).train) == 12 for c in found.clients)


@needs_summe
def test_the_real_summe_file_is_partitioned_without_a_leak() -> None:
    videos = read_summary(SUMME, standardise=True)
    partition = {"name": "pathological", "num_partitions": 10, "num_classes_per_partition": 1}
    for seed in range(5):
        config = DataConfig(source="summe", partition=partition, test_share=0.2)
        found = SummaryPopulation(videos, config, seed, features={}, fragments=4)
        assert len(found.videos) == 56
        train, test = (set.union(*sources(found, side).values()) for side in (0, 1))
        assert not train & test
