"""Where BlazePose's weights are: the npm package @mediapipe/pose, as its tarball or unpacked."""

from __future__ import annotations

import hashlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from fedreel.errors import DataError, RecipeError, nearest
from fedreel.machine.cache import cache_folder

PLACE = "FEDREEL_POSE"  # the environment variable that names the tarball or the folder
PACKAGE = "@mediapipe/pose@0.5.1675469404"
DETECTOR = "pose_solution_packed_assets.data"  # nothing but pose_detection.tflite is packed into it
DETAILS = ("lite", "full", "heavy")


@dataclass(frozen=True)
class Weights:
    """The two networks as TensorFlow Lite files, where they are from, and a fingerprint of both."""

    detector: bytes
    landmarks: bytes
    place: Path

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.detector + self.landmarks).hexdigest()[:16]


def find_weights(detail: str, given: Path | None = None) -> Weights:
    """The networks of this detail: from the tarball or folder given or, if none is, from that which FEDREEL_POSE names,
    or else from the folder `pose` of the cache."""
    if detail not in DETAILS:
        raise RecipeError(f"there is no detail '{detail}'", expected=", ".join(DETAILS), hint=nearest(detail, DETAILS))
    named = os.environ.get(PLACE)
    place = (given or (Path(named) if named else cache_folder() / "pose")).expanduser()
    wanted = (DETECTOR, f"pose_landmark_{detail}.tflite")
    if place.is_dir() and (packed := sorted(place.glob("mediapipe-pose-*.tgz"))):
        place = packed[-1]
    found = _unpacked(place, wanted) if place.is_file() else [_in_folder(place, name) for name in wanted]
    for name, content in zip(wanted, found):
        if content is None or content[4:8] != b"TFL3":
            raise _missing(place, name, content)
    detector, landmarks = found
    assert detector is not None
    assert landmarks is not None
    return Weights(detector, landmarks, place)


def _in_folder(folder: Path, name: str) -> bytes | None:
    """Of a folder with the files, or with the folder `package` that a tarball holds."""
    return next((path.read_bytes() for path in (folder / name, folder / "package" / name) if path.is_file()), None)


def _unpacked(tarball: Path, names: tuple[str, ...]) -> list[bytes | None]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(tarball) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in names and member.isfile() and (file := archive.extractfile(member)):
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(
            "these weights cannot be read", where=str(tarball), expected="a tarball of npm's", found=str(error)
        ) from error
    return [found.get(name) for name in names]


def _missing(place: Path, name: str, content: bytes | None) -> DataError:
    home = cache_folder() / "pose"
    return DataError(
        "BlazePose's weights are not here",
        where=str(place),
        expected=f"the file {name} of the npm package @mediapipe/pose, in its tarball or unpacked",
        found="a file that is no TensorFlow Lite model" if content else "none" if place.exists() else "no such place",
        hint=f"mkdir -p {home} && npm pack {PACKAGE} --pack-destination {home}; or give --weights, or set {PLACE}",
    )
