"""Images as a federation: nothing lost, nothing twice, nested shares, one set of test images, weights that mean 1."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedreel.tasks.image.population as module
from fedreel.config import DataConfig
from fedreel.core.client import Worker
from fedreel.core.residence import Residence
from fedreel.core.task import EVERYONE, Tensors
from fedreel.data.shards import Broken
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.playground import TINY
from fedreel.tasks.image.pictures import Pictures, open_pictures
from fedreel.tasks.image.population import PicturePopulation, open_public
from fedreel.tasks.image.task import Image as ImageTask

CLASSES = ("ant", "bee", "cow", "dog")
DIRICHLET = {"name": "dirichlet", "num_partitions": 5, "alpha": 0.5, "min_partition_size": 3}


def pictures(count: int = 240, splits: str = "train", seed: int = 0, owners: int = 3) -> Pictures:
    """Images whose pixels say which they are; `splits` are dealt out one after the other."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, 2, 2, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
    return Pictures(
        images,
        rng.integers(0, len(CLASSES), count),
        CLASSES,
        np.array([splits.split()[i % len(splits.split())].strip("-") for i in range(count)]),
        np.array([f"site-{i}" for i in rng.integers(0, owners, count)]),
        (Broken("x.png", "the file is empty"),),
    )


def numbers(images: torch.Tensor) -> list[int]:
    """Which images these are."""
    return (images[:, 0, 0, 0].int() + 256 * images[:, 0, 0, 1].int()).tolist()


def trained_on(population: PicturePopulation) -> dict[str, list[int]]:
    return {client: numbers(population.data(client).train.tensors[0]) for client in population.clients}


def for_testing(population: PicturePopulation) -> list[int]:
    return numbers(population.data(population.clients[0]).test.images)


def population(source: Pictures, share: float = 1.0, seed: int = 0, **settings: Any) -> PicturePopulation:
    return PicturePopulation(source, DataConfig(**{"source": "here", **settings}), share, seed)


# who has which


@pytest.mark.parametrize("partition", [{"name": "by-owner"}, {"name": "iid", "num_partitions": 7}, DIRICHLET])
def test_clients_share_all_training_images_and_no_test_image(partition: dict[str, Any]) -> None:
    source = pictures(splits="train train test")
    made = population(source, partition=partition)
    parts = trained_on(made)
    assert sorted(i for part in parts.values() for i in part) == [i for i in range(240) if i % 3 != 2]
    assert for_testing(made) == [i for i in range(240) if i % 3 == 2]
    for client, part in parts.items():
        labels = made.data(client).train.tensors[1]
        assert labels.dtype == torch.int64
        assert labels.tolist() == source.labels[part].tolist()


def test_by_owner_each_owner_has_its_own() -> None:
    source = pictures(splits="train test")
    parts = trained_on(population(source))
    assert {c: set(source.owners[part]) for c, part in parts.items()} == {f"site-{i}": {f"site-{i}"} for i in range(3)}


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    source = pictures(splits="-")
    one, same, other = (population(source, seed=seed, partition=DIRICHLET) for seed in (3, 3, 4))
    assert (trained_on(one), for_testing(one)) == (trained_on(same), for_testing(same))
    assert trained_on(one) != trained_on(other)
    assert for_testing(one) != for_testing(other)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("splits", ["-", "train"])
def test_where_none_is_marked_a_share_of_each_class_is_for_testing(share: float, splits: str) -> None:
    source = pictures(1000, splits)
    made = population(source, test_share=share)
    test = for_testing(made)
    assert len(test) == round(1000 * share)
    all_of, tested = Counter(source.labels.tolist()), Counter(source.labels[test].tolist())
    for label, size in all_of.items():
        assert abs(tested[label] - share * size) <= 1
    assert sorted([*test, *(i for part in trained_on(made).values() for i in part)]) == list(range(1000))


def test_a_class_of_one_image_is_trained_on_not_tested() -> None:
    source = replace(pictures(4, "-"), labels=np.arange(4))
    made = population(source, test_share=0.75)
    assert for_testing(made) == []
    assert sum(map(len, trained_on(made).values())) == 4


