"""Who comes to the gate: enrolled sites by the signatures that Flower has them send, and how much each may bring."""

from __future__ import annotations

import asyncio
import binascii
import datetime
import shutil
import time
from base64 import b64decode
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PushMessagesRequest

KEY, TIME, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"  # headers of Flower's sites
_PUSH = "/v1/fleet/push-messages"
_CLOCK = 330.0  # seconds that clocks may differ; the SuperLink itself is stricter
_HOUR = 3600.0
_AT_ONCE = 8  # requests of one site whose bodies are in memory at the same time
_ROOM = 1 << 30  # bytes of the disk that stay free


class Visitors:
    """The sites that are enrolled in a server's folder, and what each has brought in the last hour."""

    def __init__(self, folder: Path, hourly: float) -> None:
        """`hourly` is how many bytes a site may bring in an hour; 0: any number."""
        self.folder, self.hourly = folder, hourly
        self._keys: dict[Path, tuple[int, bytes]] = {}
        self._brought: dict[str, deque[tuple[float, int]]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}

    def who(self, headers: Mapping[str, str]) -> str | None:
        """The site that signed this request, told by its head alone; None if nobody did whom we know."""
        try:
            given, signature = (b64decode(headers[name], validate=True) for name in (KEY, SIGNATURE))
            moment = headers[TIME]
            age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(moment)
            name = next((site for site, key in self._enrolled().items() if key == given), None)
            if name is None or abs(age.total_seconds()) > _CLOCK:
                return None
            key = serialization.load_pem_public_key(given)
            assert isinstance(key, ec.EllipticCurvePublicKey)  # it is enrolled
            key.verify(signature, moment.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, OverflowError, binascii.Error, InvalidSignature):
            return None
        return name

    def turn(self, site: str) -> asyncio.Semaphore:
        """To be held while a request's body is read and passed on."""
        return self._turns.setdefault(site, asyncio.Semaphore(_AT_ONCE))

    def over_quota(self, site: str) -> bool:
        """Whether the site has brought its share of this hour."""
        brought, now = self._brought.setdefault(site, deque()), time.monotonic()
        while brought and now - brought[0][0] > _HOUR:
            brought.popleft()
        return self.hourly > 0 and sum(size for _, size in brought) >= self.hourly

    def brought(self, site: str, size: int) -> None:
        self._brought.setdefault(site, deque()).append((time.monotonic(), size))

    def is_full(self) -> bool:
        """Whether the disk has no room for what sites bring: the SuperLink keeps it there."""
        return shutil.disk_usage(self.folder).free < _ROOM

    def _enrolled(self) -> dict[str, bytes]:
        """Names and keys as Flower sends them; a file is read again when it has changed."""
        found = {}
        for path in (self.folder / "sites").glob("*.pub"):
            changed = path.stat().st_mtime_ns
            if path not in self._keys or self._keys[path][0] != changed:
                key = serialization.load_ssh_public_key(" ".join(path.read_text().split()[:2]).encode())
                formats = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                self._keys[path] = (changed, key.public_bytes(*formats))
            found[path.stem] = self._keys[path][1]
        return found


def is_its_own(path: str, body: bytes) -> bool:
    """Whether a request answers for nobody but its sender. The SuperLink knows by the key which node sends a request,
    and takes an answer from the node that was asked; that the two are one it does not check."""
    if path != _PUSH:
        return True
    try:
        request = PushMessagesRequest.FromString(body)
    except Exception:  # protobuf's own: what cannot be read is nobody's
        return False
    return all(message.metadata.src_node_id == request.node.node_id for message in request.messages_list)
