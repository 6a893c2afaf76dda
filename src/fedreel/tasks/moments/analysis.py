"""What can be read off a finished run of moment retrieval: what it owes to the video, and how long it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from fedreel.config import Recipe, load_recipe
from fedreel.core.job import make_task
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import load
from fedreel.tasks.moments.examples import Moments
from fedreel.tasks.moments.metrics import THRESHOLDS, prior_only, recalls
from fedreel.tasks.moments.population import MomentPopulation

Metrics = dict[str, float]
AT_ONCE = 256


def swapped(run: Path) -> Metrics:
    """The measures when every test question is asked of another video of the same client: a model that looks at its
    video gets worse. Means over all test questions."""
    recipe = load_recipe(run / "recipe.toml")
    loaded = load(run)
    population = loaded.task.population(recipe.data, recipe.data.seed)
    totals: Metrics = {}
    count = 0.0
    for client in population.clients:
        model = load(run, client=client).model if loaded.card["private"] else loaded.model
        mine = cast(Moments, population.data(client).test)
        other = replace(mine, videos=mine.videos.roll(1, dims=0))
        with torch.no_grad():
            found = loaded.task.evaluate(model, other, AT_ONCE)
        n = found.pop("n")
        count += n
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + n * value
    return {f"{name} swapped": total / count for name, total in totals.items() if name != "loss"}


def without_looking(recipe: Recipe) -> Metrics:
    """The best constant span, chosen on the training moments for each measure by itself."""
    population = cast(MomentPopulation, make_task(recipe).population(recipe.data, recipe.data.seed))
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for client in population.clients:
        data = population.data(client)
        for kept, examples in ((train, data.train), (test, data.test)):
            mine = cast(Moments, examples)
            times = mine.times[mine.present].double().numpy()
            kept.append(times[:, :2] / times[:, 2:])
    spans = prior_only(np.concatenate(train), max_share=float(recipe.task.get("max_share", 1.0)))
    truth = np.concatenate(test)
    return {name: recalls(np.broadcast_to(span, truth.shape), truth)[name] for name, span in spans.items()}


def curves(run: Path) -> dict[str, list[float]]:
    """Each measure of R(1, m) round by round."""
    tests = list(read_metrics(run, "test"))
    names = [f"r{100 * m:.0f}" for m in THRESHOLDS]
    return {name: [t["metrics"][name] for t in tests] for name in names}


def chosen(run: Path) -> Metrics:
    """The measures after the round whose model was best on the c-validation set (the first of equals); nothing where
    there was none, or where tests were rarer than rounds."""
    scores = [r["score"] for r in read_metrics(run, "validation")]
    tests = [r["metrics"] for r in read_metrics(run, "test")]
    if not scores or len(tests) != len(scores):
        return {}
    best = tests[scores.index(max(scores))]
    return {f"{name} chosen": best[name] for name in (*(f"r{100 * m:.0f}" for m in THRESHOLDS), "miou")}


def seconds(run: Path) -> float:
    """What the run's rounds of training took."""
    return sum(r.get("seconds", 0.0) for r in read_metrics(run, "train"))
