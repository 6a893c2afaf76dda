"""Images decoded once into memory-mapped uint8, from a folder or an archive as its owner has it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
from PIL import Image

from fedreel.data.archive import extract
from fedreel.data.clip_index import Clip
from fedreel.data.shards import Broken
from fedreel.data.splits import SPLITS
from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder
from fedreel.machine.files import sync_path
from fedreel.media.images import SUFFIXES, decoded, image_files, is_visible, scaled
from fedreel.tasks.image.cifar import is_cifar, read_cifar

VERSION = 1  # raised whenever the same files would give other pixels or labels
INDEX, PIXELS = "index.json", "images.npy"
ANNOTATIONS = "val_annotations.txt"
_ABANDONED = 24 * 3600  # seconds after which another process's half-made folder is taken for dead


@dataclass(frozen=True)
class Pictures:
    """The images of one source. `images` maps a file: changes to it are this process's own."""

    images: np.ndarray  # (N, side, side, 3) uint8
    labels: np.ndarray  # (N,) int64, places in `classes`; -1 unknown
    classes: tuple[str, ...]
    splits: np.ndarray  # (N,) str: "train", "val", "test" or ""
    owners: np.ndarray  # (N,) str, "" unknown
    broken: tuple[Broken, ...]  # files that are left out

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> Pictures:
        """Some of them; classes keep their places."""
        picked = {name: getattr(self, name)[rows] for name in ("images", "labels", "splits", "owners")}
        return replace(self, **picked)

    def first(self, most: int) -> Pictures:
        """The first images of every class in each split, so many or fewer; 0: all. Unlabelled ones are all kept."""
        if not most:
            return self
        seen: Counter[tuple[str, int]] = Counter()
        kept = []
        for row, (split, label) in enumerate(zip(self.splits.tolist(), self.labels.tolist())):
            seen[split, label] += 1
            if label < 0 or seen[split, label] <= most:
                kept.append(row)
        return self.take(np.array(kept))


def open_pictures(source: str, side: int) -> Pictures:
    """The images of a folder or a zip or tar of one, scaled to `side` x `side`, in the order of their paths.

    They lie as [SPLIT/][OWNER/]CLASS/*.png, [OWNER/]SPLIT/CLASS/*.png, or in any other way without labels; as
    Tiny-ImageNet (images/ below its classes, labels of val/ in a file); or as CIFAR-100's Python files. Unlabelled test
    images beside labelled ones are left out. What is decoded is kept in the cache until the files change.
    """
    root = Path(source).expanduser()
    if not root.exists():
        raise DataError(
            "there are no such images",
            where=source,
            expected="a folder of images, or a zip or tar of one",
            hint="set data.source (or data.public, for the server's own)",
        )
    if side < 1:
        raise DataError("images need at least one pixel", found=f"side {side}")
    folder = cache_folder() / "pictures" / _fingerprint(root, side)
    found = _load(folder, side)
    if found is None:
        _build(root, side, folder)
        found = _load(folder, side)
    if found is None:
        raise DataError("decoded images cannot be read back", where=str(folder), hint="remove this folder")
    return found


def _load(folder: Path, side: int) -> Pictures | None:
    """What an earlier open left, or None if it is not there or not whole."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        images = np.asarray(np.load(folder / PIXELS, mmap_mode="c", allow_pickle=False))
        labels, splits, owners = (np.array(index[name]) for name in ("labels", "splits", "owners"))
        broken = tuple(Broken(**entry) for entry in index["broken"])
        classes = tuple(map(str, index["classes"]))
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    n = len(labels)
    whole = images.shape == (n, side, side, 3) and images.dtype == np.uint8 and splits.shape == owners.shape == (n,)
    return Pictures(images, labels.astype(np.int64), classes, splits, owners, broken) if whole else None


def _build(root: Path, side: int, folder: Path) -> None:
    """Decode into a folder that takes its name only when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.parent.glob(".*.tmp"):
        if time.time() - old.stat().st_mtime > _ABANDONED:
            shutil.rmtree(old, ignore_errors=True)
    with TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder.parent, ignore_cleanup_errors=True) as place:
        tree = root if root.is_dir() else _unwrapped(extract(root, Path(place, "unpacked")))
        made = Path(place, "made")
        made.mkdir()
        _write(made, side, *_readings(tree, side, str(root)), where=str(root))
        try:
            os.replace(made, folder)
        except OSError:
            if _load(folder, side) is None:  # else another process was quicker
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(made, folder)


def _readings(tree: Path, side: int, where: str) -> tuple[list[Clip], Iterator[np.ndarray | str]]:
    """What the images are, and for each its pixels or why there are none."""
    for folder in (tree, tree / "cifar-100-python"):
        if is_cifar(folder):
            return _from_cifar(folder, side)
    clips = _found(tree)
    if not clips:
        suffixes = " ".join(sorted(SUFFIXES))
        raise DataError("no images here", where=where, expected=f"files ending in {suffixes}, or CIFAR-100's")
    return clips, decoded([tree / clip.path for clip in clips], side)


