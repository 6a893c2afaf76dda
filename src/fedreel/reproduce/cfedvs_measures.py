"""What is read off CFed-VS's runs: how clients differ, how grouping went, rounds to a target, pairs of videos."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from fedreel.config import Recipe, make_recipe
from fedreel.core.job import make_task
from fedreel.core.server import GLOBAL
from fedreel.methods.cluster import adjusted_rand_index
from fedreel.reproduce.cells import derived_of
from fedreel.reproduce.spec import Metrics, Row
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import load
from fedreel.tasks.summary.metrics import (
    SummaryScores,
    Truth,
    centre_scores,
    constant_scores,
    human_scores,
    mean_defined,
    mean_scores,
    random_scores,
    score,
)
from fedreel.tasks.summary.split import SummaryPopulation, Videos
from fedreel.tasks.summary.task import Summary

SHARE = 0.5  # of the way from random scores to the centralised model: the target that rounds are counted to
DRAWS = 4  # of random scores for each video
REFERENCE = "FedAvg"  # what rows are paired with, video by video
TARGETS = {"rounds_to_target": "f1_clients", "rounds_to_tau": "tau_clients"}


def derive(run: Path) -> Metrics:
    """Max - min over clients, and how the grouping went."""
    tests = list(read_metrics(run, "test"))
    found: Metrics = {}
    last = [client["f1"] for client in tests[-1]["clients"].values() if "f1" in client]
    if last:
        found["max_min"] = max(last) - min(last)
    for record in read_metrics(run, "distance"):
        if record.get("correlation_with_length") is not None:
            found["length_correlation"] = record["correlation_with_length"]
    return found | _agreement(run)


def curves(run: Path) -> Metrics:
    """`METRIC at ROUND` of every test, for the metrics that rounds are counted in."""
    return {
        f"{metric} at {test['round']}": test["metrics"][metric]
        for test in read_metrics(run, "test")
        for metric in TARGETS.values()
        if metric in test["metrics"]
    }


def by_video(run: Path) -> Metrics:
    """F1 and tau of every test video by the model of whoever holds it, `tau/NAME`; of its parts, the mean."""
    card = json.loads((run / "model" / "card.json").read_text())
    recipe = make_recipe(card["recipe"], str(run))
    task = make_task(recipe)
    assert isinstance(task, Summary)
    population = task.population(recipe.data, recipe.data.seed)
    found: dict[str, list[SummaryScores]] = {}
    for client in population.clients:
        model = card.get("communities", {}).get(client, GLOBAL)
        loaded = load(run, model=model, client=client if card["private"] else "")
        test = _tests(population, client)
        with torch.inference_mode():
            for batch in test.batches(1):
                i = int(batch[3])
                scores = task.forward(loaded.model, batch).logits[0].double().numpy()
                found.setdefault(test.sources[i], []).append(score(scores, test.truths[i], task.ratio))
    means = {name: mean_scores(parts) for name, parts in found.items()}
    both = {f"{m}/{name}": getattr(mean, m) for name, mean in means.items() for m in ("f1", "tau")}
    return {name: value for name, value in both.items() if value == value}


def relate(cells: Sequence[tuple[Row, Path]]) -> list[Metrics]:
    """Within a seed: rounds to a target that random scores do not reach, and the mean difference to the reference over
    the same test videos (`tau_gain`, `f1_gain`). A target never reached counts as one round more than there were."""
    return [_rounds(row, run, cells) | _gains(row, run, cells) for row, run in cells]


def remark(rows: Sequence[tuple[Row, Sequence[Path]]]) -> list[str]:
    """The same pairs over all seeds: the mean difference and its standard error over videos. A video that several seeds
    test counts once, with its mean."""
    notes = []
    for setting in _unique([row.setting for row, _ in rows]):
        own = {
            row.name: {run.name.rpartition("seed")[2]: run for run in runs}
            for row, runs in rows
            if row.setting == setting
        }
        words = [
            f"{name} {gains[0]:+.3f} ± {gains[1]:.3f} ({gains[2]} videos)"
            for name, runs in own.items()
            if name != REFERENCE and (gains := _pooled(runs, own.get(REFERENCE, {})))
        ]
        if words:
            where = " ".join(f"{k} {v}" for k, v in setting.items())
            notes.append(
                f"tau less that of {REFERENCE} on the same videos ± standard error ({where}): {'; '.join(words)}"
            )
    return notes


def without_training(kind: str, recipe: Recipe) -> Metrics:
    """A row of scores that no model made: random, constant, centre (a prior) or human (leave one out)."""
    task = make_task(recipe)
    assert isinstance(task, Summary)
    population = task.population(recipe.data, recipe.data.seed)
    by_client = []
    for number, client in enumerate(population.clients):
        truths = _tests(population, client).truths
        seeds = [1000 * recipe.seed + 50 * number + i for i in range(len(truths))]
        by_client.append([one for truth, seed in zip(truths, seeds) for one in _scores(kind, truth, seed)])
    everything = mean_scores([s for found in by_client for s in found])
    clients = [mean_scores(found) for found in by_client if found]
    named = {"f1": everything.f1, "tau": everything.tau, "rho": everything.rho}
    named |= {f"{m}_clients": mean_defined([getattr(c, m) for c in clients]) for m in ("f1", "tau")}
    return {name: value for name, value in named.items() if value == value}


def _tests(population: SummaryPopulation, client: str) -> Videos:
    test = population.data(client).test
    assert isinstance(test, Videos)
    return test


def _scores(kind: str, truth: Truth, seed: int) -> Iterator[SummaryScores]:
    steps = len(truth.picks)
    if kind == "human":
        yield human_scores(truth)
    elif kind == "random":
        for draw in range(DRAWS):
            yield score(random_scores(steps, 7919 * draw + seed), truth)
    else:
        yield score(constant_scores(steps) if kind == "constant" else centre_scores(steps), truth)


def _agreement(run: Path) -> Metrics:
    """Adjusted Rand index of the communities found against those planted, where these are known."""
    planted: dict[str, str] = next((r.get("communities", {}) for r in read_metrics(run, "partition")), {})
    members: dict[str, str] = next((r["members"] for r in read_metrics(run, "communities")), {})
    both = [c for c in members if c in planted]
    if len(both) < 2:
        return {}
    return {"ari": adjusted_rand_index(np.array([members[c] for c in both]), np.array([planted[c] for c in both]))}


def _rounds(row: Row, run: Path, cells: Sequence[tuple[Row, Path]]) -> Metrics:
    ends = {name: _beside(name, row, cells) for name in ("random", "centralised")}
    if row.compute is not None or None in ends.values():
        return {}
    low, high = (_summary(folder) for folder in ends.values() if folder)
    tests = [(*name.partition(" at ")[::2], value) for name, value in _derived(run, curves).items()]
    if not tests:  # finished a moment ago, and not read off yet
        return {}
    found: Metrics = {}
    for name, metric in TARGETS.items():
        if high.get(metric, 0.0) > low.get(metric, 1.0):
            target = low[metric] + SHARE * (high[metric] - low[metric])
            reached = [int(at) for m, at, value in tests if m == metric and value >= target]
            found[name] = float(min(reached, default=max(int(at) for _, at, _ in tests) + 1))
    return found


def _gains(row: Row, run: Path, cells: Sequence[tuple[Row, Path]]) -> Metrics:
    reference = _beside(REFERENCE, row, cells)
    if reference is None or row.compute is not None or row.name == REFERENCE:
        return {}
    ours, theirs = _derived(run, by_video), _derived(reference, by_video)
    found: Metrics = {}
    for metric in ("f1", "tau"):
        pairs = [ours[v] - theirs[v] for v in ours if v in theirs and v.startswith(f"{metric}/")]
        found |= {f"{metric}_gain": fmean(pairs)} if pairs else {}
    return found


def _pooled(ours: Mapping[str, Path], theirs: Mapping[str, Path]) -> tuple[float, float, int] | None:
    pairs: dict[str, list[float]] = {}
    for seed in {*ours} & {*theirs}:
        a, b = _derived(ours[seed], by_video), _derived(theirs[seed], by_video)
        for video in a:
            if video in b and video.startswith("tau/"):
                pairs.setdefault(video, []).append(a[video] - b[video])
    means = [fmean(found) for found in pairs.values()]
    return (fmean(means), stdev(means) / sqrt(len(means)), len(means)) if len(means) > 1 else None


def _beside(name: str, row: Row, cells: Sequence[tuple[Row, Path]]) -> Path | None:
    """The run of another row in the same setting."""
    return next((folder for other, folder in cells if (other.name, other.setting) == (name, row.setting)), None)


def _derived(run: Path, function: Callable[[Path], Metrics]) -> Metrics:
    return derived_of(run).get(function.__name__, {})


def _summary(run: Path) -> Metrics:
    found: Metrics = json.loads((run / "summary.json").read_text())["metrics"]
    return found


def _unique(settings: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [s for i, s in enumerate(settings) if s not in settings[:i]]
