"""Which clips a folder holds: an index.csv, published lists, OWNER/CLASS/*.mp4, CLASS/*.mp4 or any folder of videos."""

from __future__ import annotations

import csv
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from fedreel.data.clip_lists import beside, locate, read_lists
from fedreel.data.splits import SPLITS, split_name
from fedreel.errors import DataError, nearest
from fedreel.media.video import SUFFIXES

INDEX = "index.csv"
LAYOUTS = ("index", "split/owner/class", "owner/class", "split/class", "class", "flat")
FIRST = 5  # videos that are named where some are missing
C = TypeVar("C", bound="Clip")


@dataclass(frozen=True, order=True)
class Clip:
    """One video file, its path relative to the data folder with '/' between parts; unknown fields are ''. A clip may
    have further owners beside the first."""

    path: str
    label: str = ""
    owner: str = ""
    split: str = ""
    shared_with: tuple[str, ...] = ()

    @property
    def owners(self) -> tuple[str, ...]:
        return (self.owner, *self.shared_with)


@dataclass(frozen=True)
class Gaps:
    """What a folder and the lists of its videos do not have in common: how many videos are named and not there, the
    first of them, and how many are there and not named."""

    missing: int = 0
    first: tuple[str, ...] = ()
    unnamed: int = 0

    def lines(self) -> list[str]:
        """In words, as far as there are any."""
        more = ", ..." if self.missing > len(self.first) else ""
        missing = f"named in lists and not there: {self.missing} ({', '.join(self.first)}{more})"
        unnamed = f"left out, as no list names them or only as not used: {self.unnamed}"
        return [line for count, line in ((self.missing, missing), (self.unnamed, unnamed)) if count]


@dataclass(frozen=True)
class Found:
    """The clips of a folder, sorted by path."""

    clips: list[Clip]
    gaps: Gaps = Gaps()
    listed: bool = False  # by lists as they are published


def find(folder: Path, layout: str = "auto", lists: str = "", fold: int = 1) -> list[Clip]:
    """The clips of a folder, as `look_up` finds them."""
    return look_up(folder, layout, lists, fold).clips


def look_up(folder: Path, layout: str = "auto", lists: str = "", fold: int = 1) -> Found:
    """The clips of a folder, and what its lists and it do not have in common.

    The layout names what the folders mean, from the outside in. "auto" takes an index.csv where there is one, else
    lists as UCF-101, HMDB-51 and Kinetics publish them, and else goes by depth: two levels are owner/class
    (split/class if the outer ones are called train, test ...), one level is class, anything else is flat, that is,
    without labels. `lists` names a list, or a folder of them, below the folder or anywhere; `fold` is the number of
    the lists to take where there are several.
    """
    if layout not in ("auto", *LAYOUTS):
        raise DataError(f"there is no layout '{layout}'", where=str(folder), hint=nearest(layout, ("auto", *LAYOUTS)))
    if not folder.is_dir():
        raise DataError("there is no such data folder", where=str(folder))
    if lists and layout != "auto":
        raise DataError("lists say what the folders do not mean", found=f"lists {lists} and layout {layout}")
    if not lists and (layout == "index" or (layout == "auto" and (folder / INDEX).is_file())):
        _check_fold(fold, folder)
        return Found(read_index(folder / INDEX))
    paths = videos(folder)
    if not paths:
        raise DataError(
            "no videos here",
            where=str(folder),
            expected=f"an {INDEX}, or files ending in {' '.join(sorted(SUFFIXES))}",
        )
    place = folder / Path(lists).expanduser() if lists else beside(folder) if layout == "auto" else None
    if place is not None:
        return _by_lists(paths, place, fold, folder)
    _check_fold(fold, folder)
    return Found(_by_folders(paths, _guess(paths) if layout == "auto" else layout, folder))


