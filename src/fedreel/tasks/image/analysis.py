"""What can be read off a finished run over images: accuracies of a round's steps, and what its bodies are worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedreel.config import TrainConfig, load_recipe
from fedreel.core.abilities import Contrastable, able
from fedreel.core.task import EVERYONE
from fedreel.core.weights import same_tensors
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
TENTH = 0.1


def accuracies(run: Path) -> Metrics:
    """Top-1 of the last round: `trained`, the mean over clients right after local training, and `trained own`, that
    under each client's own distribution; `averaged`, the mean of their models; `after`, after the server's training."""
    found: Metrics = {}
    for phase, name in (("trained", "trained"), ("averaged", "averaged"), ("test", "after")):
        rows = [record["metrics"] for record in read_metrics(run, phase)]
        if rows and "top1" in rows[-1]:
            found[name] = rows[-1]["top1"]
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
    that of the body before the server's last training."""
    body = _Body.of(run)
    found = {"probe": body.probe()}
    if AVERAGED in body.loaded.card["models"]:
        before = _Body.of(run, AVERAGED)
        unchanged = same_tensors(before.loaded.model, body.loaded.model)  # by a server that does not train
        found["probe before"] = found["probe"] if unchanged else before.probe()
    return found


def few_probes(run: Path) -> Metrics:
    """`probe` likewise, of a tenth of each client's labels, whatever share of them the run itself had."""
    return {"probe": _Body.of(run, share=TENTH).probe()}


def scores(run: Path) -> Metrics:
    """`score`, by which runs are compared: `trained` or, where no labels are learned, the `probe`."""
    labels = load_recipe(run / "recipe.toml").task.get("objective", "labels") == "labels"
    return {"score": accuracies(run)["trained"] if labels else probes(run)["probe"]}


@dataclass(frozen=True)
class _Body:
    """The body of a run's model, and the images that it is judged by."""

    loaded: Loaded
    population: PicturePopulation
    seed: int
    device: torch.device

    @classmethod
    def of(cls, run: Path, model: str = "", share: float = 0.0) -> _Body:
        """With so much of the labels, or as much as the run had."""
        recipe = load_recipe(run / "recipe.toml")
        device = pick_device(recipe.device)
        loaded = load(run, model=model, device=str(device)) if model else load(run, device=str(device))
        if not isinstance(loaded.task, Image):
            raise RunError("this run is not over images", where=str(run), found=type(loaded.task).__name__.lower())
        task = replace(loaded.task, label_share=share) if share else loaded.task
        population = task.population(recipe.data, recipe.data.seed)
        assert isinstance(population, PicturePopulation)
        return cls(loaded, population, recipe.seed, device)

    def probe(self) -> float:
        shown = self.population.labelled(), self.population.data(EVERYONE).test
        parts = [next(iter(examples.batches(len(examples)))) for examples in shown]
        train, test = (self._vectors(part[0]) for part in parts)
        mean, spread = train.mean(dim=0), train.std(dim=0) + 1e-6
        classes = len(self.population.classes)
        truth = [part[1].to(self.device) for part in parts]
        classifier = probe(((train - mean) / spread)[:, None], truth[0], classes, PROBE, self.seed)
        with torch.no_grad():
            said = classifier((test - mean) / spread).argmax(dim=1)
        return float((said == truth[1]).float().mean())

    def _vectors(self, images: Tensor) -> Tensor:
        task = able(self.loaded.task, Contrastable)
        with torch.no_grad():
            some = [task.vectors(self.loaded.model, part.to(self.device)).float() for part in images.split(AT_ONCE)]
        return torch.cat(some)
