"""What the demo shows of summaries: a video, its summary as a video, and the shots that were chosen."""

from __future__ import annotations

import shlex
import shutil
from collections import deque
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from fedreel.config import make_recipe
from fedreel.core.job import make_task
from fedreel.machine.words import clock
from fedreel.media.frames import Film
from fedreel.media.thumbnails import thumbnails
from fedreel.report.exhibits import Card, Exhibit
from fedreel.tasks.summary.command import summarize
from fedreel.tasks.summary.data import ANNOTATIONS
from fedreel.tasks.summary.metrics import Truth, f1, random_scores, score
from fedreel.tasks.summary.result import Summary
from fedreel.tasks.summary.split import Videos
from fedreel.tasks.use.models import read_card
from fedreel.tasks.use.showing import part_of_world

OWNERS, SHOTS = 3, 3  # that are shown, at most
BETTER = {True: "better than at random", False: "no better than at random"}
DRAWS = 20  # random summaries of every test video


def show(run: Path, folder: Path) -> Exhibit:
    truths, world = _test_truths(run), part_of_world(run, "summary")
    cards, owns, chances = [], [], []
    for number, (owner, video) in enumerate(_test_videos(world).items(), 1):
        shown = number <= OWNERS
        out, page = (folder / f"{number}-summary.mp4", folder / f"{number}.html") if shown else (None, None)
        summary = summarize(video, run, out=out, page=page, client=owner)
        own, chance = _agreement(summary, truths[owner][0])
        owns.append(own)
        chances.append(chance)
        if shown:
            cards += _cards(summary, folder, number, own, chance)
    draws = _random_orders([truth for of_client in truths.values() for truth in of_client])
    return Exhibit(
        asked=f"What is worth seeing in these videos? Test videos of {min(OWNERS, len(owns))} owners, their summaries,"
        f" and the shots that these are made of. Agreement with people (F1), mean over test videos of {len(owns)}"
        f" owners: {np.mean(owns):.2f}; of the same shots taken at random: {np.mean(chances):.2f}.",
        cards=cards,
        command=f"fedreel summarize VIDEO.mp4 --model {shlex.quote(str(run))} --out summary.mp4 --page summary.html",
        chance=0.0,
        chance_is="scores drawn at random",
        noise=2 * float(draws.std()),
        page="1.html",
    )


def _test_videos(world: Path) -> dict[str, Path]:
    """Of every owner, the first by name."""
    videos: dict[str, Path] = {}
    with h5py.File(world / ANNOTATIONS, "r") as file:
        for name in sorted(file):
            attributes = file[name].attrs
            if attributes["split"] == "test":
                videos.setdefault(str(attributes["owner"]), world / attributes["owner"] / f"{name}.mp4")
    return dict(sorted(videos.items()))


def _cards(summary: Summary, folder: Path, number: int, own: float, chance: float) -> list[Card]:
    shutil.copyfile(summary.source, folder / f"{number}.mp4")
    text = f"agreement with people: {own:.2f}; of these shots taken at random: {chance:.2f}"
    return [
        Card(f"{number}.mp4", f"A video of {summary.client}, {clock(summary.n_frames / summary.fps)}"),
        Card(
            f"{number}-summary.mp4", f"Its summary, {clock(summary.seconds)}", text, own > chance, BETTER[own > chance]
        ),
        *_storyboard(summary, folder, number),
    ]


def _test_truths(run: Path) -> dict[str, list[Truth]]:
    """What people said of the test videos of each client."""
    recipe = make_recipe(read_card(run)["recipe"], str(run))
    population = make_task(recipe).population(recipe.data, recipe.data.seed)
    truths = {}
    for client in population.clients:
        videos = population.data(client).test
        assert isinstance(videos, Videos)
        truths[client] = [*videos.truths]
    return truths


def _random_orders(truths: list[Truth]) -> np.ndarray:
    """Tau of scores that nobody learned to give: for each draw the mean over the videos."""
    return np.array(
        [
            np.mean([score(random_scores(len(t.picks), draw * len(truths) + i), t).tau for i, t in enumerate(truths)])
            for draw in range(DRAWS)
        ]
    )


def _agreement(summary: Summary, truth: Truth) -> tuple[float, float]:
    """How much people agree with it, and how much with the same shots taken at random."""
    kept = np.zeros(truth.n_frames, bool)
    for first, last in summary.spans:
        kept[first : last + 1] = True
    found = replace(truth, change_points=np.array([(shot.first, shot.last) for shot in summary.shots]))
    by_chance = [score(random_scores(len(truth.picks), seed), found, summary.ratio).f1 for seed in range(DRAWS)]
    return f1(kept, truth.user_summary, truth.how)[0], float(np.mean(by_chance))


def _storyboard(summary: Summary, folder: Path, number: int) -> list[Card]:
    film = Film(summary.source)
    deque(film, maxlen=0)
    pictures = thumbnails(summary.source, film.timeline, {shot.middle for shot in summary.chosen})
    cards = []
    for place, shot in enumerate(summary.chosen[:SHOTS], 1):
        name = f"{number}-shot-{place}.jpg"
        (folder / name).write_bytes(pictures[shot.middle])
        cards.append(Card(name, f"{clock(shot.start)} to {clock(shot.end)}", f"score {shot.score:.2f}"))
    return cards
