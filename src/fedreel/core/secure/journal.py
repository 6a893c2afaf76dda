"""What a server notes of a secure sum, so that a run that was killed goes on with the same sum: there is no second."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fedreel.core.secure.masks import Vector
from fedreel.core.secure.messages import Session
from fedreel.core.state import KEEP_ROUNDS
from fedreel.errors import RunError
from fedreel.machine.files import write_atomic
from fedreel.machine.records import parse_json


class Journal:
    """The folder of one round's sum: `notes.json`, and the sum itself, masked and then open. A phase is in the notes
    when it is over, with the number of the last order that it took."""

    def __init__(self, folder: Path, round: int) -> None:
        self.folder = folder / f"round-{round:06d}"
        self._notes = self.folder / "notes.json"
        self._told: dict[str, Any] = self._read() if self._notes.exists() else {}
        for old in folder.glob("round-*"):  # clients do not answer for them any more, nor would a checkpoint ask
            if old.name < f"round-{max(0, round - KEEP_ROUNDS):06d}":
                shutil.rmtree(old, ignore_errors=True)

    @property
    def session(self) -> Session | None:
        return Session.read(self._told["session"]) if "session" in self._told else None

    def begin(self, session: Session) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._told = {"session": session.text, "phases": {}, "steps": {}}
        self._write()

    def said(self, phase: str) -> dict[str, str] | None:
        """What clients said in a phase that is over."""
        return self._told["phases"].get(phase)

    @property
    def step(self) -> int | None:
        """The number of the last order that belongs to a phase that is over."""
        return max(self._told["steps"].values(), default=None)

    def note(self, phase: str, said: dict[str, str], step: int, total: Vector | None = None) -> None:
        """A phase is over; after two of them there is a new sum, which is on disk before the note is."""
        if total is not None:
            write_atomic(self.folder / f"{phase}.sum", total.tobytes())
        self._told["phases"][phase], self._told["steps"][phase] = said, step
        self._write()

    def total(self, phase: str, head: int, bits: int) -> Vector:
        try:
            return Vector.frombytes((self.folder / f"{phase}.sum").read_bytes(), head, bits)
        except (OSError, ValueError) as error:
            raise RunError("a sum cannot be read", where=str(self.folder), found=str(error)) from error

    def forget(self, phase: str) -> None:
        """A sum that is of no use any more."""
        (self.folder / f"{phase}.sum").unlink(missing_ok=True)

    def _write(self) -> None:
        write_atomic(self._notes, json.dumps(self._told))

    def _read(self) -> dict[str, Any]:
        try:
            told = parse_json(self._notes.read_text())
            Session.read(told["session"])
            return {"session": told["session"], "phases": dict(told["phases"]), "steps": dict(told["steps"])}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(
                "the notes of a secure sum cannot be read",
                where=str(self._notes),
                found=str(error),
                hint="restore the file: clients give no second part of the same round's sum",
            ) from error
