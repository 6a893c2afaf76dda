"""What the demo shows of learning without labels: a clip, and those of other owners that are most like it."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedreel.data.clip_index import Clip
from fedreel.playground.work import write_csv
from fedreel.report.exhibits import Card, Exhibit
from fedreel.tasks.pretrain.pretexts import Speed
from fedreel.tasks.use.showing import held_out_clips, luck, part_of_world, tested
from fedreel.tasks.vision.search.command import search
from fedreel.tasks.vision.search.result import Similar

HITS = 7


def show(run: Path, folder: Path) -> Exhibit:
    world = part_of_world(run, "actions")
    clips = held_out_clips(world)
    asked, others = clips[0], [clip for clip in clips if clip.owner != clips[0].owner]
    questions = [clip for clip in clips if clip.owner == asked.owner]
    shutil.copyfile(world / asked.path, folder / "clip.mp4")
    with tempfile.TemporaryDirectory() as temporary:
        shelf = _shelf(world, others, Path(temporary) / "shelf")
        similar = search(folder / "clip.mp4", shelf, run, out=folder / "similar", top=HITS)
        same = {clip: _alike(search(world / clip.path, shelf, run, top=HITS), clip) for clip in questions}
    total, hits = len(questions) * HITS, sum(same.values())
    by_luck = sum(_alike_by_luck(clip, others) for clip in questions)
    close = "" if hits > by_luck + 2 * by_luck**0.5 else ", which is no better than luck could make it"
    chance = 1 / Speed.classes
    return Exhibit(
        asked=f"Which clips are like this one? {len(others)} test clips of other owners were looked through; no label"
        f" was ever seen. Asked for {HITS} clips like each of {len(questions)} others, {hits} of all {total} answers"
        f" show the same motion; at random {by_luck:.0f} would{close}.",
        cards=[
            Card("clip.mp4", "The clip", f"it is: {asked.label}, of {asked.owner}"),
            *(
                Card(
                    f"similar/{hit.copy}",
                    f"{hit.rank}. {hit.label}",
                    f"of {hit.owner}",
                    hit.label == asked.label,
                    "the same motion" if hit.label == asked.label else "another motion",
                )
                for hit in similar.hits
            ),
        ],
        command=f"fedreel search CLIP.mp4 --in FOLDER --model {shlex.quote(str(run))} --page similar.html",
        chance=chance,
        chance_is=f"guessing one of {Speed.classes}",
        noise=luck(chance, tested(run)),
    )


def _shelf(world: Path, clips: Sequence[Clip], shelf: Path) -> Path:
    """A folder of these clips alone, with their labels for the page."""
    for clip in clips:
        (shelf / clip.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(world / clip.path, shelf / clip.path)
    write_csv(shelf / "index.csv", ("path", "label", "owner"), [(c.path, c.label, c.owner) for c in clips])
    return shelf


def _alike(similar: Similar, clip: Clip) -> int:
    return sum(hit.label == clip.label for hit in similar.hits)


def _alike_by_luck(clip: Clip, others: Sequence[Clip]) -> float:
    return HITS * sum(other.label == clip.label for other in others) / len(others)
