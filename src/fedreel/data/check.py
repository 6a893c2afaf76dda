"""Look a data folder over before training on it: what is there, and what is wrong with it, file by file."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedreel.data.clip_index import INDEX as LIST_INDEX
from fedreel.data.clip_index import Clip, find, videos
from fedreel.data.shards import INDEX as SHARDS_INDEX
from fedreel.data.shards import Shards
from fedreel.errors import DataError
from fedreel.machine.processes import in_processes
from fedreel.media.video import Reader
from fedreel.tasks.skeleton.motions import find_sets, is_skeletons, read_set
from fedreel.tasks.skeleton.recordings import set_name

INDICES = (LIST_INDEX, SHARDS_INDEX)
BATCH = 16  # videos a process looks at between two reports
SHOWN = 50  # lines printed for each kind of finding


@dataclass(frozen=True)
class Finding:
    """Something to know about a file, an owner or a class."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass
class Report:
    """What a data folder holds. Problems make it unfit for training as it is; remarks may well be meant."""

    folder: Path
    kind: str
    clips: list[Clip]
    sizes: Counter[str] = field(default_factory=Counter)
    fps: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    remarks: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """The report as text, for printing."""
        text = [f"{self.folder}: {self.kind}, {len(self.clips)} clips"]
        for name, values in (
            ("owners", (clip.owner for clip in self.clips)),
            ("classes", (clip.label for clip in self.clips)),
            ("splits", (clip.split for clip in self.clips)),
        ):
            counts = Counter(values)
            if set(counts) != {""}:
                text.append(f"  {name + ':':<10} {len(counts)}: {_listed(sorted(counts.items()))}")
        if self.sizes:
            text.append(f"  {'sizes:':<10} {_listed(self.sizes.most_common())}")
        if self.seconds:
            low, middle, high = np.quantile(self.seconds, (0, 0.5, 1))
            spread = f"{low:.2f} to {high:.2f}, median {middle:.2f}, sum {sum(self.seconds):.0f}"
            text.append(f"  {'fps:':<10} {_listed(self.fps.most_common())}")
            text.append(f"  {'seconds:':<10} {spread}")
        for name, findings in (("problems", self.problems), ("remarks", self.remarks)):
            if findings:
                text.append(f"  {name}: {len(findings)}")
                text += [f"    {finding}" for finding in findings[:SHOWN]]
                if len(findings) > SHOWN:
                    text.append(f"    ... and {len(findings) - SHOWN} more")
        text.append("  ok" if self.ok else "  not ok")
        return text


def check(folder: Path) -> Report:
    """Decode every clip of a folder of videos, validate a folder of shards, or read sets of skeletons, and report.

    A folder of several such folders (a playground) is looked over set by set. Raises DataError only where
    there is nothing to report on: no folder, no videos, an unreadable index.csv.
    """
    if is_skeletons(folder):
        return _check_skeletons(folder)
    sets = _sets(folder)
    if sets:
        return _merged(folder, {name: check(folder / name) for name in sets})
    report = _check_shards(folder) if (folder / SHARDS_INDEX).is_file() else _check_videos(folder)
    _check_labels(report)
    return report


@dataclass(frozen=True)
class _Look:
    """What one video turned out to be. Without frames there is a fault."""

    size: str = ""
    fps: float = 0.0
    frames: int = 0
    fault: str = ""
    digest: str = ""


def _check_videos(folder: Path) -> Report:
    clips = find(folder)
    batches = [[folder / clip.path for clip in clips[i : i + BATCH]] for i in range(0, len(clips), BATCH)]
    looks = dict(in_processes(_look_at, batches))
    report = Report(folder, "videos", clips)
    same: dict[str, list[Clip]] = defaultdict(list)
    for clip, look in zip(clips, (look for number in sorted(looks) for look in looks[number])):
        if look.digest:
            same[look.digest].append(clip)
        if look.fault:
            report.problems.append(Finding(clip.path, look.fault))
        if look.frames:
            _measure(report, look.size, look.fps, look.frames)
    for group in same.values():
        _check_copies(report, group)
    return report


def _sets(folder: Path) -> list[str]:
    """The data sets side by side in a folder: it has no index of its own, but some folder in it has."""
    if not folder.is_dir() or any((folder / name).is_file() for name in INDICES):
        return []
    children = sorted(child for child in folder.iterdir() if child.is_dir() and child.name[0] != ".")
    indexed = [child for child in children if any((child / name).is_file() for name in INDICES)]
    return [child.name for child in children if child in indexed or videos(child)] if indexed else []


