"""A client of a secure sum: five answers, each given once, and only to a server that tells everybody the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from fedreel.core.secure.crypto import KEY, SIGNATURE, derived, new_secret, public_of, seal, shared_key, unseal
from fedreel.core.secure.masks import Vector, mask
from fedreel.core.secure.messages import (
    Directory,
    End,
    Entry,
    Rubbish,
    Session,
    digest,
    purpose,
    read_names,
    read_sealed,
    read_table,
    table_text,
)
from fedreel.core.secure.shamir import SHARE, split
from fedreel.errors import PolicyError


class Distrust(PolicyError):
    """A client does not answer, because what the server says cannot all be true, or would open too much."""


class Identity(Protocol):
    """Who signs for a client, and whose signatures it believes."""

    @property
    def site(self) -> str: ...

    def sign(self, statement: bytes) -> bytes: ...

    def believes(self, site: str, statement: bytes, signature: bytes) -> bool:
        """Whether the site of this name is known here and has signed the statement."""
        ...


@dataclass
class Kept:
    """What a client keeps of its newest session, secret. It is on disk before the answer leaves that it stands for."""

    session: str = ""
    channel: str = ""  # two secret keys and a seed
    masking: str = ""
    seed: str = ""
    directory: str = ""
    shares: dict[str, list[str]] = field(default_factory=dict)  # by client: of its masking key, of its seed
    shared: list[str] = field(default_factory=list)
    sent: str = ""  # a digest of what it was sent to train from
    order: list[int] = field(default_factory=list)  # the first order to train, whose repetition gives the same
    masked: str = ""  # a digest of the vector that left
    left: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)  # by phase

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Kept:
        return Kept(**json.loads(text))


class Party:
    """One client in one session. `kept` is what it kept before, `save` keeps it for good."""

    def __init__(
        self, client: str, identity: Identity, min_cohort: int, kept: Kept, save: Callable[[Kept], None]
    ) -> None:
        self.client, self.identity, self.min_cohort = client, identity, min_cohort
        self.kept, self._save = kept, save

    # the five answers

    def keys(self, session: Session) -> str:
        """Fresh public keys for this session, signed."""
        if self.kept.session == session.text:
            return self.kept.said["keys"]
        self._check_new(session)
        if self.client not in session.cohort or len(session.cohort) < self.min_cohort:
            raise Distrust(
                "this client does not take part in so small a sum",
                expected=f"a cohort of at least {self.min_cohort}, with this client among them",
            )
        channel, masking = new_secret(), new_secret()
        entry = Entry(self.client, self.identity.site, public_of(channel), public_of(masking), b"")
        signed = replace(entry, signature=self.identity.sign(entry.statement(session)))
        self.kept = Kept(session.text, channel.hex(), masking.hex())
        return self._say("keys", json.dumps(signed.row()))

    def shares(self, session: Session, directory: str) -> str:
        """Shares of this client's masking key and of its seed for every other one, sealed, and a digest by which the
        seed is known again."""
        self._check_same(session)
        if "shares" in self.kept.said:
            if self.kept.directory != directory:
                raise Distrust("the server has told this client of other keys before")
            return self.kept.said["shares"]
        peers = self._checked(session, directory)
        seed = new_secret()
        places = {client: session.place(client) for client in peers}
        secrets = bytes.fromhex(self.kept.masking), seed
        of_key, of_seed = (
            split(int.from_bytes(secret, "big"), peers.threshold, [*places.values()]) for secret in secrets
        )
        both = {c: (of_key[at].to_bytes(SHARE, "big"), of_seed[at].to_bytes(SHARE, "big")) for c, at in places.items()}
        sealed = {c: self._sealed(peers, c, b"".join(pair)) for c, pair in both.items() if c != self.client}
        self.kept.seed, self.kept.directory = seed.hex(), directory
        self.kept.shares = {self.client: [share.hex() for share in both[self.client]]}
        return self._say("shares", json.dumps([commitment(session, self.client, seed).hex(), table_text(sealed)]))

    def receive(self, session: Session, sealed: str) -> None:
        """What the others shared with this client: before it trains, so that it does not in vain."""
        self._check_same(session)
        peers = self._peers(session)
        found = read_sealed(sealed, set(peers) - {self.client})
        shared = sorted({*found, self.client})
        if self.kept.shared:
            if self.kept.shared != shared:
                raise Distrust("the server has told this client of others who take part before")
            return
        self._check_enough(session, shared)
        for client, text in found.items():
            both = self._unsealed(peers, client, text)
            self.kept.shares[client] = [both[:SHARE].hex(), both[SHARE:].hex()]
        self.kept.shared = shared
        self._save(self.kept)

    def mask(self, session: Session, sent: bytes, order: tuple[int, int], vector: Vector) -> None:
        """Hide a vector, in place. Under these masks nothing else ever leaves."""
        self._check_same(session)
        kept = self.kept
        if not kept.shared or kept.left or (kept.masked and kept.sent != sent.hex()):
            raise Distrust("this client has sent its part of this sum before, or cannot send it yet")
        peers = self._peers(session)
        bound = peers.digest, sent
        mask(vector, derived(bytes.fromhex(kept.seed), own_purpose(*bound, self.client)), 1)
        mine = bytes.fromhex(kept.masking)
        for other in kept.shared:
            if other != self.client:
                key = shared_key(mine, peers[other].masking, pair_purpose(*bound))
                mask(vector, key, sign_of(session, self.client, other))
        found = _vector_digest(vector)
        if kept.masked and kept.masked != found:
            raise Distrust("this client has sent another part of this sum before")
        kept.sent, kept.order, kept.masked = sent.hex(), kept.order or [*order], found
        self._save(kept)

    def agree(self, session: Session, left: str) -> str:
        """A signature under who is left, given for one list only."""
        self._check_same(session)
        names = read_names(left, self.kept.shared)
        if not self.kept.masked or self.client not in names:
            raise Distrust("this client has sent no part of this sum")
        if self.kept.left and self.kept.left != [*names]:
            raise Distrust("the server has told this client before that others are left")
        if "agree" in self.kept.said:
            return self.kept.said["agree"]
        self._check_enough(session, names)
        self.kept.left = [*names]
        return self._say("agree", self.identity.sign(self._end(session).statement(self.client)).hex())

    def open(self, session: Session, signatures: str) -> str:
        """Once enough of those who are left have signed the same: of each of them the share of its seed, of each who
        got lost the share of its masking key. Never both, of anybody."""
        self._check_same(session)
        if "open" in self.kept.said:
            return self.kept.said["open"]
        if not self.kept.left:
            raise Distrust("this client has not agreed to who is left")
        end, peers = self._end(session), self._peers(session)
        signed = [
            client
            for client, signature in read_table(signatures, SIGNATURE, self.kept.left).items()
            if self.identity.believes(peers[client].site, end.statement(client), signature)
        ]
        if len(signed) < peers.threshold:
            raise Distrust(
                "not enough clients have signed what the server told this one: it may have told them something else",
                expected=f"at least {peers.threshold} signatures under the same list, keys and model",
                found=f"{len(signed)}",
            )
        lost = [client for client in self.kept.shared if client not in self.kept.left]
        seeds = {client: bytes.fromhex(self.kept.shares[client][1]) for client in self.kept.left}
        keys = {client: bytes.fromhex(self.kept.shares[client][0]) for client in lost}
        return self._say("open", json.dumps([table_text(seeds), table_text(keys)]))

    def threshold(self, session: Session) -> int:
        """How many must be left at the end: with fewer this client opens nothing."""
        return self._peers(session).threshold

    # behind it

    def _say(self, phase: str, text: str) -> str:
        self.kept.said[phase] = text
        self._save(self.kept)
        return text

    def _check_new(self, session: Session) -> None:
        """One sum a round, and no round again whose sum this client has sent its part of."""
        if not self.kept.session:
            return
        before = Session.read(self.kept.session)
        forward = session.round > before.round or (session.round == before.round and not self.kept.masked)
        if session.run != before.run or session.start < before.start or not forward:
            raise Distrust(
                f"this client has sent its part of the sum of round {before.round} before",
                expected=f"round {before.round + 1} or later, or the same sum again",
                hint="a server that has lost its notes of a sum (RUN/secure) cannot have it again: start a new run",
            )

    def _check_same(self, session: Session) -> None:
        if self.kept.session != session.text:
            raise Distrust("this client has no keys for such a sum", expected="the sum that it gave its keys for")

    def _checked(self, session: Session, text: str) -> Directory:
        """The keys of all who take part, each signed by a site that is known here."""
        peers = Directory.read(session, text)
        if self.client not in peers or peers[self.client].row() != json.loads(self.kept.said["keys"]):
            raise Distrust("the server has replaced this client's keys")
        for entry in peers.values():
            if not self.identity.believes(entry.site, entry.statement(session), entry.signature):
                raise Distrust(
                    f"the keys of a client of site '{entry.site}' are not signed by a site that is known here",
                    expected="the site.pub of every site that takes part, in `peers`",
                    hint="fedreel site add-peer SITE.PUB, with the key that its owner gave you",
                )
        self._check_enough(session, peers, peers)
        return peers

    def _check_enough(self, session: Session, clients: Iterable[str], peers: Directory | None = None) -> None:
        known, names = peers or self._peers(session), [*clients]
        sites = {known[client].site for client in names}
        if len(names) < known.threshold or len(sites) < self.min_cohort:
            raise Distrust(
                "too few take part in the sum",
                expected=f"at least {known.threshold} clients, of at least {self.min_cohort} sites",
                found=f"{len(names)} clients of {len(sites)} sites",
            )

    def _peers(self, session: Session) -> Directory:
        if not self.kept.directory:
            raise Distrust("this client knows nobody's keys yet")
        return Directory.read(session, self.kept.directory)

    def _end(self, session: Session) -> End:
        directory, sent = self._peers(session).digest, bytes.fromhex(self.kept.sent)
        return End(session, directory, sent, tuple(self.kept.shared), tuple(self.kept.left))

    def _sealed(self, peers: Directory, to: str, text: bytes) -> bytes:
        bound = seal_purpose(peers.digest, self.client, to)
        return seal(shared_key(bytes.fromhex(self.kept.channel), peers[to].channel, bound), text, bound)

    def _unsealed(self, peers: Directory, sender: str, sealed: bytes) -> bytes:
        bound = seal_purpose(peers.digest, sender, self.client)
        key = shared_key(bytes.fromhex(self.kept.channel), peers[sender].channel, bound)
        found = unseal(key, sealed, bound)
        if found is None or len(found) != 2 * SHARE:
            raise Distrust(f"the shares of client '{sender}' were not sealed for this sum, these keys and this client")
        return found


def seal_purpose(directory: bytes, sender: str, to: str) -> bytes:
    return purpose("seal", directory, sender, to)


def pair_purpose(directory: bytes, sent: bytes) -> bytes:
    return purpose("pair", directory, sent)


def own_purpose(directory: bytes, sent: bytes, client: str) -> bytes:
    return purpose("own", directory, sent, client)


def sign_of(session: Session, client: str, other: str) -> int:
    """Of two clients that share a mask one adds it and the other takes it away."""
    return 1 if session.place(client) < session.place(other) else -1


def commitment(session: Session, client: str, seed: bytes) -> bytes:
    """By which the server sees that it has put a seed together as its owner made it."""
    if len(seed) != KEY:
        raise Rubbish("a seed of another length")
    return digest("seed", session.digest, client, seed)


def _vector_digest(vector: Vector) -> str:
    found = hashlib.sha256(vector.head.data)
    found.update(vector.body.data)
    return found.hexdigest()
