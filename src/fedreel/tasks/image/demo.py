"""What the demo shows of image recognition: a picture of every class, and what the model takes it for."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedreel.report.exhibits import Exhibit
from fedreel.tasks.use.recognition import Album
from fedreel.tasks.use.recognize import recognize
from fedreel.tasks.use.showing import answer_card, copies, luck, one_of_each, part_of_world, tested


def show(run: Path, folder: Path) -> Exhibit:
    clients = part_of_world(run, "images") / "clients"
    files = [(file.parts[-4], file.parts[-2], file) for file in sorted(clients.glob("*/test/*/*.png"))]
    chosen = copies(one_of_each(files), folder / "pictures")
    album = recognize(folder / "pictures", run, page=folder / "page.html")
    assert isinstance(album, Album)
    chance = 1 / len(chosen)
    return Exhibit(
        asked="Which shape and texture is it? One test picture of every class, each from another owner.",
        cards=[answer_card(f"pictures/{e.source.name}", chosen[e.source], e) for e in album.entries],
        command=f"fedreel recognize PICTURE.png --model {shlex.quote(str(run))} --page answer.html",
        chance=chance,
        chance_is=f"guessing one of {len(chosen)}",
        noise=luck(chance, tested(run)),
        page="page.html",
    )
