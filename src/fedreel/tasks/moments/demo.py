"""What the demo shows of moment retrieval: sentences, and the moments that the model finds for them."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np

from fedreel.machine.words import clock
from fedreel.report.exhibits import Card, Exhibit
from fedreel.tasks.moments.annotations import Query, read_annotations
from fedreel.tasks.moments.command import find
from fedreel.tasks.moments.metrics import iou, prior_only, recalls
from fedreel.tasks.use.showing import last_test, luck, part_of_world

QUESTIONS = 6
ENOUGH = 0.5  # of overlap, to call a moment found


def show(run: Path, folder: Path) -> Exhibit:
    world = part_of_world(run, "moments")
    queries, _ = read_annotations(world)
    test = [query for query in queries if query.split == "test"]
    owners = sorted({query.group for query in test})[:QUESTIONS]
    asked = [next(query for query in test if query.group == owner) for owner in owners]
    cards = [card for number, query in enumerate(asked, 1) for card in _cards(run, folder, world, query, number)]
    constant, last = _constant_answer(queries), last_test(run)
    return Exhibit(
        asked="When does the video show what the sentence says? The first test sentence of each of "
        f"{len(asked)} owners: the whole video, and beside it the moment that the model finds. Of all {len(test)} test"
        f" sentences it finds {last['r50']:.0%} (an overlap of more than a half); one answer for all would find"
        f" {constant['r50']:.0%}.",
        cards=cards,
        command=f'fedreel find VIDEO.mp4 "a red circle moves left" --model {shlex.quote(str(run))} --page moments.html',
        chance=constant["miou"],
        chance_is="always the same moment, the best one",
        noise=luck(constant["miou"], len(test)),
        page="1.html",
    )


def _cards(run: Path, folder: Path, world: Path, query: Query, number: int) -> list[Card]:
    video = next(world.glob(f"*/{query.video}.mp4"))
    shutil.copyfile(video, folder / f"{number}.mp4")
    page = folder / f"{number}.html"
    finding = find(video, query.sentence, run, out=folder / str(number), page=page, top=1)
    moment = finding.moments[0]
    overlap = float(iou(np.array([moment.start, moment.end]), np.array([query.start, query.end])))
    where = f"the model says: {clock(moment.start)} to {clock(moment.end)}; it is: {clock(query.start)} to"
    text = f"{where} {clock(query.end)}; overlap {100 * overlap:.0f}\N{NO-BREAK SPACE}%"
    return [
        Card(f"{number}.mp4", f"The whole video, {clock(query.duration, 0)}"),
        Card(f"{number}/{moment.clip}", f"“{query.sentence}”", text, overlap > ENOUGH),
    ]


def _constant_answer(queries: list[Query]) -> dict[str, float]:
    """The test of the one answer that is best for all questions of the training."""
    train, test = (
        np.array([(q.start / q.duration, q.end / q.duration) for q in queries if (q.split == "test") == held])
        for held in (False, True)
    )
    answer = np.array(prior_only(train)["miou"])
    return recalls(np.broadcast_to(answer, test.shape), test)
