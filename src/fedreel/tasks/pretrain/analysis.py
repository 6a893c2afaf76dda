"""What can be read off a finished run of self-supervised pretraining: what its backbone is worth, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from torch import nn

from fedreel.config import DataConfig, Recipe, load_recipe
from fedreel.core.residence import Residence
from fedreel.core.state import PrivateStore
from fedreel.core.task import Examples
from fedreel.core.weights import same_tensors
from fedreel.data.feature_networks import fingerprint
from fedreel.errors import DataError, RunError
from fedreel.machine.device import pick_device
from fedreel.metrics.landscape import landscape, sharpness
from fedreel.report.matrices import Matrix, write_matrices
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import Loaded, load
from fedreel.tasks.pretrain.perturbation import perturbed_retrieval
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.vision.clips import open_clips
from fedreel.tasks.vision.evaluate import measures
from fedreel.tasks.vision.evaluate.measures import Metrics, Trial
from fedreel.tasks.vision.evaluate.retrieval import SETS, LabelledSet, labelled_set, retrieval, settle

DOWNSTREAM = "downstream"  # beside the folder of the videos to learn from
AT_ONCE = 64  # windows in one forward pass
POINTS, RADIUS = 9, 0.5  # of a landscape; of the ball in which its rise is averaged
TRIAL_EPOCHS = 5  # of fine-tuning where only some clips are taken, to see that everything runs
LANDSCAPES = 3  # clients whose data a landscape is drawn on


def recalls(run: Path) -> Metrics:
    """`r1` .. `r50`: R@k on the downstream sets; `r1 pooled` likewise by features that are means over all places."""
    return dict(_recalls(run, fingerprint(opened(run)[0].model.state_dict())))


@lru_cache(1)
def _recalls(run: Path, state: str) -> Metrics:
    """What several functions read off a run whose model is in this state is measured once."""
    return _measured(run, measures.recalls)


def settled(run: Path) -> Metrics:
    """`r1 settled`, `probe settled` and so on: R@k and linear probes once the backbone's batch norms have taken their
    statistics anew, from the training videos of each set."""
    found: dict[str, Metrics] = {}
    for trial in _trials(run):
        settle(trial.model, trial.task, trial.labelled)
        metrics = measures.recalls(trial) | measures.probes(trial)
        found[trial.labelled.name] = {f"{name} settled": value for name, value in metrics.items()}
    return _means(found)


def recall_curve(run: Path) -> Metrics:
    """`r1 after N %`: R@1 of the global models that were kept on the way, by how much of the rounds were over."""
    loaded, recipe = opened(run)
    task, device = _task(loaded), str(pick_device(recipe.device))
    found: Metrics = {}
    for name in sorted(n for n in loaded.card["models"] if n.startswith("round-")):
        model = load(run, model=name, device=device).model

        def measure(labelled: LabelledSet, model: nn.Module = model) -> Metrics:
            return {"r1": retrieval(model, task, labelled)[1]}

        over = 100 * int(name.removeprefix("round-")) / recipe.round.rounds
        final = same_tensors(model, loaded.model)
        found[f"r1 after {over:3.0f} %"] = (recalls(run) if final else over_sets(sets(recipe, task), measure))["r1"]
    return found


def probes(run: Path) -> Metrics:
    """`probe`: top-1 of linear classifiers on the frozen backbone."""
    return _measured(run, measures.probes)


def tunings(run: Path) -> Metrics:
    """`tune`: top-1 after fine-tuning, in the run's precision."""
    return _measured(run, measures.tunings)


def chosen_tunings(run: Path) -> Metrics:
    """`tune` likewise, with a rate that is chosen for this run, the `tune rate`: one for all sets, on a part of their
    training videos."""
    trials = _trials(run)
    rate, found = measures.chosen_tunings(trials)
    by_set = {trial.labelled.name: metrics for trial, metrics in zip(trials, found)}
    return {"tune rate": rate} | _means(by_set)


def longer_tunings(run: Path) -> Metrics:
    """`tune longer`: top-1 after as many epochs of fine-tuning as in the paper."""
    return _measured(run, measures.longer_tunings)


