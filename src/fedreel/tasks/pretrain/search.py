"""A clip in, the videos of a folder that are most like it out: by a trained model, as a ranking and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.data import clip_index
from fedreel.data.shards import Broken
from fedreel.errors import DataError, RecipeError
from fedreel.machine.files import write_atomic
from fedreel.media.frames import Tell
from fedreel.tasks.pretrain.embed import Embedder
from fedreel.tasks.pretrain.page import draw_page
from fedreel.tasks.pretrain.search_index import Index
from fedreel.tasks.use.checks import check_places


@dataclass(frozen=True)
class Hit:
    """A video of the folder, and the cosine of the angle between its vector and the clip's."""

    rank: int  # from 1, the most similar
    similarity: float
    path: str  # below the folder
    label: str  # '' where the folder does not tell
    owner: str
    seconds: float


@dataclass(frozen=True)
class Similar:
    """What a search by example found."""

    clip: Path
    folder: Path
    run: Path
    client: str  # the one whose private part of the model was used
    pooling: str
    videos: int  # that the clip was compared with
    looked_at: int  # that were decoded: new or changed since the last search
    hits: list[Hit]  # the most similar first
    skipped: list[Broken]  # files of the folder that cannot be read, and why
    notes: list[str]  # what a user should know

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        places = {name: str(getattr(self, name)) for name in ("clip", "folder", "run")}
        return {**vars(self), **places, "hits": [*map(asdict, self.hits)], "skipped": [*map(asdict, self.skipped)]}


def search(
    clip: Path | str,
    folder: Path | str,
    model: Path | str,
    *,
    top: int = 10,
    pooling: str = "mean",
    page: Path | str | None = None,
    json: Path | str | None = None,
    rebuild: bool = False,
    client: str = "",
    device: str = "cpu",
    tell: Tell | None = None,
) -> Similar:
    """Rank the videos below a folder by how similar they are to a clip, with the model of a run directory whose task
    says what vector a clip is. The vectors of the folder are kept in the cache folder; `rebuild` makes them anew.

    `page` gets the `top` most similar as a gallery, `json` the numbers. `client` is the one whose private part of the
    model is used, in runs in which a part of the backbone stays with the clients.
    """
    clip, folder, run = Path(clip), Path(folder), Path(model)
    places = {"the page": page, "the JSON file": json}
    listed = _check(clip, folder, top, places)
    embedder = Embedder(run, client, pooling, device)
    index = Index(folder, embedder.state, rebuild=rebuild)
    own = _own_paths(clip, folder, listed)
    known = next((path for path in own if path in index.vectors and index.current(path)), None)
    asked = embedder.vector(embedder.look(clip)) if known is None else index.vectors[known]
    looked_at = index.refresh([found.path for found in listed], embedder, tell)
    hits = rank(asked, index, [found for found in listed if found.path not in own], top)
    compared = len({*index.vectors} - own)
    skipped = [Broken(p, e.fault) for p, e in sorted(index.entries.items()) if p not in index.vectors]
    notes = _notes(index, compared, top, folder, skipped)
    made = Similar(clip, folder, run, client, pooling, compared, looked_at, hits, skipped, notes)
    _write(made, page, json)
    return made


def rank(asked: np.ndarray, index: Index, clips: Sequence[clip_index.Clip], top: int) -> list[Hit]:
    """The most similar clips; of those alike to six digits the first by name comes first."""
    there = [clip for clip in clips if clip.path in index.vectors]
    if not there:
        return []
    rows = np.stack([index.vectors[clip.path] for clip in there])
    cosines = np.clip(rows @ asked, -1.0, 1.0).astype(np.float64).round(6)
    order = np.argsort(-cosines, kind="stable")[:top]  # clips come sorted by path
    best = [(float(cosines[i]), there[i]) for i in order]
    return [
        Hit(n, cosine, clip.path, clip.label, clip.owner, index.entries[clip.path].seconds)
        for n, (cosine, clip) in enumerate(best, 1)
    ]


def _check(clip: Path, folder: Path, top: int, places: dict[str, Path | str | None]) -> list[clip_index.Clip]:
    """The folder's videos; nothing is begun that could not be finished."""
    if top < 1:
        raise RecipeError("there is nothing to show", where="top", expected="1 or more", found=str(top))
    if not clip.is_file():
        found = "a folder" if clip.is_dir() else ""
        raise DataError("there is no such video file", where=str(clip), found=found)
    check_places(clip, "clip", places)
    listed = clip_index.find(folder)
    videos = {(folder / found.path).resolve() for found in listed}
    for name, given in places.items():
        if given is not None and Path(given).resolve() in videos:
            raise DataError(
                f"{name} would overwrite a video of the folder", where=str(given), hint="give it another name"
            )
    return listed


def _own_paths(clip: Path, folder: Path, listed: Sequence[clip_index.Clip]) -> set[str]:
    """The clip's own paths below the folder: none, one or, with links to it, several."""
    here = clip.resolve()
    return {found.path for found in listed if (folder / found.path).resolve() == here}


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


def _write(made: Similar, page: Path | str | None, json: Path | str | None) -> None:
    contents: list[tuple[Path, str]] = []
    if page is not None:
        contents.append((Path(page), draw_page(made, Path(page).parent)))
    if json is not None:
        contents.append((Path(json), dumps(made.as_json(), indent=1) + "\n"))
    for place, content in contents:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, content)
        except OSError as error:
            raise DataError("this cannot be written", where=str(place), found=error.strerror or str(error)) from error
