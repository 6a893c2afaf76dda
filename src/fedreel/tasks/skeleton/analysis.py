"""What can be read off a finished run over skeleton sets: accuracies, unseen sets, likeness by depth, sharpness."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.config import load_recipe
from fedreel.core.batchnorm import settling
from fedreel.machine.device import pick_device
from fedreel.metrics.cka import linear_cka
from fedreel.metrics.landscape import landscape, sharpness
from fedreel.metrics.neighbours import knn_accuracy
from fedreel.report.matrices import Matrix, write_matrices
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import Loaded, load
from fedreel.tasks.skeleton.network import BLOCKS, SkeletonBackbone
from fedreel.tasks.skeleton.population import SkeletonPopulation
from fedreel.tasks.skeleton.task import SkeletonRecognition
from fedreel.tasks.skeleton.topology import COEFFICIENTS, INFLECTED, UNIQUE

Metrics = dict[str, float]
NEIGHBOURS = (1, 5, 20)
AT_ONCE = 256  # sequences in one forward pass
FEW = 16  # of a landscape's many passes on a CPU: maps of more do not stay near it, and take up to twice as long
LAST = 50  # rounds over which accuracy should be steady
RADIUS = 0.5  # of the ball around a model in which its loss is averaged
POINTS = 9  # of a landscape, along each direction


def accuracies(run: Path) -> Metrics:
    """Each client's last top-1, and `unsteady`: the deviation of top-1 from round to round over the last rounds (at
    most LAST, at most half of the run), mean over clients."""
    tests = list(read_metrics(run, "test"))
    by_client = {c: [t["clients"][c]["top1"] for t in tests if c in t["clients"]] for c in tests[-1]["clients"]}
    found = {f"top1/{client}": values[-1] for client, values in by_client.items()}
    last = min(LAST, len(tests) // 2)
    if last > 1:
        found["unsteady"] = fmean(stdev(values[-last:]) for values in by_client.values() if len(values) >= last)
    return found


def neighbours(run: Path) -> Metrics:
    """k nearest neighbours on the set that was left out: features of the server's model, whose batch norms take their
    statistics from the set's unlabelled training part."""
    loaded, population, device = opened(run)
    unseen = population.unseen
    if unseen is None:
        return {}
    train, test = (torch.from_numpy(unseen.x[unseen.splits == side]).to(device) for side in ("train", "test"))
    backbone = _server(loaded)
    with torch.no_grad(), settling(backbone):
        for part in train.split(AT_ONCE):
            backbone(part)
    labels = [torch.from_numpy(unseen.labels[unseen.splits == side]).to(device) for side in ("train", "test")]
    with torch.no_grad():
        gallery, queries = (torch.cat([backbone(part) for part in x.split(AT_ONCE)]) for x in (train, test))
    found = knn_accuracy(gallery, labels[0], queries, labels[1], NEIGHBOURS)
    return {f"knn{k}": value for k, value in found.items()}


def coefficients(run: Path) -> Metrics:
    """alpha, beta and gamma that each client has learnt (means over layers if every layer has its own)."""
    found: Metrics = {}
    _, population, _ = opened(run)
    for client in population.clients:
        own = [p for n, p in load(run, client=client).model.named_parameters() if n.endswith(f".{COEFFICIENTS}")]
        if own:
            means = torch.stack([p.detach() for p in own]).mean(dim=0).tolist()
            found |= {f"{name}/{client}": value for name, value in zip(("alpha", "beta", "gamma"), means)}
    return found


def heat_maps(run: Path) -> Metrics:
    """How alike the clients' topologies are after the first and after the last round of training, as `I alike, first`
    and so on: the correlation of their entries, mean over pairs of clients. Writes the topologies themselves to
    `topology.html` in the run. Their models must have been kept (`engine.keep_trained`)."""
    loaded, population, _ = opened(run)
    joints = loaded.card["input"]["joints"]
    pictures: list[Matrix] = []
    found: Metrics = {}
    for when, number in (("first", 1), ("last", loaded.card["rounds"])):
        for letter, kind in (("I", INFLECTED), ("U", UNIQUE)):
            each = {c: _topologies(load(run, client=c, trained=number), kind) for c in population.clients}
            for client, layers in each.items():
                for layer, values in layers.items():
                    title = f"{letter} of {client}{layer}, round {number}"
                    pictures.append(Matrix(title, joints, joints, values.abs().sum(dim=0).numpy()))
            whole = [torch.cat([values.flatten() for values in layers.values()]) for layers in each.values() if layers]
            alike = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in combinations(whole, 2)]
            found |= {f"{letter} alike, {when}": fmean(alike)} if alike else {}
    lead = "How strongly joints (rows) act on joints (columns) beside the bones: absolute values, summed over subsets."
    write_matrices(run / "topology.html", "Learnt topologies", lead, pictures)
    return found


