"""Who signs for the clients of a secure sum: a site with its enrolled key, or, in a simulation, keys of the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedreel.core.secure.crypto import new_signing_key, public_line, read_signing_key, sign, signed, write_signing_key
from fedreel.errors import RunError
from fedreel.machine.files import file_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True)
class KeyRing:
    """A signing key, and the public keys of those who are believed: name -> line of a `site.pub`."""

    site: str
    key: EllipticCurvePrivateKey
    known: Callable[[str], str | None]

    @staticmethod
    def of(site: str, key: EllipticCurvePrivateKey, peers: Mapping[str, str]) -> KeyRing:
        lines = {**peers, site: public_line(key)}
        return KeyRing(site, key, lines.get)

    def sign(self, statement: bytes) -> bytes:
        return sign(self.key, statement)

    def believes(self, site: str, statement: bytes, signature: bytes) -> bool:
        line = self.known(site)
        return line is not None and signed(line, statement, signature)


def run_identity(folder: Path, client: str) -> KeyRing:
    """Of a client on this machine, where every client is a site of its own. All keys lie in one folder, for several
    processes: this protects nobody, it only makes a simulation what it simulates."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{file_name(client)}.key"
    if not path.exists():
        _make(path)
    try:
        key = read_signing_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError("a client's key cannot be read", where=str(path), found=str(error), hint="delete it") from error
    return KeyRing(client, key, lambda name: _line(folder / f"{file_name(name)}.pub"))


def _make(path: Path) -> None:
    """The public key first: whoever sees the private one finds both. Only one process works for a client at a time."""
    key = new_signing_key()
    path.with_suffix(".pub").write_text(public_line(key))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(write_signing_key(key))


def _line(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
