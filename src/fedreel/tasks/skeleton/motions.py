"""Sets of recorded motions: which format a file or folder has, and everything that can be read from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedreel.errors import DataError
from fedreel.tasks.skeleton import npz, ntu, pickled, pku, uestc
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.recordings import Malformed, Motion, MotionSet, Unusable, with_bodies

__all__ = ["Motion", "MotionSet", "Unusable", "find_sets", "read_motion", "read_set", "set_files"]

_FORMATS = (
    "an .npz file, a .pkl file of pyskl's, or a folder with SsssCcccPpppRrrrAaaa.skeleton files (NTU), with "
    "aN_dN_pNNN_cN_skeleton.txt files (UESTC), with a folder of skeletons NAME-L.txt and one of labels of the same "
    "names (PKU-MMD), or with SIDE_position.npy and SIDE_label.pkl files (AimCLR, CrosSCLR)"
)
_NTU_PARTS = "nturgb+d_skeletons"  # NTU-120 comes as two folders whose names begin so


def find_sets(source: Path) -> list[Path]:
    """The sets at a place: the file or folder itself if it is one, otherwise those directly in it, by name. A folder
    whose only set is one folder is itself that set."""
    if _kinds(source) if source.is_file() else _itself(source):
        return [source]
    inside = sorted(source.iterdir()) if source.is_dir() else []
    found = [p for p in inside if not p.name.startswith(".") and _kinds(p)]
    if not found:
        raise DataError("there are no skeletons here", where=str(source), expected=f"{_FORMATS}; or a folder of these")
    folders = [p for p in found if p.is_dir()]
    if folders == found and (len(found) == 1 or all(p.name.startswith(_NTU_PARTS) for p in found)):
        return [source]
    return found


def is_skeletons(source: Path) -> bool:
    """Whether there are sets of skeletons at a place."""
    try:
        return bool(find_sets(source))
    except DataError:
        return False


def read_set(path: Path) -> MotionSet:
    """One set, whatever its format. What cannot be used is left out and listed."""
    kind = _kind(path)
    if kind == "npz":
        return npz.read(path)
    if kind in ("pyskl", "arrays"):
        return pickled.read_pyskl(path) if kind == "pyskl" else pickled.read_arrays(path)
    if kind == "pku" and (layout := pku.find(path)):
        return pku.read(path, layout)
    return ntu.read(path) if kind == "ntu" else uestc.read(path)


def set_files(path: Path) -> list[Path]:
    """All files that a set consists of."""
    kind = _kind(path)
    if kind == "pku" and (layout := pku.find(path)):
        return pku.files(layout)
    if kind == "arrays":
        return [file for pair in pickled.find_arrays(path) for file in pair]
    return [path] if kind in ("npz", "pyskl") else (ntu if kind == "ntu" else uestc).files(path)


def read_motion(path: Path | str) -> tuple[np.ndarray, tuple[str, ...]]:
    """One recording (T, M, V, 3) and the names of its joints, from one file: NTU's .skeleton, UESTC's or PKU-MMD's
    .txt, .npz (FILE.npz#NAME if it holds several)."""
    place, mark, name = str(path).rpartition(".npz#")
    path = Path(place + ".npz" if mark else path).expanduser()
    if not path.is_file():
        raise DataError("there is no such file", where=str(path))
    if path.suffix == ".npz":
        return npz.read_one(path, name if mark else "")
    readers = {".skeleton": ntu.read_frames, ".mat": uestc.read_frames, ".txt": _read_text}
    if path.suffix not in readers:
        raise DataError(
            "this is no file of skeletons", where=str(path), expected=".skeleton, .txt, .mat or .npz", found=path.suffix
        )
    try:
        return with_bodies(readers[path.suffix](path)), KINECT_V2.names
    except Malformed as fault:
        line = f", line {fault.line}" if fault.line else ""
        raise DataError("this recording cannot be used", where=f"{path}{line}", found=fault.reason) from fault


def _read_text(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    return uestc.read_frames(path) if start.startswith(b"#") else pku.read_frames(path)


def _kind(path: Path) -> str:
    kinds = _kinds(path)
    if len(kinds) == 1:
        return kinds.pop()
    if kinds:
        raise DataError("this folder holds several sets", where=str(path), found=", ".join(sorted(kinds)))
    raise DataError("this is no set of skeletons", where=str(path), expected=_FORMATS)


def _kinds(path: Path) -> set[str]:
    """The formats of a file, or of all that is below a folder."""
    if path.is_file():
        return {"pyskl"} if pickled.is_pyskl(path) else {"npz"} & {path.suffix[1:]}
    kinds = {_kind_of_file(p.name) for p in path.rglob("*")} if path.is_dir() else set()
    kinds |= {kind for kind, there in (("pku", pku.find(path)), ("arrays", pickled.find_arrays(path))) if there}
    return kinds - {""}


def _itself(folder: Path) -> bool:
    """Whether a folder is a set without any folder inside being one."""
    if not folder.is_dir():
        return False
    arrays = any(data.parent == folder for data, _ in pickled.find_arrays(folder))
    return arrays or pku.find(folder) is not None or any(_kind_of_file(p.name) for p in folder.iterdir())


def _kind_of_file(name: str) -> str:
    if name.endswith(ntu.SUFFIX):
        return "ntu"
    return "uestc" if uestc.NAME.fullmatch(name) else ""