def likeness(run: Path) -> Metrics:
    """`cka1` .. `cka3`: linear CKA between the clients' models after each block, as they trained them in the last round
    (`engine.keep_trained`), for the same sequences (the first client's test part), mean over pairs of clients."""
    loaded, population, device = opened(run)
    x = population.data(population.clients[0]).test.tensors[0][:AT_ONCE].to(device)  # type: ignore[attr-defined]
    last = loaded.card["rounds"]
    models = [load(run, client=client, trained=last, device=str(device)) for client in population.clients]
    features = [list(_by_block(_backbone(model), x)) for model in models]
    pairs = list(combinations(features, 2))
    return {f"cka{b + 1}": fmean(linear_cka(one[b], other[b]) for one, other in pairs) for b in range(BLOCKS)}


def flatness(run: Path) -> Metrics:
    """By how much the test loss rises around each client's model, along two filter-normalised directions. Writes the
    landscapes to `landscape.html` in the run."""
    loaded, population, device = opened(run)
    task = cast(SkeletonRecognition, loaded.task)
    found: Metrics = {}
    pictures = []
    size = AT_ONCE if device.type == "cuda" else FEW
    for client in population.clients:
        model, test = load(run, client=client, device=str(device)).model, population.data(client).test.to(device)

        def loss(model: nn.Module, test: object = test) -> float:
            with torch.no_grad():
                return task.evaluate(model, test, size)["loss"]  # type: ignore[arg-type]

        around = landscape(model, loss, seed=0, points=POINTS)
        found[f"sharpness/{client}"] = sharpness(around, RADIUS)
        axis = [f"{at:.2f}" for at in around.axis]
        pictures.append(Matrix(client, axis, axis, np.log10(around.values)))
    found["sharpness"] = fmean(found.values())
    lead = "The test loss (log10) around each client's model, in the middle, along two filter-normalised directions."
    write_matrices(run / "landscape.html", "Loss landscapes", lead, pictures)
    return found


def opened(run: Path) -> tuple[Loaded, SkeletonPopulation, torch.device]:
    """The server's model of a run, on the run's device, the run's data, and the device."""
    recipe = load_recipe(run / "recipe.toml")
    device = pick_device(recipe.device)
    loaded = load(run, device=str(device))
    return loaded, cast(SkeletonPopulation, loaded.task.population(recipe.data, recipe.data.seed)), device


def _server(loaded: Loaded) -> SkeletonBackbone:
    """The backbone as the server has it: no U."""
    backbone = copy.deepcopy(_backbone(loaded))
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if name.endswith(f".{UNIQUE}"):
                parameter.zero_()
    return backbone


def _backbone(loaded: Loaded) -> SkeletonBackbone:
    return cast(SkeletonBackbone, loaded.model.backbone)


def _topologies(loaded: Loaded, kind: str) -> dict[str, Tensor]:
    """A client's I or U, of each layer where every layer has its own: how the layer is called -> values."""
    own = {n: p.detach() for n, p in loaded.model.named_parameters() if n.rpartition(".")[2] == kind}
    return {f", layer {n.split('.')[2]}" if len(own) > 1 else "": values for n, values in own.items()}


def _by_block(backbone: SkeletonBackbone, x: Tensor) -> Iterator[Tensor]:
    """Features after each block, means over time, joints and bodies."""
    with torch.no_grad():
        h = backbone.enter(x)
        for number in range(BLOCKS):
            h = backbone.block(number, h)
            yield h.mean(dim=(2, 3)).view(len(x), -1, h.shape[1]).mean(dim=1)
