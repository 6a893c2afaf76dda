"""What the demos of tasks share: the files of the world that a run was trained in, and the cards of answers."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedreel import playground
from fedreel.config import make_recipe
from fedreel.data.clip_index import Clip, read_index
from fedreel.report.exhibits import Card
from fedreel.report.read import read_run
from fedreel.tasks.use.models import read_card
from fedreel.tasks.use.recognition import Recognition


def part_of_world(run: Path, part: str) -> Path:
    """The folder of a part of the playground that a run was trained on."""
    data = make_recipe(read_card(run)["recipe"], str(run / "model" / "card.json")).data
    if data.source == "playground":
        return playground.cached(data.seed, data.size, (part,)) / part
    return Path(data.source).expanduser() / part


def held_out_clips(folder: Path) -> list[Clip]:
    """Those of the part `actions` that nobody trains on."""
    return [clip for clip in read_index(folder / "index.csv") if clip.split == "test"]


def one_of_each(files: Sequence[tuple[str, str, Path]]) -> dict[Path, str]:
    """Of (owner, class, file), a file of every class with its class: the first that the owner has whose turn it is, so
    that many owners are seen."""
    owners = sorted({owner for owner, _, _ in files})
    classes = sorted({label for _, label, _ in files})
    chosen: dict[Path, str] = {}
    for number, name in enumerate(classes):
        turn = owners[number % len(owners)]
        ours = [file for owner, label, file in files if label == name and owner == turn]
        chosen[(ours or [file for _, label, file in files if label == name])[0]] = name
    return chosen


def copies(files: Mapping[Path, str], folder: Path) -> dict[Path, str]:
    """The same files in a folder of the demo's own, numbered."""
    folder.mkdir()
    copied = {folder / f"{number:02d}{file.suffix}": file for number, file in enumerate(files, 1)}
    for copy, file in copied.items():
        shutil.copyfile(file, copy)
    return {copy: files[file] for copy, file in copied.items()}


def answer_card(file: str, truth: str, answer: Recognition) -> Card:
    """What it is and what the model says, right or wrong."""
    said = f"the model says: {answer.label}, {100 * answer.confidence:.0f}\N{NO-BREAK SPACE}%"
    right = answer.label == truth
    return Card(file, f"It is: {truth}", said, right)


def last_test(run: Path) -> dict[str, float]:
    """The metrics of the last test."""
    record = read_run(run).test
    return dict(record[max(record)]["metrics"])


def tested(run: Path) -> int:
    """How many samples the last test had."""
    record = read_run(run).test
    return int(sum(values.get("n", 0) for values in record[max(record)]["clients"].values())) if record else 0


def luck(share: float, samples: int) -> float:
    """Two standard errors of a share of so many samples: what luck may add to it."""
    return 2 * math.sqrt(share * (1 - share) / max(samples, 1))
