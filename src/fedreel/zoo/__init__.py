"""Models that come with the package: what there is, which one a verb uses unasked, and what a user's --model names.

An entry is a folder: about.toml, card.md, and a run directory cut down to what using its model needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.config import read_toml
from fedreel.errors import RunError, nearest

HERE = Path(__file__).parent
ABOUT, CARD = "about.toml", "card.md"
MOST = 15_000_000  # bytes of all entries together
EXPECTED = "the name of a model that comes with fedreel, a run directory, or the folder model/ in one"


@dataclass(frozen=True)
class Entry:
    """What `fedreel models` tells of a model: the first four are sentences."""

    does: str
    data: str
    licence: str
    result: str
    verbs: tuple[str, ...]  # that can use it
    unasked: tuple[str, ...]  # of them, those that do where no --model is given
    weights: str  # its largest file, below the folder
    sha256: str  # of that file
    name: str

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def card(self) -> str:
        """Its data, method, command, numbers and limits, in words."""
        return (self.folder / CARD).read_text(encoding="utf-8")


def names() -> list[str]:
    """Of all models that come with the package."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{ABOUT}"))


def entry(name: str) -> Entry:
    if name not in names():
        raise RunError("no model of this name comes with fedreel", where=name, hint=nearest(name, names()))
    told: dict[str, Any] = read_toml(HERE / name / ABOUT)
    lists = {key: tuple(value) for key, value in told.items() if isinstance(value, list)}
    return Entry(**{**told, **lists, "name": name})


def entries() -> list[Entry]:
    return [entry(name) for name in names()]


def unasked(verb: str) -> Entry:
    """The model that a verb uses where none is given."""
    found = next((one for one in entries() if verb in one.unasked), None)
    if found is None:
        hint = "fedreel run --out FOLDER trains one"
        raise RunError("no model comes with fedreel for this", where=verb, expected="--model FOLDER", hint=hint)
    return found


def find_model(given: Path | str) -> Path:
    """The folder that a user's --model names. A model of the user's own comes before one of fedreel's with its name."""
    path, name = Path(given).expanduser(), str(given)
    if name in names() and not _holds_model(path):
        return HERE / name
    if path.exists() or len(path.parts) > 1:
        return path
    raise RunError("there is no such model", where=name, expected=EXPECTED, hint=nearest(name, names()))


def _holds_model(folder: Path) -> bool:
    return any((folder / file).is_file() for file in ("card.json", "model/card.json", "config.json", "recipe.toml"))
