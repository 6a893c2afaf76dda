"""Look a data folder over before training on it: what is there, and what is wrong with it, file by file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import numpy as np

from fedreel.data.clip_index import INDEX as LIST_INDEX
from fedreel.data.clip_index import Clip, look_up, videos
from fedreel.data.shards import INDEX as SHARDS_INDEX
from fedreel.data.shards import Shards
from fedreel.data.video_look import Job, Look, look
from fedreel.errors import DataError, RunError
from fedreel.machine.processes import Pool, cores, in_processes

INDICES = (LIST_INDEX, SHARDS_INDEX)
LOOKERS = ("fedreel.tasks.skeleton.look",)  # modules whose `look_over(folder)` knows data that are no videos
SHOWN = 50  # lines printed for each kind of finding
QUICK = "quick: every packet, and a few frames of each video"
BLIND = "not seen: damage inside the other frames; --thorough decodes them all"
THOROUGH = "thorough: every frame decoded"
COPIES = "equal files: same length and same SHA-256"

Tell = Callable[[int, int], None]  # how many are done, of how many


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
    how: list[str] = field(default_factory=list)  # it was looked at, and what cannot be seen so

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """The report as text, for printing."""
        text = [f"{self.folder}: {self.kind}, {len(self.clips)} clips"]
        for name, values in (
            ("owners", (owner for clip in self.clips for owner in clip.owners)),
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
        text += [f"  {'' if n else 'mode:':<10} {line}" for n, line in enumerate(self.how)]
        for name, findings in (("problems", self.problems), ("remarks", self.remarks)):
            if findings:
                text.append(f"  {name}: {len(findings)}")
                text += [f"    {finding}" for finding in findings[:SHOWN]]
                if len(findings) > SHOWN:
                    text.append(f"    ... and {len(findings) - SHOWN} more")
        text.append("  ok" if self.ok else "  not ok")
        return text


def check(folder: Path, thorough: bool = False, tell: Tell | None = None, lists: str = "", fold: int = 1) -> Report:
    """Look at every clip of a folder of videos, validate a folder of shards, or read sets of skeletons, and report.

    Of a video all packets are looked at and a few frames decoded; a `thorough` check decodes them all. A folder
    of several such folders (a playground) is looked over set by set. `lists` and `fold` say which lists name the
    videos, as a recipe's data.lists and data.fold do. Raises DataError only where there is nothing to report on: no
    folder, no videos, an unreadable index.csv or list.
    """
    if lists or fold != 1:
        return _labelled(_check_videos(folder, thorough, tell, lists, fold))
    for name in LOOKERS:
        report = import_module(name).look_over(folder)
        if report is not None:
            return report
    sets = _sets(folder)
    if sets:
        return _merged(folder, {name: check(folder / name, thorough, tell) for name in sets})
    if (folder / SHARDS_INDEX).is_file():
        return _labelled(_check_shards(folder))
    return _labelled(_check_videos(folder, thorough, tell))


def _check_videos(folder: Path, thorough: bool, tell: Tell | None, lists: str = "", fold: int = 1) -> Report:
    found = look_up(folder, lists=lists, fold=fold)
    clips = found.clips
    report = Report(folder, "videos", clips, how=[THOROUGH] if thorough else [QUICK, BLIND])
    report.remarks += [Finding("lists", line) for line in found.gaps.lines()]
    report.how.append(COPIES)
    lengths = [_length(folder / clip.path) for clip in clips]
    common = Counter(lengths)
    jobs = [Job(folder / clip.path, thorough, common[n] > 1) for clip, n in zip(clips, lengths)]
    same: dict[str, list[Clip]] = defaultdict(list)
    for clip, seen in zip(clips, look_at_all(jobs, tell or (lambda done, total: None))):
        if seen.digest:
            same[seen.digest].append(clip)
        if seen.fault:
            report.problems.append(Finding(clip.path, seen.fault))
        if seen.damage:
            report.remarks.append(Finding(clip.path, seen.damage))
        if seen.frames:
            _measure(report, seen.size, seen.fps, seen.frames)
    for group in same.values():
        _check_copies(report, group)
    return report


def look_at_all(jobs: Sequence[Job], tell: Tell, look: Callable[[Job], Look] = look) -> list[Look]:
    """Looks at all files, on all cores. A decoder that crashes takes its process along; then those that are left are
    looked at one by one, to know which of them it was."""
    looks: dict[int, Look] = {}
    try:
        for number, seen in in_processes(look, jobs, max(cores(), 2)):
            looks[number] = seen
            tell(len(looks), len(jobs))
    except RunError:
        for number, seen in _one_by_one(look, {n: job for n, job in enumerate(jobs) if n not in looks}):
            looks[number] = seen
            tell(len(looks), len(jobs))
    return [looks[number] for number in range(len(jobs))]


def _one_by_one(look: Callable[[Job], Look], jobs: Mapping[int, Job]) -> Iterator[tuple[int, Look]]:
    pool = Pool(1)
    try:
        for number, job in jobs.items():
            try:
                yield number, pool.submit(look, job).result()
            except BrokenProcessPool:
                yield number, Look(fault="the decoder crashes on it")
                pool = Pool(1)
    finally:
        pool.stop()


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


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
        total.how += [line for line in report.how if line not in total.how]
        total.problems += [Finding(f"{name}/{finding.where}", finding.reason) for finding in report.problems]
        total.remarks += [Finding(f"{name}/{finding.where}", finding.reason) for finding in report.remarks]
    return total


def _check_shards(folder: Path) -> Report:
    try:
        shards = Shards.open(folder)
    except DataError as error:
        found = f"{error.problem}: expected {error.expected or 'a whole index'}, found {error.found}"
        return Report(folder, "shards", [], problems=[Finding(error.where, found)])
    report = Report(folder, "shards", list(shards.clips), how=["index and file sizes compared"])
    report.remarks += [Finding("lists", line) for line in shards.gaps.lines()]
    report.problems += [Finding(entry.path, f"left out: {entry.reason}") for entry in shards.broken]
    report.problems += [Finding(entry.path, f"cut short: {entry.reason}") for entry in shards.cut]
    for clip in shards.clips:
        _measure(report, f"{clip.width}x{clip.height}", clip.fps, clip.frames)
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


def _labelled(report: Report) -> Report:
    _check_labels(report)
    return report


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
        for owner in clip.owners:
            classes[owner].add(clip.label)
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