def fitted_tunings(run: Path) -> Metrics:
    """`chosen_tunings` beside `tunings`: its `tune` is `tune fitted`."""
    found = chosen_tunings(run)
    return {"tune rate": found.pop("tune rate")} | {name.replace("tune", "tune fitted"): v for name, v in found.items()}


def perturbations(run: Path) -> Metrics:
    """`r1 at 0.1`, ...: R@1 with so much noise on all weights of the backbone, batch norm's too; one draw for each, of
    the run's seed: a table has several runs."""
    loaded, recipe = opened(run)
    task = _task(loaded)
    without = {name.replace("r1", "r1 at 0"): value for name, value in recalls(run).items() if _is_r1(name)}

    def measure(labelled: LabelledSet) -> Metrics:
        noised = perturbed_retrieval(loaded.model, task, labelled, seeds=(recipe.seed,))
        return {f"r1 at {size:g}": r1 for size, r1, _ in noised}

    return without | over_sets(sets(recipe, task), measure)


def _is_r1(name: str) -> bool:
    """Whether it is R@1 of all sets, or of one of them."""
    return name.partition("/")[0] == "r1"


def flatness(run: Path) -> Metrics:
    """`sharpness`: by how much the pretext's loss rises around the model, along two filter-normalised directions, mean
    over a few clients' test data, each with its own head if heads stay. Writes `landscape.html` into the run."""
    loaded, recipe = opened(run)
    task = _task(loaded)
    population = task.population(recipe.data, recipe.data.seed)
    able = PrivateStore(run / "clients").clients() if loaded.card["private"] else population.clients
    device = pick_device(recipe.device)
    residence = Residence(device, round(recipe.data.memory * 1e9))
    around = []
    for client in [c for c in population.clients if c in able][:LANDSCAPES]:
        model = load(run, client=client, device=str(device)).model if loaded.card["private"] else loaded.model
        test = residence.of_client(client, population, task, model).test

        def loss(model: nn.Module, test: Examples = test) -> float:
            return task.evaluate(model, test, AT_ONCE)["loss"]  # the same questions every time

        around.append(landscape(model, loss, seed=0, points=POINTS))
    if not around:
        raise RunError("no client of this run has a head", where=str(run / "clients"))
    axis = [f"{at:.2f}" for at in around[0].axis]
    mean = np.mean([one.values for one in around], axis=0)
    lead = "The pretext's loss (log10) around the model, in the middle, along two filter-normalised directions."
    write_matrices(run / "landscape.html", "Loss landscape", lead, [Matrix("mean", axis, axis, np.log10(mean))])
    return {"sharpness": fmean(sharpness(one, RADIUS) for one in around)}


def unseen(run: Path) -> Metrics:
    """`unseen accuracy` (or `unseen iou`): how well the pretext is answered on the test videos of the downstream sets,
    of which nothing was learned. Where heads stay at clients, the mean over a few clients' heads."""
    loaded, recipe = opened(run)
    task, device = _task(loaded), next(loaded.model.parameters()).device
    models = [loaded.model]
    if loaded.card["private"]:
        some = PrivateStore(run / "clients").clients()[:LANDSCAPES]
        models = [load(run, client=client, device=str(device)).model for client in some]

    def measure(labelled: LabelledSet) -> Metrics:
        windows = task.windows(labelled.footage(device).of(labelled.test.tolist()))
        with torch.no_grad():
            found = [task.evaluate(model, windows, AT_ONCE) for model in models]
        return {f"unseen {name}": fmean(f[name] for f in found) for name in ("accuracy", "iou") if name in found[0]}

    return over_sets(sets(recipe, task), measure)


def divergences(run: Path) -> Metrics:
    """`backbone spread`, `head spread`: how unequally far clients move from the global model in a round (the deviation
    over clients of the L2 distance), mean over rounds; `backbone moved`, `head moved`: how far they move."""
    rounds = [[*record["clients"].values()] for record in read_metrics(run, "divergence")]
    found: Metrics = {}
    for part in sorted({part for clients in rounds for moved in clients for part in moved}):
        by_round = [[moved[part] for moved in clients] for clients in rounds]
        found[f"{part} moved"] = fmean(v for values in by_round for v in values)
        spreads = [stdev(values) for values in by_round if len(values) > 1]
        if spreads:
            found[f"{part} spread"] = fmean(spreads)
    return found


