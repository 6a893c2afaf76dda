"""Lists of videos as data sets publish them: what they say of each video, and which files they mean."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedreel.data.splits import SPLITS, split_name
from fedreel.errors import DataError
from fedreel.machine.records import parse_json
from fedreel.media.video import SUFFIXES

CLASSES = "classInd.txt"  # lines of a number and a class; lies beside lists that name classes by numbers
FOLDERS = ("ucfTrainTestlist", "testTrainMulti_7030_splits")  # as UCF-101's and HMDB-51's lists are unpacked
UCF = re.compile(r"(train|val|test)list(\d+)\.txt", re.IGNORECASE)
HMDB = re.compile(r"(.+)_test_split(\d+)\.txt", re.IGNORECASE)
CLIENT = re.compile(r"client_dist\d+\.json", re.IGNORECASE)
FOLD = re.compile(r"(?:list|_split)_?(\d+)\.\w+$", re.IGNORECASE)  # a set's lists that exclude each other have numbers
HMDB_MARKS = {"0": "", "1": "train", "2": "test"}  # 0: not used
KNOWN = (
    "trainlist01.txt and testlist01.txt, CLASS_test_split1.txt, a csv or json file of Kinetics, "
    "json files of clients' videos, or a folder of such files"
)


@dataclass(frozen=True)
class Listed:
    """A video as a list names it: what its file may be called, with '/' between folders (the ending does not matter),
    its label and split, and who holds it, as far as the list says so."""

    names: tuple[str, ...]
    where: str
    label: str = ""
    split: str = ""
    owners: tuple[str, ...] = ()


def beside(folder: Path) -> Path | None:
    """The lists that lie with the videos: in their folder, or in one that has a published name."""
    if any(_published(file) for file in folder.iterdir() if file.is_file()):
        return folder
    return next((folder / name for name in FOLDERS if (folder / name).is_dir()), None)


def read_lists(place: Path, fold: int = 1) -> list[Listed]:
    """What a list, or every list in a folder, says of its videos; of lists that are numbered, those of this number."""
    if not place.exists():
        raise DataError("there are no such lists", where=str(place), expected=KNOWN)
    files = [place] if place.is_file() else sorted(file for file in place.iterdir() if file.is_file())
    published = [file for file in files if _published(file)]
    readers = {file: reader for file in published or files if (reader := _reader(file))}
    if not readers:
        raise DataError("no list of videos here", where=str(place), expected=KNOWN)
    folds = {int(found[1]) for file in readers if (found := FOLD.search(file.name))}
    if fold not in (folds or {1}):
        raise DataError(
            f"the lists have no fold {fold}",
            where=str(place),
            expected="one of those that there are",
            found=", ".join(map(str, sorted(folds))) or "lists without numbers",
            hint=f"set data.fold={min(folds, default=1)}",
        )
    chosen = [f for f in readers if (found := FOLD.search(f.name)) is None or int(found[1]) == fold]
    return [listed for file in chosen for listed in readers[file](file)]


def locate(listed: Iterable[Listed], paths: Sequence[str]) -> tuple[dict[str, Listed], list[str]]:
    """For every path that lists name, what all of them say of it; and the names of videos that are not there.

    A file is the one meant if its name is the same but for its ending, and its folders are those that the list names.
    Where no folder around it is named after a class, the file's name is enough.
    """
    listed = list(listed)
    labels = {_plain(entry.label) for entry in listed if entry.label}
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_name[_stem(path)].append(path)
    found: dict[str, Listed] = {}
    missing: dict[str, None] = {}
    for entry in listed:
        meant = (_meant(name, by_name.get(_stem(name), []), labels, entry.where) for name in entry.names)
        here = next(filter(None, meant), None)
        if here is None:
            missing[entry.names[0]] = None
        else:
            found[here] = _merged(found[here], entry, here) if here in found else entry
    return found, list(missing)


def _meant(name: str, candidates: Sequence[str], labels: set[str], where: str) -> str | None:
    folders = _folders(name)
    around = {path: _folders(path) for path in candidates}
    there = [path for path in candidates if around[path][len(around[path]) - len(folders) :] == folders]
    there = there or [path for path in candidates if labels.isdisjoint(around[path])]
    if len(there) > 1:
        there = [path for path in there if path.endswith(name)] or there
    if len(there) > 1:
        raise DataError(
            "a list may mean either of two videos",
            where=where,
            expected=f"one video {name}",
            found=", ".join(there[:5]),
        )
    return there[0] if there else None


def _merged(one: Listed, other: Listed, path: str) -> Listed:
    """What two lists, or two lines, say of a video."""
    differ = {
        "label": one.label and other.label and _plain(one.label) != _plain(other.label),
        "split": one.split and other.split and one.split != other.split,
    }
    for field in (field for field, wrong in differ.items() if wrong):
        raise DataError(
            f"lists give a video two {field}s",
            where=f"{one.where} and {other.where}",
            expected=f"one {field} for {path}",
            found=f"{getattr(one, field)} and {getattr(other, field)}",
        )
    owners = tuple(dict.fromkeys((*one.owners, *other.owners)))
    return replace(one, label=one.label or other.label, split=one.split or other.split, owners=owners)


def _published(file: Path) -> bool:
    """Whether its name, or the head of a table, is that of a published list."""
    named = any(pattern.fullmatch(file.name) for pattern in (UCF, HMDB, CLIENT))
    return named or (file.suffix.lower() == ".csv" and "youtube_id" in _columns(file))


def _reader(file: Path) -> Callable[[Path], Iterable[Listed]] | None:
    """What reads a file; none if it is no list."""
    if UCF.fullmatch(file.name):
        return _ucf
    if HMDB.fullmatch(file.name):
        return _hmdb
    return {".csv": _kinetics_table, ".json": _json}.get(file.suffix.lower())


def _ucf(file: Path) -> Iterator[Listed]:
    """CLASS/video.avi, in lists for training with the number of the class."""
    split, classes = split_name(UCF.fullmatch(file.name)[1], str(file)), _classes(file.parent)  # type: ignore[index]
    for where, line in _lines(file):
        name, _, number = line.rpartition(" ") if re.search(r" \d+$", line) else (line, "", "")
        yield Listed((name.strip(),), where, _label(name.strip(), number, classes, where), split)


def _hmdb(file: Path) -> Iterator[Listed]:
    """video.avi and a mark, in one file for each class. Videos that are marked as not used are not named."""
    label = HMDB.fullmatch(file.name)[1]  # type: ignore[index]
    for where, line in _lines(file):
        name, _, mark = line.rpartition(" ")
        if not name or mark not in HMDB_MARKS:
            raise _malformed(where, line, "a video and 0 (not used), 1 (train) or 2 (test)")
        if HMDB_MARKS[mark]:
            yield Listed((f"{label}/{name.strip()}",), where, label, HMDB_MARKS[mark])


def _kinetics_table(file: Path) -> Iterator[Listed]:
    """label,youtube_id,time_start,time_end,split; the test part has no labels."""
    if "youtube_id" not in (columns := _columns(file)):
        expected = "label,youtube_id,time_start,time_end,split"
        raise DataError(
            "this table is no list of Kinetics", where=str(file), expected=expected, found=",".join(columns)
        )
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            for row in (table := csv.DictReader(opened)):
                times, where = (row.get("time_start"), row.get("time_end")), f"{file}:{table.line_num}"
                yield _kinetics(row["youtube_id"], row.get("label"), times, row.get("split"), where)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError("the list cannot be read", where=str(file), found=str(error)) from error


def _json(file: Path) -> Iterator[Listed]:
    """A client's videos or those of a part, [{name, label}]; {client: [videos]}; or Kinetics, {id: {annotations}}."""
    try:
        content = parse_json(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError("the list cannot be read", where=str(file), found=str(error)) from error
    if isinstance(content, dict) and all(isinstance(value, dict) for value in content.values()):
        for name, told in content.items():
            yield _kinetics_entry(name, told, f"{file}, {name}")
        return
    split = _split_of(file)
    shares = {"" if split else file.stem: content} if isinstance(content, list) else content
    if not isinstance(shares, dict) or not all(isinstance(videos, list) for videos in shares.values()):
        raise _malformed(str(file), content, "a list of videos, or an object of them for each client")
    classes = _classes(file.parent)
    for owner, videos in shares.items():
        for number, video in enumerate(videos, 1):
            yield _held(video, owner, split, classes, f"{file}, {owner or 'video'} {number}")


def _held(video: Any, owner: str, split: str, classes: dict[str, str], where: str) -> Listed:
    told = {"name": video} if isinstance(video, str) else video
    if not isinstance(told, dict) or not isinstance(told.get("name"), str) or not told["name"]:
        raise _malformed(where, video, 'CLASS/video, or {"name": "CLASS/video", "label": 1}')
    label = _label(told["name"], str(told.get("label", "")), classes, where)
    return Listed((told["name"],), where, label, split, (owner,) if owner else ())


def _kinetics_entry(name: str, told: dict[str, Any], where: str) -> Listed:
    annotations = told.get("annotations", {})
    if not isinstance(annotations, dict) or not ("annotations" in told or "subset" in told):
        raise _malformed(where, told, '{"annotations": {"label": ..., "segment": [0, 10]}, "subset": "training"}')
    segment = annotations.get("segment", (None, None))
    if not isinstance(segment, Sequence) or len(segment) != 2:
        raise _malformed(where, segment, "a segment of two times")
    return _kinetics(name, annotations.get("label"), (segment[0], segment[1]), told.get("subset"), where)


def _kinetics(name: str, label: Any, times: tuple[Any, Any], split: Any, where: str) -> Listed:
    """Files are called ID_000010_000020 by those who cut them, or ID."""
    label = str(label or "").strip()
    if not isinstance(name, str) or not name:
        raise _malformed(where, name, "the id of a video")
    names = [name]
    try:
        if all(time not in (None, "") for time in times):
            names.insert(0, f"{name}_{int(float(times[0])):06d}_{int(float(times[1])):06d}")
    except (TypeError, ValueError, OverflowError):
        raise _malformed(where, times, "times in seconds") from None
    prefix = f"{label}/" if label else ""
    return Listed(tuple(prefix + n for n in names), where, label, split_name(str(split or "").strip(), where))


def _label(name: str, number: str, classes: dict[str, str], where: str) -> str:
    """A video's class: the folder it lies in, which is that of its number where both are said."""
    folder, known = name.rpartition("/")[0].rpartition("/")[2], classes.get(number, "")
    if folder and known and _plain(folder) != _plain(known):
        expected = f"{known}, which is number {number} in {CLASSES}"
        raise DataError(
            "a list's class numbers are not those of its videos", where=where, expected=expected, found=name
        )
    return folder or known


def _classes(folder: Path) -> dict[str, str]:
    file = folder / CLASSES
    if not file.is_file():
        return {}
    rows = [line.split(maxsplit=1) for _, line in _lines(file)]
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


def _split_of(file: Path) -> str:
    """The part of a set that a file is named after."""
    return next((SPLITS[word] for word in re.split(r"[^a-z]+", file.stem.lower()) if word in SPLITS), "")


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Where each line is, and what it says; empty ones are passed by."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("the list cannot be read", where=str(file), found=str(error)) from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{file}:{number}", line.strip()


def _columns(file: Path) -> list[str]:
    """What the first line of a table says; nothing where there is none."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            return next(csv.reader(opened), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def _folders(path: str) -> list[str]:
    return [_plain(part) for part in path.split("/")[:-1] if part not in ("", ".")]


def _stem(path: str) -> str:
    """A file's name without an ending that videos have."""
    name = path.rpartition("/")[2]
    stem, dot, ending = name.rpartition(".")
    return stem if stem and f"{dot}{ending}".lower() in SUFFIXES else name


@lru_cache(maxsize=4096)
def _plain(word: str) -> str:
    """A class or folder without what people write differently."""
    return re.sub(r"[\s_]+", "_", word.strip().lower())


def _malformed(where: str, found: Any, expected: str) -> DataError:
    return DataError("this is not how such a list is written", where=where, expected=expected, found=repr(found)[:200])
