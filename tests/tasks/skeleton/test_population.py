"""Skeletons as clients: a client for each set, or one set divided; what each holds, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE, Tensors
from fedreel.errors import DataError, RecipeError
from fedreel.playground import SMALL
from fedreel.tasks.skeleton.joints import KINECT_V1, KINECT_V2
from fedreel.tasks.skeleton.population import SkeletonPopulation, open_sets
from support import skeleton_files as make

IID = {"name": "iid", "num_partitions": 3}


def three(folder: Path) -> Path:
    """Three sets of 8, 6 and 4 sequences with 2, 3 and 2 classes."""
    for name, subjects, classes in (("a", 8, "run jump"), ("b", 6, "sit run lie"), ("c", 4, "run jump")):
        content = make.arrays(range(1, subjects + 1), joints=KINECT_V1.names, class_names=classes.split())
        make.npz(folder / f"{name}.npz", content)
    return folder


def unmarked(folder: Path, subjects: str) -> Path:
    return make.npz(folder / "u.npz", make.arrays(list(subjects), joints=KINECT_V1.names))


def population(source: Path, leave_out: str = "", seed: int = 0, **settings: Any) -> SkeletonPopulation:
    config = DataConfig(source=str(source), **settings)
    return SkeletonPopulation(open_sets(config), config, KINECT_V1, 10, 2, True, seed, leave_out)


def tensors(examples: Any) -> tuple[torch.Tensor, ...]:
    assert isinstance(examples, Tensors)
    return examples.tensors


def names(found: SkeletonPopulation, split: str) -> set[str]:
    return {str(n) for c in found.clients for n in found.set_of(c).names[found.set_of(c).splits == split]}


def test_every_set_is_a_client_with_its_own_classes(tmp_path: Path) -> None:
    found = population(three(tmp_path))
    assert found.clients == ("a", "b", "c")
    assert found.class_count == 3
    data = found.data("b")
    x, labels, counts = tensors(data.train)
    assert x.shape == (3, 3, 10, 20, 2)
    assert (x.dtype, labels.dtype, counts.dtype) == (torch.float32, torch.int64, torch.int64)
    assert labels.tolist() == [0, 0, 0]  # subjects 1, 3, 5
    assert tensors(data.test)[1].tolist() == [1, 1, 1]
    assert counts.tolist() == [3, 3, 3]
    assert tensors(found.data("a").test)[2].tolist() == [2] * 4
    assert data.numbers == {"frames": 30.0}
    own = found.set_of("b")
    assert own.splits.tolist() == ["train"] * 3 + ["test"] * 3
    np.testing.assert_array_equal(own.subjects.astype(int), [1, 3, 5, 2, 4, 6])
    np.testing.assert_array_equal(x.numpy(), own.x[:3])


def test_a_client_s_data_are_the_memory_of_its_set(tmp_path: Path) -> None:
    """A set of 100,000 recordings is 3 GB: once is enough."""
    found = population(three(tmp_path))
    for client in found.clients:
        data, own = found.data(client), found.set_of(client)
        parts = [tensors(part)[0].numpy() for part in (data.train, data.test)]
        assert all(np.shares_memory(part, own.x) for part in parts)
        np.testing.assert_array_equal(np.concatenate(parts), own.x)


def test_the_report_is_told_of_every_client(tmp_path: Path) -> None:
    told = population(three(tmp_path)).describe()
    assert told["classes"] == ["class 1", "class 2", "class 3"]
    assert told["train"] == {"a": [4, 0, 0], "b": [3, 0, 0], "c": [2, 0, 0]}
    assert told["test"] == {"a": [0, 4, 0], "b": [0, 3, 0], "c": [0, 2, 0]}
    assert told["broken"] == 0
    assert told["sets"]["b"] == {"classes": ["sit", "run", "lie"], "joints": [*KINECT_V1.names]}
    (tmp_path / "b.npz").unlink()
    assert population(tmp_path).describe()["classes"] == ["run", "jump"]


def test_what_was_left_out_is_counted(tmp_path: Path) -> None:
    content = make.arrays(joints=KINECT_V1.names)
    content["data"][:6] = 0
    told = population(make.npz(tmp_path / "x.npz", content)).describe()
    assert (told["broken"], told["train"]) == (1, {"x": [1, 0]})


def test_clients_agree_on_the_joints(tmp_path: Path) -> None:
    assert population(three(tmp_path)).agreement() == {"joints": [*KINECT_V1.names]}


def test_a_set_can_be_left_out(tmp_path: Path) -> None:
    found = population(three(tmp_path), leave_out="b")
    assert found.clients == ("a", "c")
    assert found.class_count == 2
    assert found.unseen is not None
    assert found.unseen.classes == ("sit", "run", "lie")
    assert population(tmp_path).unseen is None
    with pytest.raises(RecipeError, match="no set 'bb' to leave out"):
        population(tmp_path, leave_out="bb")
    with pytest.raises(RecipeError, match="no set is left"):
        population(tmp_path / "a.npz", leave_out="a")


def test_one_set_is_one_client_or_divided(tmp_path: Path) -> None:
    path = make.npz(tmp_path / "a.npz", make.arrays(range(1, 31), joints=KINECT_V1.names))
    assert population(path).clients == ("a",)
    found = population(path, partition=IID)
    assert found.clients == ("client-0", "client-1", "client-2")
    whole = population(path).set_of("a")
    held = [str(name) for client in found.clients for name in found.set_of(client).names]
    assert sorted(held) == sorted(whole.names.tolist())
    for client in found.clients:
        data, own = found.data(client), found.set_of(client)
        np.testing.assert_array_equal(tensors(data.train)[0].numpy(), own.x[own.splits == "train"])
        np.testing.assert_array_equal(tensors(data.test)[0].numpy(), own.x[own.splits == "test"])
    everyone = found.data(EVERYONE)
    assert (len(everyone.train), len(everyone.test)) == (15, 15)
    assert everyone.numbers == {"frames": 150.0}
    assert {*found.describe()["sets"]} == {*found.clients}


def test_several_sets_are_neither_divided_nor_joined(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="labels mean different things"):
        population(three(tmp_path), partition=IID)
    with pytest.raises(DataError, match="label list of its own"):
        population(tmp_path).data(EVERYONE)
    assert len(population(tmp_path / "a.npz").data(EVERYONE).train) == 4


def test_an_unknown_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown partition"):
        population(three(tmp_path), partition={"name": "by-heart"})


def test_where_nothing_is_marked_whole_subjects_are_drawn_for_testing(tmp_path: Path) -> None:
    path = unmarked(tmp_path, "aabbccddeeffgghh")
    found = population(path, test_share=0.25)
    own = found.set_of("u")
    assert len({*own.subjects[own.splits == "test"]}) == 2
    assert not {*own.subjects[own.splits == "test"]} & {*own.subjects[own.splits == "train"]}
    assert names(found, "test") == names(population(path, test_share=0.25), "test")
    drawn = {frozenset(names(population(path, seed=seed, test_share=0.25), "test")) for seed in range(6)}
    assert len(drawn) > 1
    assert len(names(population(path, test_share=0.01), "test")) == 2  # one subject at least
    assert len(names(population(path, test_share=0.99), "test")) == 14  # and never all


def test_of_a_single_subject_sequences_are_drawn(tmp_path: Path) -> None:
    assert len(names(population(unmarked(tmp_path, "aaaaaaaa"), test_share=0.25), "test")) == 2


def test_a_client_without_training_data_is_refused(tmp_path: Path) -> None:
    path = make.npz(tmp_path / "x.npz", make.arrays((2, 4, 6, 8), joints=KINECT_V1.names))
    with pytest.raises(DataError, match="nothing to train on"):
        population(path)


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    config = DataConfig()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        make.npz(tmp_path / folder / "x.npz", make.arrays(joints=KINECT_V1.names))
    paths = [tmp_path / folder / "x.npz" for folder in ("one", "two")]
    with pytest.raises(DataError, match="same name"):
        SkeletonPopulation(paths, config, KINECT_V1, 10, 2, True, 0)


def test_equal_seeds_give_equal_clients(tmp_path: Path) -> None:
    path = make.npz(tmp_path / "a.npz", make.arrays(range(1, 31), joints=KINECT_V1.names))
    one, other = (population(path, partition=IID, seed=3) for _ in range(2))
    for client in one.clients:
        for a, b in zip(tensors(one.data(client).train), tensors(other.data(client).train)):
            assert torch.equal(a, b)


def test_the_playground_is_five_clients(tmp_path: Path) -> None:
    root = playground.make(
        tmp_path / "world", 0, replace(SMALL, name="tiny", skeleton_unit=8), ["skeletons"], workers=1
    )
    config = DataConfig(source=str(root))
    found = SkeletonPopulation(open_sets(config), config, KINECT_V2, 50, 2, True, 0)
    assert found.clients == tuple(f"owner-0{n}" for n in range(1, 6))
    sizes = [len(found.set_of(c).labels) for c in found.clients]
    assert [size / sizes[-1] for size in sizes] == [12, 8, 3.5, 2, 1]
    assert found.class_count == 12
    assert found.describe()["broken"] == 0
    for client in found.clients:
        own = found.set_of(client)
        assert np.isfinite(own.x).all()
        subjects = own.subjects.astype(int)
        np.testing.assert_array_equal(own.splits == "train", subjects % 2 == 1)
        pairs = np.isin(np.array(own.classes)[own.labels], ("shake hands", "push"))
        np.testing.assert_array_equal(own.x[..., 1].any(axis=(1, 2, 3)), pairs)


def test_the_recipes_playground_is_made_in_the_cache() -> None:
    paths = open_sets(DataConfig())
    assert [path.name for path in paths] == [f"owner-0{n}.npz" for n in range(1, 6)]