def passes(run: Path) -> float:
    """How often, on average, a training clip was learned from."""
    sizes = {client: sum(counts) for client, counts in next(read_metrics(run, "partition"))["train"].items()}
    everyone = sum(sizes.values())
    epochs = load_recipe(run / "recipe.toml").train.epochs
    taken = sum(sizes.get(client, everyone) for r in read_metrics(run, "train") for client in r["clients"])
    return epochs * taken / everyone


def learned_from(run: Path) -> Metrics:
    """`passes` over the data."""
    return {"passes": passes(run)}


def pretext_curve(run: Path) -> dict[int, float]:
    """Round -> how well the pretext is answered on clients' test data: accuracy, or overlap with the patches."""
    tests = [(record["round"], record["metrics"]) for record in read_metrics(run, "test")]
    return {number: metrics.get("accuracy", metrics.get("iou")) for number, metrics in tests}


def rounds_to(curve: dict[int, float], target: float) -> int | None:
    """The first round tested in which the target was reached; none if it never was."""
    return next((number for number, value in sorted(curve.items()) if value >= target), None)


def over_sets(found: Iterable[LabelledSet], measure: Callable[[LabelledSet], Metrics]) -> Metrics:
    """What is measured on each set: means over them and, where there are several, each as `NAME/SET`."""
    return _means({labelled.name: measure(labelled) for labelled in found})


def _means(by_set: Mapping[str, Metrics]) -> Metrics:
    names = next(iter(by_set.values()))
    means = {name: fmean(one[name] for one in by_set.values()) for name in names}
    if len(by_set) == 1:
        return means
    return means | {f"{name}/{which}": one[name] for which, one in by_set.items() for name in names}


def sets(recipe: Recipe, task: Pretrain) -> list[LabelledSet]:
    """The downstream sets: folders in `downstream` beside the folder of the run's videos, or the playground's actions
    with their labels."""
    if recipe.data.source == "playground":
        return [labelled_set("actions", open_clips(recipe.data, task.side, most=task.most))]
    folders = downstream_folders(Path(recipe.data.source).parent)
    return [_set_in(folder, task.side, task.most, recipe.data.quality) for folder in folders]


@lru_cache(SETS)
def _set_in(folder: Path, side: int, most: int, quality: int) -> LabelledSet:
    """The same for all that is measured of all runs, with its videos wherever they were brought. They are kept as the
    runs' own are: as raw frames, or as pictures."""
    data = DataConfig(source=str(folder), quality=quality)
    return labelled_set(folder.name, open_clips(data, side, "task.stored", most))


def downstream_folders(data: Path) -> list[Path]:
    """The sets in data/downstream; raises if there are none."""
    folder = data / DOWNSTREAM
    found = sorted(f for f in folder.iterdir() if f.is_dir() and f.name[0] != ".") if folder.is_dir() else []
    if not found:
        raise DataError(
            "there are no labelled sets to use the backbones on",
            where=str(folder),
            expected=f"{DOWNSTREAM}/NAME/{{train,test}}/CLASS/*.mp4",
        )
    return found


def opened(run: Path) -> tuple[Loaded, Recipe]:
    """The server's model of a run, on the run's device, and the run's recipe."""
    recipe = load_recipe(run / "recipe.toml")
    return load(run, device=str(pick_device(recipe.device))), recipe


def _measured(run: Path, measure: Callable[[Trial], Metrics]) -> Metrics:
    """One of the measures that `fedreel evaluate` has, on the downstream sets."""
    return _means({trial.labelled.name: measure(trial) for trial in _trials(run)})


def _trials(run: Path) -> list[Trial]:
    loaded, recipe = opened(run)
    task, playground = _task(loaded), recipe.data.source == "playground"
    how = recipe.seed, recipe.train.precision, playground, TRIAL_EPOCHS if task.most else 0
    return [Trial(loaded.model, task, labelled, *how) for labelled in sets(recipe, task)]


def _task(loaded: Loaded) -> Pretrain:
    if not isinstance(loaded.task, Pretrain):
        raise RunError("this run was no pretraining", expected="a run of the task pretrain", found=f"{loaded.task}")
    return loaded.task
