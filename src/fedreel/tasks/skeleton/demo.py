"""What the demo shows of skeleton recognition: a moving body of every owner, and what the model takes it for."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np

from fedreel.report.exhibits import Card, Exhibit
from fedreel.report.read import read_run
from fedreel.tasks.use.classes import class_lists
from fedreel.tasks.use.recognition import Recognition
from fedreel.tasks.use.recognize import recognize
from fedreel.tasks.use.showing import answer_card, luck, part_of_world


def show(run: Path, folder: Path) -> Exhibit:
    files = sorted(part_of_world(run, "skeletons").glob("*.npz"))
    cards = [_card(run, folder, file, number) for number, file in enumerate(files)]
    guessed, samples = _guessing(run)
    return Exhibit(
        asked="What is this person doing? A test recording of every owner, by a person nobody trained on.",
        cards=cards,
        command=f"fedreel recognize MOTION.skeleton --model {shlex.quote(str(run))} --client {files[0].stem}"
        " --out motion.gif",
        chance=guessed,
        chance_is="guessing among the owner's classes",
        noise=luck(guessed, samples),
        page=f"{files[0].stem}.html",
    )


def _card(run: Path, folder: Path, file: Path, number: int) -> Card:
    """Of the owner's actions that have a name of their own (the first two are its limbs in step or not), another one
    for every owner."""
    with np.load(file, allow_pickle=False) as arrays:
        names, labels, split, classes = (arrays[key] for key in ("names", "labels", "split", "class_names"))
    wanted = 2 + (2 * number + 1) % (len(classes) - 2)
    which = int(np.flatnonzero((labels == wanted) & (split == "test"))[0])
    recording, owner = f"{file}#{names[which]}", file.stem
    gif, page = folder / f"{owner}.gif", folder / f"{owner}.html"
    answer = recognize(recording, run, out=gif, page=page, client=owner)
    assert isinstance(answer, Recognition)
    return answer_card(gif.name, str(classes[wanted]), answer)


def _guessing(run: Path) -> tuple[float, int]:
    """The share that guesses get right, each owner among its own classes; and of how many recordings."""
    tests, classes = read_run(run).test, class_lists(run)
    last = tests[max(tests)]["clients"]
    samples = {client: values["n"] for client, values in last.items() if values.get("n")}
    hits = sum(n / len(classes[client]) for client, n in samples.items())
    return hits / sum(samples.values()), int(sum(samples.values()))
