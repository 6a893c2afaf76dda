"""A clip or a sentence in, the videos of a folder that are most like it out: as a ranking and a page."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedreel.data import clip_index
from fedreel.data.hugging_face import is_folder
from fedreel.data.shards import Broken
from fedreel.errors import DataError, Interrupted, RecipeError
from fedreel.tasks.use.options import Request
from fedreel.tasks.use.outputs import Places
from fedreel.tasks.use.trust import Trust, unlike_note
from fedreel.tasks.vision.search.embed import ClassEmbedder, ClipEmbedder, Embedder
from fedreel.tasks.vision.search.index import Index
from fedreel.tasks.vision.search.page import draw_page
from fedreel.tasks.vision.search.result import Hit, Similar


def search_folder(request: Request, folder: Path, top: int, pooling: str, rebuild: bool) -> Similar:
    """Rank the videos below a folder by how similar they are to a clip, with the model of a run directory whose task
    says what vector a clip is; or to a sentence, by the names of a run's classes or a CLIP in the format of
    `transformers`. The vectors of
    the folder are kept in the cache folder; `rebuild` makes them anew."""
    places = Places.of(request, "the copies", folder=True)
    listed = _check(request, places, folder, top)
    embedder = _embedder(request, pooling)
    index = Index(folder, embedder.state, rebuild=rebuild)
    own = _own_paths(request.source, folder, listed)
    known = next((path for path in own if path in index.vectors and index.current(path)), None)
    asked = index.vectors[known] if known else _asked(request, embedder)
    try:
        looked_at = index.refresh([clip.path for clip in listed], embedder, request.tell)
    except KeyboardInterrupt:
        raise Interrupted("What was looked at is kept: run the same command again to go on.") from None
    trust, doubts = _trusted(request.source, embedder)
    compared = len({*index.vectors} - own)
    skipped = [Broken(p, e.fault) for p, e in sorted(index.entries.items()) if p not in index.vectors]
    similar = Similar(
        source=request.source,
        run=request.run,
        client=request.client,
        trust=trust,
        notes=[*request.notes, *doubts, *_about(embedder, request), *_notes(index, compared, top, folder, skipped)],
        skipped=skipped,
        folder=folder,
        pooling=pooling,
        sentence="" if request.source.is_file() else str(request.source),
        videos=compared,
        looked_at=looked_at,
        hits=rank(asked, index, [clip for clip in listed if clip.path not in own], top),
    )
    return _write(similar, places)


def rank(asked: np.ndarray, index: Index, clips: Sequence[clip_index.Clip], top: int) -> list[Hit]:
    """The most similar clips; of those alike to six digits the first by name comes first."""
    usable = [clip for clip in clips if clip.path in index.vectors]
    if not usable:
        return []
    rows = np.stack([index.vectors[clip.path] for clip in usable])
    cosines = np.clip(rows @ asked, -1.0, 1.0).astype(np.float64).round(6)
    order = np.argsort(-cosines, kind="stable")[:top]  # clips come sorted by path
    best = [(float(cosines[i]), usable[i]) for i in order]
    return [
        Hit(n, cosine, clip.path, clip.label, clip.owner, index.entries[clip.path].seconds)
        for n, (cosine, clip) in enumerate(best, 1)
    ]


def _check(request: Request, places: Places, folder: Path, top: int) -> list[clip_index.Clip]:
    """The folder's videos. Raises before any work if it could not be finished."""
    if top < 1:
        raise RecipeError("there is nothing to show", where="top", expected="1 or more", found=str(top))
    if not request.source.is_file() and not _reads(request.source):
        what = "a folder" if request.source.is_dir() else ""
        raise DataError("there is no such video file", where=str(request.source), found=what)
    listed = clip_index.find(folder)
    places.check(request.source, "clip", [folder / clip.path for clip in listed], "a video of the folder")
    places.check_apart(folder)
    return listed


def _reads(source: Path) -> bool:
    """Whether this is a sentence, and not the name of a file that is not there."""
    return not source.exists() and (" " in str(source) or not (source.suffix or source.is_absolute()))


def _embedder(request: Request, pooling: str) -> Embedder | ClassEmbedder | ClipEmbedder:
    if not is_folder(request.run):
        kind = Embedder if request.source.is_file() else ClassEmbedder
        return kind(request.run, request.client, pooling, request.device)
    if request.client:
        found = request.client
        raise RecipeError("a CLIP is nobody's own", where="--client", expected="a run as --model", found=found)
    return ClipEmbedder(request.run, pooling, request.device)


def _asked(request: Request, embedder: Embedder | ClassEmbedder | ClipEmbedder) -> np.ndarray:
    if request.source.is_file():
        return embedder.vector(embedder.look(request.source))
    assert not isinstance(embedder, Embedder)
    return embedder.sentence(str(request.source))


def _about(embedder: Embedder | ClassEmbedder | ClipEmbedder, request: Request) -> list[str]:
    return [embedder.classes.note(str(request.source))] if isinstance(embedder, ClassEmbedder) else []


def _trusted(source: Path, embedder: Embedder | ClassEmbedder | ClipEmbedder) -> tuple[Trust, list[str]]:
    """How far a clip's hits are to be trusted, and what a user must know of that; of a CLIP nothing is known."""
    if not isinstance(embedder, Embedder):
        return Trust(), []
    trust = embedder.trust(source)
    return trust, [*embedder.record.notes, *unlike_note(trust, "this clip")]


def _own_paths(source: Path, folder: Path, listed: Sequence[clip_index.Clip]) -> set[str]:
    """The clip's own paths below the folder: none, one or, with links to it, several."""
    here = source.resolve()
    return {clip.path for clip in listed if (folder / clip.path).resolve() == here}


def _notes(index: Index, compared: int, top: int, folder: Path, skipped: Sequence[Broken]) -> list[str]:
    if not index.vectors:
        raise DataError(
            "none of the videos can be read",
            where=str(folder / skipped[0].path),
            found=skipped[0].reason,
            expected="at least one video in the folder that can be decoded",
        )
    notes = [
        f"{path}: {entry.fault}; only what comes before was looked at"
        for path, entry in sorted(index.entries.items())
        if entry.fault and path in index.vectors
    ]
    if not compared:
        notes.append("the folder holds no other video than the clip itself")
    elif compared < top:
        notes.append(f"{top} videos were asked for, but the folder has only {compared} to compare with")
    return notes


def _write(similar: Similar, places: Places) -> Similar:
    page = "" if places.page is None else draw_page(similar, places.page.parent)
    if places.out is None:
        return places.write(similar, page)
    with places.staged() as staging:
        for hit in similar.hits:
            shutil.copy2(similar.folder / hit.path, staging / hit.copy)
        return places.write(similar, page, [places.out / hit.copy for hit in similar.hits])
