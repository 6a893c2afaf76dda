"""Video decoded once into memory-mapped uint8: by all cores, resumable, the same for any worker count."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedreel.data.clip_index import Clip
from fedreel.errors import DataError
from fedreel.machine.files import locked
from fedreel.machine.processes import in_processes
from fedreel.media.video import Reader

VERSION = 1
INDEX, PLAN = "index.json", "building.json"
LISTS = ("clips", "broken", "cut")
CLIPS_PER_PART = 64
MAPPED_PARTS = 256  # every mapped part keeps a file descriptor, of which a process has perhaps 1024

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ShardClip(Clip):
    """A clip in the shards: `frames` frames from frame `offset` of part `part`, stored at `fps` a second."""

    fps: float = 0.0
    part: int = 0
    offset: int = 0
    frames: int = 0


@dataclass(frozen=True)
class Broken:
    """A video of which some or all cannot be read, and why."""

    path: str
    reason: str


class Shards:
    """Decoded clips on disk. `clips` says what they are; frames come as read-only views of mapped files."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder = folder
        self.height, self.width = int(index["height"]), int(index["width"])
        self.clips = [ShardClip(**entry) for entry in index["clips"]]
        self.broken = [Broken(**entry) for entry in index["broken"]]  # left out
        self.cut = [Broken(**entry) for entry in index["cut"]]  # kept, but their tails are missing
        self._parts: dict[int, np.ndarray] = {}

    @classmethod
    def open(cls, folder: Path) -> Shards:
        """Open finished shards, after checking that every part has the bytes its index promises."""
        index = _load(folder / INDEX)
        if index.get("version") != VERSION:
            raise DataError(
                "these shards have another format",
                where=str(folder / INDEX),
                expected=f"version {VERSION}",
                found=f"version {index.get('version')}",
                hint="build them again into a new folder",
            )
        try:
            shards = cls(folder, index)
            shards._check_parts()
        except (KeyError, TypeError, ValueError) as error:
            where = str(folder / INDEX)
            raise DataError("the index of the shards is damaged", where=where, found=repr(error)) from error
        return shards

    def __len__(self) -> int:
        return len(self.clips)

    def __reduce__(self) -> tuple[Callable[[Path], Shards], tuple[Path]]:
        return Shards.open, (self.folder,)  # a worker process maps the files itself

    @property
    def labels(self) -> list[str]:
        """The distinct labels, sorted; a label's place here can serve as its class number."""
        return sorted({clip.label for clip in self.clips})

    @property
    def owners(self) -> list[str]:
        """The distinct owners, sorted."""
        return sorted({clip.owner for clip in self.clips})

    def clip(self, i: int) -> np.ndarray:
        """All frames of clip i, (T, H, W, 3): a read-only view, nothing is copied."""
        clip = self.clips[i]
        return self._part(clip.part)[clip.offset : clip.offset + clip.frames]

    def window(self, i: int, start: int, frames: int, stride: int = 1) -> np.ndarray:
        """Frames start, start + stride, ... of clip i; beyond its ends the clip loops (index modulo length).

        A window inside the clip is a read-only view; a looped one is a copy.
        """
        clip = self.clip(i)
        if start >= 0 and stride > 0 and start + (frames - 1) * stride < len(clip):
            return clip[start : start + frames * stride : stride]
        return clip[(start + stride * np.arange(frames)) % len(clip)]

    def stack(self, indices: Sequence[int], frames: int) -> np.ndarray:
        """`frames` evenly spaced frames of each clip, (N, frames, H, W, 3); short clips repeat frames."""
        out = np.empty((len(indices), frames, self.height, self.width, 3), np.uint8)
        for row, i in enumerate(indices):
            clip = self.clip(i)
            out[row] = clip[spaced(len(clip), frames)]
        return out

    def _part(self, number: int) -> np.ndarray:
        if number not in self._parts:
            if len(self._parts) >= MAPPED_PARTS:
                del self._parts[next(iter(self._parts))]
            mapped = np.memmap(_part_file(self.folder, number), np.uint8, "r")
            self._parts[number] = np.asarray(mapped).reshape(-1, self.height, self.width, 3)
        return self._parts[number]

    def _check_parts(self) -> None:
        ends: dict[int, int] = {}
        for clip in self.clips:
            if clip.frames < 1 or clip.offset < 0 or clip.part < 0 or not clip.fps > 0:
                raise ValueError(f"impossible place of {clip.path}")
            ends[clip.part] = max(ends.get(clip.part, 0), clip.offset + clip.frames)
        for number, end in ends.items():
            file = _part_file(self.folder, number)
            expected = end * self.height * self.width * 3
            found = file.stat().st_size if file.is_file() else -1
            if found != expected:
                raise DataError(
                    "a part of the shards is damaged",
                    where=str(file),
                    expected=f"{expected} bytes",
                    found=f"{found} bytes" if found >= 0 else "no such file",
                    hint=f"remove {self.folder} and build the shards again",
                )


