"""What was published beside the summarization sets: the five splits that papers share, and every user's own scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from fedreel.data.bounded import opened_h5
from fedreel.data.damaged import H5_ERRORS
from fedreel.data.mat_file import read_matrices
from fedreel.errors import DataError
from fedreel.machine.records import parse_json
from fedreel.tasks.summary.data import SummaryVideo, plain_name

TSV, MAT = "ydata-tvsum50-anno.tsv", "ydata-tvsum50.mat"
MOST_VIDEOS, MOST_SCORE = 10_000, 1000
KEYS = ("train_keys", "test_keys")  # of a split
KNOWN = f"{TSV} or {MAT} of TVSum, or SumMe's folder GT of .mat files"


def with_split(videos: Sequence[SummaryVideo], path: Path, number: int) -> list[SummaryVideo]:
    """The videos marked as one of the splits of a json file has them, a list of {train_keys, test_keys}; beyond the
    last split it starts again at the first. Of a key such as `../data/eccv16_dataset_tvsum_google_pool5.h5/video_1`
    what is after the last slash counts."""
    splits = _splits(path)
    marked: dict[str, str] = {}
    for side in ("train", "test"):
        for key in splits[number % len(splits)][f"{side}_keys"]:
            marked[str(key).rpartition("/")[2]] = side
    for what, names in (
        ("the split names a video that the data do not have", {*marked} - {v.name for v in videos}),
        ("the split leaves out a video of the data", {v.name for v in videos} - {*marked}),
    ):
        if names:
            found = f"{len(names)} of them, {min(names)} among them"
            raise DataError(what, where=str(path), found=found, hint="give the splits of this set")
    return [replace(v, split=marked[v.name]) for v in videos]


def with_user_scores(videos: Sequence[SummaryVideo], path: Path) -> list[SummaryVideo]:
    """The videos with what each user scored at their steps, from the original annotations: by the videos' names or,
    where the data hold none, by their numbers of frames."""
    given = list(_annotated(path))
    by_name = {plain_name(one.name): one for one in given}
    by_length: dict[int, list[_Annotated]] = {}
    for one in given:
        by_length.setdefault(one.scores.shape[1], []).append(one)
    done = []
    for video in videos:
        same = by_length.get(video.truth.n_frames, [])
        own = by_name.get(plain_name(video.known_as)) if video.known_as else same[0] if len(same) == 1 else None
        if own is None:
            raise _unfitting(video, path, "its annotations", f"{len(same)} of {len(given)} with as many frames")
        users, frames = own.scores.shape
        wanted = (len(video.truth.user_summary), video.truth.n_frames)
        if (users, frames) != wanted:
            raise _unfitting(video, path, f"{wanted[0]} users, {wanted[1]} frames", f"{users} users, {frames} frames")
        truth = replace(video.truth, user_scores=own.scores[:, video.truth.picks])
        done.append(replace(video, truth=truth))
    return done


@dataclass(frozen=True)
class _Annotated:
    name: str
    scores: np.ndarray  # (users, frames)


def _annotated(path: Path) -> Iterator[_Annotated]:
    """All videos of an annotation file, or of the one that a folder holds."""
    if path.is_dir():
        for name in (TSV, MAT):
            if (path / name).is_file():
                yield from _annotated(path / name)
                return
        files = sorted((path / "GT").glob("*.mat")) or sorted(path.glob("*.mat"))
        if not files:
            raise DataError("there are no annotations here", where=str(path), expected=KNOWN)
        yield from map(_summe, files)
    elif path.suffix == ".tsv":
        yield from _tsv(path)
    elif path.suffix == ".mat":
        yield from _tvsum(path)
    else:
        raise DataError("these are no annotations", where=str(path), expected=KNOWN)


def _tsv(path: Path) -> Iterator[_Annotated]:
    """TVSum's table: a line for each video and user with the video's name, its category and a score for every frame."""
    by_video: dict[str, list[list[int]]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            name, _, scores = line.split("\t")
            by_video.setdefault(name, []).append([_score(score) for score in scores.split(",")])
        except ValueError as error:
            expected = "a video's name, its category and its scores with commas between them, tabs between the three"
            raise DataError(
                "a line of annotations is damaged", where=f"{path}, line {number}", expected=expected
            ) from error
    for name, rows in by_video.items():
        if len({*map(len, rows)}) > 1:
            raise DataError("users scored different numbers of frames", where=f"{path}, video {name}")
        yield _Annotated(name, np.array(rows, np.float32))


def _score(word: str) -> int:
    score = int(word)
    if not 0 <= score <= MOST_SCORE:
        raise ValueError(f"a score of {word[:20]}")
    return score


def _tvsum(path: Path) -> Iterator[_Annotated]:
    """TVSum's struct, an h5 file of MATLAB 7.3: columns of references, texts as numbers of their characters."""
    try:
        with opened_h5(path) as file:
            names, scores = (_references(file.inside("tvsum50").node(key)) for key in ("video", "user_anno"))
            for name, of in zip(names, scores):
                text = "".join(map(chr, file.numbers(file.group[name], "video").reshape(-1)[:1000]))
                yield _Annotated(text, file.numbers(file.group[of], "user_anno").astype(np.float32))
    except H5_ERRORS as error:
        expected = "the struct tvsum50 with video and user_anno, as MATLAB 7.3 stores it"
        raise DataError("annotations cannot be read", where=str(path), expected=expected, found=str(error)) from error


def _references(found: h5py.Dataset) -> np.ndarray:
    """What a column of a struct refers to."""
    if not isinstance(found, h5py.Dataset) or not h5py.check_ref_dtype(found.dtype) or found.size > MOST_VIDEOS:
        raise ValueError("a column that is none of references")
    return np.asarray(found[()]).reshape(-1)


def _summe(path: Path) -> _Annotated:
    """One video of SumMe: user_score is (frames, users), 0 where a user left a frame out."""
    try:
        scores = read_matrices(path)["user_score"].astype(np.float32)
        if scores.ndim != 2 or not scores.size:
            raise ValueError(f"user_score of the shape {scores.shape}")
    except (OSError, ValueError, KeyError) as error:
        expected = "a .mat file with user_score"
        raise DataError("annotations cannot be read", where=str(path), expected=expected, found=str(error)) from error
    return _Annotated(path.stem, scores.T)


def _splits(path: Path) -> list[dict[str, list[str]]]:
    expected = "a json file: [{'train_keys': [...], 'test_keys': [...]}, ...]"
    try:
        splits = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError("the splits cannot be read", where=str(path), expected=expected, found=str(error)) from error
    good = isinstance(splits, list) and splits
    if not good or not all(isinstance(s, dict) and all(isinstance(s.get(k), list) for k in KEYS) for s in splits):
        raise DataError("these are no splits", where=str(path), expected=expected)
    return splits


def _unfitting(video: SummaryVideo, path: Path, expected: str, found: str) -> DataError:
    name = f"{video.name} ({video.known_as})" if video.known_as else video.name
    return DataError(
        "a video does not fit the annotations", where=f"{path}, video {name}", expected=expected, found=found
    )