def test_val_is_for_testing_only_where_there_is_no_test() -> None:
    assert for_testing(population(pictures(splits="train val"))) == list(range(1, 240, 2))
    both = population(pictures(splits="train val test"))
    assert for_testing(both) == list(range(2, 240, 3))
    assert sorted(i for part in trained_on(both).values() for i in part) == list(range(0, 240, 3))


def test_labels_follow_the_order_of_the_recipe() -> None:
    source = pictures(splits="train test")
    names = ("dog", "emu", "cow", "bee", "ant")
    made = population(source, labels=names)
    assert made.agreement() == {"classes": list(names)}
    for client, part in trained_on(made).items():
        labels = made.data(client).train.tensors[1].tolist()
        assert [names[k] for k in labels] == [CLASSES[k] for k in source.labels[part]]
    with pytest.raises(DataError, match="labels that the recipe does not name"):
        population(source, labels=("ant", "bee"))


def test_everyone_has_all() -> None:
    made = population(pictures(splits="train test"), share=0.5)
    everyone = made.data(EVERYONE)
    assert numbers(everyone.train.tensors[0]) == [i for part in trained_on(made).values() for i in part]
    assert numbers(everyone.test.images) == for_testing(made)


def test_the_report_is_told_the_counts() -> None:
    source = pictures(splits="train test")
    told = population(source).describe()
    assert told["classes"] == list(CLASSES)
    assert told["broken"] == 1
    assert np.sum([*told["train"].values()], axis=0).tolist() == np.bincount(source.labels[::2]).tolist()
    assert all(counts == np.bincount(source.labels[1::2]).tolist() for counts in told["test"].values())


def test_what_cannot_be_divided_is_refused_with_a_reason() -> None:
    source = pictures(splits="train test")
    unlabelled = replace(source, labels=np.where(np.arange(240) == 8, -1, source.labels))
    with pytest.raises(DataError, match="no class"):
        population(unlabelled)
    with pytest.raises(DataError, match=r"no owner(.|\n)*data\.owner"):
        population(replace(source, owners=np.array([""] * 240)))
    assert population(replace(source, owners=np.array([""] * 240)), owner="me").clients == ("me",)
    with pytest.raises(DataError, match="nothing to train on"):
        population(pictures(splits="test"))
    only_test = np.where(source.splits == "test", "late", source.owners)
    with pytest.raises(DataError, match=r"nothing to train on(.|\n)*late"):
        population(replace(source, owners=only_test))
    with pytest.raises(RecipeError, match="unknown partition"):
        population(source, partition={"name": "by-hand"})
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(FedreelError, match="share"):
            population(source, share=share)


def test_validation_images_that_are_left_alone_need_no_label() -> None:
    source = pictures(splits="train val test")
    made = population(replace(source, labels=np.where(source.splits == "val", -1, source.labels)))
    assert sum(map(sum, made.describe()["train"].values())) == 80


@pytest.mark.parametrize("partition", [{"name": "by-owner"}, DIRICHLET])
def test_clients_keep_a_share_of_each_class_and_the_test_stays(partition: dict[str, Any]) -> None:
    source = pictures(splits="-")
    whole = population(source, partition=partition)
    inner = trained_on(population(source, share=0.1, partition=partition))
    outer = trained_on(population(source, share=0.2, partition=partition))
    for client, part in trained_on(whole).items():
        assert set(inner[client]) <= set(outer[client]) <= set(part)
        for label, size in Counter(source.labels[part].tolist()).items():
            assert (source.labels[inner[client]] == label).sum() == max(1, round(0.1 * size))
    few = population(source, share=0.1, partition=partition)
    assert for_testing(few) == for_testing(whole)
    for client in whole.clients:  # nor do the weights change
        assert torch.equal(few.data(client).test.weights, whole.data(client).test.weights)


