"""Jobs at a site: those that its policy allows, those that its owner has approved or refused, and those that wait."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedreel.config import DataConfig, Recipe, as_table
from fedreel.core.job_rules import JobRules, Waiting
from fedreel.errors import FedreelError, PolicyError, nearest
from fedreel.fields import filled, texts_of
from fedreel.machine.files import file_name, write_atomic
from fedreel.machine.records import parse_json
from fedreel.registry import METHODS, TASKS

_MOST_WAITING = 100  # jobs: a server does not fill the disk with them
_MOST_ALLOWED = 500  # that nobody was asked about; the oldest are forgotten
_MOST_TEXT = 1 << 20  # characters of a recipe
_ELSEWHERE = (
    "source",
    "public",
    "owner",
    "memory",
    "quality",
    "size",
)  # [data]: not a site's concern
_COUNTED = ("fraction", "evaluate_every")  # [round]: what a private job comes to depends on it
_DIVISION = ("seed", "test_share", "validate", "fold", "partition")


@dataclass(frozen=True)
class JobNote:
    """What a site notes of a job. `state` is waiting, allowed (by the policy), approved or refused."""

    digest: str
    title: str
    rounds: int
    epochs: int
    role: str
    state: str
    since: float
    runs: tuple[str, ...] = ()


class Approvals:
    """The jobs in a site's folder, and the rules of its policy."""

    def __init__(self, folder: Path, rules: JobRules) -> None:
        self.folder, self.rules = folder / "jobs", rules
        self._runs, self._divisions = folder / "runs", folder / "divisions.json"

    def permit(self, recipe: Recipe, run: str) -> None:
        """Raise unless this job may be worked for; `Waiting` if its owner has to say so first. Nothing that the recipe
        names is opened."""
        self.rules.check(recipe)
        note = self._noted(recipe, run)
        begun = self._runs / file_name(run) / "job"
        if begun.exists() and begun.read_text() != note.digest:  # what clients keep for a run is for no other job
            raise PolicyError("this run has begun with another recipe")
        if note.state == "refused":
            raise PolicyError("this site's owner has refused the job")
        reason = "" if note.state == "approved" else self._reason_to_wait(note, recipe)
        if reason:
            self._write(replace(note, state="waiting"), recipe)
            raise Waiting(reason, hint=f"at the site: fedreel site approve {note.digest[:12]}")
        self._write(note if note.state == "approved" else replace(note, state="allowed"), recipe)
        self._keep_division(recipe)
        if not begun.exists():
            begun.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(begun, note.digest)

    def decide(self, which: str, state: str) -> JobNote:
        """Approve or refuse a job, by the beginning of its digest, or by its recipe before it has come."""
        from fedreel.config import load_recipe, recipe_names

        if which.endswith(".toml") or which in recipe_names():
            recipe = load_recipe(which)
            note = replace(self._noted(recipe, ""), state=state)
            self._write(note, recipe)
            return note
        found = [note for note in self.all() if note.digest.startswith(which)]
        if len(found) != 1:
            known = [note.digest[:12] for note in self.all()]
            raise FedreelError(
                f"{'no job' if not found else 'more than one job'} begins with '{which}'",
                where=str(self.folder),
                expected="the beginning of a job's digest as `fedreel site jobs` lists them, or a recipe",
                hint=nearest(which, known),
            )
        self._write(replace(found[0], state=state))
        return replace(found[0], state=state)

    def state_of(self, recipe: Recipe) -> str:
        """What will become of a job when it comes, in words."""
        note = self._noted(recipe, "")
        if note.state in ("approved", "refused"):
            return f"{note.state} by the site's owner"
        return "waits for approval" if self._reason_to_wait(note, recipe) else "allowed by the policy"

    def all(self) -> list[JobNote]:
        """Every job that has come, the oldest first."""
        return sorted(self._all(), key=lambda note: note.since)

    def recipe_of(self, note: JobNote) -> Path:
        """The recipe as it came, to look at: fedreel site check."""
        return self.folder / f"{note.digest}.toml"

    def _all(self) -> Iterator[JobNote]:
        for path in self.folder.glob("*.json"):
            yield self._read(path.stem)

    def _read(self, digest: str) -> JobNote:
        path = self.folder / f"{digest}.json"
        try:
            told = parse_json(path.read_text())
            return JobNote(**{**told, "runs": tuple(told["runs"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FedreelError(
                "the note of a job cannot be read", where=str(path), found=str(error), hint="delete it: the job waits"
            ) from error

    def _noted(self, recipe: Recipe, run: str) -> JobNote:
        digest = job_digest(recipe)
        if (self.folder / f"{digest}.json").exists():
            note = self._read(digest)
            return note if not run or run in note.runs else replace(note, runs=(*note.runs, run)[-20:])
        title = f"{recipe.method['name']} on {recipe.task['name']}"
        runs = (run,) if run else ()
        rounds, epochs = recipe.round.rounds, recipe.train.epochs
        return JobNote(digest, title, rounds, epochs, recipe.data.role, "waiting", round(time.time(), 1), runs)

    def _reason_to_wait(self, note: JobNote, recipe: Recipe) -> str:
        """Tests of the same samples in many divisions tell of single ones: so many are allowed unasked."""
        if not self.rules.allows(note.title, note.digest):
            return "this site's owner has not approved the job yet"
        known = self._known_divisions().get(recipe.data.role, [])
        if self.rules.divisions and division(recipe) not in known and len(known) >= self.rules.divisions:
            return "the job divides the data for testing in another way, which the site's owner has not approved yet"
        return ""

    def _write(self, note: JobNote, recipe: Recipe | None = None) -> None:
        """Note a job, unless this is noted already."""
        path = self.folder / f"{note.digest}.json"
        if path.exists() and self._read(note.digest) == note:
            return
        if not path.exists() and sum(known.state == "waiting" for known in self._all()) >= _MOST_WAITING:
            raise PolicyError("too many jobs wait for this site's owner already")
        self.folder.mkdir(parents=True, exist_ok=True)
        unasked = [known for known in self.all() if known.state == "allowed"]
        for old in unasked[: max(0, len(unasked) - _MOST_ALLOWED)]:
            for file in (self.recipe_of(old), self.folder / f"{old.digest}.json"):
                file.unlink(missing_ok=True)
        if recipe is not None and not self.recipe_of(note).exists():
            text = tomli_w.dumps(as_table(recipe))
            if len(text) > _MOST_TEXT:
                raise PolicyError("this recipe is too long to be looked at")
            write_atomic(self.recipe_of(note), text)
        write_atomic(path, json.dumps(asdict(note)))

    def _known_divisions(self) -> dict[str, list[str]]:
        """Role -> digests of the ways in which jobs have divided its data."""
        return json.loads(self._divisions.read_text()) if self._divisions.exists() else {}

    def _keep_division(self, recipe: Recipe) -> None:
        known = self._known_divisions()
        mine = known.setdefault(recipe.data.role, [])
        if division(recipe) not in mine:
            mine.append(division(recipe))
            write_atomic(self._divisions, json.dumps(known))


def job_digest(recipe: Recipe) -> str:
    """Of all that a job is at a site: recipes that differ in nothing else, such as the engine, have the same."""
    task, method = TASKS.lookup(recipe.task["name"]), METHODS.lookup(recipe.method["name"])
    table = as_table(recipe)
    told = {
        "seed": recipe.seed,
        "task": {"name": recipe.task["name"], **filled(task, recipe.task)},
        "method": {"name": recipe.method["name"], **filled(method, recipe.method)},
        "data": {key: value for key, value in table["data"].items() if key not in _ELSEWHERE},
        "train": table["train"],
        "rounds": recipe.round.rounds,
        "privacy": recipe.privacy and {**table["privacy"], **{name: table["round"][name] for name in _COUNTED}},
        **({"secure": table["secure"]} if recipe.secure.sums else {}),
    }
    for name in getattr(task, "from_data", ()):  # it is the number of data.labels
        told["task"].pop(name, None)
    return _digest(told)


def division(recipe: Recipe) -> str:
    """Of all by which a recipe says which samples are for training and which for testing."""
    told: dict[str, Any] = {name: getattr(recipe.data, name) for name in _DIVISION}
    sections = (DataConfig, vars(recipe.data)), (TASKS.lookup(recipe.task["name"]), recipe.task)
    for cls, table in sections:
        dividing = [name for name, text in texts_of(cls).items() if text is not None and text.divides]
        told |= {name: table[name] for name in dividing if table.get(name)}
    return _digest(told)[:16]


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(_plain(told), sort_keys=True).encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """As it is after a journey through TOML and JSON, where 1 and 1.0 may take turns."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return float(value) if type(value) is int and abs(value) < 2**53 else value
