"""Moments as clients: no video on both sides or with two clients, whatever the partition, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE
from fedreel.errors import DataError, RecipeError
from fedreel.playground import SMALL
from fedreel.tasks.moments.annotations import Query, Repairs
from fedreel.tasks.moments.examples import Moments, best_window
from fedreel.tasks.moments.features import pool_windows
from fedreel.tasks.moments.population import MomentPopulation, sides, training_videos
from fedreel.tasks.moments.sources import open_moments
from fedreel.tasks.moments.text import Words
from support import moment_files as make

GROUPS = {"bath": 8, "hall": 12, "kitchen": 20}
PARTITIONS = [
    {"name": "by-owner"},
    {"name": "iid", "num_partitions": 4},
    {"name": "dirichlet", "num_partitions": 3, "alpha": 0.5, "min_partition_size": 4},
    {"name": "dirichlet", "num_partitions": 3, "alpha": 0.0, "min_partition_size": 4},
    {"name": "pathological", "num_partitions": 4, "num_classes_per_partition": 2},
    {"name": "shards", "num_partitions": 4, "num_shards_per_partition": 2},
]


def population(
    folder: Path, queries: list[Query], seed: int = 0, words: Words | None = None, **settings: Any
) -> MomentPopulation:
    more = {key: settings.pop(key) for key in ("repairs", "least", "most") if key in settings}
    found = make.features(folder / "f.npz", [q.video for q in queries])
    return MomentPopulation(queries, found, words, DataConfig(**settings), seed, length=6, **{"most": 8, **more})


def moments(examples: Any) -> Moments:
    assert isinstance(examples, Moments)
    return examples


def videos_of(found: MomentPopulation, client: str) -> tuple[set[str], set[str]]:
    train, test = ({found.queries[i].video for i in rows} for rows in found.rows(client))
    return train, test


# who holds what


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: "-".join(map(str, p.values())))
@pytest.mark.parametrize("marked", [False, True])
def test_no_video_is_on_both_sides_or_with_two_clients(tmp_path: Path, partition: dict[str, Any], marked: bool) -> None:
    marks = {f"{g}-{n:02d}": "test" for g, count in GROUPS.items() for n in range(0, count, 4)} if marked else {}
    queries = make.queries(GROUPS, 3, marks)
    for seed in range(3):
        found = population(tmp_path, queries, seed, partition=partition)
        held = [videos_of(found, client) for client in found.clients]
        train = [v for own, _ in held for v in own]
        test = [v for _, own in held for v in own]
        assert sorted(train + test) == sorted({q.video for q in queries})  # each once, so with one client, on one side
        rows = np.concatenate([np.concatenate(found.rows(c)) for c in found.clients])
        assert sorted(rows.tolist()) == [*range(len(queries))]
        if marked:
            assert {*test} == {*marks}
        else:
            assert len(test) == 10


def test_every_group_is_a_client_by_owner(tmp_path: Path) -> None:
    found = population(tmp_path, make.queries(GROUPS))
    assert found.clients == ("bath", "hall", "kitchen")
    told = found.describe()
    assert told["classes"] == ["bath", "hall", "kitchen"]
    assert told["train"] == {"bath": [12, 0, 0], "hall": [0, 18, 0], "kitchen": [0, 0, 30]}
    assert told["test"] == {"bath": [4, 0, 0], "hall": [0, 6, 0], "kitchen": [0, 0, 10]}
    assert told["broken"] == 0


def test_alpha_0_gives_each_client_one_group(tmp_path: Path) -> None:
    partition = {"name": "dirichlet", "num_partitions": 3, "alpha": 0.0, "min_partition_size": 1}
    found, by_owner = (population(tmp_path, make.queries(GROUPS), partition=p) for p in (partition, PARTITIONS[0]))
    assert found.clients == ("client-0", "client-1", "client-2")
    for client, owner in zip(found.clients, by_owner.clients):
        for own, others in zip(found.rows(client), by_owner.rows(owner)):
            np.testing.assert_array_equal(own, others)


def test_equal_seeds_give_equal_clients_and_others_do_not(tmp_path: Path) -> None:
    queries = make.queries(GROUPS)
    parts = [
        {c: found.rows(c)[0].tolist() for c in found.clients}
        for found in (population(tmp_path, queries, seed, partition=PARTITIONS[1]) for seed in (0, 0, 1))
    ]
    assert parts[0] == parts[1]
    assert parts[0] != parts[2]


def test_videos_without_a_group_need_an_owner_or_an_even_split(tmp_path: Path) -> None:
    queries = [replace(q, group="" if q.group == "hall" else q.group) for q in make.queries(GROUPS)]
    for partition in (PARTITIONS[0], PARTITIONS[2]):
        with pytest.raises(DataError, match=r"(?s)belong to no group.*12 of 40, the first is hall-00.*data\.owner"):
            population(tmp_path, queries, partition=partition)
    assert population(tmp_path, queries, owner="me").clients == ("bath", "kitchen", "me")
    assert population(tmp_path, queries, partition=PARTITIONS[1]).describe()["classes"] == [
        "bath",
        "kitchen",
        "unknown",
    ]


def test_an_unknown_partition_and_an_unknown_group_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown partition"):
        population(tmp_path, make.queries(GROUPS), partition={"name": "by-heart"})
    with pytest.raises(DataError, match="the recipe does not name"):
        population(tmp_path, make.queries(GROUPS), labels=("bath", "hall"))


def test_a_client_without_training_videos_is_refused(tmp_path: Path) -> None:
    marks = {f"bath-{n:02d}": "test" for n in range(8)}
    with pytest.raises(DataError, match=r"(?s)nothing to train on.*bath"):
        population(tmp_path, make.queries(GROUPS, marks=marks))


# sides


def split(marks: Mapping[str, str]) -> dict[str, str]:
    queries = [Query(v, 0, 1, "x", 2, "g", m) for video, m in marks.items() for v in [video.rstrip("'")]]
    train, test = sides(queries)
    assert not (train & test).any()
    return {video: "train" if a else "test" if b else "" for video, a, b in zip(marks, train, test)}


def test_marks_are_kept_where_they_tell_something() -> None:
    assert split({"a": "train", "b": "test", "c": ""}) == {"a": "train", "b": "test", "c": "train"}
    assert split({"a": "train", "b": "val"}) == {"a": "train", "b": "test"}
    assert split({"a": "train", "b": "val", "c": "test"}) == {"a": "train", "b": "", "c": "test"}
    assert split({"a": "train", "a'": "test", "b": ""}) == {"a": "", "a'": "test", "b": "train"}  # a is one video


@pytest.mark.parametrize("mark", ["", "train", "test"])
def test_marks_that_are_all_alike_tell_nothing(mark: str) -> None:
    found = split(dict.fromkeys("abcd", mark))
    assert sorted(found.values()) == ["test", "train", "train", "train"]


def test_training_videos_are_those_of_the_written_rule() -> None:
    groups = {f"v{n:02d}": "ab"[n % 3 == 0] for n in reversed(range(30))}
    expected = set()
    draw = np.random.default_rng(0)
    for group in "ab":
        own = sorted(v for v, g in groups.items() if g == group)
        expected |= {*np.array(own)[draw.permutation(len(own))][: int(0.75 * len(own))].tolist()}
    assert training_videos(groups, 0.75) == expected
    assert len(expected) == 15 + 7
    assert training_videos(groups, 1.0) == {*groups}
    assert len(training_videos(groups, 0.0)) == 2  # one of each group at least
    assert len(training_videos(dict.fromkeys("abcdefghij", "g"), 1 - 0.9)) == 1


def test_the_share_for_testing_is_the_recipes(tmp_path: Path) -> None:
    queries = make.queries({"a": 10, "b": 20}, 1)
    for share, expected in ((0.5, 15), (0.1, 3), (0.0, 0)):
        data = population(tmp_path, queries, test_share=share).data(EVERYONE)
        assert (len(data.train), len(data.test)) == (30 - expected, expected)
        assert sum(len(batch[0]) for batch in data.test.batches(4)) == expected


# examples


def test_a_clients_data_are_its_queries(tmp_path: Path) -> None:
    queries = make.queries(GROUPS, 2)
    words = Words(["door", "person", "kitchen"])
    found = population(tmp_path, queries, words=words)
    data = found.data("kitchen")
    train, test = moments(data.train), moments(data.test)
    assert (len(train), len(test), data.numbers) == (30, 10, {"frames": 180.0})
    assert {*train.groups.tolist(), *test.groups.tolist()} == {found.classes.index("kitchen")}
    assert train.videos.shape == (15, 6, 3)  # each once, though two sentences ask about it
    (video, indices, spans, times), *more = train.batches(100)
    assert not more
    assert (video.dtype, indices.dtype, spans.dtype, times.dtype) == (
        *(torch.float32, torch.int64, torch.int64, torch.float32),
    )
    assert (video.shape, indices.shape, spans.shape, times.shape) == ((30, 6, 3), (30, 8), (30, 2), (30, 3))
    for k, row in enumerate(found.rows("kitchen")[0]):
        query = queries[row]
        np.testing.assert_array_equal(video[k], pool_windows(found.features.get(query.video), 6))
        assert indices[k].tolist() == [3, 1, 1, 1, 4, 1, 2, 1]
        np.testing.assert_allclose(times[k], [query.start, query.end, query.duration])
        first, last = best_window(*(np.array([x]) for x in (query.start, query.end, query.duration)), 6)
        assert spans[k].tolist() == [first[0], last[0]]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: "-".join(map(str, p.values())))
def test_videos_are_in_memory_once_however_they_are_shared_out(partition: dict[str, Any], tmp_path: Path) -> None:
    found = population(tmp_path, make.queries(GROUPS), partition=partition)
    held = [moments(side).videos for c in found.clients for d in [found.data(c)] for side in (d.train, d.test)]
    trained = moments(found.data(EVERYONE).train).videos
    assert len({videos.untyped_storage().data_ptr() for videos in (*held, trained)}) == 1
    assert trained.untyped_storage().nbytes() == sum(videos.nbytes for videos in held)


def test_everyone_holds_what_all_clients_hold(tmp_path: Path) -> None:
    found = population(tmp_path, make.queries(GROUPS), partition=PARTITIONS[1])
    everyone = found.data(EVERYONE)
    for side in ("train", "test"):
        parts = [batch for c in found.clients for batch in getattr(found.data(c), side).batches(1000)]
        (whole,) = getattr(everyone, side).batches(1000)
        for column, expected in zip(whole, zip(*parts)):
            assert torch.equal(column, torch.cat(expected))
    assert everyone.numbers["frames"] == sum(found.data(c).numbers["frames"] for c in found.clients)


def test_without_a_list_words_are_those_of_training_sentences(tmp_path: Path) -> None:
    queries = make.queries({"a": 4, "b": 4}, 1)
    queries = [replace(q, sentence=f"person {q.video.replace('-', 'x')}") for q in queries]
    found = population(tmp_path, queries)
    train = [found.queries[i] for c in found.clients for i in found.rows(c)[0]]
    assert found.words.words == ("person", *sorted(q.video.replace("-", "x") for q in train))
    assert (moments(found.data(EVERYONE).test).words[:, :3] == torch.tensor([2, 1, 0])).all()
    assert population(tmp_path, queries, least=2).words.words == ("person",)


def test_clients_agree_on_features_length_and_words(tmp_path: Path) -> None:
    queries = make.queries(GROUPS)
    one, other = (population(tmp_path, queries, words=Words(w)).agreement() for w in (["a", "b"], ["b", "a"]))
    assert one == {"features": {"name": "f", "width": 3}, "length": 6, "words": Words(["a", "b"]).fingerprint}
    assert one["words"] != other["words"]


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    queries = make.queries(GROUPS, 2)
    found = make.features(tmp_path / "f.npz", [q.video for q in queries if q.video != "hall-03"])
    repairs = Repairs(clipped=7, dropped=2, malformed=1)
    built = MomentPopulation(queries, found, None, DataConfig(), 0, length=6, repairs=repairs)
    assert {*built.missing} == {"hall-03"}
    assert built.describe()["broken"] == 2 + 1 + 2
    assert len(built.queries) == len(queries) - 2


# where they come from


def source(folder: Path, **settings: Any) -> Any:
    return open_moments(DataConfig(source=str(folder), **settings), "clip")


def written(folder: Path) -> Path:
    rows = [{"id": f"V{n}", "scene": "ab"[n % 2], "length": 9} for n in range(8)]
    make.table(folder / "Charades_v1_test.csv", rows)
    lines = [f"V{n} 1 {5 + n}##person opens door." for n in range(8)]
    (folder / "charades_sta_test.txt").write_text("\n".join(lines))
    features = {f"V{n}": np.full((4, 3), n, np.float16) for n in range(8)}
    make.npz(folder / "vit.npz", features, duration=np.full(8, 10.0))
    np.savez(folder / "glove.npz", words=np.array(["<PAD>", "person"]), vectors=np.ones((2, 5), np.float16))
    return folder


def test_a_folder_holds_annotations_features_and_words(tmp_path: Path) -> None:
    for place in (written(tmp_path), tmp_path / "charades_sta_test.txt"):
        found = source(place)
        assert len(found.queries) == 8
        assert {q.duration for q in found.queries} == {10.0}  # of the features, not of the table
        assert (found.repairs.clipped, found.repairs.far) == (2, 2)
        assert found.features.card == {"name": "clip", "width": 3}
        assert found.words.words == ("person",)
    built = MomentPopulation(found.queries, found.features, found.words, DataConfig(), 0, length=4)
    assert built.clients == ("a", "b")
    assert len(built.data(EVERYONE).test) == 2  # all are marked for testing, which tells nothing


def test_features_with_the_data_are_not_called_those_made_here(tmp_path: Path) -> None:
    assert open_moments(DataConfig(source=str(written(tmp_path)))).features.card["name"] == "vit"


def test_of_several_features_one_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    with h5py.File(tmp_path / "c3d.h5", "w") as file:
        file["V1"] = np.ones((4, 5))
    (tmp_path / "clip").mkdir()
    np.save(tmp_path / "clip" / "V1.npy", np.ones((4, 7)))
    assert source(tmp_path).features.width == 7
    assert open_moments(DataConfig(source=str(tmp_path)), "c3d.h5").features.width == 5
    with pytest.raises(DataError, match=r"(?s)several files of features fit.*c3d\.h5, clip, vit\.npz"):
        open_moments(DataConfig(source=str(tmp_path)), "plain")


def test_a_place_without_annotations_or_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)data folder does not exist.*file of annotations.*data\.source"):
        source(tmp_path / "absent")
    written(tmp_path)
    (tmp_path / "vit.npz").unlink()
    with pytest.raises(DataError, match="neither features"):
        source(tmp_path)


@pytest.mark.slow
def test_the_playground_is_a_client_for_each_owner(tmp_path: Path) -> None:
    size = replace(SMALL, name="tiny", moment_owners=3, moment_videos=4)
    root = playground.make(tmp_path / "world", 0, size, ["moments"], workers=1)
    config = DataConfig(source=str(root))
    found = open_moments(config, "plain", fps=2.0)
    assert (len(found.queries), found.repairs, found.words) == (48, Repairs(), None)
    built = MomentPopulation(found.queries, found.features, None, config, 0, length=16)
    assert built.clients == ("owner-01", "owner-02", "owner-03")
    for client in built.clients:
        data = built.data(client)
        assert (len(data.train), len(data.test)) == (12, 4)  # as marked in videos.csv
        assert {built.queries[i].split for i in built.rows(client)[1]} == {"test"}
    seconds = {q.video: q.duration for q in found.queries}
    for video, duration in seconds.items():
        assert len(found.features.get(video)) == pytest.approx(2 * duration, abs=1)
