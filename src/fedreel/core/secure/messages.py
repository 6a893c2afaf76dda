"""What the parties of a secure sum say to each other: which sum it is, keys, sealed shares, who is left, shares."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from fedreel.core.secure.crypto import KEY, SIGNATURE
from fedreel.core.secure.shamir import SHARE
from fedreel.machine.records import parse_json

MOST_BY = 2  # weighings of the same updates in one sum: more of them would tell single updates apart
_PROTOCOL = "fedreel secure sum 1"
_SEALED = 12 + 2 * SHARE + 16  # bytes of two sealed shares


class Rubbish(ValueError):
    """A message that no party would send."""


@dataclass(frozen=True)
class Session:
    """One sum, of the models that a cohort trains in one round of a run. Of each round there is one, whatever happens;
    `start` is that of the server when it began. All keys and masks are bound to it."""

    run: str
    start: int
    round: int
    cohort: tuple[str, ...]
    by: tuple[str, ...]

    def __post_init__(self) -> None:
        if list(self.cohort) != sorted(set(self.cohort)) or not 1 <= len(self.by) <= MOST_BY:
            raise Rubbish("a cohort of different clients in their order, and one or two ways to weigh models")

    @property
    def threshold(self) -> int:
        """How many must be left at the end, at least: more than two thirds of the cohort."""
        return 2 * len(self.cohort) // 3 + 1

    def place(self, client: str) -> int:
        """Where its shares are taken: a number from 1 on."""
        return self.cohort.index(client) + 1

    @cached_property
    def digest(self) -> bytes:
        return digest(_PROTOCOL, self.text)

    @property
    def text(self) -> str:
        return json.dumps([self.run, self.start, self.round, self.cohort, self.by])

    @staticmethod
    def read(text: str) -> Session:
        match parse(text):
            case [str(run), int(start), int(round), list(cohort), list(by)]:
                if all(isinstance(name, str) and name for name in (*cohort, *by)):
                    return Session(run, start, round, tuple(cohort), tuple(by))
        raise Rubbish("a session that is none")


@dataclass(frozen=True)
class Entry:
    """A client's public keys of a session, signed by its site: one to seal shares for it, one to make masks with it."""

    client: str
    site: str
    channel: bytes
    masking: bytes
    signature: bytes

    def statement(self, session: Session) -> bytes:
        """What the site signs."""
        return digest("keys", session.digest, self.client, self.site, self.channel, self.masking)

    def row(self) -> list[str]:
        return [self.client, self.site, self.channel.hex(), self.masking.hex(), self.signature.hex()]

    @staticmethod
    def read(row: object) -> Entry:
        match row:
            case [str(client), str(site), str(channel), str(masking), str(signature)]:
                keys = unhex(channel, KEY), unhex(masking, KEY)
                return Entry(client, site, *keys, unhex(signature, SIGNATURE))
        raise Rubbish("keys that are none")


class Directory(dict[str, Entry]):
    """The keys of those who take part, by client. Its digest is what two clients must have in common."""

    def __init__(self, session: Session, entries: Iterable[Entry] = ()) -> None:
        super().__init__((entry.client, entry) for entry in entries)
        self.session = session

    @staticmethod
    def of(session: Session, entries: Iterable[Entry]) -> Directory:
        made = Directory(session, entries)
        keys = [key for entry in made.values() for key in (entry.channel, entry.masking)]
        if not set(made) <= set(session.cohort) or len(set(keys)) < len(keys):
            raise Rubbish("keys of others than the cohort, or the same key twice")
        return made

    @cached_property
    def digest(self) -> bytes:
        told = [[e.client, e.site, e.channel.hex(), e.masking.hex()] for _, e in sorted(self.items())]
        return digest("directory", self.session.digest, json.dumps(told))

    @cached_property
    def threshold(self) -> int:
        """How many must be left at the end, and open the sum together: so many that the server and all clients of one
        site cannot have the others agree on two ends."""
        largest = max(Counter(entry.site for entry in self.values()).values(), default=1)
        cohort = len(self.session.cohort)
        return min(cohort, max(self.session.threshold, (cohort + largest) // 2 + 1))

    @property
    def text(self) -> str:
        return json.dumps([entry.row() for _, entry in sorted(self.items())])

    @staticmethod
    @lru_cache(64)  # clients in one process read the same; nobody changes one
    def read(session: Session, text: str) -> Directory:
        rows = parse(text)
        if not isinstance(rows, list) or len(rows) > len(session.cohort):
            raise Rubbish("keys of more than the cohort")
        found = [Entry.read(row) for row in rows]
        if len({entry.client for entry in found}) < len(found):
            raise Rubbish("a client's keys twice")
        return Directory.of(session, found)


@dataclass(frozen=True)
class End:
    """What those who open a sum agree on: of which sum, who shared, who sent a masked vector, and what they were sent
    to train from."""

    session: Session
    directory: bytes
    sent: bytes
    shared: tuple[str, ...]
    left: tuple[str, ...]

    def statement(self, client: str) -> bytes:
        """What a client's site signs."""
        told = json.dumps([self.shared, self.left])
        return digest("end", self.session.digest, self.directory, self.sent, told, client)


def purpose(what: str, *parts: bytes | str) -> bytes:
    """A key's use, in which all that it is bound to is named."""
    return digest(what, *parts)


def digest(*parts: bytes | str) -> bytes:
    """SHA-256 of parts, each with its length, so that no two lists have the same."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.digest()


def parse(text: str | bytes) -> Any:
    try:
        return parse_json(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise Rubbish("a message that is not JSON") from error


def unhex(text: object, length: int) -> bytes:
    """Bytes as messages have them, so many of them."""
    try:
        data = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        data = b""
    if len(data) != length:
        raise Rubbish("bytes of another length")
    return data


def table_text(table: Mapping[str, bytes]) -> str:
    return json.dumps({name: data.hex() for name, data in sorted(table.items())})


def read_table(text: str, length: int, known: Iterable[str]) -> dict[str, bytes]:
    """Bytes by client, of clients that are known."""
    found = parse(text)
    if not isinstance(found, dict) or not set(found) <= set(known):
        raise Rubbish("a table of clients that are not known")
    return {client: unhex(data, length) for client, data in found.items()}


def read_sealed(text: str, known: Iterable[str]) -> dict[str, bytes]:
    """Sealed shares by client."""
    return read_table(text, _SEALED, known)


def read_names(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Different clients of those that are known, in their order."""
    found = parse(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Rubbish("no list of clients")
    if not set(found) <= set(known) or found != sorted(set(found)):
        raise Rubbish("clients that are not known, or in disorder")
    return tuple(found)
