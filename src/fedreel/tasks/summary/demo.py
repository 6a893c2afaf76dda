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
from fedreel.tasks.summary.metrics import Truth, frame_scores, kendall_tau, mean_defined, random_scores
from fedreel.tasks.summary.metrics import summarize as choose
from fedreel.tasks.summary.result import Summary
from fedreel.tasks.summary.split import Videos
from fedreel.tasks.use.models import read_card
from fedreel.tasks.use.showing import part_of_world

OWNERS, SHOTS = 3, 2  # that are shown, at most: four cards are a row
BETTER = {True: "better than at random", False: "no better than at random"}
DRAWS = 20  # random summaries of every test video


def show(run: Path, folder: Path) -> Exhibit:
    truths, world = _test_truths(run), part_of_world(run, "summary")
    cards, liked = [], []
    for number, (owner, video) in enumerate(_test_videos(world).items(), 1):
        shown = number <= OWNERS
        out, page = (folder / f"{number}-summary.mp4", folder / f"{number}.html") if shown else (None, None)
        summary = summarize(video, run, out=out, page=page, client=owner)
        liked.append(liking(summary, truths[owner][0]))
        if shown:
            cards += _cards(summary, folder, number, *liked[-1])
    draws = _random_orders([truth for of_client in truths.values() for truth in of_client])
    own, chance = np.mean(liked, axis=0)
    better = sum(mine > luck for mine, luck in liked)
    return Exhibit(
        asked=f"What is worth seeing in these videos? Test videos of {min(OWNERS, len(liked))} owners, their summaries,"
        " and the shots that these are made of. People scored every second of the videos from 1 to 5: what the model"
        f" keeps of the test videos of {len(liked)} owners has {own:.2f} on average, shots taken at random have"
        f" {chance:.2f}; the model is the better one in {better} of {len(liked)}.",
        cards=cards,
        command=f"fedreel summarize VIDEO.mp4 --model {shlex.quote(str(run))} --out summary.mp4 --page summary.html",
        chance=0.0,
        chance_is="scores drawn at random",
        noise=2 * float(draws.std()),
        page="1.html",
    )


def liking(summary: Summary, truth: Truth) -> tuple[float, float]:
    """The mean score that people gave to what it keeps, and to as many frames of its shots taken at random."""
    assert truth.user_scores is not None
    given = frame_scores(truth.user_scores.mean(axis=0), truth)
    kept = np.concatenate([given[first : last + 1] for first, last in summary.spans])
    found = replace(truth, change_points=np.array([(shot.first, shot.last) for shot in summary.shots]))
    draws = (choose(random_scores(len(truth.picks), seed), found, summary.ratio) for seed in range(DRAWS))
    return float(kept.mean()), float(np.mean([given[frames].mean() for frames in draws]))


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
    text = f"people give it {own:.1f} of 5; shots at random: {chance:.1f}"
    return [
        Card(f"{number}.mp4", f"A video of {summary.client}, {clock(summary.n_frames / summary.fps)}", begins=True),
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
            np.mean([_tau(random_scores(len(t.picks), draw * len(truths) + i), t) for i, t in enumerate(truths)])
            for draw in range(DRAWS)
        ]
    )


def _tau(scores: np.ndarray, truth: Truth) -> float:
    assert truth.user_scores is not None
    return mean_defined([kendall_tau(scores, given) for given in truth.user_scores])


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
