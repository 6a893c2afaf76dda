"""The server of a secure sum: passes messages on, adds masked vectors up, and takes off the masks of the whole sum."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from fedreel.core.secure.crypto import KEY, SIGNATURE, derived, public_of, shared_key
from fedreel.core.secure.masks import Vector, mask
from fedreel.core.secure.messages import (
    Directory,
    Entry,
    Rubbish,
    Session,
    parse,
    read_sealed,
    read_table,
    table_text,
    unhex,
)
from fedreel.core.secure.party import commitment, own_purpose, pair_purpose, sign_of
from fedreel.core.secure.shamir import SHARE, join
from fedreel.errors import RunError

_TRIES = 200  # choices of shares that are tried where one of them is false


class Collector:
    """What a server knows of a session. It gets each client's answers as text, and raises `Rubbish` for what is none;
    the same answers in the same sequence bring a new one to the same place."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.directory = Directory(session)
        self._commitments: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}  # by sender, then by receiver
        self._signatures: dict[str, bytes] = {}
        self._seeds: dict[str, dict[int, int]] = {}  # by whose they are: place -> share
        self._keys: dict[str, dict[int, int]] = {}

    @property
    def shared(self) -> list[str]:
        """Who has shared its secrets: whose masks the others' vectors hold."""
        return sorted(self._sealed)

    def take_keys(self, client: str, text: str) -> None:
        entry = Entry.read(parse(text))
        if entry.client != client or client not in self.session.cohort:
            raise Rubbish("keys of another client")
        self.directory = Directory.of(self.session, [*self.directory.values(), entry])

    def take_shares(self, client: str, text: str) -> None:
        match parse(text):
            case [str(committed), str(table)]:
                found = read_sealed(table, self.directory)
                if set(found) != set(self.directory) - {client}:
                    raise Rubbish("shares for others than those who take part")
                self._commitments[client], self._sealed[client] = unhex(committed, KEY), found
            case _:
                raise Rubbish("shares that are none")

    def delivery(self, client: str) -> str:
        """What the others sealed for a client."""
        return table_text({sender: self._sealed[sender][client] for sender in self._sealed if sender != client})

    def take_signature(self, client: str, text: str) -> None:
        self._signatures[client] = unhex(text, SIGNATURE)

    @property
    def signatures(self) -> str:
        return table_text(self._signatures)

    def take_opened(self, client: str, text: str, left: list[str]) -> None:
        lost = set(self._sealed) - set(left)
        match parse(text):
            case [str(of_seeds), str(of_keys)]:
                seeds, keys = read_table(of_seeds, SHARE, left), read_table(of_keys, SHARE, lost)
            case _:
                raise Rubbish("shares that are none")
        if set(seeds) != set(left) or set(keys) != lost:
            raise Rubbish("shares of others than were asked for")
        place = self.session.place(client)
        for found, kept in ((seeds, self._seeds), (keys, self._keys)):
            for owner, share in found.items():
                kept.setdefault(owner, {})[place] = int.from_bytes(share, "big")

    def unmask(self, total: Vector, left: list[str], sent: bytes) -> None:
        """Take all masks off the sum of those who are left, in place."""
        bound = self.directory.digest, sent
        for client in left:
            seed = self._joined(client, self._seeds, lambda s, c=client: self._is_seed(c, s))  # type: ignore[misc]
            mask(total, derived(seed, own_purpose(*bound, client)), -1)
        for client in sorted(set(self._sealed) - set(left)):
            public = self.directory[client].masking
            secret = self._joined(client, self._keys, lambda s, p=public: public_of(s) == p)  # type: ignore[misc]
            for other in left:
                key = shared_key(secret, self.directory[other].masking, pair_purpose(*bound))
                mask(total, key, -sign_of(self.session, other, client))

    def _is_seed(self, client: str, seed: bytes) -> bool:
        return commitment(self.session, client, seed) == self._commitments[client]

    def _joined(self, client: str, shares: Mapping[str, Mapping[int, int]], good: Callable[[bytes], bool]) -> bytes:
        """A client's secret. Where shares are false, others are tried while there are more than enough."""
        found, needed = shares.get(client, {}), self.directory.threshold
        for places in itertools.islice(itertools.combinations(sorted(found), needed), _TRIES):
            secret = join({place: found[place] for place in places})
            if secret < 1 << (8 * KEY) and good(secret.to_bytes(KEY, "big")):
                return secret.to_bytes(KEY, "big")
        raise RunError(
            f"the sum of round {self.session.round} cannot be opened",
            expected=f"{needed} true shares of what client '{client}' hid its part with",
            found=f"{len(found)} shares",
            hint="a client has answered falsely, or too few have answered; the last checkpoint stands: --resume",
        )
