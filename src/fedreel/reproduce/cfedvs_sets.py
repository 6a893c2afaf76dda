"""TVSum, SumMe and others: which set a given h5 file holds, and what the paper does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedreel.config import DataConfig
from fedreel.data.damaged import H5_ERRORS
from fedreel.errors import DataError
from fedreel.tasks.summary.annotations import MAT, TSV
from fedreel.tasks.summary.data import TVSUM_FRAMES, find_summary, summe_category

CONSTANT = 5.0  # features whose means are so many times their deviations are standardised


@dataclass(frozen=True)
class VideoSet:
    """A set as the paper divides it, and what is known of the file that holds it."""

    name: str
    classes: tuple[int, ...]  # a client's, in Table II
    skewed: tuple[int, ...]  # in Table I, beside IID
    categories: int
    groups: int
    tried: tuple[int, ...]  # groups in Fig 6
    fig5: int  # classes a client in Fig 5
    fragments: int = 0
    videos: int = 54
    clients: tuple[int, ...] = (10, 15, 20, 30)  # in Fig 7
    path: Path | None = None
    usual: Mapping[str, Any] = field(default_factory=dict)
    public: str = ""  # another set's file with the same features
    scored: bool = False  # whether every user's scores are known

    @property
    def source(self) -> dict[str, Any]:
        """What makes a row one of this set."""
        return {"data.source": str(self.path), "data.public": self.public} if self.path else {}

    @property
    def label(self) -> dict[str, Any]:
        return {"set": self.name} if self.path else {}

    @property
    def splits(self) -> dict[str, Any]:
        """The set's file of splits beside the data, for the tables that go by it."""
        found = _splits(self.path.parent, self.name) if self.path else []
        return {"task.splits": found[0]} if found else {}

    def note(self, splits: str = "") -> str:
        """How the set is used, where that is not the paper's own way; `splits` is the file that a table goes by."""
        shared = f"a video of {Path(self.public).name}" if self.public else "a test video of the same set"
        against = "every user's scores" if self.scored else "the share of users who chose a frame"
        whole = ", features standardised" if self.usual.get("task.standardise") else ""
        others = _splits(self.path.parent, self.name)[1:] if self.path and splits else []
        by = f", splits by {splits}" + (f" and not by {', '.join(others)}" if others else "") if splits else ""
        return f"{self.name}: proxy {shared}, which no client trains on; tau and rho against {against}{whole}{by}"


# Of thirty clients of the playground some would hold videos for testing alone, which it marks.
PLAYGROUND = VideoSet("playground", (), (1, 4), 10, 3, (2, 3, 4), 0, 3, clients=(10, 15, 20))
TVSUM = VideoSet("TVSum", (1, 2, 4), (1, 4), 10, 3, (2, 3, 4), 2, 3)
SUMME = VideoSet("SumMe", (1, 2), (1, 2), 3, 2, (2, 3), 1, 4)


def sets_of(data: Path | None) -> list[VideoSet]:
    """The sets that a file or a folder holds; each one's proxies come from another where features agree."""
    if data is None:
        return [PLAYGROUND]
    files = [data] if data.is_file() else sorted(data.glob("*.h5"))
    found = [_set(path.resolve()) for path in files or [find_summary(DataConfig(source=str(data)))]]
    return [replace(one, public=_other(one, found)) for one in found]


def _set(path: Path) -> VideoSet:
    try:
        with h5py.File(path, "r") as file:
            videos = list(file.values())
            frames = {int(v["n_frames"][()]) for v in videos}
            names = [_text(v, "video_name") for v in videos]
            categories = {_text(v, "category") for v in videos} - {""}
            features = np.concatenate([v["features"][()] for v in videos[:8]]).astype(np.float64)
            first = videos[0]
            step = float(np.median(np.diff(first["picks"][()]))) if len(first["picks"]) > 1 else 15.0
            rate = float(first["n_frames"][()]) / float(first["duration"][()]) / step if "duration" in first else 2.0
            scored = "user_scores" in first
    except (*H5_ERRORS, IndexError) as error:
        raise DataError("this is no h5 file of annotated videos", where=str(path), found=str(error)) from error
    known = TVSUM if frames <= {*TVSUM_FRAMES} else SUMME if all(map(summe_category, names)) else None
    if known is None:
        several = max(1, len(categories))
        few = tuple(n for n in (1, 2, 4) if n < several or n == 1)
        known = VideoSet(path.stem, few, few[:1], several, 3, (2, 3, 4), few[-1], 3)
    steady = float(np.median(np.abs(features.mean(0)) / np.maximum(features.std(0), 1e-12))) > CONSTANT
    width = features.shape[1]
    usual = {"task.features": f"given-{width}", "task.width_in": width, "task.fps": round(rate, 3)}
    usual |= {"task.fragments": known.fragments} | ({"task.standardise": True} if steady else {})
    annotations = _annotations(path.parent, known.name)
    usual |= {"task.annotations": annotations} if annotations and not scored else {}
    return replace(known, path=path, videos=len(names), usual=usual, scored=scored or bool(annotations))


def _other(one: VideoSet, found: list[VideoSet]) -> str:
    same = [s for s in found if s is not one and s.usual["task.width_in"] == one.usual["task.width_in"]]
    return str(same[0].path) if same else ""


def _annotations(folder: Path, name: str) -> str:
    files = [file for file in (TSV, MAT) if (folder / file).is_file()]
    return (files or [""])[0] if name == "TVSum" else "GT" if name == "SumMe" and (folder / "GT").is_dir() else ""


def _splits(folder: Path, name: str) -> list[str]:
    """The files that may be the set's splits, first the one that is: it has the name of the published ones, or there
    is no other."""
    published = f"{name.lower()}_splits.json"
    files = {p.name for p in folder.glob("*.json") if name.lower() in p.name.lower() and "split" in p.name.lower()}
    found = sorted(files, key=lambda file: (file.lower() != published, file))
    if len(found) > 1 and found[0].lower() != published:
        raise DataError(
            f"several files beside the data may be the splits of {name}",
            where=str(folder),
            expected=f"one, or among several one that is called {published}",
            found=", ".join(found),
            hint=f"call the one to go by {published}, or take the others away",
        )
    return found


def _text(video: Any, key: str) -> str:
    value = video[key][()] if key in video else video.attrs.get(key, "")
    return value.decode() if isinstance(value, bytes) else str(value)