def _write(folder: Path, side: int, clips: Sequence[Clip], readings: Iterator[np.ndarray | str], *, where: str) -> None:
    kept: list[Clip] = []
    broken: list[Broken] = []
    with (folder / PIXELS).open("wb") as file:
        _write_header(file, 0, side)
        for clip, pixels in zip(clips, readings):
            if isinstance(pixels, str):
                broken.append(Broken(clip.path, pixels))
            else:
                file.write(pixels.tobytes())
                kept.append(clip)
        file.seek(0)
        _write_header(file, len(kept), side)  # as long as before: numpy leaves room for the largest number
    if not kept:
        raise DataError("none of the images can be read", where=f"{where}: {broken[0].path}", found=broken[0].reason)
    classes = sorted({clip.label for clip in kept} - {""})
    numbers = {"": -1, **{name: number for number, name in enumerate(classes)}}
    index = {
        "classes": classes,
        "labels": [numbers[clip.label] for clip in kept],
        "splits": [clip.split for clip in kept],
        "owners": [clip.owner for clip in kept],
        "broken": [asdict(entry) for entry in broken],
    }
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    for path in (folder / PIXELS, folder / INDEX, folder):
        sync_path(path)


def _write_header(file: IO[bytes], count: int, side: int) -> None:
    what = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, 3)}
    np.lib.format.write_array_header_1_0(file, what)


# which images there are, and what their folders say


def _found(tree: Path) -> list[Clip]:
    clips = [_placed(path) for path in image_files(tree)]
    clips = _annotated(tree, clips)
    if any(clip.label for clip in clips):  # test images without labels beside them, as Tiny-ImageNet's, test nothing
        clips = [clip for clip in clips if clip.label or clip.split != "test"]
    return clips


def _placed(path: str) -> Clip:
    """An image with what its folders say: a split may stand anywhere, the class is innermost, an owner before it."""
    *folders, _ = path.split("/")
    if len(folders) > 1 and folders[-1] == "images":  # Tiny-ImageNet's train/WNID/images and val/images
        folders.pop()
    at = next((i for i, name in enumerate(folders) if name.lower() in SPLITS), None)
    split = "" if at is None else SPLITS[folders.pop(at).lower()]
    if at is not None and at == len(folders):  # nothing below the split: unlabelled
        return Clip(path, owner=folders[0] if len(folders) == 1 else "", split=split)
    if len(folders) > 2 or not folders:
        return Clip(path, split=split)
    return Clip(path, label=folders[-1], owner=folders[0] if len(folders) == 2 else "", split=split)


def _annotated(tree: Path, clips: Sequence[Clip]) -> list[Clip]:
    """Tiny-ImageNet's val/images have their classes in a file beside that folder."""
    labels: dict[Path, dict[str, str]] = {}
    done = []
    for clip in clips:
        path = Path(clip.path)
        if clip.split == "val" and not clip.label and path.parent.name == "images":
            file = tree / path.parent.parent / ANNOTATIONS
            if file not in labels:
                labels[file] = _read_annotations(file) if file.is_file() else {}
            clip = replace(clip, label=labels[file].get(path.name, ""))
        done.append(clip)
    return done


def _read_annotations(file: Path) -> dict[str, str]:
    try:
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("the labels of the images cannot be read", where=str(file), found=str(error)) from error
    short = [number for number, row in enumerate(rows, 1) if len(row) < 2 or not row[1].strip()]
    if short:
        expected = "image, class, ..., with tabs between"
        raise DataError("a line names no image and class", where=f"{file}, line {short[0]}", expected=expected)
    return {row[0]: row[1].strip() for row in rows}


def _unwrapped(tree: Path) -> Path:
    """An archive's contents without the folder that holds all of them, which says nothing."""
    while True:
        inside = [path for path in tree.iterdir() if is_visible(path.name)]
        if len(inside) != 1 or not inside[0].is_dir() or inside[0].name.lower() in SPLITS:
            return tree
        tree = inside[0]


def _fingerprint(root: Path, side: int) -> str:
    """A folder name for these files at this size; other files or times give another name."""
    state = hashlib.sha256(os.fsencode(f"{VERSION} {side} {root.resolve()}\n"))
    paths = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
    for path in paths:
        stat = path.stat()
        state.update(os.fsencode(f"{path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns}\n"))
    return state.hexdigest()[:20]


def _from_cifar(folder: Path, side: int) -> tuple[list[Clip], Iterator[np.ndarray]]:
    clips: list[Clip] = []
    images: list[np.ndarray] = []
    for part in ("test", "train"):
        pixels, labels, names = read_cifar(folder, part)
        clips += [Clip(f"{part}/{number:05d}", names[label], split=part) for number, label in enumerate(labels)]
        images += [*pixels]
    return clips, (scaled(Image.fromarray(image), side) for image in images)
