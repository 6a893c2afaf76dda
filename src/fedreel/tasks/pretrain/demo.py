"""What the demo shows of learning without labels: a clip, and those of other owners that are most like it."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

from fedreel.playground.work import write_csv
from fedreel.report.exhibits import Card, Exhibit
from fedreel.tasks.pretrain.pretexts import Speed
from fedreel.tasks.use.showing import held_out_clips, luck, part_of_world, tested
from fedreel.tasks.vision.search.command import search

HITS = 7


def show(run: Path, folder: Path) -> Exhibit:
    world = part_of_world(run, "actions")
    clips = held_out_clips(world)
    asked, others = clips[0], [clip for clip in clips if clip.owner != clips[0].owner]
    shutil.copyfile(world / asked.path, folder / "clip.mp4")
    with tempfile.TemporaryDirectory() as temporary:
        shelf = Path(temporary) / "shelf"
        for clip in others:
            (shelf / clip.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(world / clip.path, shelf / clip.path)
        write_csv(shelf / "index.csv", ("path", "label", "owner"), [(c.path, c.label, c.owner) for c in others])
        similar = search(folder / "clip.mp4", shelf, run, out=folder / "similar", top=HITS)
    same = sum(clip.label == asked.label for clip in others) / len(others)
    hits = sum(hit.label == asked.label for hit in similar.hits)
    chance = 1 / Speed.classes
    return Exhibit(
        asked=f"Which clips are like this one? {len(others)} test clips of other owners were looked through; no label"
        f" was ever seen. Of the {len(similar.hits)} most alike, {hits} show the same motion; chosen at random,"
        f" {same * len(similar.hits):.1f} would.",
        cards=[
            Card("clip.mp4", "The clip", f"it is: {asked.label}, of {asked.owner}"),
            *(
                Card(f"similar/{hit.copy}", f"{hit.rank}. {hit.label}", f"of {hit.owner}", hit.label == asked.label)
                for hit in similar.hits
            ),
        ],
        command=f"fedreel search CLIP.mp4 FOLDER --model {shlex.quote(str(run))} --page similar.html",
        chance=chance,
        chance_is=f"guessing one of {Speed.classes}",
        noise=luck(chance, tested(run)),
    )
