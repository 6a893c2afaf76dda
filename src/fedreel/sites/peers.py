"""The sites that a site sums with: their public keys, handed over by their owners and not by the server."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from fedreel.errors import FedreelError, PolicyError
from fedreel.machine.files import write_atomic
from fedreel.sites.keys import check_name, read_site_key

if TYPE_CHECKING:
    from fedreel.config import SecureConfig
    from fedreel.core.secure.work import ClientSums
    from fedreel.sites.site import SiteFolder

_FOLDER = "peers"


def add_peer(site: SiteFolder, public_key: Path, name: str | None = None, replace: bool = False) -> tuple[str, str]:
    """Believe the site whose `site.pub` this is; its name and its key's fingerprint. A key that is known under this
    name is not replaced unless that is wanted."""
    line, told = read_site_key(public_key)
    chosen = check_name(name, "--name") if name else told
    if chosen == site.config.name:
        raise FedreelError(f"'{chosen}' is this site's own name", where=str(public_key), hint="see --name")
    before = peers(site)
    if before.get(chosen, line) != line and not replace:
        raise FedreelError(
            f"another key is known for the site '{chosen}'",
            where=str(site.path / _FOLDER),
            found=f"{fingerprint(before[chosen])}; the new one is {fingerprint(line)}",
            hint="ask its owner whether the key has changed; if so, add --replace",
        )
    twin = next((known for known, key in before.items() if key == line and known != chosen), None)
    if twin or line == own_key(site):
        raise FedreelError(f"this is the key of '{twin or site.config.name}'", where=str(public_key))
    (site.path / _FOLDER).mkdir(exist_ok=True)
    write_atomic(site.path / _FOLDER / f"{chosen}.pub", f"{line} {chosen}\n")
    return chosen, fingerprint(line)


def peers(site: SiteFolder) -> dict[str, str]:
    """The public keys of the sites that this one believes, by name: that of the file."""
    return {path.stem: read_site_key(path)[0] for path in sorted((site.path / _FOLDER).glob("*.pub"))}


def own_key(site: SiteFolder) -> str:
    """This site's public key."""
    return read_site_key(site.path / "site.pub")[0]


def fingerprint(line: str) -> str:
    """Of a public key, as `ssh-keygen -lf site.pub` prints it: short enough to be read out on the telephone."""
    try:
        digest = hashlib.sha256(base64.b64decode(line.split()[1], validate=True)).digest()
    except (IndexError, binascii.Error) as error:
        raise FedreelError("this is not a site's public key", found=line[:80]) from error
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def site_sums(site: SiteFolder, config: SecureConfig, run: str, place: Path, min_cohort: int) -> ClientSums:
    """How this site's clients take part in secure sums: signed by its key, with the peers that it knows."""
    from fedreel.core.secure.crypto import read_signing_key
    from fedreel.core.secure.identity import KeyRing
    from fedreel.core.secure.work import ClientSums

    known = peers(site)
    if len(known) + 1 < min_cohort:
        raise PolicyError(
            f"this site knows the keys of {len(known)} others, too few for a secure sum",
            where=str(site.path / _FOLDER),
            expected=f"at least {min_cohort - 1}: min_cohort of its policy, itself among them",
            hint="fedreel site add-peer SITE.PUB, with the keys that their owners gave you",
        )
    ring = KeyRing.of(site.config.name, read_signing_key((site.path / "site.key").read_bytes()), known)
    return ClientSums(config, run, place / "secure", lambda client: ring)