def _merged(folder: Path, reports: dict[str, Report]) -> Report:
    total = Report(folder, f"{len(reports)} data sets ({', '.join(reports)})", [])
    for name, report in reports.items():
        total.clips += [replace(clip, path=f"{name}/{clip.path}") for clip in report.clips]
        total.sizes += report.sizes
        total.fps += report.fps
        total.seconds += report.seconds
        total.problems += [Finding(f"{name}/{finding.where}", finding.reason) for finding in report.problems]
        total.remarks += [Finding(f"{name}/{finding.where}", finding.reason) for finding in report.remarks]
    return total


def _look_at(paths: list[Path]) -> list[_Look]:
    return [_look(path) for path in paths]


def _look(path: Path) -> _Look:
    reader, size, frames = Reader(path), "", 0
    try:
        for rgb in reader:
            size, frames = f"{rgb.shape[1]}x{rgb.shape[0]}", frames + 1
    except DataError as error:
        return _Look(fault=": ".join(filter(None, (error.problem, error.found))))
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
    fault = reader.fault or ("" if frames else "the video holds no frames")
    if frames and fault:
        fault = f"only the first {frames} frames can be read: {fault}"
    return _Look(size, reader.fps, frames, fault, digest.hexdigest())


def _check_shards(folder: Path) -> Report:
    try:
        shards = Shards.open(folder)
    except DataError as error:
        found = f"{error.problem}: expected {error.expected or 'a whole index'}, found {error.found}"
        return Report(folder, "shards", [], problems=[Finding(error.where, found)])
    report = Report(folder, "shards", list(shards.clips))
    report.problems += [Finding(entry.path, f"left out: {entry.reason}") for entry in shards.broken]
    report.problems += [Finding(entry.path, f"cut short: {entry.reason}") for entry in shards.cut]
    for clip in shards.clips:
        _measure(report, f"{shards.width}x{shards.height}", clip.fps, clip.frames)
    return report


def _check_skeletons(folder: Path) -> Report:
    report = Report(folder, "skeletons", [])
    for path in find_sets(folder):
        found = read_set(path)
        owner = set_name(path)
        report.clips += [Clip(m.name, found.classes[m.label], owner, m.split) for m in found.motions]
        report.sizes[f"{len(found.joints)} joints"] += len(found.motions)
        places = [f"{one.where}, line {one.line}" if one.line else one.where for one in found.dropped]
        report.remarks += [Finding(place, f"left out: {one.reason}") for place, one in zip(places, found.dropped)]
    return report


def _measure(report: Report, size: str, fps: float, frames: int) -> None:
    report.sizes[size] += 1
    report.fps[f"{fps:g}"] += 1
    report.seconds.append(frames / fps)


def _check_copies(report: Report, group: list[Clip]) -> None:
    """Equal bytes under several names: a leak from train to test, a contradiction, or just a waste."""
    first, *others = group
    for other in others:
        if first.split and other.split and first.split != other.split:
            report.problems.append(Finding(other.path, f"same bytes as {first.path}, of the split {first.split}"))
        elif first.label != other.label:
            report.problems.append(Finding(other.path, f"same bytes as {first.path}, labelled {first.label!r}"))
        else:
            report.remarks.append(Finding(other.path, f"same bytes as {first.path}"))


def _check_labels(report: Report) -> None:
    clips = report.clips
    labelled = [clip for clip in clips if clip.label]
    if labelled:
        report.problems += [Finding(clip.path, "its label is missing") for clip in clips if not clip.label]
        report.remarks += _one_class_owners(labelled)
    elif clips:
        report.remarks.append(Finding("all clips", "no labels: fit for pretraining, not for recognition"))
    tested = _labels(labelled, test=True) - _labels(labelled, test=False)
    if _labels(labelled, test=False):
        report.problems += [Finding(f"class {label}", "is tested but never trained on") for label in sorted(tested)]
    if len({bool(clip.split) for clip in clips}) == 2:
        report.problems += [Finding(clip.path, "its split is missing") for clip in clips if not clip.split]


def _one_class_owners(clips: Sequence[Clip]) -> Iterable[Finding]:
    classes: dict[str, set[str]] = defaultdict(set)
    for clip in clips:
        classes[clip.owner].add(clip.label)
    if len({clip.label for clip in clips}) > 1:
        for owner, labels in sorted(classes.items()):
            if owner and len(labels) == 1:
                yield Finding(f"owner {owner}", f"has clips of one class only ({min(labels)})")


def _labels(clips: Iterable[Clip], test: bool) -> set[str]:
    return {clip.label for clip in clips if clip.split and (clip.split == "test") == test}


def _listed(counts: Iterable[tuple[str, int]], most: int = 12) -> str:
    counts = list(counts)
    more = f" ... ({len(counts) - most} more)" if len(counts) > most else ""
    return ", ".join(f"{name or '(none)'} {count}" for name, count in counts[:most]) + more
