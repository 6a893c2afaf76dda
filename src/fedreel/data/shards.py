"""Videos as shards: their frames scaled once and stored, as they are or as JPEG pictures, mapped into memory; made by
all cores, resumable, the same for any worker count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedreel.data.clip_index import Clip, Gaps, thinned
from fedreel.data.shard_parts import Parts, ShardClip, part_file
from fedreel.errors import DataError
from fedreel.machine.files import locked, replacing
from fedreel.machine.processes import in_processes
from fedreel.machine.records import parse_json
from fedreel.media.pictures import encode_jpeg
from fedreel.media.video import Reader

VERSION = 2  # 1 had frames squeezed into squares
INDEX, PLAN = "index.json", "building.json"
LISTS = ("clips", "broken", "cut")
CLIPS_PER_PART = 64

NO_GAPS = Gaps()
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Broken:
    """A video of which some or all cannot be read, and why."""

    path: str
    reason: str


class Shards:
    """Clips on disk, each with the shape of its video: its shorter side has `side` pixels. `clips` says what they are.
    Frames are raw bytes (`quality` 0), of which one gets read-only views, or JPEG pictures, decoded when asked for."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder, self._most = folder, 0
        self.side, self.quality = int(index["side"]), int(index["quality"])
        self.clips = [ShardClip(**{**e, "shared_with": tuple(e.get("shared_with", ()))}) for e in index["clips"]]
        gaps = index.get("gaps", {})
        self.gaps = Gaps(**{**gaps, "first": tuple(gaps.get("first", ()))})
        self.broken = [Broken(**entry) for entry in index["broken"]]  # left out
        self.cut = [Broken(**entry) for entry in index["cut"]]  # kept, but their tails are missing
        self.parts = Parts(folder, self.side, self.quality)

    @classmethod
    def open(cls, folder: Path, most: int = 0) -> Shards:
        """Open finished shards, after checking that every part has the bytes its index promises; with `most`, so many
        clips of each part of an owner's."""
        index = _load(folder / INDEX)
        if index.get("version") != VERSION:
            raise DataError(
                "these shards have another format",
                where=str(folder / INDEX),
                expected=f"version {VERSION}, in which clips keep the shape of their videos",
                found=f"version {index.get('version')}",
                hint="build them again from the videos: fedreel data shard VIDEOS --size SIDE --out NEW_FOLDER",
            )
        try:
            shards = cls(folder, index)
            shards._check_parts()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            where = str(folder / INDEX)
            raise DataError("the index of the shards is damaged", where=where, found=repr(error)) from error
        shards.clips, shards._most = thinned(shards.clips, most), most
        return shards

    def __len__(self) -> int:
        return len(self.clips)

    def __reduce__(self) -> tuple[Callable[[Path, int], Shards], tuple[Path, int]]:
        return Shards.open, (self.folder, self._most)  # a worker process maps the files itself

    @property
    def labels(self) -> list[str]:
        """The distinct labels, sorted; a label's place here can serve as its class number."""
        return sorted({clip.label for clip in self.clips})

    @property
    def owners(self) -> list[str]:
        """The distinct owners, sorted."""
        return sorted({owner for clip in self.clips for owner in clip.owners})

    def whole(self, i: int) -> np.ndarray:
        """All frames of clip i, (T, H, W, 3), in the clip's own shape."""
        return self.parts.whole(self.clips[i])

    def clip(self, i: int) -> np.ndarray:
        """The square in the middle of all frames of clip i, (T, side, side, 3)."""
        return self.frames(i, np.arange(self.clips[i].frames))

    def window(self, i: int, start: int, frames: int, stride: int = 1) -> np.ndarray:
        """Of clip i frames start, start + stride, ..., the square in the middle; the clip stands still at its ends."""
        return self.frames(i, start + stride * np.arange(frames))

    def frames(self, i: int, times: np.ndarray, corner: tuple[int, int] | None = None) -> np.ndarray:
        """These frames of clip i, (len(times), side, side, 3): the square that begins at a row and column [that in the
        middle]. Before the first and after the last frame the clip stands still."""
        return self.parts.frames(self.clips[i], times, corner)

    def stack(self, indices: Sequence[int], frames: int) -> np.ndarray:
        """`frames` evenly spaced frames of each clip, (N, frames, side, side, 3); short clips repeat frames."""
        out = np.empty((len(indices), frames, self.side, self.side, 3), np.uint8)
        for row, i in enumerate(indices):
            out[row] = self.frames(i, spaced(self.clips[i].frames, frames))
        return out

    def _check_parts(self) -> None:
        ends: dict[int, int] = {}
        for clip in self.clips:
            if min(clip.frames, clip.height, clip.width) < 1 or min(clip.offset, clip.part) < 0 or not clip.fps > 0:
                raise ValueError(f"impossible place of {clip.path}")
            if min(clip.height, clip.width) != self.side or (not self.quality and clip.size != clip.nbytes):
                raise ValueError(f"impossible size of {clip.path}")
            ends[clip.part] = max(ends.get(clip.part, 0), clip.offset + clip.size)
        for number, expected in ends.items():
            file = self.parts.file(number)
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
    side: int = 64,
    frames: int | None = None,
    quality: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    gaps: Gaps = NO_GAPS,
) -> Shards:
    """Decode `clips` (paths below `root`), the shorter side at `side` pixels and the other in proportion: every frame,
    or `frames` evenly spaced ones, as raw bytes or as JPEG pictures of a `quality` from 1 to 100.

    Files that cannot be read are left out and listed in `broken`; clips shorter than `frames` keep what they
    have. A build that was interrupted goes on where it stopped; a finished one is reused while the videos and
    the parameters are the same. `progress` is called with the clips done and the clips in all; `gaps` are noted.
    """
    if not clips:
        raise DataError("no clips to build shards from", where=str(root))
    if side < 1 or (frames is not None and frames < 1) or not 0 <= quality <= 100:
        raise DataError(
            "such shards cannot be made",
            expected="a side and frames of 1 or more, a quality from 0 to 100",
            found=f"side {side}, frames {frames}, quality {quality}",
        )
    plan = _plan(clips, root, side, frames, quality)
    if not (out / INDEX).is_file():
        out.mkdir(parents=True, exist_ok=True)
        groups = [tuple(clips[i : i + CLIPS_PER_PART]) for i in range(0, len(clips), CLIPS_PER_PART)]
        parts = [_Part(number, group, root, out, side, frames, quality) for number, group in enumerate(groups)]
        with locked(out):
            if not (out / INDEX).is_file():  # else another process was building them, and is done
                _decode(parts, plan, gaps, workers, progress or (lambda done, total: None))
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
    side: int
    frames: int | None
    quality: int

    @property
    def file(self) -> Path:
        return part_file(self.out, self.number, self.quality)

    @property
    def done(self) -> Path:
        """Exists once the part is complete, and says what is in it."""
        return self.file.with_suffix(".json")


