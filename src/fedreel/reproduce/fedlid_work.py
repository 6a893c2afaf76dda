"""How many images a run of FedLID's tables takes through its network, and how long that is expected to take."""

from __future__ import annotations

import math
import tarfile
import zipfile
from functools import lru_cache
from pathlib import Path

from fedreel.config import Recipe
from fedreel.data.splits import SPLITS
from fedreel.media.images import SUFFIXES, image_files
from fedreel.reproduce.work import RUN, Work
from fedreel.tasks.image.analysis import TENTH

# Seconds of an H200 for a thousand images forward and backward, of networks as the scale `small` has them. Expected,
# not measured: ResNet-18 of width 64 takes 0.016 with several clients at once (bench/fedlid_gpu.py); others by how many
# numbers their convolutions and norms put out, beside those of ResNet-18, and by how many kernels that takes.
SECONDS = {"resnet18": 0.010, "resnet50": 0.020, "efficientnet-lite0": 0.045}
LOOKED = 1 / 3  # of that, without the way back
FOR_A_RUN, FOR_A_PROBE = 1.0, 0.5  # seconds beside these: opening data and writing; a linear classifier's small steps


def work(recipe: Recipe, data: Path) -> dict[str, Work]:
    """Of the run, and of what is read off it; nothing if the images cannot be counted without reading them."""
    clients, server = _counts(recipe.data.source), _counts(recipe.data.public)
    network = recipe.task["backbone"]["name"]
    if not sum(clients) or not sum(server) or network not in SECONDS:
        return {}
    train, test = clients
    if recipe.data.validate:
        test = round(recipe.data.test_share * train)
        train -= test

    def costing(trained: float = 0.0, at_server: float = 0.0, seen: float = 0.0, more: float = 0.0) -> Work:
        through = trained + at_server + LOOKED * seen
        return Work(trained, at_server, 0.0, seen, SECONDS[network] * through / 1e3 + more)

    bodies = 2 if _trainings(recipe) > 1 else 1  # that of the mean of clients' models, and the server's
    share = recipe.task.get("label_share", 1.0)
    contrasts = recipe.task.get("objective") == "views"
    probe = costing(seen=bodies * (share * train + test), more=bodies * FOR_A_PROBE)
    return {
        RUN: costing(_at_clients(recipe, train), _at_server(recipe, server[0]), _tested(recipe, test), FOR_A_RUN),
        "probes": probe,
        "few_probes": costing(seen=TENTH * train + test, more=FOR_A_PROBE),
        "scores": probe if contrasts else Work(),
    }


def _at_clients(recipe: Recipe, images: int) -> float:
    """Where views are told apart, each image has two; FedCA aligns as many of the server's beside them."""
    if recipe.task.get("objective") != "views":
        return recipe.round.rounds * recipe.train.epochs * recipe.task.get("label_share", 1.0) * images
    views = 3 if recipe.method["name"] == "fedca" else 2
    return float(views * recipe.round.rounds * recipe.train.epochs * images)


def _trainings(recipe: Recipe) -> int:
    """How often the server trains."""
    if recipe.method["name"] == "fedca":
        return 1
    if recipe.method["name"] != "fedlid" or recipe.method.get("server") == "none":
        return 0
    return 1 if recipe.method.get("when") == "once" else recipe.round.rounds


def _at_server(recipe: Recipe, images: int) -> float:
    config = recipe.server or recipe.train
    each = recipe.method.get("share", 1.0) * images
    if recipe.method.get("server", "views") == "views":
        each = 2 * (images // config.batch_size) * config.batch_size  # the last batch is left out if it is smaller
    return _trainings(recipe) * config.epochs * each


def _tested(recipe: Recipe, images: int) -> float:
    """In a round that is tested: every client's model, of FedLID the mean of them, and what is sent next, about which
    all clients give the same answers. Without labels each client tests views of all images."""
    every, rounds = recipe.round.evaluate_every, recipe.round.rounds
    tests = (math.ceil(rounds / every) if every else 0) if every <= rounds else 1
    clients = recipe.data.partition["num_partitions"]
    each = clients + 2 if recipe.method["name"] == "fedlid" else 2 * clients
    return float(tests * each * images)


@lru_cache
def _counts(source: str) -> tuple[int, int]:
    """Images for training and for testing, by their names: none where these do not tell."""
    path = Path(source)
    if path.is_dir():
        names = [*image_files(path)]
    elif zipfile.is_zipfile(path):
        names = zipfile.ZipFile(path).namelist()
    elif path.is_file() and tarfile.is_tarfile(path):
        names = tarfile.open(path).getnames()
    else:
        return 0, 0
    images = [name.lower() for name in names if Path(name).suffix.lower() in SUFFIXES]
    held = sum(any(SPLITS.get(part) in ("test", "val") for part in name.split("/")[:-1]) for name in images)
    return len(images) - held, held