def read_index(path: Path) -> list[Clip]:
    """The clips of an index.csv with the columns path, label, owner, split (only path must be there). A clip that
    several own has a row for each of them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            if "path" not in (table.fieldnames or ()):
                found = ", ".join(table.fieldnames or ()) or "an empty file"
                raise DataError(
                    "the index has no column 'path'",
                    where=str(path),
                    expected="path,label,owner,split",
                    found=found,
                )
            clips = [_from_row(row, f"{path}:{table.line_num}") for row in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError("the index cannot be read", where=str(path), found=str(error)) from error
    if not clips:
        raise DataError("the index names no clips", where=str(path))
    return sorted(_once_each(clips, path))


def videos(folder: Path) -> list[str]:
    """Every video below the folder, hidden files and folders (and so a Mac's ._ twins) left out."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(place).relative_to(folder)
        names = (n for n in files if not n.startswith(".") and Path(n).suffix.lower() in SUFFIXES)
        found += [(here / name).as_posix() for name in names]
    return sorted(found)


def split_by(clips: Sequence[Clip], test_share: float, seed: int, by: str = "owner") -> list[Clip]:
    """Give every clip without a split 'train' or 'test'; the same names and seed give the same split.

    by="owner" puts whole owners into the test part (at least one, never all); by="clip" draws the test clips
    evenly over owners and labels; by="last" takes the last of each by name.
    """
    if by not in (known := ("owner", "clip", "last")):
        raise DataError(f"clips cannot be split by '{by}'", hint=nearest(by, known))
    if not 0 <= test_share < 1:
        raise DataError(
            "the share of clips to test on is out of range", expected="0 <= test_share < 1", found=str(test_share)
        )
    absent = [clip for clip in clips if not clip.split]
    if by == "owner":
        test = _test_owners(absent, test_share, seed)
    else:
        test = _test_clips(absent, test_share, seed, last=by == "last")
    return [clip if clip.split else replace(clip, split="test" if clip in test else "train") for clip in clips]


def thinned(clips: Sequence[C], most: int) -> list[C]:
    """At most so many clips of each part of each owner's, spread evenly over those there are; 0: all."""
    if not most:
        return list(clips)
    groups: dict[tuple[str, str], list[C]] = defaultdict(list)
    for clip in clips:
        groups[clip.owner, clip.split].append(clip)
    kept = {group[len(group) * i // most].path for group in groups.values() for i in range(most)}
    return [clip for clip in clips if clip.path in kept]


def _guess(paths: list[str]) -> str:
    depths = {path.count("/") for path in paths}
    outer_are_splits = all(path.split("/")[0].lower() in SPLITS for path in paths)
    if depths == {3} and outer_are_splits:
        return "split/owner/class"
    if depths == {2}:
        return "split/class" if outer_are_splits else "owner/class"
    return "class" if depths == {1} else "flat"


def _by_folders(paths: list[str], layout: str, folder: Path) -> list[Clip]:
    if layout == "flat":
        return [Clip(path) for path in paths]
    words = ["label" if word == "class" else word for word in layout.split("/")]
    clips = []
    for path in paths:
        parents = path.split("/")[:-1]
        if len(parents) != len(words):
            raise DataError(
                f"a clip is not where the layout '{layout}' puts it",
                where=str(folder / path),
                expected="/".join(word.upper() for word in layout.split("/")) + "/name below the data folder",
                found=path,
                hint="use layout 'flat', or name the clips in an index.csv",
            )
        named = dict(zip(words, parents))
        split = split_name(named.get("split", ""), str(folder / path))
        clips.append(Clip(path, named["label"], named.get("owner", ""), split))
    return clips


def _by_lists(paths: list[str], place: Path, fold: int, folder: Path) -> Found:
    named, missing = locate(read_lists(place, fold), paths)
    if not named:
        raise DataError(
            "none of the videos that the lists name is here",
            where=str(folder),
            expected=f"videos such as {', '.join(missing[:FIRST]) or 'those of a list that names some'}, of {place}",
            found=f"{len(paths)} others, such as {paths[0]}",
        )
    clips = []
    for path, listed in sorted(named.items()):
        owner, *others = listed.owners or ("",)
        clips.append(Clip(path, listed.label, owner, listed.split, tuple(others)))
    return Found(clips, Gaps(len(missing), tuple(missing[:FIRST]), len(paths) - len(named)), listed=True)


def _check_fold(fold: int, folder: Path) -> None:
    if fold != 1:
        raise DataError(
            "there are no lists to choose from by their number",
            where=str(folder),
            expected="lists such as trainlist02.txt in the data folder, or where data.lists says",
            found=f"data.fold = {fold}",
        )


def _once_each(clips: Sequence[Clip], path: Path) -> Iterable[Clip]:
    """Rows that differ in nothing but the owner are one clip, of several."""
    rows: dict[str, Clip] = {}
    for clip in clips:
        first = rows.setdefault(clip.path, clip)
        if first is clip:
            continue
        if (
            (first.label, first.split) != (clip.label, clip.split)
            or clip.owner in ("", *first.owners)
            or not first.owner
        ):
            raise DataError(
                "the index names a clip twice",
                where=str(path),
                expected="rows of one clip that differ in their owners, and in nothing else",
                found=clip.path,
            )
        rows[clip.path] = replace(first, shared_with=(*first.shared_with, clip.owner))
    return rows.values()


def _from_row(row: dict[str, str | None], where: str) -> Clip:
    path, label, owner, split = ((row.get(name) or "").strip() for name in ("path", "label", "owner", "split"))
    pure = PurePosixPath(path.replace("\\", "/"))
    if not path or not pure.parts or pure.is_absolute() or ".." in pure.parts or ":" in pure.parts[0]:
        raise DataError(
            "a clip's path must lie below the folder of its index",
            where=where,
            expected="a relative path such as owner/class/clip.mp4",
            found=repr(path),
        )
    return Clip(pure.as_posix(), label, owner, split_name(split, where))


def _test_owners(clips: Sequence[Clip], share: float, seed: int) -> set[Clip]:
    owners = _shuffled({clip.owner for clip in clips}, seed)
    if share == 0 or not owners:
        return set()
    if len(owners) == 1:
        raise DataError(
            "one owner's clips cannot be split by owner",
            found=owners[0] or "clips without an owner",
            hint="split by clip",
        )
    chosen = set(owners[: min(max(1, round(share * len(owners))), len(owners) - 1)])
    return {clip for clip in clips if clip.owner in chosen}


def _test_clips(clips: Sequence[Clip], share: float, seed: int, last: bool) -> set[Clip]:
    """Each group gives its share; what rounding owes passes to the next group, so the total is right too."""
    groups: dict[str, dict[str, Clip]] = defaultdict(dict)
    for clip in clips:
        groups[f"{clip.owner}\0{clip.label}"][clip.path] = clip
    test: set[Clip] = set()
    passed = 0
    for name in _shuffled(groups, seed):
        group = groups[name]
        count = round(share * (passed + len(group))) - round(share * passed)
        passed += len(group)
        ordered = sorted(group, reverse=True) if last else _shuffled(group, seed)
        test |= {group[path] for path in ordered[:count]}
    return test


def _shuffled(names: Iterable[str], seed: int) -> list[str]:
    """An order that depends on the names and the seed alone, not on the platform or the library version."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())