def _decode(parts: list[_Part], plan: dict[str, Any], gaps: Gaps, workers: int | None, progress: Progress) -> None:
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
    _save(out / INDEX, {**plan, "gaps": asdict(gaps), **found})
    for leftover in [*(part.done for part in parts), *out.glob("*.tmp"), out / PLAN]:
        leftover.unlink(missing_ok=True)


def _decode_part(part: _Part) -> None:
    clips: list[ShardClip] = []
    broken: list[Broken] = []
    cut: list[Broken] = []
    with replacing(part.file) as file:
        for clip in part.clips:
            reader, offset = Reader(part.root / clip.path, part.side), file.tell()
            sizes: list[int] = []  # of the frames, in bytes
            shape = (0, 0)
            try:
                for rgb in reader:
                    shape = rgb.shape[:2]
                    sizes.append(file.write(encode_jpeg(rgb, part.quality) if part.quality else rgb.data))
            except DataError as error:  # raised before the first frame, so nothing was written
                broken.append(Broken(clip.path, error.found or error.problem))
                continue
            if reader.fault or not sizes:
                (cut if sizes else broken).append(Broken(clip.path, reader.fault or "it holds no frames"))
            if sizes:
                kept = _finish(file, offset, sizes, part)
                place: dict[str, Any] = {"part": part.number, "offset": offset, "size": file.tell() - offset}
                what: dict[str, Any] = {
                    "fps": reader.fps * kept / len(sizes),
                    "frames": kept,
                    "height": shape[0],
                    "width": shape[1],
                }
                clips.append(ShardClip(**asdict(clip), **what, **place))
    found: dict[str, Sequence[Any]] = {"clips": clips, "broken": broken, "cut": cut}
    _save(part.done, {name: [asdict(entry) for entry in entries] for name, entries in found.items()})


def _finish(file: IO[bytes], start: int, sizes: list[int], part: _Part) -> int:
    """Of the frames written from byte `start` on, keep part.frames evenly spaced ones; of pictures, note where each
    begins. Returns how many frames there are.

    Decoding to the file first and thinning there keeps memory flat however long the video is.
    """
    starts = np.cumsum([0, *sizes])
    if part.frames is not None and len(sizes) > part.frames:
        chosen, end = spaced(len(sizes), part.frames), start
        for frame in chosen:
            file.seek(start + int(starts[frame]))  # never before `end`: nothing is read after it was overwritten
            image = file.read(sizes[frame])
            file.seek(end)
            end += file.write(image)
        file.truncate()
        starts = np.cumsum([0, *(sizes[frame] for frame in chosen)])
    if part.quality:
        file.write(bytes(-file.tell() % 4))  # so that the table is aligned
        file.write(starts.astype("<u4").tobytes())
    return len(starts) - 1


def _plan(clips: Sequence[Clip], root: Path, side: int, frames: int | None, quality: int) -> dict[str, Any]:
    """The head of the index: the parameters, and a fingerprint of the files, their sizes and times."""
    digest = hashlib.sha256()
    for clip in clips:
        try:
            status = (root / clip.path).stat()
            state = [status.st_size, status.st_mtime_ns]
        except OSError:
            state = []
        shared = [clip.shared_with] if clip.shared_with else []
        digest.update(json.dumps([clip.path, clip.label, clip.owner, clip.split, *state, *shared]).encode())
    head = {"version": VERSION, "side": side, "frames": frames, "quality": quality}
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


def _load(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        found = f"a JSON {type(content).__name__}"
    except (OSError, ValueError) as error:
        found = str(error)
    hint = "build the shards first" if not path.is_file() else "remove the folder and build the shards again"
    raise DataError("this is not the index of finished shards", where=str(path), found=found, hint=hint)


def _save(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1).encode())
