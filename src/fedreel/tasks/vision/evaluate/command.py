"""`fedreel evaluate` and `fedreel.evaluate`: a model and labelled videos in, what the model's backbone is worth out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedreel.machine.progress import Tell
from fedreel.tasks.use.options import Changes, Client, Device, Fold, Json, Lists, Place
from fedreel.tasks.vision.evaluate.result import Evaluation

MODEL = "A run directory, or the folder model/ in one; a file of weights; or random: weights that learned nothing."
ON = (
    "Labelled videos: a folder {train,test}/CLASS/*.mp4, or with an index.csv or lists as UCF-101 and HMDB-51 have"
    " them; shards of one; or playground."
)
ONLY = "Some of answers, retrieval, knn, probe and tune, with commas between them [all]."


def evaluate(
    model: Annotated[Place, typer.Argument(metavar="RUN|WEIGHTS", help=MODEL)],
    on: Annotated[Place, typer.Option("--on", help=ON)],
    *,
    lists: Lists = "",
    fold: Fold = 1,
    only: Annotated[str, typer.Option(help=ONLY)] = "",
    json: Json = None,
    client: Client = "",
    device: Device = "auto",
    seed: Annotated[
        int | None, typer.Option(help="Of classifiers, and of random weights [the run's or recipe's].")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Of fine-tuning; 0: as many as in FedVSSL's tables.")] = 0,
    settle: Annotated[
        bool, typer.Option("--settle", help="First take batch-norm statistics anew from the training videos.")
    ] = False,
    recipe: Annotated[str, typer.Option(help="Whose network the weights are of, where there is no run.")] = "",
    set: Changes = None,
    tell: Tell | None = None,
) -> Evaluation:
    """Say what a model's backbone is worth on labelled videos: retrieval, neighbours, a linear probe, fine-tuning."""
    from fedreel.tasks.vision.evaluate.evaluate import Question, evaluate_on

    how: dict[str, Any] = {"client": client, "device": device, "seed": seed, "epochs": epochs, "settle": settle}
    question = Question.of(model, on, lists=lists, fold=fold, only=only, json=json, **how)
    return evaluate_on(question, recipe, set or {}, tell)
