"""Where moments come from: the playground, or a folder of annotations with features or videos beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.data import clip_index
from fedreel.data.features import FEATURES, make_features
from fedreel.errors import DataError
from fedreel.tasks.moments.annotations import Query, Repairs, read_annotations
from fedreel.tasks.moments.features import (
    MomentFeatures,
    is_features,
    make_moment_features,
    npz_keys,
    open_features,
)
from fedreel.tasks.moments.text import Words


@dataclass(frozen=True)
class MomentSource:
    """All that lies at a place; `words` is None where there is no .npz file of words and vectors."""

    queries: list[Query]
    features: MomentFeatures
    words: Words | None
    repairs: Repairs


def open_moments(config: DataConfig, features: str = "plain", fps: float = 1.0) -> MomentSource:
    """The recipe's source: the playground's moments, a file of annotations, or a folder with one or more.

    Features lie beside the annotations, under any name or, if there are several, under the name `features`. Where
    there are none they are made from the videos below the folder, `fps` rows a second. Times are those of the
    features, so lengths of videos that come with features go before those of the annotations.
    """
    path = playground.place_of(config, "moments", "a file of annotations, or a folder with one")
    folder = path if path.is_dir() else path.parent
    found = _features(folder, features, fps)
    queries, repairs = read_annotations(path, length_of=found.duration)
    words = [p for p in sorted(folder.glob("*.npz")) if {"words", "vectors"} <= npz_keys(p)]
    return MomentSource(queries, found, Words.read(words[0]) if len(words) == 1 else None, repairs)


def _features(folder: Path, name: str, fps: float) -> MomentFeatures:
    fitting = [p for p in sorted([folder, *folder.iterdir()]) if not p.name.startswith(".") and is_features(p)]
    if len(fitting) > 1:
        named = [p for p in fitting if name in (p.name, p.stem)]
        if len(named) != 1:
            raise DataError(
                "several files of features fit",
                where=str(folder),
                expected="one of them, or the name of one as task.features",
                found=", ".join(p.name for p in fitting),
            )
        fitting = named
    if fitting:
        made_here = name in FEATURES or name.startswith(
            ("run:", "clip:")
        )  # these come with the data, whatever they are
        return open_features(fitting[0], "" if made_here else name)
    if not clip_index.videos(folder):
        raise DataError(
            "there are neither features of the annotated videos nor the videos",
            where=str(folder),
            expected="an .npz file with ids, offsets and features, an h5 file, a folder of ID.npy files, or videos",
        )
    return make_moment_features(folder, make_features(name), fps)
