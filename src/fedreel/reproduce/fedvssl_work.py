"""How many clips a run of FedVSSL's tables takes through its network, and how long that is expected to take."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from fedreel.config import Recipe
from fedreel.errors import DataError
from fedreel.media.excerpts import EXCERPTS
from fedreel.reproduce.fedvssl_data import clips_in, videos
from fedreel.reproduce.work import RUN, Work
from fedreel.tasks.pretrain import analysis as pretraining
from fedreel.tasks.pretrain.perturbation import SIZES
from fedreel.tasks.vision.evaluate.measures import CHOOSING_SHARE, SMALL_SHARE
from fedreel.tasks.vision.evaluate.retrieval import HELD_OUT
from fedreel.tasks.vision.evaluate.tuning import CONVOLUTIONAL

# Seconds of an H200 for a thousand clips, of R3D as the scale `small` has it. Those of Speed and of what is read off
# come from cells of the table `mae` (264 s a cell, 117 s with random weights), which are taken to have been run eight
# at once; how they divide into fine-tuning and looking is guessed. VCOP's and CtP's are expected: three clips a
# question, and a last stage on four times as many places.
TRAINED = {"speed": 0.30, "vcop": 0.20, "ctp": 0.45}
TUNED, LOOKED = 0.065, 0.045
FOR_A_RUN, FOR_A_PROBE = 1.0, 1.0  # seconds beside these: opening data and writing; a linear classifier's small steps
QUESTIONS = {"speed": 7, "vcop": 6 * 3, "ctp": 1}  # clips that a test shows of each
SHOWN = {"vcop": 3}  # clips of a question that is learned from; of others one


def work(recipe: Recipe, data: Path) -> dict[str, Work]:
    """Of the run, and of what is read off it; nothing of backbones and pretexts whose speed nobody has measured."""
    pretext = recipe.task["pretext"]
    owned, train, test = _counts(data)
    if recipe.task["backbone"]["name"] != "r3d" or pretext not in TRAINED or not owned or not train:
        return {}
    held = 1 - recipe.data.test_share
    own = owned * held * (held if recipe.data.validate else 1.0)
    taken = own if recipe.method["name"] == "centralised" else own * recipe.round.fraction
    trained = recipe.round.rounds * recipe.train.epochs * taken * SHOWN.get(pretext, 1)
    if recipe.train.lr == 0:
        trained = 0.0
    tests = math.ceil(recipe.round.rounds / recipe.round.evaluate_every)
    asked = QUESTIONS[pretext]
    every = EXCERPTS * (train + test)
    epochs = round(SMALL_SHARE * CONVOLUTIONAL.train.epochs)
    tried = len(CONVOLUTIONAL.rates) * round(CHOOSING_SHARE * epochs) * (1 - 1 / HELD_OUT)
    heads = pretraining.LANDSCAPES if recipe.method["name"] == "fedvssl" else 1
    looked = {
        "recalls": every,
        "settled": EXCERPTS * train + 2 * every,
        "recall_curve": max(0, recipe.round.keep_models - 1) * every,  # the last is that of `recalls`
        "perturbations": len(SIZES) * every,
        "flatness": pretraining.POINTS**2 * pretraining.LANDSCAPES * asked * own / 9 / 3,
        "unseen": heads * asked * test,
    }
    seen = tests * asked * owned * recipe.data.test_share
    return {
        RUN: Work(trained, seen=seen, seconds=(TRAINED[pretext] * trained + LOOKED * seen) / 1e3 + FOR_A_RUN),
        **{name: Work(seen=clips, seconds=LOOKED * clips / 1e3) for name, clips in looked.items()},
        "probes": Work(seen=every, seconds=LOOKED * every / 1e3 + FOR_A_PROBE),
        "tunings": _tuned(epochs * train, EXCERPTS * test),
        "longer_tunings": _tuned(CONVOLUTIONAL.train.epochs * train, EXCERPTS * test),
        **dict.fromkeys(("chosen_tunings", "fitted_tunings"), _tuned((epochs + tried) * train, EXCERPTS * test)),
    }


def _tuned(clips: float, seen: float) -> Work:
    return Work(tuned=clips, seen=seen, seconds=(TUNED * clips + LOOKED * seen) / 1e3)


@lru_cache
def _counts(data: Path) -> tuple[int, int, int]:
    """Clips to learn from, and videos for training and for testing of all downstream sets; none if they are not
    there."""
    try:
        labelled = [clip for folder in pretraining.downstream_folders(data) for clip in clips_in(folder)]
        owned = len(videos(data))
    except DataError:
        return 0, 0, 0
    train = sum(clip.split == "train" for clip in labelled)
    return owned, train, len(labelled) - train
