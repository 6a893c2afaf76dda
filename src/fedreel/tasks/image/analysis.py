"""What can be read off a finished run over images: accuracies of a round's steps, and what its bodies are worth."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedreel.config import TrainConfig, load_recipe
from fedreel.core.abilities import Contrastable, able
from fedreel.core.task import EVERYONE
from fedreel.errors import RunError
from fedreel.machine.device import pick_device
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import Loaded, load
from fedreel.tasks.image.population import PicturePopulation
from fedreel.tasks.image.task import Image
from fedreel.tasks.vision.probe import probe

Metrics = dict[str, float]

PROBE = TrainConfig(epochs=60, batch_size=256, lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="cosine")
AVERAGED = "averaged"  # the model before the server's training, in FedLID's runs
AT_ONCE = 512


def accuracies(run: Path) -> Metrics:
    """Top-1 of the last round: `trained`, the mean over clients right after local training, and `trained own`, that
    under each client's own distribution; `averaged`, the mean of their models; `after`, after the server's training.
    Runs that learn labels are compared by `trained`: their `score`."""
    found: Metrics = {}
    for phase, name in (("trained", "trained"), ("averaged", "averaged"), ("test", "after")):
        rows = [record["metrics"] for record in read_metrics(run, phase)]
        if rows and "top1" in rows[-1]:
            found[name] = rows[-1]["top1"]
            found |= {"score": rows[-1]["top1"]} if phase == "trained" else {}
        if rows and phase == "trained" and "top1_own" in rows[-1]:
            found["trained own"] = rows[-1]["top1_own"]
    return found


def curves(run: Path) -> Metrics:
    """`trained at ROUND` and `after at ROUND`: top-1 after local training, and after the server's."""
    named = (("trained", "trained"), ("test", "after"))
    return {
        f"{name} at {record['round']:02}": record["metrics"]["top1"]
        for phase, name in named
        for record in read_metrics(run, phase)
        if "top1" in record["metrics"]
    }


def probes(run: Path) -> Metrics:
    """`probe`: top-1 of a linear classifier on the frozen body, learned from all clients' labels; `probe before`
    that of the body before the server's last training. It is the `score` of a run that learns no labels."""
    recipe = load_recipe(run / "recipe.toml")
    device = pick_device(recipe.device)
    loaded = load(run, device=str(device))
    if not isinstance(loaded.task, Image):
        raise RunError("this run is not over images", where=str(run), found=type(loaded.task).__name__.lower())
    population = loaded.task.population(recipe.data, recipe.data.seed)
    assert isinstance(population, PicturePopulation)
    found = {"probe": _probe(loaded, population, recipe.seed, device)}
    if AVERAGED in loaded.card["models"]:
        before = load(run, model=AVERAGED, device=str(device))
        found["probe before"] = _probe(before, population, recipe.seed, device)
    return found if loaded.task.objective == "labels" else found | {"score": found["probe"]}


def _probe(loaded: Loaded, population: PicturePopulation, seed: int, device: torch.device) -> float:
    shown = population.labelled(), population.data(EVERYONE).test
    parts = [next(iter(examples.batches(len(examples)))) for examples in shown]
    task = able(loaded.task, Contrastable)
    train, test = (_vectors(loaded, task, part[0], device) for part in parts)
    mean, spread = train.mean(dim=0), train.std(dim=0) + 1e-6
    classes = len(population.classes)
    classifier = probe(((train - mean) / spread)[:, None], parts[0][1].to(device), classes, PROBE, seed)
    with torch.no_grad():
        said = classifier((test - mean) / spread).argmax(dim=1)
    return float((said == parts[1][1].to(device)).float().mean())


def _vectors(loaded: Loaded, task: Contrastable, images: Tensor, device: torch.device) -> Tensor:
    with torch.no_grad():
        return torch.cat([task.vectors(loaded.model, some.to(device)).float() for some in images.split(AT_ONCE)])