def test_what_needs_no_labels_is_trained_on_all_images_and_the_labelled_ones_stay_the_same() -> None:
    source, config = pictures(splits="train train test"), DataConfig(source="here", partition=DIRICHLET)
    few, all_images, full = (
        PicturePopulation(source, config, share, 0, every) for share, every in ((0.1, False), (0.1, True), (1.0, False))
    )
    assert trained_on(all_images) == trained_on(full) != trained_on(few)
    images, labels = all_images.labelled().tensors
    assert sorted(numbers(images)) == sorted(n for some in trained_on(few).values() for n in some)
    assert labels.tolist() == source.labels[numbers(images)].tolist()
    assert all_images.describe()["train"] == full.describe()["train"]
    for client in few.clients:
        assert torch.equal(few.data(client).test.weights, all_images.data(client).test.weights)


def test_a_tenth_is_the_same_whatever_the_pixels_the_order_of_asking_and_the_test_images() -> None:
    source = pictures(splits="train train test")
    first = trained_on(population(source, share=0.1))
    again = population(source, share=0.1)
    again.data(EVERYONE)
    again.data("site-2")
    assert trained_on(again) == first
    kept = np.flatnonzero((source.splits == "train") | (np.arange(240) % 2 == 0))  # half of the test images go
    assert trained_on(population(source.take(kept), share=0.1)) == first


# weights


def test_weights_of_a_hand_worked_example() -> None:
    # Tested: 2 ants, 1 bee, 1 cow. The client has 3 ants and 1 bee: shares 3/4 and 1/4, against 1/2 and 1/4.
    weights = module._weights(np.array([0, 0, 1, 0]), np.array([0, 2, 1, 0]), 4)
    np.testing.assert_allclose(weights, [1.5, 0, 1, 1.5])
    # It gets one ant of two right and the bee: under its own distribution 3/4 x 1/2 + 1/4 x 1.
    assert np.mean(weights * [1, 1, 1, 0]) == pytest.approx(0.75 * 0.5 + 0.25)


def test_weighted_accuracy_is_the_accuracy_under_the_own_distribution() -> None:
    source = pictures(400, "train test test")
    made = population(source, partition=DIRICHLET)
    rng = np.random.default_rng(0)
    for client in (*made.clients, EVERYONE):
        data = made.data(client)
        weights, labels = data.test.weights.double(), data.test.labels.numpy()
        assert float(weights.mean()) == pytest.approx(1)
        right = rng.random(len(labels)) < 0.6
        own = np.bincount(data.train.tensors[1], minlength=4) / len(data.train)
        recall = [right[labels == k].mean() for k in range(4)]
        assert float((weights * torch.from_numpy(right)).mean()) == pytest.approx(float(own @ recall))


