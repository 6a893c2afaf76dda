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

DRAWS = 20  # random summaries of every test video


def show(run: Path, folder: Path) -> Exhibit:
    truths = _test_truths(run)
    owner, video = _test_video(part_of_world(run, "summary"))
    shutil.copyfile(video, folder / "video.mp4")
    out, page = folder / "summary.mp4", folder / "page.html"
    summary = summarize(video, run, out=out, page=page, client=owner)
    draws = _random_orders([truth for of_client in truths.values() for truth in of_client])
    whole = clock(summary.n_frames / summary.fps)
    return Exhibit(
        asked="What is worth seeing in this video? A test video of the first owner: all of it, its summary, and the"
        " shots that the summary is made of.",
        cards=[
            Card("video.mp4", f"The whole video, {whole}"),
            Card("summary.mp4", f"Its summary, {clock(summary.seconds)}", _agreement(summary, truths[owner][0])),
            *_storyboard(summary, folder),
        ],
        command=f"fedreel summarize VIDEO.mp4 --model {shlex.quote(str(run))} --out summary.mp4 --page summary.html",
        chance=0.0,
        chance_is="scores drawn at random",
        noise=2 * float(draws.std()),
        page=page.name,
    )


def _test_video(world: Path) -> tuple[str, Path]:
    """The first by name, and its owner."""
    with h5py.File(world / ANNOTATIONS, "r") as file:
        name = next(name for name in sorted(file) if file[name].attrs["split"] == "test")
        owner = str(file[name].attrs["owner"])
    return owner, world / owner / f"{name}.mp4"


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


def _agreement(summary: Summary, truth: Truth) -> str:
    kept = np.zeros(truth.n_frames, bool)
    for first, last in summary.spans:
        kept[first : last + 1] = True
    own = f1(kept, truth.user_summary, truth.how)[0]
    chance = np.mean([score(random_scores(len(truth.picks), seed), truth).f1 for seed in range(DRAWS)])
    return f"agrees with {len(truth.user_summary)} people (F1) by {own:.2f}; shots at random: {chance:.2f}"


def _storyboard(summary: Summary, folder: Path) -> list[Card]:
    film = Film(summary.source)
    deque(film, maxlen=0)
    pictures = thumbnails(summary.source, film.timeline, {shot.middle for shot in summary.chosen})
    cards = []
    for number, shot in enumerate(summary.chosen, 1):
        name = f"shot-{number:02d}.jpg"
        (folder / name).write_bytes(pictures[shot.middle])
        cards.append(Card(name, f"{clock(shot.start)} to {clock(shot.end)}", f"score {shot.score:.2f}"))
    return cards