def build(
    clips: Sequence[Clip],
    root: Path,
    out: Path,
    *,
    size: tuple[int, int] = (64, 64),
    frames: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Shards:
    """Decode `clips` (paths below `root`) at `size` (h, w): every frame, or `frames` evenly spaced ones.

    Files that cannot be read are left out and listed in `broken`; clips shorter than `frames` keep what they
    have. A build that was interrupted goes on where it stopped; a finished one is reused while the videos and
    the parameters are the same. `progress` is called with the clips done and the clips in all.
    """
    if not clips:
        raise DataError("no clips to build shards from", where=str(root))
    if min(size) < 1 or (frames is not None and frames < 1):
        raise DataError("shards need at least one pixel and one frame", found=f"size {size}, frames {frames}")
    plan = _plan(clips, root, size, frames)
    if not (out / INDEX).is_file():
        out.mkdir(parents=True, exist_ok=True)
        groups = [tuple(clips[i : i + CLIPS_PER_PART]) for i in range(0, len(clips), CLIPS_PER_PART)]
        parts = [_Part(number, group, root, out, size, frames) for number, group in enumerate(groups)]
        with locked(out):
            if not (out / INDEX).is_file():  # else another process was building them, and is done
                _decode(parts, plan, workers, progress or (lambda done, total: None))
    _same(plan, _load(out / INDEX), out)
    return Shards.open(out)


def spaced(total: int, frames: int) -> np.ndarray:
    """The middles of `frames` equal stretches of `total` frames, as indices."""
    return (2 * np.arange(frames) + 1) * total // (2 * frames)


@dataclass(frozen=True)
class _Part:
    """What a process needs to decode one part."""

    number: int
    clips: tuple[Clip, ...]
    root: Path
    out: Path
    size: tuple[int, int]
    frames: int | None

    @property
    def done(self) -> Path:
        """Exists once the part is complete, and says what is in it."""
        return _part_file(self.out, self.number).with_suffix(".json")


def _decode(parts: list[_Part], plan: dict[str, Any], workers: int | None, progress: Progress) -> None:
    out, root = parts[0].out, parts[0].root
    if (out / PLAN).is_file():
        _same(plan, _load(out / PLAN), out)
    _save(out / PLAN, plan)
    todo = [part for part in parts if not part.done.is_file()]
    total = sum(len(part.clips) for part in parts)
    ready = total - sum(len(part.clips) for part in todo)
    progress(ready, total)
    for number, _ in in_processes(_decode_part, todo, workers):
        ready += len(todo[number].clips)
        progress(ready, total)
    results = [_load(part.done) for part in parts]
    found = {name: [entry for result in results for entry in result[name]] for name in LISTS}
    if not found["clips"]:
        first = found["broken"][0]
        where = str(root / first["path"])
        raise DataError("none of the clips can be read as video", where=where, found=first["reason"])
    _save(out / INDEX, {**plan, **found})
    for leftover in [*(part.done for part in parts), *out.glob("*.tmp"), out / PLAN]:
        leftover.unlink(missing_ok=True)


def _decode_part(part: _Part) -> None:
    clips: list[ShardClip] = []
    broken: list[Broken] = []
    cut: list[Broken] = []
    offset = 0
    with _replacing(_part_file(part.out, part.number)) as file:
        for clip in part.clips:
            reader, total = Reader(part.root / clip.path, part.size), 0
            try:
                for rgb in reader:
                    file.write(rgb.data)
                    total += 1
            except DataError as error:  # raised before the first frame, so nothing was written
                broken.append(Broken(clip.path, error.found or error.problem))
                continue
            if reader.fault or not total:
                (cut if total else broken).append(Broken(clip.path, reader.fault or "it holds no frames"))
            if total:
                kept = _thin(file, total, part)
                fps = reader.fps * kept / total
                clips.append(ShardClip(**asdict(clip), fps=fps, part=part.number, offset=offset, frames=kept))
                offset += kept
    found: dict[str, Sequence[Any]] = {"clips": clips, "broken": broken, "cut": cut}
    _save(part.done, {name: [asdict(entry) for entry in entries] for name, entries in found.items()})


def _thin(file: IO[bytes], total: int, part: _Part) -> int:
    """Of the `total` frames just written keep part.frames evenly spaced ones; returns how many there are now.

    Decoding to the file first and thinning there keeps memory flat however long the video is.
    """
    if part.frames is None or total <= part.frames:
        return total
    step = part.size[0] * part.size[1] * 3
    start = file.tell() - total * step
    for place, frame in enumerate(spaced(total, part.frames)):
        file.seek(start + int(frame) * step)  # frame >= place: nothing is read after it was overwritten
        image = file.read(step)
        file.seek(start + place * step)
        file.write(image)
    file.truncate()
    return part.frames


def _plan(clips: Sequence[Clip], root: Path, size: tuple[int, int], frames: int | None) -> dict[str, Any]:
    """The head of the index: the parameters, and a fingerprint of the files, their sizes and times."""
    digest = hashlib.sha256()
    for clip in clips:
        try:
            status = (root / clip.path).stat()
            state = [status.st_size, status.st_mtime_ns]
        except OSError:
            state = []
        digest.update(json.dumps([clip.path, clip.label, clip.owner, clip.split, *state]).encode())
    head = {"version": VERSION, "height": size[0], "width": size[1], "frames": frames}
    return {**head, "source": digest.hexdigest()}


def _same(plan: dict[str, Any], there: dict[str, Any], out: Path) -> None:
    differing = [name for name, value in plan.items() if there.get(name) != value]
    if differing:
        raise DataError(
            "this folder holds shards of other videos (or labels, or file times)"
            if differing == ["source"]
            else "this folder holds shards with other parameters",
            where=str(out),
            expected=", ".join(f"{name} {plan[name]}" for name in differing),
            found=", ".join(f"{name} {there.get(name)}" for name in differing),
            hint="choose another folder, or remove this one to rebuild it",
        )


def _part_file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.u8"


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        found = f"a JSON {type(content).__name__}"
    except (OSError, ValueError) as error:
        found = str(error)
    hint = "build the shards first" if not path.is_file() else "remove the folder and build the shards again"
    raise DataError("this is not the index of finished shards", where=str(path), found=found, hint=hint)


def _save(path: Path, content: dict[str, Any]) -> None:
    with _replacing(path) as file:
        file.write(json.dumps(content, indent=1).encode())


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete and on disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
