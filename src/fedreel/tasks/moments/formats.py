"""Public forms of moment annotations, read as they are: Charades-STA, ActivityNet Captions, TACoS, QVHighlights."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedreel.data.splits import SPLITS
from fedreel.errors import DataError
from fedreel.machine.records import parse_json

TABLES = ("videos.csv", "Charades_v1_*.csv")  # what lies beside annotations and tells of their videos
HEAD = 1 << 16  # bytes that tell what a file is; a folder may also hold text files that are very large

CHARADES, ACTIVITYNET = "Charades-STA", "ActivityNet Captions"

Json = Any
Ratings = tuple[tuple[int, ...], ...]
"""For each stretch of STRETCH seconds, how much of a highlight some people found it to be, 0 to 4; 0 elsewhere."""
LONGEST = 1e6  # seconds of a video
STRETCH = 2.0


class Span(NamedTuple):
    """A moment as a file tells it, in seconds, before anything is repaired; 0 if it does not say how long the video
    is."""

    where: str
    video: str
    start: float
    end: float
    sentence: str
    duration: float = 0.0
    ratings: Ratings = ()


class Fault(NamedTuple):
    """What could not be used: file and line (or video and sentence), and why."""

    where: str
    reason: str


class About(NamedTuple):
    """What a table tells of a video; '' and 0 where it does not."""

    group: str
    length: float
    split: str


def kind_of(path: Path) -> str:
    """`lines`, `captions`, `windows` (moments in three forms), `labels` (of activities), or '' for any other file."""
    head = _head(path)
    marks = {
        ".txt": {b"##": "lines"},
        ".json": {b'"database":': "labels", b'"taxonomy":': "labels", b'"timestamps":': "captions"},
        ".jsonl": {b'"relevant_windows":': "windows"},
    }.get(path.suffix.lower(), {})
    return next((kind for mark, kind in marks.items() if mark in head), "")


def corpus_of(path: Path) -> str:
    """The public set that a file of annotations belongs to, CHARADES or ACTIVITYNET; '' for any other. Captions of
    TACoS tell no duration; lines like those of Charades-STA may be anyone's, and are known by the file's name."""
    kind = kind_of(path)
    if kind == "lines" and "charades" in path.stem.lower():
        return CHARADES
    head = _head(path) if kind == "captions" else b""
    return ACTIVITYNET if b'"v_' in head and b'"duration":' in head else ""


def spans(path: Path, kind: str) -> Iterator[Span | Fault]:
    """All moments of a file, in its order, and what is wrong with the rest."""
    if kind == "captions":
        return _captions(path)
    return _each_line(path, _line if kind == "lines" else _windows)


def split_of(path: Path) -> str:
    """train, val or test, where the file's name says so. Of ActivityNet's two validation files the second is for
    testing, as in most work on moments."""
    if re.search(r"(?<![a-z])val_?2(?![0-9])", path.stem.lower()):
        return "test"
    found = {SPLITS[word] for word in re.split(r"[^a-z]+", path.stem.lower()) if word in SPLITS}
    return found.pop() if len(found) == 1 else ""


def read_labels(path: Path) -> dict[str, str]:
    """The activity of each video from ActivityNet's label file; its first, where it has several."""
    content = _json(path)
    database = content.get("database") if isinstance(content, dict) else None
    if not isinstance(database, dict):
        raise DataError("this is no file of activities", where=str(path), expected="the key 'database'")
    found = {}
    for video, entry in database.items():
        told = entry.get("annotations") if isinstance(entry, dict) else None
        label = told[0].get("label") if isinstance(told, list) and told and isinstance(told[0], dict) else None
        if isinstance(label, str) and label.strip():
            found[bare(video)] = label.strip()
    return found


def bare(video: str) -> str:
    """ActivityNet's captions put v_ before the names of videos, its labels do not."""
    return video.removeprefix("v_")


def read_tables(folder: Path) -> tuple[dict[str, About], list[Fault]]:
    """What the tables of a folder tell of videos: columns id, length, split, and owner or else scene as the group."""
    about: dict[str, About] = {}
    faults: list[Fault] = []
    for path in sorted(p for pattern in TABLES for p in folder.glob(pattern)):
        rows = csv.DictReader(_lines(path))
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error as error:
                faults.append(Fault(f"{path.name}, line {rows.reader.line_num}", str(error)))
                continue
            told = {str(key).strip().lower(): value.strip() for key, value in row.items() if isinstance(value, str)}
            if told.get("id"):
                split = SPLITS.get(told.get("split", "").lower(), "")
                scene = re.split(r" [/(]", told.get("scene", ""))[0]  # Charades explains some: Basement (A room ...)
                about[told["id"]] = About(told.get("owner") or scene, _length(told.get("length")), split)
    return about, faults


def _each_line(path: Path, parse: Any) -> Iterator[Span | Fault]:
    for number, line in enumerate(_lines(path), 1):
        where = f"{path.name}, line {number}"
        if line.strip():
            try:
                yield from parse(line, where)
            except _Malformed as fault:
                yield Fault(where, str(fault))


