"""What the demo shows of video recognition: a clip of every action, and what the model takes it for."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedreel.report.exhibits import Exhibit
from fedreel.tasks.use.recognition import Album
from fedreel.tasks.use.recognize import recognize
from fedreel.tasks.use.showing import (
    answer_card,
    copies,
    held_out_clips,
    luck,
    one_of_each,
    part_of_world,
    tested,
)


def show(run: Path, folder: Path) -> Exhibit:
    world = part_of_world(run, "actions")
    clips = [(clip.owner, clip.label, world / clip.path) for clip in held_out_clips(world)]
    chosen = copies(one_of_each(clips), folder / "clips")
    album = recognize(folder / "clips", run, page=folder / "page.html")
    assert isinstance(album, Album)
    chance = 1 / len(chosen)
    return Exhibit(
        asked="Which motion is it? One test clip of every class, each from another owner.",
        cards=[answer_card(f"clips/{e.source.name}", chosen[e.source], e) for e in album.entries],
        command=f"fedreel recognize CLIP.mp4 --model {shlex.quote(str(run))} --page answer.html",
        chance=chance,
        chance_is=f"guessing one of {len(chosen)}",
        noise=luck(chance, tested(run)),
        page="page.html",
    )
