"""What the demo shows of summaries: a video, its summary as a video, and the shots that were chosen."""

from __future__ import annotations

import shlex
import shutil
from collections import deque
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

OWNERS, SHOTS = 3, 3  # at most
BETTER = {True: "better than at random", False: "no better than at random"}
DRAWS = 20  # random summaries of every test video


def show(run: Path, folder: Path) -> Exhibit:
    truths = _test_truths(run)
    videos = _test_videos(part_of_world(run, "summary"))
    cards = [
        card
        for number, (owner, video) in enumerate(videos.items(), 1)
        for card in _cards(run, folder, owner, video, truths[owner][0], number)
    ]
    draws = _random_orders([truth for of_client in truths.values() for truth in of_client])
    return Exhibit(
        asked=f"What is worth seeing in these videos? A test video of each of {len(videos)} owners, its summary, and"
        " the shots that it is made of.",
        cards=cards,
        command=f"fedreel summarize VIDEO.mp4 --model {shlex.quote(str(run))} --out summary.mp4 --page summary.html",
        chance=0.0,
        chance_is="scores drawn at random",
        noise=2 * float(draws.std()),
        page="1.html",
    )


def _test_videos(world: Path) -> dict[str, Path]:
    """Of the first few owners, the first by name."""
    videos: dict[str, Path] = {}
    with h5py.File(world / ANNOTATIONS, "r") as file:
        for name in sorted(file):
            attributes = file[name].attrs
            if attributes["split"] == "test":
                videos.setdefault(str(attributes["owner"]), world / attributes["owner"] / f"{name}.mp4")
    return dict(sorted(videos.items())[:OWNERS])


def _cards(run: Path, folder: Path, owner: str, video: Path, truth: Truth, number: int) -> list[Card]:
    shutil.copyfile(video, folder / f"{number}.mp4")
    out, page = folder / f"{number}-summary.mp4", folder / f"{number}.html"
    summary = summarize(video, run, out=out, page=page, client=owner)
    text, better = _agreement(summary, truth)
    return [
        Card(f"{number}.mp4", f"A video of {owner}, {clock(summary.n_frames / summary.fps)}"),
        Card(out.name, f"Its summary, {clock(summary.seconds)}", text, better, BETTER[better]),
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


def _agreement(summary: Summary, truth: Truth) -> tuple[str, bool]:
    """How much people agree with it, and whether that is more than with shots taken at random."""
    kept = np.zeros(truth.n_frames, bool)
    for first, last in summary.spans:
        kept[first : last + 1] = True
    own = f1(kept, truth.user_summary, truth.how)[0]
    chance = float(np.mean([score(random_scores(len(truth.picks), seed), truth).f1 for seed in range(DRAWS)]))
    text = f"agreement with {len(truth.user_summary)} people: {own:.2f} (F1); of shots at random: {chance:.2f}"
    return text, bool(own > chance)


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