def _line(line: str, where: str) -> list[Span]:
    """Charades-STA: VIDEO start end##sentence."""
    head, mark, sentence = line.partition("##")
    words = head.split()
    if not mark or len(words) != 3:
        raise _Malformed("it is not VIDEO START END##SENTENCE")
    return [Span(where, words[0], *_times(words[1:]), _sentence(sentence))]


def _windows(line: str, where: str) -> list[Span]:
    """QVHighlights: a query may have several moments, each of which is asked for by itself here."""
    try:
        entry = parse_json(line)
    except (ValueError, RecursionError):
        raise _Malformed("it is not JSON") from None
    if not isinstance(entry, dict):
        raise _Malformed("it is not a JSON object")
    video, windows = entry.get("vid"), entry.get("relevant_windows")
    if not isinstance(video, str) or not video.strip():
        raise _Malformed("it has no 'vid'")
    if not isinstance(windows, list) or not windows:
        raise _Malformed("it has no 'relevant_windows'")
    sentence, duration = _sentence(entry.get("query")), _length(entry.get("duration"))
    found = [Span(where, video.strip(), *_times(window), sentence, duration) for window in windows]
    return [found[0]._replace(ratings=_ratings(entry, duration)), *found[1:]]


def _ratings(entry: dict[str, Json], duration: float) -> Ratings:
    """As QVHighlights' program for testing has them: a row for each whole stretch of the video."""
    places, scores = entry.get("relevant_clip_ids"), entry.get("saliency_scores")
    if places is None or scores is None:
        return ()
    rows = int(duration / STRETCH)
    good = isinstance(places, list) and isinstance(scores, list) and len(places) == len(scores)
    good = good and all(isinstance(place, int) and place >= 0 for place in places)
    good = good and all(isinstance(row, list) and len(row) == len(scores[0]) > 0 for row in scores)
    if not good or not all(isinstance(score, int) and 0 <= score <= 4 for row in scores for score in row):
        raise _Malformed("its 'saliency_scores' are not numbers from 0 to 4 for each of 'relevant_clip_ids'")
    told = dict(zip(places, map(tuple, scores)))
    nothing = (0,) * len(scores[0]) if scores else ()
    return tuple(told.get(place, nothing) for place in range(rows)) if scores else ()


def _captions(path: Path) -> Iterator[Span | Fault]:
    """ActivityNet Captions, and TACoS, which counts in frames and tells their number and rate."""
    content = _json(path)
    if not isinstance(content, dict):
        raise DataError("these are no captions", where=str(path), expected="an object with a key for each video")
    for video, entry in content.items():
        where = f"{path.name}, video {video}"
        times, sentences = (entry.get(k) if isinstance(entry, dict) else None for k in ("timestamps", "sentences"))
        if not isinstance(times, list) or not isinstance(sentences, list) or not video.strip():
            yield Fault(where, "it has no lists 'timestamps' and 'sentences'")
            continue
        if len(times) != len(sentences):
            yield Fault(where, f"{len(times)} timestamps but {len(sentences)} sentences")
        try:
            duration, rate = _clock(entry)
        except _Malformed as fault:
            yield Fault(where, str(fault))
            continue
        for number, (pair, sentence) in enumerate(zip(times, sentences), 1):
            at = f"{where}, sentence {number}"
            try:
                start, end = _times(pair)
                yield Span(at, video.strip(), start / rate, end / rate, _sentence(sentence), duration)
            except _Malformed as fault:
                yield Fault(at, str(fault))


def _clock(entry: dict[str, Json]) -> tuple[float, float]:
    """A video's length in seconds, 0 if unknown, and how many of its time stamps are one second."""
    if "duration" in entry or "num_frames" not in entry:
        return _length(entry.get("duration")), 1.0
    frames, rate = _number(entry["num_frames"]), _number(entry.get("fps"))
    if not (frames > 0 and rate > 0):
        raise _Malformed("its times are in frames, but 'num_frames' and 'fps' are not numbers above 0")
    return _length(frames / rate), rate


class _Malformed(Exception):
    """One line cannot be used; its file goes on without it."""


def _times(pair: Json) -> tuple[float, float]:
    start, end = map(_number, pair) if isinstance(pair, list) and len(pair) == 2 else (math.nan, math.nan)
    if not (math.isfinite(start) and math.isfinite(end)):
        raise _Malformed(f"{str(pair)[:40]} is not a start and an end")
    return start, end


def _sentence(text: Json) -> str:
    if not isinstance(text, str) or not text.strip():
        raise _Malformed("there is no sentence")
    return text.strip()


def _number(value: Json) -> float:
    """A finite number, or nan."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _length(value: Json) -> float:
    """Seconds above 0, or 0 for unknown, as of a video that would last for weeks."""
    number = _number(value)
    return number if 0 < number <= LONGEST else 0.0


def _head(path: Path) -> bytes:
    """How a file begins, without blanks."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD).replace(b" ", b"")
    except OSError as error:
        raise DataError("this file cannot be read", where=str(path), found=str(error)) from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig", errors="replace").replace("\r\n", "\n").split("\n")
    except OSError as error:
        raise DataError("this file cannot be read", where=str(path), found=str(error)) from error


def _json(path: Path) -> Json:
    try:
        return parse_json("\n".join(_lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError("this file is not valid JSON", where=str(path), found=str(error)) from error