def test_everyones_weights_are_one_where_classes_are_as_common_in_training() -> None:
    even = replace(pictures(80, "train test"), labels=np.arange(80) // 2 % 4)
    assert torch.equal(population(even).data(EVERYONE).test.weights, torch.ones(40))


def test_weights_stay_numbers_where_shares_have_nothing_to_stand_on() -> None:
    np.testing.assert_array_equal(module._weights(np.array([0, 0, 3]), np.array([0, 1, 1]), 4), [3, 0, 0])
    np.testing.assert_array_equal(module._weights(np.array([3]), np.array([0, 1]), 4), [0, 0])
    assert module._weights(np.array([3]), np.zeros(0, int), 4).shape == (0,)


# one set of test images


def test_all_clients_share_the_test_images_on_every_device() -> None:
    made = population(pictures(splits="train test"))
    tests = [made.data(client).test for client in (*made.clients, EVERYONE)]
    for device in (torch.device("cpu"), torch.device("meta")):
        moved = [test.to(device) for test in tests]
        assert len({id(test.images) for test in moved}) == 1
        assert len({id(test.labels) for test in moved}) == 1
        assert {test.weights.device.type for test in moved} == {device.type}
        assert all(test.to(device).images is moved[0].images for test in moved)
    assert tests[0].images.device.type == "cpu"


def test_a_worker_keeps_one_copy_of_the_test_images_for_all_clients() -> None:
    made = population(pictures(splits="train test"))
    worker = Worker.__new__(Worker)
    worker.task, worker.model = ImageTask(classes=2), torch.nn.Identity()
    worker.population, worker.residence, worker._known = made, Residence(torch.device("meta"), 10**9), {}
    kept = [worker.data_of(client).test for client in made.clients]
    assert len({id(test.images) for test in kept}) == 1
    assert kept[0].images.device.type == "meta"


def test_batches_are_images_and_labels_in_the_order_of_the_weights() -> None:
    test = population(pictures(splits="train test")).data("site-0").test
    batches = list(test.batches(32))
    assert all(len(batch) == 2 for batch in batches)
    assert torch.equal(torch.cat([images for images, _ in batches]), test.images)
    assert torch.equal(torch.cat([labels for _, labels in batches]), test.labels)
    assert len(test) == len(test.weights) == 120


# from files


def save(folder: Path, path: str, number: int) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    image = np.zeros((2, 2, 3), np.uint8)
    image[0, 0, 0] = number
    Image.fromarray(image).save(folder / path)


def test_a_folder_of_owners_becomes_clients(tmp_path: Path) -> None:
    number = 0
    for owner, classes in (("ann", ("round", "square")), ("bob", ("square",))):
        for split, count in (("train", 3), ("test", 2)):
            for name in classes:
                for _ in range(count):
                    save(tmp_path, f"{owner}/{split}/{name}/{number:03d}.png", number)
                    number += 1
    made = population(open_pictures(str(tmp_path), 2))
    assert made.clients == ("ann", "bob")
    assert made.classes == ["round", "square"]
    assert trained_on(made) == {"ann": [0, 1, 2, 3, 4, 5], "bob": [10, 11, 12]}
    assert for_testing(made) == [6, 7, 8, 9, 13, 14]
    assert made.data("bob").train.tensors[1].tolist() == [1, 1, 1]
    # Half of Ann's are square, all of Bob's; of the tested 4 in 6.
    assert made.data("ann").test.weights.tolist() == pytest.approx([1.5, 1.5, 0.75, 0.75, 0.75, 0.75])
    assert made.data("bob").test.weights.tolist() == pytest.approx([0, 0, 1.5, 1.5, 1.5, 1.5])


def test_the_servers_own_images_come_from_data_public(tmp_path: Path) -> None:
    for number, path in enumerate(["train/a/1.png", "train/b/1.png", "val/a/2.png", "test/b/2.png"]):
        save(tmp_path, path, number)
    found = open_public(DataConfig(source="elsewhere", public=str(tmp_path)), 2)
    assert found.images[:, 0, 0, 0].tolist() == [0, 1]  # not what is held out
    assert (found.labels.tolist(), found.classes) == ([0, 1], ("a", "b"))
    assert Tensors((torch.from_numpy(found.images),)).tensors[0].shape == (2, 2, 2, 3)


def test_a_server_without_images_is_told_where_to_name_some(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set data\.public"):
        open_public(DataConfig(source="elsewhere"), 2)
    save(tmp_path, "test/a/1.png", 0)
    with pytest.raises(DataError, match="for testing"):
        open_public(DataConfig(public=str(tmp_path)), 2)


@pytest.mark.slow
def test_the_playground_has_images_for_the_server_and_for_clients() -> None:
    found = open_public(DataConfig(source="playground", size="tiny"), 32)
    assert found.images.shape == (TINY.image_server, 32, 32, 3)
    clients = Path(module.playground.cached(0, "tiny", ("images",))) / "images" / "clients"
    made = population(open_pictures(str(clients), 32))
    assert len(made.clients) == TINY.image_owners
    assert {len(made.data(client).train) for client in made.clients} == {TINY.image_train}
    assert len(made.classes) == TINY.image_shapes * TINY.image_textures
    assert len(made.data(EVERYONE).test) == TINY.image_owners * TINY.image_test * len(made.classes)
